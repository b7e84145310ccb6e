"""The robot before a verifier that is full: it comes back when it may, and within its own deadline and patience."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import zmq

from edge_drafter.question import AnswerLate, VerifierLost
from speculation.vlm.load import Vlm
from speculation.wire import AnyMessage, BeginStep, Busy, Commit, Hello, Welcome, begin_digest, encode, extend_digest
from tests.cloud_verifier.test_engine import jpeg
from tests.edge_drafter.conftest import Robot
from tests.edge_drafter.test_decoder import PROMPT
from tests.edge_drafter.test_link import TinyVerifier

ANSWER = [5, 6, 7, 9]
"""What the fake verifier commits, the last one ends it."""


class FullVerifier(TinyVerifier):
    """Answers `hellos_refused` Hellos and `steps_refused` steps with Busy, and the next step with tokens.

    `half`: of the answer it commits two tokens before it turns the step away.
    """

    def __init__(self, vlm: Vlm, retry_s: float, hellos_refused: int, steps_refused: int, half: bool = False) -> None:
        self._vlm, self._retry_s, self._half = vlm, retry_s, half
        self._left = [hellos_refused, steps_refused]
        self.begun: list[BeginStep] = []
        super().__init__()

    def _answer(self, peer: bytes, message: AnyMessage) -> None:
        if isinstance(message, Hello):
            self.hellos.append(message)
            vlm = self._vlm
            welcome = Welcome("s", "m", vlm.tokenizer_fingerprint, vlm.vocabulary, 4, [1], ANSWER[-1:])
            self._reply(peer, Busy(self._retry_s, "all sessions are taken") if self._is_full(0) else welcome)
        elif isinstance(message, BeginStep):
            self.begun.append(message)
            full, start = self._is_full(1), len(message.committed)
            digest = extend_digest(begin_digest(message.prompt, message.jpeg), message.committed)
            tokens = ANSWER[start:] if not full else ANSWER[start : start + 2] if self._half else []
            digest = extend_digest(digest, tokens)
            if tokens:
                self._reply(peer, Commit(message.step, 0, start, tokens, digest, not full))
            if full:
                self._reply(peer, Busy(self._retry_s, "no room for the answer", message.step))
        else:
            super()._answer(peer, message)

    def _is_full(self, which: int) -> bool:
        self._left[which] -= 1
        return self._left[which] >= 0

    def _reply(self, peer: bytes, message: AnyMessage) -> None:
        self._socket.send_multipart([peer, encode(message)], zmq.NOBLOCK)


@pytest.fixture
def stopped() -> Iterator[list[TinyVerifier]]:
    """Verifiers that are stopped at the end."""
    running: list[TinyVerifier] = []
    yield running
    for each in running:
        each.stop()


@pytest.mark.parametrize("half", [False, True])
def test_a_step_that_is_turned_away_twice_is_answered(
    half: bool, draft: Vlm, robot: Robot, stopped: list[TinyVerifier], caplog: pytest.LogCaptureFixture
) -> None:
    """In new steps with what is left of the deadline, behind what was committed; the robot says why it waits."""
    verifier = FullVerifier(draft, 0.05, hellos_refused=2, steps_refused=2, half=half)
    stopped.append(verifier)
    result = robot(verifier.address, mode="cloud", service_class="standard").decode(PROMPT, jpeg(0), 60.0)
    assert list(result.tokens) == ANSWER and result.stats.tokens == len(ANSWER)
    assert len(verifier.hellos) == 3 and {hello.service_class for hello in verifier.hellos} == {"standard"}
    begun = verifier.begun
    answered = [[], ANSWER[:2]] if half else [[], [], []]
    assert [each.committed for each in begun] == answered
    assert result.stats.busy == result.stats.interruptions == len(answered) - 1
    assert all(one.step < other.step for one, other in pairwise(begun))
    left = [each.time_left for each in begun]
    assert left == sorted(left, reverse=True) and 0.0 < left[-1] < left[0] - 0.05 < 60.0
    assert "is full: all sessions are taken; trying again in 0.1 s" in caplog.text
    assert "is full: no room for the answer; trying again in 0.1 s" in caplog.text


def test_a_deadline_ends_the_wait_for_a_full_verifier(draft: Vlm, robot: Robot, stopped: list[TinyVerifier]) -> None:
    verifier = FullVerifier(draft, 1000.0, hellos_refused=0, steps_refused=1)
    stopped.append(verifier)
    edge = robot(verifier.address, mode="cloud", resume_s=60.0)
    edge.connect(20.0)
    with pytest.raises((VerifierLost, AnswerLate), match=r"is full|deadline of 0\.4 s"):
        edge.decode(PROMPT, jpeg(0), 0.4)
    assert len(verifier.begun) == 1
