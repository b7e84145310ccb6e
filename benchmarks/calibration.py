"""What calibrating the draft's chances is worth: reliability, log loss, and the modes' speed with it and without.

    python -m benchmarks.calibration --save

On virtual time at the Go2's times, earlier answers off, on the embedded pair's recorded answers: with its acceptance
predictor, without, with the draft's distributions flattened (temperature 4) and sharpened (0.25), with a draft whose
weights are rounded to --bits bits, and with coupled sampling at temperature 0.7. The last two are recorded beside
--recording where they are missing. Log loss: nats a place
of the answer, of which token comes or that none of those proposed does; every place is asked in turn, in the order of
the answers, so the first ones count before anything is learned. Off the mark: how far the chance of a child is from the
share of those alike that were right, in the mean. Times faster: seconds of all answers, raw over calibrated, with twice
the standard error.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks import recordings
from edge_drafter import Mode
from edge_drafter.calibration import Calibration
from edge_drafter.tree import Proposals
from speculation.sampling import SamplingScheme
from vlm_nav_evaluation.experiment.command import command_line, main_of, settings_of, write_result
from vlm_nav_evaluation.experiment.questions import asked_of, in_words
from vlm_nav_evaluation.plots import COLOURS, PAPER, add_outputs, keep, new_figure, plain
from vlm_nav_evaluation.setting import machine
from vlm_nav_evaluation.tables import MS, Column, figures_table
from vlm_nav_evaluation.virtual_time import Recording, load_timings, run_mode

TIMINGS = "go2"
WIDTH, DEPTH = 3, 1
"""Children of a place, as `proactive` has them; the depth at which all places are asked."""
FLAT, SHARP = 4.0, 0.25
BITS = 4
SAMPLING = "coupled(temperature=0.7)"
FIRST = 5
"""Answers whose log loss is shown apart: how fast it learns."""
GROUPS = 10
MODES = (Mode.PROACTIVE.value, Mode.FULL.value)
OFF, ON = "raw", "calibrated"
_LEAST = 1e-12

COLUMNS = (
    Column("likeliest right", "right", ".0%"),
    Column("log loss raw", "raw.loss", ".3f"),
    Column("calibrated", "calibrated.loss", ".3f"),
    Column(f"first {FIRST} raw", "raw.first", ".3f"),
    Column("calibrated", "calibrated.first", ".3f"),
    Column("off the mark raw", "raw.off", ".3f"),
    Column("calibrated", "calibrated.off", ".3f"),
)
SPEED = (
    Column("sd ms/token", "sd.s", ".1f", MS),
    Column("tau", "sd.tau", ".2f"),
    *(
        column
        for mode in MODES
        for column in (
            Column(f"{mode} raw", f"{mode}.raw.s", ".1f", MS),
            Column("calibrated", f"{mode}.calibrated.s", ".1f", MS),
            Column("times faster", f"{mode}.faster", ".3f"),
            Column("±", f"{mode}.error", ".3f"),
            Column("tau raw", f"{mode}.raw.tau", ".2f"),
            Column("calibrated", f"{mode}.calibrated.tau", ".2f"),
        )
    ),
)


@dataclass(frozen=True)
class Child:
    """One token that was proposed behind the answer: its place in it, its chance, and whether it came."""

    step: int
    place: int
    chance: float
    right: bool


def tempered(recording: Recording, temperature: float) -> Recording:
    """Return the same answers with the draft's distributions at another temperature, and without a predictor.

    What its recorded tokens leave is spread evenly over the others, as virtual time has it.
    """
    steps = []
    for step in recording.steps:
        known = np.maximum(step.draft_probabilities.astype(np.float64), _LEAST)
        others = max(1, recording.vocabulary - known.shape[1])
        rest = np.maximum(1.0 - known.sum(axis=1), _LEAST) / others
        weights = known ** (1.0 / temperature)
        shares = weights / (weights.sum(axis=1) + others * rest ** (1.0 / temperature))[:, None]
        steps.append(replace(step, draft_probabilities=shares, acceptance=shares[:, :1]))
    return replace(recording, steps=tuple(steps), stop_below=0.0)


def record_variant(options: argparse.Namespace, path: Path, own: Recording, bits: int, sampling: str) -> Recording:
    """Return the recording in `path`, of the models and at least as many answers as `own`; another one is replaced.

    The draft's weights have so many bits, 0: as they are.
    """
    count = len(own.steps)
    if not path.exists() or not fits(Recording.load(path), own):
        from vlm_nav_evaluation.virtual_time.record import Models, record  # torch, late: virtual time needs none

        print(f"recording {count} frames into {path}")
        asked = asked_of(options, count)
        models = Models.load(
            options.target_model, options.draft_model, options.exits, options.predictor, options.dtype,
            in_words(options.frames),
        )  # fmt: skip
        if bits:
            round_weights(models.draft.model, bits)
        scheme = SamplingScheme.parse(sampling)
        record(models, asked, options.max_tokens, recordings.TOP, scheme).save(path)
    recording = Recording.load(path)
    return replace(recording, steps=recording.steps[:count])


def fits(recording: Recording, own: Recording) -> bool:
    """Return whether a recording is of the same models as `own`, and not shorter."""
    same = all(recording.notes.get(model) == own.notes.get(model) for model in ("target", "draft"))
    return same and len(recording.steps) >= len(own.steps)


def round_weights(model: Any, bits: int) -> None:
    """Round every linear layer's weights to so many bits, to nearest, with one scale a row."""
    import torch

    levels = 2 ** (bits - 1) - 1
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear):
                scales = layer.weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / levels
                layer.weight.copy_((layer.weight / scales).round() * scales)


