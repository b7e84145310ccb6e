"""The experiment engine's backend on virtual time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from edge_drafter import StepResult
from speculation.progress import progress
from speculation.trace import Kind, Span, Trace
from vlm_nav_evaluation.experiment.run import Answer, Arm, Run
from vlm_nav_evaluation.virtual_time.decoding import run_mode
from vlm_nav_evaluation.virtual_time.recording import RecordedStep, Recording
from vlm_nav_evaluation.virtual_time.timings import Timings

SPANS = 1_000_000
Arrivals = Sequence[tuple[float, int]]
"""Seconds since the step began, and how many more tokens were committed then."""


class VirtualTime:
    """Answers in the arms' modes. Its questions are steps of a recording; an arm's changes are those of `run_mode`, a
    `recording` of its own among them."""

    def __init__(self, recording: Recording, timings: Timings, with_arrivals: bool = False) -> None:
        """with_arrivals: every answer that the verifier commits has when its tokens came, `Arrivals`."""
        self._recording = recording
        self._timings = timings
        self._with_arrivals = with_arrivals

    def run(
        self,
        arms: Sequence[Arm[Any]],
        asked: Sequence[RecordedStep] | None = None,
        warm_up: Sequence[RecordedStep] | None = None,
    ) -> Run:
        """Return the answers of all arms; asked: None for all steps. warm_up: decoded first and not counted.

        Raises as `run_mode`.
        """
        before = tuple(warm_up or ())
        recording = replace(self._recording, steps=(*before, *(asked or self._recording.steps)))
        answers: dict[str, list[Answer]] = {}
        for arm in progress(arms, unit="arm", leave=False):
            trace = Trace(limit=SPANS) if self._with_arrivals else None
            given = {"recording": recording, "timings": self._timings, "trace": trace, **arm.changes}
            results = run_mode(arm.mode, **given)
            plain = [Answer(each.tokens, each.stats) for each in results]
            answers[arm.name] = (plain if trace is None else timed(results, trace.spans))[len(before) :]
        return Run(answers)


def timed(results: Sequence[StepResult], spans: Iterable[Span]) -> list[Answer]:
    """Return results of virtual time with their arrivals; the trace has steps 1, 2, ... in their order."""
    begun: dict[object, float] = {}
    commits: dict[object, list[Span]] = defaultdict(list)
    for span in spans:
        if span.name == Kind.STEP.value:
            begun[span.args["step"]] = span.start
        elif span.name == Kind.COMMIT.value:
            commits[span.args["step"]].append(span)

    def came(step: int) -> Arrivals:
        ended = sorted(commits[step], key=lambda span: span.end)
        return [(span.start - begun.get(step, 0.0), int(str(span.args["tokens"]))) for span in ended]

    return [
        Answer(result.tokens, result.stats, {"arrivals": came(step)}) for step, result in enumerate(results, start=1)
    ]
