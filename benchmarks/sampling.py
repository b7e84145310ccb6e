"""What a sampling scheme costs on the wire: bytes per round, acceptance and time, over real sockets.

Every scheme (greedy, coupled, point-mass, and rejection sampling in its three wire forms) has a session of its own at
one verifier; they take turns on every frame. What a round costs upwards is a mode's bytes less those of `cloud`, which
sends nothing but the frame, both as the socket counted them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from edge_drafter import Mode
from speculation.sampling import SCHEMES, SamplingScheme, Sparse
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.questions import warmed_up
from vlm_nav_evaluation.experiment.run import Arm, Run
from vlm_nav_evaluation.experiment.sockets import sockets
from vlm_nav_evaluation.figures import median_interval
from vlm_nav_evaluation.plots import COLOURS, SMALL, add_outputs, bar_plot, keep
from vlm_nav_evaluation.tables import Column, figures_table, spread_columns

WARM_UP = 1
STEPS, QUICK_STEPS = 24, 2
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


def schemes_of(options: argparse.Namespace) -> list[SamplingScheme]:
    """Return the schemes to compare. Raises ValueError, naming the option."""
    how = {name: getattr(options, name) for name in ("temperature", "top_k", "top_p")}
    schemes: list[SamplingScheme] = []
    for scheme in SCHEMES.values():
        own = {"keep": options.keep} if issubclass(scheme, Sparse) else {}
        schemes.append(scheme(**how, **own) if scheme.random else scheme())
    return schemes


def modes_of(scheme: SamplingScheme) -> tuple[Mode, ...]:
    """Return a scheme's modes: `full` where it takes trees; the target alone once greedy, once sampled."""
    alone = (Mode.CLOUD,) if scheme.alone == scheme else ()
    return (*alone, Mode.SD, Mode.FSD, *(() if scheme.one_chain else (Mode.FULL,)))


def base_of(scheme: SamplingScheme) -> str:
    """Return the arm that a scheme is compared with: the target alone, greedy or sampled."""
    return f"{scheme.alone.name} {Mode.CLOUD.value}"


def compare(run: Run, bases: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the figures of every arm, with bytes per round and how much faster than its base, per token."""
    figures = run.figures()
    for name, entry in figures.items():
        stats, alone = run.stats(name), run.stats(bases[name])
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
    """Return the bytes per round of `sd` by sampling scheme, up and down."""
    shown = {name.split()[0]: each for name, each in figures.items() if name.endswith(f" {Mode.SD.value}")}
    figure, axes = bar_plot(5.2, list(shown), title, "bytes per round, as the socket counted them")
    for shift, way, colour, label in (
        (-0.19, "up", COLOURS[0], "up: drafts"),
        (0.19, "down", COLOURS[3], "down: commits"),
    ):
        values = [each[f"bytes_{way}_per_round"] for each in shown.values()]
        bars = axes.barh([row + shift for row in range(len(shown))], values, 0.36, color=colour, label=label)
        axes.bar_label(bars, [f" {value:,.0f} B" for value in values], fontsize=SMALL)
    axes.set_xscale("log")
    axes.set_xlim(10, 4.0 * max(each["bytes_up_per_round"] for each in shown.values()))
    axes.legend(loc="lower right")
    return figure


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command.experiment_line("benchmarks.sampling", __doc__, STEPS, ("profile", "link"), QUICK_STEPS)
    command.add_journal(line)
    line.add_argument("--temperature", type=float, default=0.7)
    line.add_argument("--top-k", type=int, default=0)
    line.add_argument("--top-p", type=float, default=1.0)
    line.add_argument("--keep", type=int, default=32, help="tokens of the head that sparse sends down (default: 32)")
    line.add_argument("--gamma", type=int, default=4, help="draft tokens per verification (default: 4)")
    add_outputs(line)
    return line


def run(options: argparse.Namespace) -> None:
    """Run the benchmark. Raises ValueError or RuntimeError, in one sentence, where it cannot."""
    if not options.temperature > 0.0:
        raise ValueError(f"--temperature {options.temperature:g}: give more than 0; greedy is compared in any case")
    options.steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
    modes = (Mode.CLOUD, Mode.SD) if options.quick else tuple(Mode)
    arms, bases = list[Arm](), dict[str, str]()
    for scheme in schemes_of(options):
        settings = {"mode": Mode.SD.value, "sampling": scheme.text, "seed": options.seed}
        for mode in modes_of(scheme):
            if mode in modes:
                arms.append(Arm(f"{scheme.name} {mode.value}", mode.value, settings, exact=scheme.greedy))
                bases[arms[-1].name] = base_of(scheme)
    before, asked = warmed_up(options, options.steps, WARM_UP)
    with sockets(options) as edges:
        measured = edges.run(arms, asked, before, command.journal_of(options))
        vocabulary = edges.vlm.vocabulary
    figures = compare(measured, bases)
    how = f"temperature {options.temperature:g}, {vocabulary} tokens in the vocabulary"
    print(f"{command.described(options)}, {how}")
    print(figures_table("scheme and mode", figures, COLUMNS))
    keep(plot(figures, f"What a round of sd costs on the wire\n({how})"), "sampling", options)
    data = {"frames": options.steps, "vocabulary": vocabulary, "figures": figures}
    command.finish(options, "sampling", data, measured)


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
