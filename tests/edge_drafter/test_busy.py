"""The robot before a verifier that is full: it comes back when it may, and within its own deadline and patience."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace

import pytest
import zmq

from edge_drafter import decoder
from edge_drafter.question import AnswerLate, VerifierLost
from edge_drafter.settings import Connection
from speculation.vlm.model import Vlm
from speculation.wire import AnyMessage, BeginStep, Busy, Commit, Hello, Welcome, begin_digest, encode, extend_digest
from tests.cloud_verifier.test_engine import jpeg
from tests.edge_drafter.conftest import Robot
from tests.edge_drafter.test_decoder import PROMPT
from tests.edge_drafter.test_link import TinyVerifier
from tests.edge_drafter.waiting import LIMIT_S

ANSWER = [5, 6, 7, 9]
"""What the fake verifier commits, the last one ends it."""
ENDLESS = 1 << 30


class FullVerifier(TinyVerifier):
    """Has no room for the first `hellos` Hellos, nor for the first `steps` steps, of which it commits `each` tokens.

    By its clock `pass_s` seconds pass with every step that it turns away.
    """

    def __init__(
        self, vlm: Vlm, hellos: int = 0, steps: int = ENDLESS, each: int = 0, retry_s: float = 0.05, pass_s: float = 0.0
    ) -> None:
        self._vlm, self._hellos, self._steps, self._each = vlm, hellos, steps, each
        self._retry_s, self._pass_s, self._more_s = retry_s, pass_s, 0.0
        self.begun: list[BeginStep] = []
        super().__init__()

    def now(self) -> float:
        return time.perf_counter() + self._more_s

    def _answer(self, peer: bytes, message: AnyMessage) -> None:
        if isinstance(message, Hello):
            self.hellos.append(message)
            vlm = self._vlm
            welcome = Welcome("s", "m", vlm.tokenizer_fingerprint, vlm.vocabulary, 4, [1], ANSWER[-1:])
            is_full = len(self.hellos) <= self._hellos
            self._reply(peer, Busy(self._retry_s, "all sessions are taken") if is_full else welcome)
        elif isinstance(message, BeginStep):
            self.begun.append(message)
            start = len(message.committed)
            prefix = extend_digest(begin_digest(message.prompt, message.jpeg), message.committed)
            tokens = ANSWER[start:] if len(self.begun) > self._steps else ANSWER[start : start + self._each]
            done = start + len(tokens) == len(ANSWER)
            if tokens:
                self._reply(peer, Commit(message.step, 0, start, tokens, extend_digest(prefix, tokens), done))
            if not done:
                self._more_s += self._pass_s
                self._reply(peer, Busy(self._retry_s, "no room for the answer", message.step))
        else:
            super()._answer(peer, message)

    def _reply(self, peer: bytes, message: AnyMessage) -> None:
        self._socket.send_multipart([peer, encode(message)], zmq.NOBLOCK)


Start = Callable[..., FullVerifier]


@pytest.fixture
def full(draft: Vlm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts such a verifier, by whose clock decoders are patient."""
    started: list[FullVerifier] = []

    def start(**how: float) -> FullVerifier:
        started.append(verifier := FullVerifier(draft, **how))  # type: ignore[arg-type]
        monkeypatch.setattr(decoder, "time", SimpleNamespace(perf_counter=verifier.now, time_ns=time.time_ns))
        return verifier

    yield start
    for each in started:
        each.stop()


@pytest.mark.parametrize(("each", "answered"), [(0, [[], [], []]), (2, [[], ANSWER[:2]])])
def test_a_step_that_is_turned_away_is_answered(
    each: int, answered: list[list[int]], full: Start, robot: Robot, caplog: pytest.LogCaptureFixture
) -> None:
    """In new steps with what is left of the deadline, behind what was committed; the robot says why it waits."""
    verifier = full(hellos=2, steps=2, each=each)
    result = robot(verifier.address, mode="cloud", service_class="standard").decode(PROMPT, jpeg(0), 60.0)
    assert list(result.tokens) == ANSWER and result.stats.tokens == len(ANSWER)
    assert len(verifier.hellos) == 3 and {hello.service_class for hello in verifier.hellos} == {"standard"}
    begun = verifier.begun
    assert [each.committed for each in begun] == answered
    assert result.stats.busy == result.stats.interruptions == len(answered) - 1
    assert all(one.step < other.step for one, other in pairwise(begun))
    left = [each.time_left for each in begun]
    assert left == sorted(left, reverse=True) and 0.0 < left[-1] < left[0] - 0.05 < 60.0
    assert "is full: all sessions are taken; trying again in 0.1 s" in caplog.text
    assert "is full: no room for the answer; trying again in 0.1 s" in caplog.text


def test_a_deadline_ends_the_wait_for_a_full_verifier(full: Start, robot: Robot) -> None:
    verifier = full(steps=1, retry_s=1000.0)
    edge = robot(verifier.address, mode="cloud", resume_s=60.0)
    edge.connect(LIMIT_S)
    with pytest.raises((VerifierLost, AnswerLate), match=r"is full|deadline of 0\.4 s"):
        edge.decode(PROMPT, jpeg(0), 0.4)
    assert len(verifier.begun) == 1


SHIPPED_S = Connection().resume_s


@pytest.mark.parametrize(
    ("each", "steps", "pass_s", "resume_s", "others", "is_answered"),
    [
        (1, ENDLESS, 10.0, 15.0, "", True),
        (0, ENDLESS, 10.0, 15.0, "", False),
        (0, 2, 4.0, SHIPPED_S, ",tcp://127.0.0.1:9", True),
        (0, 2, 4.0, SHIPPED_S, "", False),
    ],
)
def test_patience_begins_anew_where_the_answer_grows_and_is_longer_where_another_verifier_may_go_on(
    each: int, steps: int, pass_s: float, resume_s: float, others: str, is_answered: bool,
    full: Start, robot: Robot,
) -> None:  # fmt: skip
    """A gateway may send the robot twice to one that is frozen, which takes the robot's silence each time."""
    verifier = full(each=each, steps=steps, pass_s=pass_s)
    edge = robot(verifier.address + others, mode="cloud", resume_s=resume_s)
    edge.connect(LIMIT_S)
    if is_answered:
        assert list(edge.decode(PROMPT, jpeg(0), 600.0).tokens) == ANSWER
    else:
        with pytest.raises(VerifierLost, match="is full: no room for the answer"):
            edge.decode(PROMPT, jpeg(0), 600.0)
        assert 1 <= len(verifier.begun) <= 2
