"""Step latency of cloud, sd and fsd over real sockets, against a real verifier process.

Modes take turns on every frame, in rotating order, so that whatever else the machine does falls on all of them. With a
device profile the declared times are waited for on both sides; without one (raw) the machine's own times are shown.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, Protocol, TypeVar

from tqdm import tqdm

from edge_drafter import Mode, StepResult
from edge_drafter.decoder import MAX_RTT_S, EdgeConfig, EdgeDecoder
from edge_drafter.reply import AnswerLate, VerifierLost
from evaluation.experiment.command import add_save, result_name, settings_of, write_result
from evaluation.experiment.questions import add_questions, check_prompts, in_words, text_flags, warmed_up
from evaluation.experiment.run import Question
from evaluation.figures import report, summary, times_faster
from evaluation.setting import (
    CONNECT_LIMIT_S,
    add_drafting,
    add_link,
    add_pair,
    add_predictor,
    draft_flags,
    drafted_as,
    machine,
    verifier,
)
from speculation.emulation import load_link
from speculation.profile import load_profile

WARM_UP = 2
Result = TypeVar("Result", bound=StepResult, covariant=True)


class Decodes(Protocol[Result]):
    """What is measured: an `EdgeDecoder`, or something that watches one."""

    def decode(self, prompt: str, jpeg: bytes, *, mode: str) -> Result:
        """Answer one question in a mode."""


def measure(
    edge: Decodes[Result],
    asked: Sequence[Question],
    modes: Sequence[str],
    before: Sequence[Question] | None = None,
) -> tuple[dict[str, list[Result]], int]:
    """Return the results of every mode and the number of frames on which the modes' tokens differ.

    before: what is decoded first and not counted; None: the first WARM_UP of `asked`. Modes with n-grams remember these
    answers, so few frames are better warmed up with others.
    """
    for mode in modes:
        for question in asked[:WARM_UP] if before is None else before:
            edge.decode(question.prompt, question.jpeg, mode=mode)
    results: dict[str, list[Result]] = {mode: [] for mode in modes}
    different = 0
    for index, question in enumerate(tqdm(asked, unit="frame", disable=None)):
        turn = index % len(modes)
        tokens = set()
        for mode in [*modes[turn:], *modes[:turn]]:
            result = edge.decode(question.prompt, question.jpeg, mode=mode)
            results[mode].append(result)
            if mode != Mode.EDGE:
                tokens.add(result.tokens)
        different += len(tokens) > 1
    return results, different


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(prog="python -m benchmarks.latency", description=(__doc__ or "").splitlines()[0])
    add_pair(line)
    line.add_argument("--profile", default="go2_a100_scaled", help="declared delays; raw: none (default: %(default)s)")
    add_link(line)
    line.add_argument("--rtt-ms", type=float, metavar="MS", help="round trip in place of the profile's own")
    line.add_argument("--steps", type=int, default=200, help="frames, each decoded in every mode (default: 200)")
    line.add_argument(
        "--modes", nargs="+", default=["cloud", "sd", "fsd", "full"], choices=[mode.value for mode in Mode]
    )
    add_drafting(line)
    add_predictor(line)
    add_questions(line)
    line.add_argument("--trace", type=Path, help="write a Chrome/Perfetto trace of the edge here")
    add_save(line)
    return line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code: 0, or 2 after one sentence on stderr."""
    options = parser().parse_args(arguments)
    try:
        if options.steps < 1:
            raise ValueError(f"--steps {options.steps}: give at least 1")
        if options.rtt_ms is not None and not 0.0 <= options.rtt_ms <= 1e3 * MAX_RTT_S:
            raise ValueError(f"--rtt-ms {options.rtt_ms:g} is outside 0 to {1e3 * MAX_RTT_S:g}")
        profile = load_profile(options.profile)
        link = load_link(options.link)
        before, asked = warmed_up(options, options.steps, WARM_UP)
        flags = ["--profile", profile.name, "--dtype", options.dtype, *text_flags(in_words(options.frames))]
        with verifier(options.target_model, *flags, *draft_flags(options.modes, options.draft_model)) as address:
            edge = EdgeDecoder(
                EdgeConfig(
                    options.draft_model,
                    address,
                    "fsd",
                    profile.name,
                    gamma=options.gamma,
                    drafting=options.drafting,
                    max_tokens=options.max_tokens,
                    dtype=options.dtype,
                    text_only=in_words(options.frames),
                    resume_s=CONNECT_LIMIT_S,
                    predictor=options.predictor,
                    link=link.name,
                    rtt_s=None if options.rtt_ms is None else options.rtt_ms / 1e3,
                )
            )
            try:
                check_prompts(edge.vlm, [*before, *asked], options.max_tokens)
                results, different = measure(edge, asked, options.modes, before)
            finally:
                edge.close()
    except (ValueError, RuntimeError, VerifierLost, AnswerLate) as error:
        print(f"latency: {error}", file=sys.stderr)
        return 2
    figures = {mode: summary([each.stats for each in entries]) for mode, entries in results.items()}
    declared = "no declared delays" if profile.is_raw else f"declared delays: {profile.scale}"
    print(
        f"{options.steps} frames ({options.frames}), profile {profile.name} ({declared}), {options.dtype}, "
        f"{drafted_as(options)}"
    )
    if link.name:
        print(f"link {link.name} ({link.scale})")
    if options.rtt_ms is not None:
        print(f"round trip {options.rtt_ms:g} ms in place of the profile's {2e3 * profile.one_way_s:g} ms")
    print(report(figures))
    print(f"frames on which the modes' tokens differ: {different} of {options.steps}")
    ratios = paired(results)
    for name, (low, middle, high) in ratios.items():
        print(f"{name}, frame by frame: {middle:.2f}x in the median (95 % interval {low:.2f} to {high:.2f})")
    for mode, entry in figures.items():
        if entry["early_received"]:
            print(f"{mode}: {entry['early_received']:.0f} early tokens, hits by exit layer {entry['early_hits']}")
    print(machine())
    if options.trace is not None:
        edge.trace.write(options.trace)
    if options.save:
        save(options, figures, results, different, ratios)
    return 0


def paired(results: Mapping[str, Sequence[StepResult]]) -> dict[str, tuple[float, float, float]]:
    """Return how many times faster the fastest mode is than each other: median over frames, with its 95 % interval."""
    stats = {mode: [each.stats for each in entries] for mode, entries in results.items()}
    best = min(stats, key=lambda mode: median(each.total_s for each in stats[mode]))
    return {f"{best} against {mode}": times_faster(stats[mode], stats[best]) for mode in stats if mode != best}


def save(
    options: argparse.Namespace,
    figures: dict[str, Any],
    results: dict[str, list[StepResult]],
    different: int,
    ratios: Mapping[str, tuple[float, float, float]],
) -> None:
    """Write the figures and how long every step took."""
    data = {
        "settings": settings_of(options, "save", "trace"),
        "declared_link": asdict(load_link(options.link)),
        "machine": machine(),
        "frames_with_different_tokens": different,
        "figures": figures,
        "paired_ratio_low_median_high": ratios,
        "step_s": {mode: [round(each.stats.total_s, 4) for each in entries] for mode, entries in results.items()},
    }
    trip = "" if options.rtt_ms is None else f"rtt_{options.rtt_ms:g}_ms"
    write_result(
        "_".join(
            filter(None, (result_name("latency", options.frames), options.profile, options.link, trip, options.dtype))
        ),
        data,
    )


if __name__ == "__main__":
    sys.exit(main())
