"""Alarms about the drafts: accepted less than before, or blind to the image. No ROS; time is given.

Neither makes an answer wrong, as long as a verifier answers. The first makes answers slow. The second makes the robot
blind where the draft model decides alone.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from msgspec import Meta

from edge_drafter.image_dependence import SwapTest
from edge_drafter.settings import Mode
from edge_drafter.stats import DecodingStats
from spec_vlm_nav.diagnostics import Level, Status
from spec_vlm_nav.parameters import Parameters
from speculation.settings import CheckedSettings

FAST, SLOW = 0.2, 0.01
"""Weights of an answer in the mean over the latest few and in the long-run mean."""
CLEARED = 2.0
"""An alarm ends only when what is measured is better than at its beginning: half the margin, or this many times the
share."""


class AlarmSettings(CheckedSettings, frozen=True):
    """When the alarms go off. Raises ValueError, naming the setting, for a value out of range."""

    acceptance_margin: Annotated[
        float, Meta(ge=0.02, le=1.0, description="fall of the acceptance below its long-run mean that is an alarm")
    ] = 0.25
    acceptance_answers: Annotated[int, Meta(ge=5, le=10_000, description="answers before the acceptance is judged")] = (
        30
    )
    swap_every: Annotated[
        int, Meta(ge=0, le=10_000, description="answers between two swap tests of the image; 0: no swap tests")
    ] = 8
    swap_tests: Annotated[int, Meta(ge=3, le=100, description="swap tests that are judged together, the latest")] = 8
    swap_share: Annotated[
        float,
        Meta(ge=0.001, le=0.2, description="share of draft tokens that another image must change, else it is an alarm"),
    ] = 0.01


ALARMS = Parameters(AlarmSettings)


class Mean:
    """An exponential mean over samples; a plain mean as long as there are few."""

    def __init__(self, weight: float) -> None:
        self.value, self._weight, self._count = 0.0, weight, 0

    def add(self, sample: float) -> None:
        """Take one more sample."""
        self._count += 1
        self.value += max(self._weight, 1.0 / self._count) * (sample - self.value)


class Alarm:
    """What stands from the moment something is bad until it has recovered; between the two nothing changes."""

    def __init__(self) -> None:
        self._since: float | None = None

    @property
    def raised(self) -> bool:
        """Whether the alarm stands."""
        return self._since is not None

    def _judge(self, bad: bool, recovered: bool, sentence: str, now: float) -> str:
        """Return a sentence when the alarm begins or ends, else nothing."""
        if self.raised and recovered:
            self._since = None
            return f"{sentence}: the alarm is over"
        if not self.raised and bad:
            self._since = now
            return f"ALARM: {sentence}"
        return ""

    def _duration(self, now: float) -> dict[str, str | float | int]:
        """Return how long the alarm has stood, for `/diagnostics`; nothing while it does not."""
        return {} if self._since is None else {"alarm for, s": now - self._since}


class AcceptanceAlarm(Alarm):
    """Compares the acceptance of the latest answers with its own long-run mean.

    The long-run mean stands still while the alarm lasts: a draft that stays bad does not become the new normal. The
    alarm ends when acceptance recovers; a new `AcceptanceAlarm` begins anew, for a new draft or target.
    """

    def __init__(self, settings: AlarmSettings) -> None:
        super().__init__()
        self._settings = settings
        self._fast, self._slow = Mean(FAST), Mean(SLOW)
        self._answers = 0

    def take(self, stats: DecodingStats, now: float) -> str:
        """Take the figures of one answer; one for which nothing was drafted does not count.

        What counts is the estimated chance of a draft token: accepted / drafted falls when drafts become longer.
        Returns a sentence when the alarm begins or ends, else nothing. Raises ValueError for a chance outside 0 to 1.
        """
        acceptance = stats.estimated_acceptance
        if not stats.drafted or acceptance is None:
            return ""
        if not 0.0 <= acceptance <= 1.0:
            raise ValueError(f"estimated_acceptance is {acceptance}; give 0 to 1")
        self._answers += 1
        self._fast.add(acceptance)
        if not self.raised:
            self._slow.add(acceptance)
        if self._answers < self._settings.acceptance_answers:
            return ""
        fallen, margin = self._slow.value - self._fast.value, self._settings.acceptance_margin
        return self._judge(fallen >= margin, fallen < margin / CLEARED, self._sentence(), now)

    def status(self, now: float) -> Status:
        """Return the line of `/diagnostics`."""
        values: dict[str, str | float | int] = {"answers": self._answers}
        if self._answers:
            values |= {"of the latest answers": self._fast.value, "long-run mean": self._slow.value}
        missing = self._settings.acceptance_answers - self._answers
        message = f"not judged yet: {missing} more answers" if missing > 0 else self._sentence()
        level = Level.WARN if self.raised else Level.OK
        return Status("acceptance", level, message, values | self._duration(now))

    def _sentence(self) -> str:
        return f"drafts are accepted with {self._fast.value:.2f}, long-run mean {self._slow.value:.2f}"


class SwapQuestion(NamedTuple):
    """What a swap test is to draft: `EdgeDecoder.swap_test(*question)`."""

    prompt: str
    answer: str
    jpeg: bytes
    other: bytes
    """An older frame, of another view."""


@dataclass(frozen=True)
class _Held:
    answer: str
    jpeg: bytes


class ImageAlarm(Alarm):
    """Has the same answer drafted with its own frame and with a held, older one, every so often, and compares.

    Measured is the share of draft tokens that change with the frame, over the latest tests: none changes for a draft
    that does not see. The held frame is one with another *verified* answer: where the target sees the same on both
    frames, as it does in a bare corner or with a camera that stands still, a draft may do so too, and nothing is
    tested.
    """

    def __init__(self, settings: AlarmSettings) -> None:
        super().__init__()
        self._settings = settings
        self._tests: deque[SwapTest] = deque(maxlen=settings.swap_tests)
        self._held: _Held | None = None
        self._waited = 0
        self._tested_at: float | None = None

    def due(self, prompt: str, answer: str, jpeg: bytes) -> SwapQuestion | None:
        """Return what to test, when a verified answer is complete and a test is due; else None.

        A test that was not made or not finished, because the robot had no idle time, is due again with the next answer.
        """
        if not self._settings.swap_every or not answer:
            return None
        self._waited += 1
        held = self._held
        if held is None or (held.answer != answer and self._waited < self._settings.swap_every):
            self._held = _Held(answer, jpeg)
        elif held.answer != answer:
            return SwapQuestion(prompt, answer, jpeg, held.jpeg)
        return None

    def take(self, test: SwapTest, now: float) -> str:
        """Take one test. Returns a sentence when the alarm begins or ends, else nothing."""
        self._tests.append(test)
        self._tested_at, self._waited = now, 0
        if len(self._tests) < self._settings.swap_tests:
            return ""
        share, least = self._share, self._settings.swap_share
        return self._judge(share < least, share >= CLEARED * least, self._sentence(), now)

    def status(self, now: float) -> Status:
        """Return the line of `/diagnostics`."""
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
        elif not self._settings.swap_every:
            message = "swap tests are off"
        elif len(self._tests) < self._settings.swap_tests:
            message = f"not judged yet: {self._settings.swap_tests - len(self._tests)} more tests"
        else:
            message = self._sentence()
        level = Level.ERROR if self.raised else Level.OK
        return Status("image", level, message, values | self._duration(now))

    @property
    def _tokens(self) -> int:
        return sum(test.tokens for test in self._tests)

    @property
    def _share(self) -> float:
        return sum(test.changed for test in self._tests) / self._tokens

    def _sentence(self) -> str:
        return f"another image changes {100.0 * self._share:.1f} % of {self._tokens} draft tokens"


class DraftWatch:
    """Both alarms of one robot. Swap tests run in a thread of their own, while the robot walks; for any thread."""

    def __init__(
        self,
        settings: AlarmSettings,
        swap: Callable[[SwapQuestion], SwapTest | None],
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`swap` makes a test, None where it has to give way, ValueError where it cannot; `warn` gets sentences."""
        self._settings, self._swap, self._warn, self._clock = settings, swap, warn, clock
        self._acceptance, self._image = AcceptanceAlarm(settings), ImageAlarm(settings)
        self._lock = threading.Lock()
        self.test: threading.Thread | None = None
        """The latest swap test."""

    @property
    def blind(self) -> bool:
        """Whether drafts do not depend on the image, so that the draft model must not decide alone."""
        return self._image.raised

    def answered(self, prompt: str, answer: str, stats: DecodingStats, jpeg: bytes) -> None:
        """Take a complete answer to `prompt` about the frame `jpeg`, when its action is under way. Returns at once."""
        with self._lock:
            sentence = self._acceptance.take(stats, self._clock())
            # What the draft model answers alone shows nothing about where the views differ.
            question = self._image.due(prompt, answer, jpeg) if stats.mode != Mode.EDGE.value else None
        if sentence:
            self._warn(sentence)
        if question is not None and (self.test is None or not self.test.is_alive()):
            self.test = threading.Thread(target=self._run, args=(question,), name="swap test", daemon=True)
            self.test.start()

    def statuses(self, now: float) -> tuple[Status, Status]:
        """Return the lines of `/diagnostics`."""
        with self._lock:
            return self._acceptance.status(now), self._image.status(now)

    def close(self, limit_s: float = 2.0) -> None:
        """Wait for a test under way and forget everything, before the draft model is freed; safe to repeat."""
        if self.test is not None:
            self.test.join(limit_s)
        with self._lock:
            self._acceptance, self._image = AcceptanceAlarm(self._settings), ImageAlarm(self._settings)

    def _run(self, question: SwapQuestion) -> None:
        try:
            test = self._swap(question)
        except (ValueError, RuntimeError) as error:
            self._warn(f"a swap test of the draft model failed: {error}")
            return
        if test is not None:
            with self._lock:
                sentence = self._image.take(test, self._clock())
            if sentence:
                self._warn(sentence)
