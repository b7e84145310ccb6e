"""20,000 bent messages a side, without sockets, on virtual time: no exception, no wrong token, no lost robot."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

import pytest

from cloud_verifier.config import ServerConfig
from edge_drafter import Drafter, DraftingConfig, Mode, PacedModel, StepInterrupted, StepRequest, sources_of
from evaluation.virtual_time.timeline import Timeline
from speculation import wire
from speculation.vlm.load import Vlm
from speculation.vlm.session import VlmSession
from speculation.wire import (
    BeginStep,
    Busy,
    Commit,
    Draft,
    EarlyTokens,
    EndStep,
    Fault,
    FaultCode,
    Features,
    Fetch,
    Hello,
    Idle,
    Ping,
    Pong,
    Redirect,
    Welcome,
)
from tests.cloud_verifier.bench import HELLO, JPEG, Bench, tokens_of
from tests.cloud_verifier.fake_target import greedy
from tests.cloud_verifier.test_engine import PROMPTS, jpeg
from tests.edge_drafter.fakes import Weather
from tests.hostile import mutated
from tests.pair import CAPACITY, Post, Robot, StormyLink, run
from tests.test_exactness import alone

MESSAGES = 20_000
DIGEST = wire.begin_digest("long", JPEG)
GOOD = [
    wire.encode(message)
    for message in (
        HELLO,
        BeginStep(1, "long", JPEG, max_tokens=9, idle=Idle.DECODE),
        BeginStep(2, "find it", JPEG, [1, 2], 8, Idle.LEDGER, 2.0, [[3, 4]], 0, 5),
        Draft(1, 1, 0, DIGEST, [1, 2, 3]),
        Draft(1, 2, 0, DIGEST, [1, 2, 3, 4], [-1, 0, 0, 1]),
        EarlyTokens(1, 1, 0, 0, 5, 2, 0.5),
        Commit(1, 1, 0, [5, 3], DIGEST, False, 1, 0.1, 0.2, 0.3),
        Welcome("session", "model", "t" * 16, 6, 4, [1, 2], [0]),
        EndStep(1, "over"),
        Ping(7),
        Pong(7),
        Fault(FaultCode.INTERNAL, "why", 1),
        Fetch(1, 0, DIGEST),
        Busy(0.5, "no room", 1),
        Features(1, 0, [3, 4], bytes(24)),
        Redirect("tcp://127.0.0.1:9", "k" * 40, b"ticket", "drained"),
    )
]


def test_every_kind_of_message_is_bent() -> None:
    assert {wire.kind_of(payload) for payload in GOOD} == set(get_args(wire.AnyMessage))


def test_bent_messages_to_the_verifier(caplog: pytest.LogCaptureFixture) -> None:
    """From 800 peers, every other with a session; an honest robot asks in between."""
    bench = Bench(ServerConfig.of(Path("model"), max_sessions=4, early_rate=1000.0))
    rng = random.Random(13)
    bench.welcome(b"honest")
    for batch in range(MESSAGES // 25):
        peer = b"vandal %d" % batch
        if batch % 2:
            bench.send(peer, HELLO)
        for _ in range(25):
            bench.send(peer, mutated(GOOD, rng))
        step, prompt = batch + 1, f"question {batch}"
        before = len(bench.received(b"honest"))
        begin, asked = BeginStep(step, prompt, JPEG, max_tokens=6, idle=Idle.DECODE), 1
        bench.send(b"honest", begin)
        while not any(isinstance(message, Commit) and message.done for message in bench.received(b"honest")[before:]):
            bench.server.turn()
            busy = [message for message in bench.received(b"honest")[before:] if isinstance(message, Busy)]
            if len(busy) == asked:
                bench.send(b"honest", begin, after=busy[-1].retry_after_s)
                asked += 1
        assert tokens_of(bench.received(b"honest")[before:]) == greedy(prompt, JPEG, 6)
        bench.post.gone.add(peer)
        bench.post.sent = [each for each in bench.post.sent if each[1] == b"honest"][-20:]
    assert "could not be taken" not in caplog.text and "failed" not in caplog.text


@dataclass
class BentRobot(Robot):
    """Every message down comes with `bent` others made of it. What one of them ends is asked again."""

    bent: int = 20
    truths: list[list[int]] = field(default_factory=list)
    injected: int = 0
    interrupted: int = 0

    def run(self, timeline: Timeline, post: Post, name: str, target: Vlm) -> None:
        """Ask until MESSAGES bent messages have come."""
        rng = random.Random(7)
        link = _BentLink(timeline, post, name, self.weather, Hello(target.tokenizer_fingerprint, target.vocabulary))
        link.bend(self, rng)
        welcome = link.connect()
        session = VlmSession(self.draft, 2 * CAPACITY)
        model = PacedModel(session, self.draft_s, timeline.clock, timeline.sleep, self.draft.num_layers)
        drafter = Drafter(
            sources_of(self.config, model), link, self.config, timeline.clock, max_draft=welcome.max_draft
        )
        step, question, committed = 0, 0, ()
        while self.injected < MESSAGES:
            step += 1
            request = self.requests[question % len(self.requests)]
            truth = tuple(self.truths[question % len(self.requests)])
            try:
                result = drafter.run(replace(request, step=step, committed=committed))
            except StepInterrupted as stop:
                self.interrupted += 1
                committed = stop.committed
                assert committed == truth[: len(committed)]
            else:
                assert result.tokens == truth
                self.answers.append(result.tokens)
                question, committed = question + 1, ()


class _BentLink(StormyLink):
    """A link as `edge_drafter.link` is: what is malformed is dropped, what is of no step of ours is for the drafter."""

    _robot: BentRobot | None = None

    def bend(self, robot: BentRobot, rng: random.Random) -> None:
        """Begin to bend messages."""
        self._robot, self._rng = robot, rng

    def _deliver(self, payload: bytes, peer: bytes) -> None:
        robot, seen = self._robot, [payload, *GOOD]
        if robot is not None and not isinstance(wire.decode(payload), Welcome):
            for _ in range(robot.bent):
                robot.injected += 1
                source = seen if self._rng.random() < 0.2 else [payload]
                try:
                    message = wire.decode(mutated(source, self._rng))
                except wire.WireError:
                    continue
                if not isinstance(message, (Welcome, Ping, Pong)):
                    self._inbox.put(message)
        super()._deliver(payload, peer)


def test_bent_messages_to_the_edge(target: Vlm, draft: Vlm) -> None:
    questions = [StepRequest(1, PROMPTS[n], jpeg(n), target.eos, 16) for n in range(3)]
    truths = [alone(target, question) for question in questions]
    robot = BentRobot(draft, DraftingConfig.of(Mode.FULL), questions, Weather(0, 0.01), truths=truths)
    run(target, [robot], verify_s=0.02)
    assert robot.injected >= MESSAGES and robot.interrupted > 0 and len(robot.answers) > 10
