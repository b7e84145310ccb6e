"""What the models answer about a frame, and when which tokens are committed, by mode and round trip.

Each question is recorded once from the real models (`vlm_nav_evaluation.virtual_time.record`). Then production's own
edge and verifier decode it on virtual time, so other work on the machine changes nothing, and twenty links cost one
recording.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from edge_drafter import DecodingStats, Mode
from speculation.language.grammar import FREE
from vlm_nav_evaluation.experiment.reference_answers import ModelAlone
from vlm_nav_evaluation.experiment.run import Arm, Question
from vlm_nav_evaluation.virtual_time.decoding import run_arms
from vlm_nav_evaluation.virtual_time.record import Models, record
from vlm_nav_evaluation.virtual_time.recording import Recording
from vlm_nav_evaluation.virtual_time.timings import Timings


@dataclass(frozen=True)
class AnswerTimeline:
    """One decoded answer."""

    texts: tuple[tuple[float, str], ...]
    """Seconds since the question, and the committed text then; the last is the whole answer."""
    stats: DecodingStats

    @property
    def seconds(self) -> float:
        """Return the seconds from the question to the whole answer."""
        return self.texts[-1][0]

    @property
    def text(self) -> str:
        """Return the whole answer."""
        return self.texts[-1][1]

    def committed(self, seconds: float) -> str:
        """Return the text that is committed so many seconds after the question."""
        return next((text for at, text in reversed(self.texts) if at <= seconds), "")


class Timelines:
    """Answers of one pair with declared times. The same question is recorded, and decoded in a mode, only once.

    `timings`: its `one_way_s` is half of the round trip that is asked for. `answers` as `EdgeConfig.answers` has it.
    """

    def __init__(self, models: Models, timings: Timings, max_tokens: int, first: Question, answers: str) -> None:
        """`first` is decoded before each answer: a drafter's estimates outlive a question on the robot."""
        self._models, self._timings, self._max_tokens, self._how = models, timings, max_tokens, answers
        self._recordings: dict[tuple[str, bytes], Recording] = {}
        self._answers: dict[tuple[str, bytes, str, float], AnswerTimeline] = {}
        self._draft = ModelAlone(models.draft, max_tokens, answers)
        self._first = record(models, [first], max_tokens, answers=answers)

    def answer(self, prompt: str, jpeg: bytes, mode: str, rtt_s: float) -> AnswerTimeline:
        """Return the answer in a mode over a link of this round trip. Raises ValueError for what is no image."""
        key, question = (prompt, jpeg, mode, rtt_s), (prompt, jpeg)
        if key in self._answers:
            return self._answers[key]
        if question not in self._recordings:
            self._recordings[question] = record(self._models, [Question(*question)], self._max_tokens, self._how)
        timings, arms = replace(self._timings, one_way_s=rtt_s / 2.0), [Arm(mode, mode)]
        run = run_arms(arms, self._recordings[question], timings, self._first.steps, with_arrivals=True)
        (answer,) = run.answers[mode]
        self._answers[key] = self._timeline(answer.tokens, answer.more["arrivals"], answer.stats)
        return self._answers[key]

    def alone(self, prompt: str, jpeg: bytes) -> AnswerTimeline:
        """Return what the draft model answers without a verifier. Raises ValueError for what is no image."""
        times, tokens = self._timings, self._draft.decode(Question(prompt, jpeg)).tokens
        arrivals = [(times.edge_prefill_s + times.draft_s * count, 1) for count in range(1, len(tokens) + 1)]
        return self._timeline(tokens, arrivals, DecodingStats(mode=Mode.EDGE.value))

    def forget(self) -> None:
        """Drop all answers, when a room's frames do not come back."""
        self._recordings.clear()
        self._answers.clear()

    def _timeline(self, tokens: Any, arrivals: Any, stats: DecodingStats) -> AnswerTimeline:
        texts, count = [], 0
        for seconds, more in arrivals:
            count = min(count + more, len(tokens))
            texts.append((seconds, self._models.target.read(tokens[:count], constrained=self._how != FREE)))
        return AnswerTimeline(tuple(texts), stats)
