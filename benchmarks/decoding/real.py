"""Real sockets: all modes by turns against one verifier process, one round trip after another."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence

from benchmarks.decoding.action import TimedResult, arrivals
from edge_drafter.decoder import EdgeDecoder
from evaluation.experiment.run import Answer, Arm, Question
from evaluation.experiment.sockets import modes_as_arms, sockets

SPANS = 4000
"""More than a step has."""


def measured(
    options: argparse.Namespace,
    profile: str,
    asked: Sequence[Question],
    modes: Sequence[str],
    rtts_ms: Sequence[float],
    before: Sequence[Question],
) -> Iterator[tuple[float, dict[str, list[TimedResult]], int]]:
    """Yield, for each round trip, every mode's results and on how many frames the modes' tokens differ.

    `before` is decoded first and not counted. The round trip is declared in place of the profile's own, also where all
    else is raw. Raises ValueError for models that cannot be used, RuntimeError and VerifierLost where the verifier does
    not start or is lost.
    """
    options = argparse.Namespace(**{**vars(options), "profile": profile})
    with sockets(options, modes, trace=SPANS) as edges:
        for rtt_ms in rtts_ms:
            changes = {"rtt_s": rtt_ms / 1e3}
            arms = [_watched(arm, edges.edge(**changes)) for arm in modes_as_arms(modes, **changes)]
            run = edges.run(arms, asked, before)
            results = {
                mode: [TimedResult(each.tokens, each.stats, each.more["arrivals"]) for each in answers]
                for mode, answers in run.answers.items()
            }
            yield rtt_ms, results, run.different


def _watched(arm: Arm[Question], edge: EdgeDecoder) -> Arm[Question]:
    """Return an arm whose answers have the times at which their tokens came."""

    def decode(question: Question) -> Answer:
        begun = time.perf_counter()
        result = edge.decode(question.prompt, question.jpeg, mode=arm.mode)
        spans = [span for span in edge.trace.spans if span.start >= begun]
        return Answer(result.tokens, result.stats, {"arrivals": arrivals(spans, begun)})

    return Arm(arm.name, decode=decode, exact=arm.exact)
