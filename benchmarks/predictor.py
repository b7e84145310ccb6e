"""What stopping at predicted rejections saves: every draft with and without its predictor, over real sockets.

Each pair is a draft model and its predictor. With and without, in every mode, take turns on every frame, in rotating
order, so that whatever else the machine does falls on all of them. WDT: seconds of draft forwards whose token was never
committed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from edge_drafter import DraftingConfig, Mode, StepResult
from edge_drafter.decoder import EdgeConfig, EdgeDecoder
from edge_drafter.reply import AnswerLate, VerifierLost
from evaluation.experiment.command import add_save, result_name, settings_of, write_result
from evaluation.experiment.questions import add_questions, asked_as, in_words, questions, text_flags
from evaluation.experiment.run import Question
from evaluation.figures import summary
from evaluation.setting import CONNECT_LIMIT_S, SILENCE_S, add_drafting, drafted_as, machine, verifier
from evaluation.tables import table
from spec_vlm_nav.graph import PROJECT
from speculation.predictor import OFF
from speculation.profile import load_profile
from speculation.trace import Trace
from speculation.vlm.load import load_vlm

WARM_UP = 1
MODES = tuple(mode.value for mode in Mode if DraftingConfig.of(mode).drafts)
WITH, WITHOUT = "predictor", "none"


@dataclass(frozen=True)
class Arm:
    """One way to decode a frame."""

    draft: str
    mode: str
    stops: str

    @property
    def label(self) -> str:
        """Name of the arm in results."""
        return f"{self.draft}, {self.mode}, {self.stops}"


def measure(
    edges: dict[tuple[str, str], EdgeDecoder], asked: Sequence[Question], arms: Sequence[Arm]
) -> tuple[dict[Arm, list[StepResult]], int]:
    """Return every arm's results and the number of frames on which their tokens differ."""
    results: dict[Arm, list[StepResult]] = {arm: [] for arm in arms}
    for arm in arms:
        for question in asked[:WARM_UP]:
            edges[arm.draft, arm.stops].decode(question.prompt, question.jpeg, mode=arm.mode)
    different = 0
    for index, question in enumerate(tqdm(asked, unit="frame", disable=None)):
        turn = index % len(arms)
        for arm in (*arms[turn:], *arms[:turn]):
            result = edges[arm.draft, arm.stops].decode(question.prompt, question.jpeg, mode=arm.mode)
            results[arm].append(result)
        different += len({entries[-1].tokens for entries in results.values()}) > 1
    return results, different


def compare(results: dict[Arm, list[StepResult]]) -> list[dict[str, Any]]:
    """Return, for each draft and mode, WDT per token and step latency without and with the predictor, and the change.

    `faster_steps`: the share of frames on which the predictor's step was the shorter one.
    """
    rows = []
    for arm, entries in results.items():
        if arm.stops != WITH:
            continue
        without = results[Arm(arm.draft, arm.mode, WITHOUT)]
        before, after = (summary([each.stats for each in part]) for part in (without, entries))
        pairs = [(one.stats.total_s, other.stats.total_s) for one, other in zip(without, entries, strict=True)]
        rows.append(
            {
                "draft": arm.draft,
                "mode": arm.mode,
                "wasted_s_per_token": [before["wasted_s_per_token"], after["wasted_s_per_token"]],
                "waste_change": _change(before["wasted_s_per_token"], after["wasted_s_per_token"]),
                "median_s": [before["total_s"]["median"], after["total_s"]["median"]],
                "latency_change": _change(before["total_s"]["median"], after["total_s"]["median"]),
                "mean_change": _change(sum(one for one, _ in pairs), sum(other for _, other in pairs)),
                "faster_steps": sum(other < one for one, other in pairs) / len(pairs),
            }
        )
    return rows


def _change(before: float, after: float) -> float:
    return after / before - 1.0 if before else 0.0


def text(results: dict[Arm, list[StepResult]]) -> str:
    """Return a table with a row per arm."""
    header = ("draft, mode, stops", "min ms", "median ms", "max ms", "WDT ms/token", "wasted forwards", "tokens/draft",
              "accepted", "tau", "hits", "passes/token")  # fmt: skip
    rows = []
    for arm, entries in results.items():
        stats = [each.stats for each in entries]
        entry = summary(stats)
        rounds = sum(each.rounds for each in stats)
        rows.append(
            (
                arm.label,
                *(f"{1e3 * entry['total_s'][name]:.0f}" for name in ("min", "median", "max")),
                f"{1e3 * entry['wasted_s_per_token']:.2f}",
                f"{entry['wasted_forwards']:.0%}",
                f"{sum(each.drafted for each in stats) / rounds:.2f}" if rounds else "-",
                f"{entry['acceptance']:.0%}",
                f"{entry['tau']:.2f}",
                f"{entry['hit_rate']:.0%}",
                f"{entry['passes_per_token']:.2f}",
            )
        )
    return table(header, rows)


