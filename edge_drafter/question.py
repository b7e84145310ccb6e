"""A question to the edge's decoder: its answer as it is committed, the way to stop it, and what it ends in."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge_drafter.stats import DecodingStats
from speculation.language.growing_text import GrowingText

CANCELLED = "the question was cancelled"


class VerifierLost(RuntimeError):
    """No answer, because the verifier cannot be reached or refuses; the message gives the reason."""


class VerifierRefused(VerifierLost):
    """The verifier answers and does not accept this robot: waiting does not help."""


class AnswerLate(RuntimeError):
    """No answer within the time that a step may take."""


class Cancelled(RuntimeError):
    """No answer, because it is not wanted any more: its question was cancelled, or a newer one took its place."""


@dataclass(frozen=True)
class Reply:
    """An answer's text, what decoding it took, and how the link was then (round trip in s, negative if unknown)."""

    text: str
    stats: DecodingStats
    profile: str = ""
    link: str = ""
    link_rtt_s: float = -1.0


class Question:
    """One question under way. It ends in its answer, in the reason why there is none, or cancelled.

    For any thread, but for what stands under "the thread that decodes".
    """

    def __init__(self, read: Callable[[list[int]], str]) -> None:
        """`read` returns the text of tokens, without those that only mark an answer's end."""
        self.began = time.perf_counter()
        self.times: list[tuple[float, int]] = []
        """When the answer grew, in seconds since the question, and to how many committed tokens."""
        self._text = GrowingText(read)
        self.committed = ""
        """The text of the committed tokens, all but a character that is not complete; it only grows."""
        self.guess = ""
        """The text that the edge expects behind it, which may be wrong; empty where the edge does not draft."""
        self._count = 0
        self._guessed: list[int] = []
        self._changed = threading.Condition()
        self._outcome: Reply | Exception | None = None
        self._end_step: Callable[[], None] | None = None

    @property
    def done(self) -> bool:
        """Whether `result` returns, or raises, at once."""
        return self._outcome is not None

    @property
    def cancelled(self) -> bool:
        """Whether it ended because nobody wants the answer any more."""
        return isinstance(self._outcome, Cancelled)

    def result(self) -> Reply:
        """Wait for the end and return the answer. Raises Cancelled, and else as `EdgeDecoder.decode` does."""
        with self._changed:
            self._changed.wait_for(lambda: self._outcome is not None)
            outcome = self._outcome
        if isinstance(outcome, Reply):
            return outcome
        assert outcome is not None
        raise outcome

    def cancel(self) -> None:
        """End it now; safe to repeat. The verifier is sent EndStep, and the draft model is free at its next look.

        What has ended stays as it is.
        """
        if self._end(Cancelled(CANCELLED)):
            end_step = self._end_step
            if end_step is not None:
                end_step()

    # --- for the thread that decodes

    def begins(self, end_step: Callable[[], None]) -> None:
        """A step of it begins, which `end_step` ends at the verifier; that may be called from any thread."""
        self._end_step = end_step

    def begun(self, text: str) -> None:
        """The prompt has begun the answer with this text, which none of its tokens spells."""
        if not self._count:
            self._text.text = text

    def show(self, tokens: Sequence[int], guess: Sequence[int]) -> None:
        """The answer's tokens are `tokens` by now, and `guess` is expected behind them."""
        grown = len(tokens) > self._count
        if not grown and guess == self._guessed:
            return
        if grown:
            self._text.add(tokens[self._count :])
            self._count = len(tokens)
        self._guessed = [*guess]
        behind = self._text.behind(guess) if guess else ""
        with self._changed:
            if self._outcome is None:
                self.committed, self.guess = self._text.text, behind
                if grown:
                    self.times.append((time.perf_counter() - self.began, self._count))

    def finish(self, outcome: Reply | Exception) -> None:
        """End it with an answer, or with the reason why there is none; one that was cancelled stays so."""
        # Whoever keeps the question must not keep the draft model, which the step and frames of tracebacks refer to.
        self._end_step = None
        problem: BaseException | None = outcome if isinstance(outcome, Exception) else None
        while problem is not None:
            traceback.clear_frames(problem.__traceback__)
            problem = problem.__cause__ or problem.__context__
        self._end(outcome)

    def _end(self, outcome: Reply | Exception) -> bool:
        with self._changed:
            if self._outcome is not None:
                return False
            self._outcome = outcome
            self.guess = ""
            if isinstance(outcome, Reply):
                self.committed = outcome.text
            self._changed.notify_all()
        return True