def variants(options: argparse.Namespace, count: int) -> Iterator[tuple[str, Recording]]:
    """Yield the recordings that are compared, by name."""
    own = recordings.recorded(options, count)
    path = recordings.recording_file(options)
    yield "with predictor", own
    yield "no predictor", tempered(own, 1.0)
    yield f"flat, temperature {FLAT:g}", tempered(own, FLAT)
    yield f"sharp, temperature {SHARP:g}", tempered(own, SHARP)
    rounded = path.with_name(f"{path.stem}_{options.bits}bit.npz")
    yield (
        f"weights of {options.bits} bits",
        tempered(record_variant(options, rounded, own, options.bits, "greedy"), 1),
    )
    drawn = path.with_name(f"{path.stem}_coupled.npz")
    yield "coupled, temperature 0.7", tempered(record_variant(options, drawn, own, 0, SAMPLING), 1.0)


def children(recording: Recording, calibrate: bool) -> list[Child]:
    """Return what a draft proposes along the answers, each place before it is learned from."""
    calibration, found = Calibration(), list[Child]()
    for number, step in enumerate(recording.steps):
        first = step.acceptance[:, min(DEPTH, step.acceptance.shape[1]) - 1]
        for place, token in enumerate(step.tokens):
            own = step.draft_probabilities[place, :WIDTH].astype(np.float64)
            share = (1.0 - first[place]) / (1.0 - own[0]) if own[0] < 1.0 else 0.0
            chances = [float(first[place]), *(float(share * each) for each in own[1:])]
            proposals: Proposals = tuple(zip(step.draft_tokens[place, :WIDTH].tolist(), chances, strict=True))
            if calibrate:
                proposals, cells = calibration.chances(proposals, WIDTH, DEPTH)
                calibration.learn(proposals, cells, token)
                calibration.fit()
            found += [Child(number, place, chance, each == token) for each, chance in proposals]
    return found


def losses(found: Sequence[Child], steps: int) -> dict[str, float]:
    """Return log loss of all places and of those of the first answers, and how far off the mark a chance is."""
    places: dict[tuple[int, int], list[Child]] = {}
    for child in found:
        places.setdefault((child.step, child.place), []).append(child)
    each = {key: place_loss(place) for key, place in places.items()}
    early = [loss for (step, _), loss in each.items() if step < min(FIRST, steps)]
    off = sum(len(group) * abs(chance - share) for group, chance, share in grouped(found)) / len(found)
    return {"loss": sum(each.values()) / len(each), "first": sum(early) / len(early), "off": off}


def place_loss(place: Sequence[Child]) -> float:
    """Return the negative logarithm of the chance of what came, nats."""
    chance = next((child.chance for child in place if child.right), 1.0 - sum(child.chance for child in place))
    return -math.log(max(_LEAST, chance))


