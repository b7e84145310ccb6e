"""The alarm that the draft model does not see: its drafts are the same with another image. No ROS; time is given.

It makes no answer wrong, as long as a verifier answers; where the draft model decides alone the robot is blind.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from edge_drafter.image_dependence import SwapTest
from edge_drafter.settings import Mode
from edge_drafter.stats import DecodingStats
from spec_vlm_nav.diagnostics import Level, Status

TESTS = 8
"""How many swap tests, the latest, are judged together."""
LEAST_SHARE = 0.01
"""Share of draft tokens that another image must change, else it is an alarm."""
CLEARED = 2.0
"""The alarm ends only when another image changes this many times that share."""


class SwapQuestion(NamedTuple):
    """What a swap test is to draft: `EdgeDecoder.swap_test(*question)`."""

    prompt: str
    answer: str
    jpeg: bytes
    other: bytes
    """An older frame, of another view."""


class ImageAlarm:
    """Has the same answer drafted with its own frame and with a held, older one, every so often, and compares.

    Measured is the share of draft tokens that change with the frame, over the latest tests: none changes for a draft
    that does not see. The held frame is one with another *verified* answer: where the target sees the same on both
    frames, as it does in a bare corner or with a camera that stands still, a draft may do so too, and nothing is
    tested. Tests run in a thread of their own, while the robot walks; `answered`, `status` and `close` are for any
    thread.
    """

    raised: bool
    """Whether drafts do not depend on the image, so that the draft model must not decide alone."""

    def __init__(
        self,
        every: int,
        swap: Callable[[SwapQuestion], SwapTest | None],
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`every`: answers between two tests; 0: no tests.

        `swap` makes a test, None where it has to give way, ValueError where it cannot; `warn` gets sentences.
        """
        self._every, self._swap, self._warn, self._clock = every, swap, warn, clock
        self._lock = threading.Lock()
        self.test: threading.Thread | None = None
        """Is the thread of the latest swap test."""
        self._forget()

    def _forget(self) -> None:
        self.raised = False
        self._tests: deque[SwapTest] = deque(maxlen=TESTS)
        self._held: tuple[str, bytes] | None = None
        """An answer and its frame."""
        self._waited = 0
        self._tested_at: float | None = None

    def answered(self, prompt: str, answer: str, stats: DecodingStats, jpeg: bytes) -> None:
        """Take a complete answer to `prompt` about the frame `jpeg`, when its action is under way. Returns at once."""
        if stats.mode == Mode.EDGE.value:
            # What the draft model answers alone shows nothing about where the views differ.
            return
        with self._lock:
            question = self.due(prompt, answer, jpeg)
        if question is not None and (self.test is None or not self.test.is_alive()):
            self.test = threading.Thread(target=self._run, args=(question,), name="swap test", daemon=True)
            self.test.start()

    def close(self, limit_s: float = 2.0) -> None:
        """Wait for a test under way and forget everything, before the draft model is freed; safe to repeat."""
        if self.test is not None:
            self.test.join(limit_s)
        with self._lock:
            self._forget()

    def due(self, prompt: str, answer: str, jpeg: bytes) -> SwapQuestion | None:
        """Return what to test, when a verified answer is complete and a test is due; else None.

        A test that was not made or not finished, because the robot had no idle time, is due again with the next answer.
        """
        if not self._every or not answer:
            return None
        self._waited += 1
        held = self._held
        if held is None or (held[0] != answer and self._waited < self._every):
            self._held = answer, jpeg
        elif held[0] != answer:
            return SwapQuestion(prompt, answer, jpeg, held[1])
        return None

    def take(self, test: SwapTest, now: float) -> str:
        """Take one test. Returns a sentence when the alarm begins or ends, else nothing."""
        self._tests.append(test)
        self._tested_at, self._waited = now, 0
        if len(self._tests) < TESTS:
            return ""
        if self.raised and self._share >= CLEARED * LEAST_SHARE:
            self.raised = False
            return f"{self._sentence()}: the alarm is over"
        if not self.raised and self._share < LEAST_SHARE:
            self.raised = True
            return f"ALARM: {self._sentence()}"
        return ""

    def status(self, now: float) -> Status:
        """Return the line of `/diagnostics`."""
        with self._lock:
            return self._status(now)

    def _status(self, now: float) -> Status:
        values: dict[str, str | float | int] = {"tests": len(self._tests)}
        if self._tests:
            values |= {
                "changed by another image": self._share,
                "accepted": sum(test.right for test in self._tests) / self._tokens,
                "accepted with another image": sum(test.swapped for test in self._tests) / self._tokens,
            }
        if self._tested_at is not None:
            values["last test, s ago"] = now - self._tested_at
        if self.raised:
            message = f"{self._sentence()}: the draft model does not see; check its folder, its preprocessor and device"
        elif not self._every:
            message = "swap tests are off"
        elif len(self._tests) < TESTS:
            message = f"not judged yet: {TESTS - len(self._tests)} more tests"
        else:
            message = self._sentence()
        return Status("image", Level.ERROR if self.raised else Level.OK, message, values)

    @property
    def _tokens(self) -> int:
        return sum(test.tokens for test in self._tests)

    @property
    def _share(self) -> float:
        return sum(test.changed for test in self._tests) / self._tokens

    def _sentence(self) -> str:
        return f"another image changes {100.0 * self._share:.1f} % of {self._tokens} draft tokens"

    def _run(self, question: SwapQuestion) -> None:
        try:
            test = self._swap(question)
        except (ValueError, RuntimeError) as error:
            self._warn(f"a swap test of the draft model failed: {error}")
            return
        if test is not None:
            with self._lock:
                sentence = self.take(test, self._clock())
            if sentence:
                self._warn(sentence)
