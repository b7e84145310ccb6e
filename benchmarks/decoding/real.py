"""Real sockets: all modes by turns against one verifier process, one round trip after another."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence

from benchmarks.decoding.action import TimedResult, arrivals
from benchmarks.latency import measure
from edge_drafter.decoder import EdgeConfig, EdgeDecoder
from evaluation.experiment.questions import check_prompts, in_words, text_flags
from evaluation.experiment.run import Question
from evaluation.setting import CONNECT_LIMIT_S, SILENCE_S, draft_flags, verifier
from speculation.trace import Trace
from speculation.vlm.load import load_vlm

SPANS = 4000
"""More than a step has."""


class Watched:
    """An edge decoder whose answers say when their tokens came."""

    def __init__(self, edge: EdgeDecoder) -> None:
        self._edge = edge

    def decode(self, prompt: str, jpeg: bytes, *, mode: str) -> TimedResult:
        """Answer one question. Raises as `EdgeDecoder.decode`."""
        begun = time.perf_counter()
        result = self._edge.decode(prompt, jpeg, mode=mode)
        spans = [span for span in self._edge.trace.spans if span.start >= begun]
        return TimedResult(result.tokens, result.stats, arrivals(spans, begun))


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
    words = in_words(options.frames)
    flags = ["--profile", profile, "--dtype", options.dtype, *draft_flags(modes, options.draft_model)]
    vlm = load_vlm(options.draft_model, dtype=options.dtype)
    check_prompts(vlm, [*before, *asked], options.max_tokens)
    with verifier(options.target_model, *flags, *text_flags(words)) as address:
        for rtt_ms in rtts_ms:
            config = EdgeConfig(
                options.draft_model, address, modes[0], profile, gamma=options.gamma, drafting=options.drafting,
                max_tokens=options.max_tokens, dtype=options.dtype, silence_s=SILENCE_S, resume_s=CONNECT_LIMIT_S,
                rtt_s=rtt_ms / 1e3, text_only=words,
            )  # fmt: skip
            edge = EdgeDecoder(config, Trace(limit=SPANS), vlm=vlm)
            try:
                results, different = measure(Watched(edge), asked, modes, before)
            finally:
                edge.close()
            yield rtt_ms, results, different