def pair(words: str) -> tuple[str, Path, str]:
    """Read NAME=DRAFT or NAME=DRAFT,PREDICTOR; without a predictor it is the one beside the draft; an argparse type."""
    name, equals, folders = words.partition("=")
    draft, _, predictor = folders.partition(",")
    if not (name and equals and draft):
        raise argparse.ArgumentTypeError(f"{words!r}: give NAME=DRAFT or NAME=DRAFT,PREDICTOR")
    return name, Path(draft), predictor or draft


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(
        prog="python -m benchmarks.predictor",
        description=__doc__,
        epilog="a weak draft to compare with (docs/training.md): python -m adapters_training predictor weaken --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    line.add_argument("--target-model", type=Path, default=PROJECT / "models" / "target")
    line.add_argument("--draft", type=pair, action="append", metavar="NAME=DRAFT[,PREDICTOR]",
                      help="folders; may be repeated (default: shipped=models/draft)")  # fmt: skip
    line.add_argument("--profile", default="go2_a100_scaled", help="declared delays; raw: none (default: %(default)s)")
    line.add_argument("--steps", type=int, default=50, help="frames, each decoded by every arm (default: %(default)s)")
    line.add_argument("--modes", nargs="+", default=["sd", "fsd", "full"], choices=MODES)
    add_drafting(line)
    add_questions(line)
    add_save(line)
    return line


@contextmanager
def decoders(options: argparse.Namespace, address: str) -> Iterator[dict[tuple[str, str], EdgeDecoder]]:
    """Yield two decoders a draft, with and without its predictor; both have one copy of the model."""
    edges: dict[tuple[str, str], EdgeDecoder] = {}
    try:
        for name, folder, predictor in options.draft:
            vlm = load_vlm(folder, dtype=options.dtype)
            for stops, choice in ((WITHOUT, OFF), (WITH, predictor)):
                config = EdgeConfig(
                    folder, address, "fsd", options.profile, gamma=options.gamma, drafting=options.drafting,
                    max_tokens=options.max_tokens, dtype=options.dtype, silence_s=SILENCE_S, resume_s=CONNECT_LIMIT_S,
                    predictor=choice,
                )  # fmt: skip
                edges[name, stops] = EdgeDecoder(config, Trace(limit=1), vlm=vlm)
        yield edges
    finally:
        for edge in edges.values():
            edge.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code: 0, or 2 after one sentence on stderr."""
    options = parser().parse_args(arguments)
    options.draft = options.draft or [pair(f"shipped={PROJECT / 'models' / 'draft'}")]
    try:
        if options.steps < 1:
            raise ValueError(f"--steps {options.steps}: give at least 1")
        names = [name for name, _, _ in options.draft]
        if len(set(names)) < len(names):
            raise ValueError(f"--draft: two drafts have one name: {', '.join(names)}")
        profile = load_profile(options.profile)
        asked = questions(options.frames, options.steps, options.seed, *asked_as(options))
        flags = ("--profile", profile.name, "--dtype", options.dtype, "--max-sessions", str(4 * len(names)))
        words = text_flags(in_words(options.frames))
        with verifier(options.target_model, *flags, *words) as address, decoders(options, address) as edges:
            arms = [Arm(name, mode, stops) for name in names for mode in options.modes for stops in (WITHOUT, WITH)]
            results, different = measure(edges, asked, arms)
            thresholds = {
                name: edge.predictor.threshold for (name, _), edge in edges.items() if edge.predictor is not None
            }
    except (ValueError, RuntimeError, VerifierLost, AnswerLate) as error:
        print(f"predictor: {error}", file=sys.stderr)
        return 2
    declared = "no declared delays" if profile.is_raw else f"declared delays: {profile.scale}"
    print(f"{options.steps} frames ({options.frames}), profile {profile.name} ({declared}), {options.dtype}, "
          f"{drafted_as(options)}")  # fmt: skip
    print(text(results))
    rows = compare(results)
    for row in rows:
        print(f"{row['draft']}, {row['mode']}: wasted draft time per token {row['waste_change']:+.0%}, step latency "
              f"{row['latency_change']:+.1%} (median), {row['mean_change']:+.1%} (mean)")  # fmt: skip
    print(f"frames on which the answers differ: {different} of {options.steps}")
    print(machine())
    if options.save:
        data = {
            "settings": settings_of(options, "save", "draft"),
            "thresholds": thresholds,
            "machine": machine(),
            "frames_with_different_tokens": different,
            "compared": rows,
            "figures": {arm.label: summary([each.stats for each in part]) for arm, part in results.items()},
            "step_s": {arm.label: [round(each.stats.total_s, 4) for each in part] for arm, part in results.items()},
        }
        write_result(f"{result_name('predictor', options.frames)}_{options.profile}_{options.dtype}", data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
