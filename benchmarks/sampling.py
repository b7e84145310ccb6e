"""What a way to sample answers costs on the wire: bytes per round, acceptance and time, over real sockets.

Every way (greedy, coupled, point-mass, and rejection sampling in its three wire forms) has a session of its own at one
verifier; they take turns on every frame. What a round costs upwards is a mode's bytes less those of `cloud`, which
sends nothing but the frame, both as the socket counted them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from edge_drafter import Mode
from evaluation.experiment import command
from evaluation.experiment.questions import add_questions, warmed_up
from evaluation.experiment.run import Arm, Question, Run
from evaluation.experiment.sockets import sockets
from evaluation.figures import median_interval
from evaluation.plots import add_outputs, keep, new_figure, plain
from evaluation.setting import add_link, add_pair, add_profile, machine
from evaluation.tables import Column, figures_table, spread_columns
from speculation.sampling import SCHEMES, SamplingScheme, Sparse

WARM_UP = 1
QUICK_STEPS = 2
PLAIN = (Mode.SD, Mode.FSD)
FREE = (Mode.SD, Mode.FSD, Mode.FULL)
"""Modes of ways that take trees and idle decoding, too."""
COLUMNS = (
    *spread_columns("per_token_s", "ms/token", ".1f"),
    Column("x cloud", "per_token_ratio_to_cloud"),
    Column("tau", "tau"),
    Column("accepted/round", "accepted_per_round"),
    Column("hits", "hit_rate", ".0%"),
    Column("B up/round", "bytes_up_per_round", ".0f"),
    Column("B down/round", "bytes_down_per_round", ".0f"),
    Column("fetches/100 rounds", "fetches_per_round", ".1f", 100.0),
)


@dataclass(frozen=True)
class Way:
    """A way to sample answers and the modes that it goes with."""

    settings: SamplingScheme

    @property
    def name(self) -> str:
        """The scheme's name."""
        return self.settings.name

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Linear drafts, and trees where the rule takes them; the target alone once greedy, once sampled."""
        base = (Mode.CLOUD,) if self.settings.alone == self.settings else ()
        return base + (PLAIN if self.settings.one_chain else FREE)

    @property
    def base(self) -> str:
        """The arm that it is compared with: the target alone, greedy or sampled."""
        return f"{self.settings.alone.name} {Mode.CLOUD.value}"


def ways(options: argparse.Namespace) -> list[Way]:
    """Return the ways to compare. Raises ValueError, naming the option."""
    how = {name: getattr(options, name) for name in ("temperature", "top_k", "top_p")}
    sampled = [
        scheme(**how, keep=options.keep) if issubclass(scheme, Sparse) else scheme(**how)
        for scheme in SCHEMES.values()
        if scheme.random
    ]
    return [*(Way(scheme()) for scheme in SCHEMES.values() if not scheme.random), *map(Way, sampled)]


def compare(compared: Sequence[Way], run: Run) -> dict[str, dict[str, Any]]:
    """Return the figures of every arm, with bytes per round and how much faster than the target alone, per token."""
    bases = {way.name: way.base for way in compared}
    figures = run.figures()
    for name, entry in figures.items():
        stats, alone = run.stats(name), run.stats(bases[name.split()[0]])
        rounds, frames_up = sum(each.rounds for each in stats), sum(each.bytes_up for each in alone)
        pairs = zip(alone, stats, strict=True)
        entry |= {
            "bytes_up_per_round": max(0, sum(each.bytes_up for each in stats) - frames_up) / rounds,
            "bytes_down_per_round": sum(each.bytes_down for each in stats) / rounds,
            "fetches_per_round": sum(each.fetches for each in stats) / rounds,
            "per_token_ratio_to_cloud": median_interval([one.per_token_s / two.per_token_s for one, two in pairs]),
        }
    return figures


def plot(figures: Mapping[str, Mapping[str, Any]], title: str) -> Figure:
    """Return the bytes per round of `sd` by way to sample, up and down."""
    names = [name for name in figures if name.endswith(f" {Mode.SD.value}")]
    figure = new_figure(4.2)
    axes = figure.add_subplot()
    for shift, key, colour, label in (
        (-0.19, "bytes_up_per_round", "#4c78a8", "up: drafts"),
        (0.19, "bytes_down_per_round", "#f58518", "down: commits"),
    ):
        values = [figures[name][key] for name in names]
        bars = axes.barh([row + shift for row in range(len(names))], values, 0.36, color=colour, label=label)
        axes.bar_label(bars, [f" {value:,.0f} B" for value in values], fontsize=9)
    axes.set_yticks(range(len(names)), [name.split()[0] for name in names])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(10, 4.0 * max(figures[name]["bytes_up_per_round"] for name in names))
    axes.set_xlabel("bytes per round, as the socket counted them")
    axes.set_title(title)
    plain(axes, "x")
    axes.legend(loc="lower right")
    return figure


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command.command_line("benchmarks.sampling", __doc__)
    add_pair(line)
    command.add_steps(line, 24)
    line.add_argument("--temperature", type=float, default=0.7)
    line.add_argument("--top-k", type=int, default=0)
    line.add_argument("--top-p", type=float, default=1.0)
    line.add_argument("--keep", type=int, default=32, help="tokens of the head that sparse sends down (default: 32)")
    line.add_argument("--gamma", type=int, default=4, help="draft tokens per verification (default: 4)")
    add_profile(line)
    add_link(line)
    add_questions(line)
    add_outputs(line)
    return line


def run(options: argparse.Namespace) -> None:
    """Run the benchmark. Raises ValueError or RuntimeError, in one sentence, where it cannot."""
    if not options.temperature > 0.0:
        raise ValueError(f"--temperature {options.temperature:g}: give more than 0; greedy is compared in any case")
    compared = ways(options)
    options.steps = min(QUICK_STEPS, options.steps) if options.quick else options.steps
    modes = (Mode.CLOUD, Mode.SD) if options.quick else tuple(Mode)
    arms: list[Arm[Question]] = [
        Arm(
            f"{way.name} {mode.value}", mode.value,
            {"mode": Mode.SD.value, "sampling": way.settings.text, "seed": options.seed}, exact=way.settings.greedy,
        )
        for way in compared
        for mode in way.modes
        if mode in modes
    ]  # fmt: skip
    before, asked = warmed_up(options, options.steps, WARM_UP)
    with sockets(options) as edges:
        measured = edges.run(arms, asked, before, command.journal_of(options))
        vocabulary = edges.vlm.vocabulary
    figures = compare(compared, measured)
    drawn = f"temperature {options.temperature:g}, {vocabulary} tokens in the vocabulary"
    print(f"{command.described(options)}, {drawn}")
    print(figures_table("way and mode", figures, COLUMNS))
    print(machine())
    keep(plot(figures, f"What a round of sd costs on the wire ({drawn})"), "sampling", options)
    command.save_run(
        options, "sampling", {"frames": options.steps, "vocabulary": vocabulary, "figures": figures}, measured
    )


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
