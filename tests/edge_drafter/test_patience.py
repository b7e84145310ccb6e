"""A robot's patience begins anew where its answer has grown, is longer where another verifier may go on, and counts
silence, not work: a question whose prefill takes longer ends all the same, with one prefill."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from cloud_verifier.door.supervisor import Door
from cloud_verifier.interfaces import ModelInfo
from cloud_verifier.server import Server
from edge_drafter import decoder
from edge_drafter.question import AnswerLate, VerifierLost
from edge_drafter.settings import Connection
from speculation.cancellation import Stop
from speculation.profiles import RAW
from speculation.vlm.load import Vlm
from speculation.wire import AnyMessage, BeginStep, Busy, Commit, begin_digest, extend_digest
from tests.cloud_verifier.bench import CONFIG, JPEG
from tests.cloud_verifier.fake_target import FakeEngine, greedy
from tests.cloud_verifier.test_engine import jpeg
from tests.edge_drafter.conftest import Robot
from tests.edge_drafter.test_busy import ANSWER, FullVerifier
from tests.edge_drafter.test_decoder import PROMPT


class Piecemeal(FullVerifier):
    """Turns so many steps away at `most`, after `each` tokens; `pass_s` seconds pass meanwhile."""

    def __init__(self, vlm: Vlm, each: int, most: int, pass_s: float) -> None:
        self.each, self.most, self.pass_s, self.more_s = each, most, pass_s, 0.0
        super().__init__(vlm, 0.05, hellos_refused=0, steps_refused=0)

    def now(self) -> float:
        return time.perf_counter() + self.more_s

    def _answer(self, peer: bytes, message: AnyMessage) -> None:
        if not isinstance(message, BeginStep):
            super()._answer(peer, message)
            return
        self.begun.append(message)
        start = len(message.committed)
        prefix = extend_digest(begin_digest(message.prompt, message.jpeg), message.committed)
        tokens = ANSWER[start : start + self.each]
        done = start + len(tokens) == len(ANSWER)
        if len(self.begun) > self.most:
            tokens, done = ANSWER[start:], True
        if tokens:
            self._reply(peer, Commit(message.step, 0, start, tokens, extend_digest(prefix, tokens), done))
        if not done:
            self.more_s += self.pass_s
            self._reply(peer, Busy(self._retry_s, "no room for the answer", message.step))


@pytest.fixture
def piecemeal(draft: Vlm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Piecemeal]]:
    """Starts such a verifier, by whose clock decoders are patient."""
    started: list[Piecemeal] = []

    def start(each: int, most: int = 1 << 30, pass_s: float = 10.0) -> Piecemeal:
        verifier = Piecemeal(draft, each, most, pass_s)
        started.append(verifier)
        monkeypatch.setattr(decoder, "time", SimpleNamespace(perf_counter=verifier.now, time_ns=time.time_ns))
        return verifier

    yield start
    for verifier in started:
        verifier.stop()


@pytest.mark.parametrize("each", [0, 1])
def test_a_full_verifier_is_lost_only_where_the_answer_stands_still(
    each: int, piecemeal: Callable[..., Piecemeal], robot: Robot
) -> None:
    verifier = piecemeal(each)
    edge = robot(verifier.address, mode="cloud", resume_s=15.0)
    edge.connect(20.0)
    if each:
        assert list(edge.decode(PROMPT, jpeg(0), 600.0).tokens) == ANSWER
        assert [len(begun.committed) for begun in verifier.begun] == [0, 1, 2, 3]
    else:
        with pytest.raises(VerifierLost, match="is full: no room for the answer"):
            edge.decode(PROMPT, jpeg(0), 600.0)
        assert 1 <= len(verifier.begun) <= 2


@pytest.mark.parametrize("others", ["", ",tcp://127.0.0.1:9"])
def test_a_step_waits_for_longer_where_another_verifier_may_go_on(
    others: str, piecemeal: Callable[..., Piecemeal], robot: Robot
) -> None:
    """As shipped: a door may send the robot twice to one that is frozen, which takes the robot's silence each time."""
    verifier = piecemeal(0, most=2, pass_s=4.0)
    edge = robot(verifier.address + others, mode="cloud", resume_s=Connection().resume_s)
    edge.connect(20.0)
    if others:
        assert list(edge.decode(PROMPT, jpeg(0), 600.0).tokens) == ANSWER
    else:
        with pytest.raises(VerifierLost, match="is full: no room for the answer"):
            edge.decode(PROMPT, jpeg(0), 600.0)


@dataclass
class SlowEyes(FakeEngine):
    """Encodes a frame in `encode_s` seconds in which nothing else runs, as a vision tower does on a CPU."""

    info: ModelInfo | None = None
    encode_s: float = 0.0
    encoded: int = 0

    @property
    def model(self) -> ModelInfo:
        return self.info or super().model

    def encode(self, index: int, stop: Stop | None = None) -> None:
        self.encoded += 1
        time.sleep(self.encode_s)
        super().encode(index, stop)


@contextmanager
def serving(engine: SlowEyes, hang_s: float) -> Iterator[str]:
    """Serve an engine behind a real door, in a thread, and give the address."""
    door = Door("tcp://127.0.0.1:*")
    server = Server(engine, CONFIG, RAW, door)
    thread = threading.Thread(target=server.run, args=(hang_s,))
    thread.start()
    try:
        yield door.address
    finally:
        server.stop()
        thread.join()
        door.close()


def slow(vlm: Vlm, encode_s: float) -> SlowEyes:
    info = replace(FakeEngine().model, tokenizer_fingerprint=vlm.tokenizer_fingerprint, vocabulary=vlm.vocabulary)
    return SlowEyes(info=info, encode_s=encode_s)


def test_a_prefill_that_takes_longer_than_patience_ends_with_an_answer(draft: Vlm, robot: Robot) -> None:
    """The verifier reads no message meanwhile, not even a ping: it says by another thread that it works."""
    engine = slow(draft, encode_s=3.0)
    with serving(engine, hang_s=60.0) as address:
        result = robot(address, mode="cloud", drafting="patience_s=1", max_tokens=8).decode(PROMPT, JPEG)
    assert list(result.tokens) == greedy(PROMPT, JPEG, 8)
    assert (engine.encoded, result.stats.interruptions) == (1, 0)


@pytest.mark.parametrize(
    ("hang_s", "deadline_s", "ends", "why"),
    [
        (1.0, 60.0, VerifierLost, "nothing received from"),
        (60.0, 2.0, AnswerLate, "within the deadline of 2 s; the verifier was at the frames"),
    ],
)
def test_a_verifier_that_hangs_is_lost_and_a_deadline_holds(
    hang_s: float, deadline_s: float, ends: type[Exception], why: str, draft: Vlm, robot: Robot
) -> None:
    engine = slow(draft, encode_s=5.0)
    with serving(engine, hang_s) as address:
        edge = robot(address, mode="cloud", resume_s=1.0)
        edge.connect(20.0)
        began = time.monotonic()
        with pytest.raises(ends, match=why):
            edge.decode(PROMPT, JPEG, deadline_s)
        assert engine.encoded == 1 and time.monotonic() - began < engine.encode_s