def grouped(found: Sequence[Child]) -> list[tuple[Sequence[Child], float, float]]:
    """Return children of about the same chance in `GROUPS` groups of one size, with mean chance and share right."""
    ranked = sorted(found, key=lambda child: child.chance)
    ends = [len(ranked) * end // GROUPS for end in range(GROUPS + 1)]
    groups = [ranked[start:end] for start, end in itertools.pairwise(ends) if end > start]
    return [
        (group, sum(each.chance for each in group) / len(group), sum(each.right for each in group) / len(group))
        for group in groups
    ]


def speeds(recording: Recording, cost: str) -> dict[str, Any]:
    """Return seconds a token and tau of `sd` and of the modes with trees, raw and calibrated, on virtual time."""
    timings = load_timings(TIMINGS, cost)

    def timed(mode: str, **changes: Any) -> tuple[dict[str, float], list[float]]:
        stats = [each.stats for each in run_mode(mode, recording, timings, **changes)]
        each_s, tokens = [each.total_s for each in stats], sum(each.tokens for each in stats)
        return {"s": sum(each_s) / tokens, "tau": tokens / sum(each.rounds for each in stats)}, each_s

    found: dict[str, Any] = {Mode.SD.value: timed(Mode.SD.value)[0]}
    for mode in MODES:
        (off, off_s), (on, on_s) = (timed(mode, ngrams=False, calibrate=calibrate) for calibrate in (False, True))
        faster, error = ratio(off_s, on_s)
        found[mode] = {OFF: off, ON: on, "faster": faster, "error": error}
    return found


def ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float, float]:
    """Return the ratio of two sums over the same answers, and twice its standard error (linearised)."""
    found = sum(above) / sum(below)
    left = [one - found * other for one, other in zip(above, below, strict=True)]
    return found, 2.0 * math.sqrt(sum(each * each for each in left)) / sum(below)


def compared(recording: Recording, cost: str) -> tuple[dict[str, Any], dict[str, list[Child]]]:
    """Return all figures of a recording, and the children behind its losses."""
    proposed = {OFF: children(recording, False), ON: children(recording, True)}
    tokens = sum(len(step.tokens) for step in recording.steps)
    right = sum(int((step.draft_tokens[:, 0] == step.tokens).sum()) for step in recording.steps)
    figures: dict[str, Any] = {"right": right / tokens, **speeds(recording, cost)}
    figures |= {name: losses(found, len(recording.steps)) for name, found in proposed.items()}
    return figures, proposed


def figure(entries: Mapping[str, Mapping[str, Any]], proposed: Mapping[str, Mapping[str, Sequence[Child]]]) -> Figure:
    """Return reliability diagrams, one a recording: share right over chance, raw and calibrated."""
    columns = 3
    drawn = new_figure(3.1 * math.ceil(len(proposed) / columns))
    panels = drawn.subplots(math.ceil(len(proposed) / columns), columns, sharex=True, sharey=True, squeeze=False)
    for axes, (name, both) in zip(panels.flat, proposed.items(), strict=False):
        axes.plot([0, 1], [0, 1], color=PAPER, linewidth=0.8, linestyle=":")
        for which, colour in ((OFF, COLOURS["sd"]), (ON, COLOURS["cloud"])):
            points = [(chance, share) for _, chance, share in grouped(both[which])]
            label = f"{which}: log loss {entries[name][which]['loss']:.2f}"
            axes.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=3.5, label=label)
        axes.set_title(name, fontsize=10)
        axes.legend(fontsize=7.5, loc="upper left", frameon=False)
        plain(axes, "both")
    for axes in panels[-1]:
        axes.set_xlabel("chance of a child")
    for axes in panels[:, 0]:
        axes.set_ylabel("share right")
    return drawn


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command_line("benchmarks.calibration", __doc__)
    recordings.add_recording(line)
    recordings.add_cost(line)
    line.add_argument("--steps", type=int, help="answers (default: 40, quick: 8)")
    line.add_argument("--bits", type=int, default=BITS, help="of the rounded draft's weights, 2 to 8 (default: 4)")
    add_outputs(line)
    return line


def run(options: argparse.Namespace) -> None:
    """Run the benchmark. Raises ValueError, in one sentence, where it cannot."""
    if not 2 <= options.bits <= 8:
        raise ValueError(f"--bits {options.bits}: give 2 to 8")
    count = options.steps or (recordings.QUICK_COUNT if options.quick else recordings.COUNT)
    entries, proposed = dict[str, dict[str, Any]](), dict[str, dict[str, list[Child]]]()
    for name, recording in variants(options, count):
        entries[name], proposed[name] = compared(recording, options.cost)
    print(f"{count} answers; {load_timings(TIMINGS, options.cost)}")
    print(figures_table("recording", entries, COLUMNS))
    print("\nall answers; earlier answers off")
    print(figures_table("recording", entries, SPEED))
    keep(figure(entries, proposed), "calibration", options)
    if options.save:
        write_result("calibration", {"settings": settings_of(options), "machine": machine(), "recordings": entries})


main = partial(main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
