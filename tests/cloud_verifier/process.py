"""The real verifier as a process with a tiny random model, and raw robots that talk its protocol."""

from __future__ import annotations

import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import zmq

from speculation import wire
from speculation.exits import ExitHeads, Reliability
from speculation.vlm.load import load_vlm
from speculation.vlm.session import VlmSession
from speculation.wire import BeginStep, Commit, Draft, EarlyTokens, Hello, Ping, Pong, Working
from tests.cloud_verifier.test_engine import PROMPTS, jpeg
from tests.forked import Forked

ROOT_FOLDER = Path(__file__).resolve().parents[2]
ANSWER = 16
PATIENCE_MS = 60_000


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "cloud_verifier", *arguments]


@dataclass
class Verifier:
    """A running verifier and its log, which a thread reads: a full pipe would hold the verifier."""

    process: subprocess.Popen[str] | Forked
    address: str = ""
    log: list[str] = field(default_factory=list)
    _reader: threading.Thread | None = None

    def read(self) -> str:
        """Read the log until the verifier serves or has ended. Returns its address, empty if it ended."""
        serving: queue.Queue[str] = queue.Queue()

        def follow() -> None:
            assert self.process.stderr is not None
            for line in self.process.stderr:
                self.log.append(line.rstrip("\n"))
                if found := re.search(r"serving .* at (tcp://\S+),", line):
                    serving.put(found[1])
            serving.put("")

        self._reader = threading.Thread(target=follow, daemon=True)
        self._reader.start()
        return serving.get(timeout=120)

    def stop(self, signum: signal.Signals = signal.SIGTERM) -> int:
        """End it and return its exit code."""
        self.process.send_signal(signum)
        code = self.process.wait(60)
        assert self._reader is not None
        self._reader.join(60)
        return code


def figure(url: str, name: str) -> float:
    """Return the value of a series, with its labels, on the page /metrics; 0 where it is not there."""
    with urlopen(f"{url}/metrics", timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    found = (line for line in lines if line.startswith(f"spec_vlm_nav_{name} "))
    return float(next(found, "0").rpartition(" ")[2])


def frontends_of(pid: int) -> list[int]:
    """Return the frontend processes of a verifier's process."""
    children = Path(f"/proc/{pid}/task").glob("*/children")  # any thread may have started it
    return [int(each) for path in children for each in path.read_text().split()]


def is_there(pid: int) -> bool:
    """Return whether a process runs, and is no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def start(model: Path, *arguments: str, anew: bool = False, preexec_fn: Callable[[], None] | None = None) -> Verifier:
    """Start a verifier and wait until it serves. anew: by an interpreter of its own, which takes its time to import."""
    words = command("serve", "--model", str(model), "--bind", "tcp://127.0.0.1:*", *arguments)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    begin = partial(subprocess.Popen, stdout=subprocess.DEVNULL, text=True) if anew else Forked
    process = begin(words, cwd=ROOT_FOLDER, env=environment, stderr=subprocess.PIPE, preexec_fn=preexec_fn)
    verifier = Verifier(process)
    verifier.address = verifier.read()
    assert verifier.address, f"the verifier did not start: {verifier.log}"
    return verifier


class Robot:
    """A raw DEALER."""

    def __init__(self, address: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(address)
        self.early: list[EarlyTokens] = []
        self.commits: list[Commit] = []

    def send(self, message: wire.AnyMessage) -> None:
        self.socket.send(wire.encode(message))

    def receive(self) -> wire.AnyMessage:
        """Return the next message that is neither an early token nor word of work; answer pings on the way."""
        while True:
            assert self.socket.poll(PATIENCE_MS), "the verifier is silent"
            message = wire.decode(self.socket.recv())
            if isinstance(message, Ping):
                self.send(Pong(message.nonce))
            elif isinstance(message, EarlyTokens):
                self.early.append(message)
            elif not isinstance(message, Working):
                return message

    def close(self) -> None:
        self.socket.close()
        self.context.term()


@dataclass(frozen=True)
class Target:
    """What the tests know about the served model."""

    folder: Path
    hello: Hello
    truths: list[list[int]]


def make_target(tiny_target: Path, place: Path) -> Target:
    """Return the tiny model with exits beside it, and its own greedy answers in the verifier's dtype."""
    folder = shutil.copytree(tiny_target, place / "target")
    vlm = load_vlm(folder, dtype="float64")
    heads = ExitHeads(vlm, (1, 2), rank=4)
    heads.set_reliability({layer: Reliability((0.0, 1.0), (0.5,)) for layer in heads.layers})
    heads.save(folder.parent / "exits")
    session = VlmSession(vlm, 160)
    truths = [
        [token for token, _ in session.greedy(prompt, jpeg(number), ANSWER)] for number, prompt in enumerate(PROMPTS)
    ]
    return Target(folder, Hello(vlm.tokenizer_fingerprint, vlm.vocabulary, vlm.fingerprint), truths)


def answer_by_drafts(robot: Robot, number: int, truth: list[int], right: int, junk: int, step: int = 1) -> list[int]:
    """Answer one step by drafts of `right` true tokens and then `junk` wrong ones.

    The end of the prefill may commit the first token before a draft is there: whatever lengthens the answer gets the
    next draft, and what is known already is a repeated commit.
    """
    prompt, image = PROMPTS[number], jpeg(number)
    answer: list[int] = []
    digest, done, round = wire.begin_digest(prompt, image), False, 0
    robot.send(BeginStep(step, prompt, image, max_tokens=ANSWER))
    while not done:
        round += 1
        tokens = [*truth[len(answer) :][:right], *[(5 + round + i) % 50 for i in range(junk)]]
        robot.send(Draft(step, round, len(answer), digest, tokens))
        before = len(answer)
        while len(answer) == before and not done:
            commit = robot.receive()
            if isinstance(commit, Commit) and commit.step < step:
                continue
            assert isinstance(commit, Commit) and commit.start <= len(answer) and commit.round <= round, commit
            robot.commits.append(commit)
            answer += commit.tokens[len(answer) - commit.start :]
            if commit.start + len(commit.tokens) == len(answer):
                digest, done = commit.digest, commit.done
    return answer
