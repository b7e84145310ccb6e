"""A robot's patience counts silence, not work: a question whose prefill takes longer ends with one prefill."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest

from cloud_verifier.frontend.supervisor import Frontend
from cloud_verifier.interfaces import ModelInfo
from cloud_verifier.machine import Machine
from cloud_verifier.server import Server
from edge_drafter.question import AnswerLate, VerifierLost
from speculation.cancellation import Stop
from speculation.vlm.model import Vlm
from tests.cloud_verifier.bench import CONFIG, JPEG
from tests.cloud_verifier.fake_target import FakeEngine, greedy
from tests.edge_drafter.conftest import Robot
from tests.edge_drafter.test_decoder import PROMPT
from tests.edge_drafter.waiting import LIMIT_S


@dataclass
class SlowEyes(FakeEngine):
    """Encodes a frame in `encode_s` seconds in which nothing else runs, as a vision tower does on a CPU."""

    info: ModelInfo | None = None
    encode_s: float = 0.0
    encoded: int = 0
    go_on: threading.Event = field(default_factory=threading.Event)
    """Ends the encoding before its time."""

    @property
    def model(self) -> ModelInfo:
        return self.info or super().model

    def encode(self, index: int, stop: Stop | None = None) -> None:
        self.encoded += 1
        self.go_on.wait(self.encode_s)
        super().encode(index, stop)


@contextmanager
def serving(engine: SlowEyes, hang_s: float) -> Iterator[str]:
    """Serve an engine behind a real frontend, in a thread, and give the address."""
    frontend = Frontend("tcp://127.0.0.1:*")
    server = Server(Machine(engine), CONFIG, frontend)
    thread = threading.Thread(target=server.run, args=(hang_s,))
    thread.start()
    try:
        yield frontend.address
    finally:
        engine.go_on.set()
        server.stop()
        thread.join()
        frontend.close()


def slow(vlm: Vlm, encode_s: float) -> SlowEyes:
    info = replace(FakeEngine().model, tokenizer_fingerprint=vlm.tokenizer_fingerprint, vocabulary=vlm.vocabulary)
    return SlowEyes(info=info, encode_s=encode_s)


def test_a_prefill_that_takes_longer_than_patience_ends_with_an_answer(draft: Vlm, robot: Robot) -> None:
    """The verifier reads no message meanwhile, not even a ping: it says by another thread that it works."""
    engine = slow(draft, encode_s=3.0)
    with serving(engine, hang_s=600.0) as address:
        result = robot(address, mode="cloud", drafting="patience_s=2", max_tokens=8).decode(PROMPT, JPEG)
    assert list(result.tokens) == greedy(PROMPT, JPEG, 8)
    assert (engine.encoded, result.stats.interruptions) == (1, 0)


@pytest.mark.parametrize(
    ("hang_s", "deadline_s", "ends", "why"),
    [
        (1.0, 120.0, VerifierLost, "nothing received from"),
        (600.0, 2.0, AnswerLate, "within the deadline of 2 s; the verifier was at the frames"),
    ],
)
def test_a_verifier_that_hangs_is_lost_and_a_deadline_holds(
    hang_s: float, deadline_s: float, ends: type[Exception], why: str, draft: Vlm, robot: Robot
) -> None:
    engine = slow(draft, encode_s=600.0)
    with serving(engine, hang_s) as address:
        edge = robot(address, mode="cloud", resume_s=1.0, silence_s=1.5)
        edge.connect(LIMIT_S)
        with pytest.raises(ends, match=why):
            edge.decode(PROMPT, JPEG, deadline_s)
        assert engine.encoded == 1
