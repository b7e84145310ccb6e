"""The real verifier as a process, with memory for one step and ten robots: real sockets, a real model."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cloud_verifier.memory import LEAST_WAIT_S, MOST_WAIT_S
from speculation import wire
from speculation.vlm.blocks import blocks_for
from speculation.vlm.cache import KVCache
from speculation.vlm.load import load_vlm
from speculation.wire import BeginStep, Busy, Commit, Draft, Fault, FaultCode, Idle, Ping, Pong, Welcome
from tests.cloud_verifier.process import ANSWER, Robot, Target, make_target, start
from tests.cloud_verifier.test_engine import PROMPTS, jpeg

ROBOTS, CAPACITY, MAX_DRAFT = 10, 128, 8
HANGS_S = 400.0
"""A test that takes so long never ends; no wait here comes near."""


@pytest.fixture(scope="module")
def target(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Target:
    """The tiny model with exits beside it."""
    return make_target(tiny_target, tmp_path_factory.mktemp("pair"))


class Client:
    """A robot that decodes or drafts, obeys Busy, and begins again where it stood; `turn` never blocks."""

    def __init__(self, number: int, address: str, target: Target) -> None:
        self.number, self.target, self.robot = number, target, Robot(address)
        self.step, self.round, self.done = 1, 0, 0
        self.answer: list[int] = []
        self.waits: list[float] = []
        self.again_at = float("inf")
        self.prompt = number % len(PROMPTS)
        self.idle = Idle.WAIT if number % 2 else Idle.DECODE
        self.robot.send(target.hello)

    @property
    def truth(self) -> list[int]:
        return self.target.truths[self.prompt]

    def turn(self, now: float) -> None:
        if now >= self.again_at:
            self.again_at = float("inf")
            self._begin()
        while self.robot.socket.poll(0):
            self._take(wire.decode(self.robot.socket.recv()), now)

    def _begin(self) -> None:
        fields = {"committed": list(self.answer), "max_tokens": ANSWER, "idle": self.idle}
        self.robot.send(BeginStep(self.step, PROMPTS[self.prompt], jpeg(self.prompt), **fields))
        self._draft()

    def _draft(self) -> None:
        """Send two right tokens and a wrong one."""
        if self.idle is Idle.WAIT:
            self.round += 1
            digest = wire.extend_digest(wire.begin_digest(PROMPTS[self.prompt], jpeg(self.prompt)), self.answer)
            tokens = [*self.truth[len(self.answer) :][:2], 3]
            self.robot.send(Draft(self.step, self.round, len(self.answer), digest, tokens))

    def _take(self, message: wire.AnyMessage, now: float) -> None:
        if isinstance(message, Welcome):
            self._begin()
        elif isinstance(message, Ping):
            self.robot.send(Pong(message.nonce))
        elif isinstance(message, Commit) and message.step == self.step:
            self.answer = [*self.answer[: message.start], *message.tokens]
            assert self.answer == self.truth[: len(self.answer)]
            if message.done:
                assert self.answer == self.truth
                self.done, self.step, self.answer = self.done + 1, self.step + 1, []
                self._begin()  # it goes on asking until all the others have an answer, too
            elif message.tokens:
                self._draft()
        elif isinstance(message, Busy):
            assert message.step == self.step, message
            self.waits.append(message.retry_after_s)
            self.again_at, self.step = now + message.retry_after_s, self.step + 1
        elif isinstance(message, Fault):
            assert message.code is FaultCode.NO_SESSION, message
            self.robot.send(self.target.hello)


def test_ten_times_as_many_robots_as_fit_get_their_own_tokens_and_times_to_return(target: Target) -> None:
    vlm = load_vlm(target.folder, dtype="float64")
    memory = (1 + blocks_for(CAPACITY)) * KVCache.block_bytes(vlm)
    flags = ("--capacity", str(CAPACITY), "--max-draft", str(MAX_DRAFT), "--max-sessions", str(ROBOTS))
    verifier = start(target.folder, "--dtype", "float64", "--policy", "full_budget", "--memory", str(memory), *flags)
    robots = [Client(number, verifier.address, target) for number in range(ROBOTS)]
    try:
        until = time.monotonic() + HANGS_S
        while not all(each.done for each in robots):
            assert time.monotonic() < until, f"a robot starves: {[each.done for each in robots]}"
            for each in robots:
                each.turn(time.monotonic())
            time.sleep(0.002)
        waits = [wait for each in robots for wait in each.waits]
        assert waits and all(LEAST_WAIT_S <= wait <= MOST_WAIT_S for wait in waits)
        assert verifier.stop() == 0
    finally:
        for each in robots:
            each.robot.close()
        if verifier.process.poll() is None:
            verifier.stop()
