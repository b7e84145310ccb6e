"""The papers' latency formulas beside virtual time, at the same times and the same acceptance.

    python -m benchmarks.formulas --save

What the papers print, and where it parts from their formulas, is in docs/papers.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.recordings import add_cost
from speculation.acceptance import expected_tokens
from speculation.progress import progress
from vlm_nav_evaluation import formulas
from vlm_nav_evaluation.experiment.command import command_line, main_of, settings_of, write_result
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.formulas import GAMMA, PICOSPEC, SYSTEMS, TOKENS, Times
from vlm_nav_evaluation.plots import COLOURS, PAPER, add_outputs, keep, new_figure
from vlm_nav_evaluation.tables import Column, figures_table
from vlm_nav_evaluation.virtual_time import PAPERS, Synthetic, Timings, VirtualTime
from vlm_nav_evaluation.virtual_time.figures import figures_of
from vlm_nav_evaluation.virtual_time.timings import DEFAULT_COST

MODES = CLOUD, SD, FSD, PIPELINED = "cloud", "sd", "fsd", "pipelined"
FULL = "full"
RATIOS = {"ar_to_sd": (CLOUD, SD), "sd_to_fsd": (SD, FSD)}
"""Speed-ups that Early Exits prints: the slow and the fast mode."""
LABELS = {CLOUD: "cloud (Early Exits, Table 4)", SD: "sd (Table 4)", FSD: "fsd (Table 4)",
          PIPELINED: "pipelined (PicoSpec, Eq. 9)"}  # fmt: skip
GO2 = PAPERS["go2"]
QUICK_TOKENS = 60
RTTS_MS, QUICK_RTTS_MS = (0, 50, 100, 150, 200, 250, 300), (0, 300)
WAYS = {
    "formula": ("|", "#4c78a8", "paper's formula, Table 4"),
    "virtual": ("o", "#e45756", "virtual time, as the formula: draft tokens cost nothing"),
    "profile": ("s", "#eeca3b", "virtual time, draft tokens cost what was measured"),
    "printed": ("D", PAPER, "paper, measured"),
}
"""Marker, colour and label of each kind of speed-up."""
COLUMNS = (
    *(Column(f"{slow} to {fast}: {way}", f"{ratio}.{way}") for ratio, (slow, fast) in RATIOS.items() for way in WAYS),
    Column("misses: virtual", "miss.virtual"),
    Column("printed", "miss.printed"),
)

TUNED = {SD: {}, PIPELINED: {}, FULL: {"early_tokens": False, "ngrams": False}}
"""Modes beside PicoSpec, and what is off in them: its verifier has no exits, and no earlier answers help."""
PIPELINE_COLUMNS = (
    Column("gamma", "gamma", ".0f"),
    Column("acceptance", "acceptance", ".3f"),
    Column("tokens a round", "tokens"),
    Column("printed", "printed.tokens"),
    Column("round ms, Eq. 9", "round_ms", ".1f"),
    Column("printed", "printed.round_ms", ".1f"),
    Column("tokens/s, Eq. 9", "rate", ".1f"),
    Column("printed", "printed.rate", ".1f"),
    *(Column(f"{mode}, virtual", f"virtual.{mode}", ".1f") for mode in TUNED),
)


def answer_s(mode: str, times: Times, acceptance: float, miss: float, tau: float | None = None) -> float:
    """Return the seconds of an answer by a mode's formula. Raises ValueError for a mode without one."""
    tau = expected_tokens(acceptance, GAMMA) if tau is None else tau
    if mode == CLOUD:
        return formulas.cloud_s(times, TOKENS)
    if mode == SD:
        return formulas.sd_s(times, TOKENS, GAMMA, tau)
    if mode == FSD:
        return formulas.fsd_s(times, TOKENS, GAMMA, tau, miss)
    if mode == PIPELINED:
        return formulas.pipelined_s(times, TOKENS, GAMMA, acceptance)
    raise ValueError(f"no paper has a formula for mode {mode!r}")


def virtual(modes: Sequence[str], source: Synthetic, steps: int, timings: Timings) -> dict[str, dict[str, float]]:
    """Return seconds a token, tau and misses of modes on synthetic answers.

    A draft forward over several leaves takes no longer, as in the formulas.
    """
    timings = replace(timings, draft_leaf=0.0)
    run = VirtualTime(source.draw(steps), timings).run([Arm[Any](mode, mode, {"gamma": GAMMA}) for mode in modes])
    figures = {mode: figures_of(run.answers[mode], timings) for mode in modes}
    return {
        mode: {
            "token_s": each["total_percentiles_s"]["mean"] * steps / each["tokens"],
            "tau": each["tau"],
            "miss": each["miss_rate"] or 0.0,
        }
        for mode, each in figures.items()
    }


def speed_ups(steps: int, tokens: int, cost: str = DEFAULT_COST) -> dict[str, dict[str, Any]]:
    """Return every system's speed-ups by Table 4, on virtual time without and with what loads cost, and as printed.

    Synthetic answers have the acceptance that gives the printed tau, the printed miss rate and mean exit. cost: as in
    `Timings.with_cost`; the formulas have none.
    """
    found = {}
    for name, system in progress(SYSTEMS.items(), unit="system"):
        acceptance = formulas.acceptance_for(system.tau, GAMMA)
        source = Synthetic(tokens, acceptance, miss=system.miss, mean_exit=system.mean_exit, layers=system.layers)
        ours, profiled = (
            virtual((CLOUD, SD, FSD), source, steps, each) for each in (PAPERS[name], PAPERS[name].with_cost(cost))
        )
        formula = {mode: answer_s(mode, system, acceptance, system.miss, system.tau) for mode in ours}
        found[name] = {
            ratio: {
                "formula": formula[slow] / formula[fast],
                "virtual": ours[slow]["token_s"] / ours[fast]["token_s"],
                "profile": profiled[slow]["token_s"] / profiled[fast]["token_s"],
                "printed": getattr(system, ratio),
            }
            for ratio, (slow, fast) in RATIOS.items()
        }
        found[name]["miss"] = {"virtual": ours[FSD]["miss"], "printed": system.miss}
    return found


def pipelines(steps: int, tokens: int, cost: str = DEFAULT_COST) -> dict[str, dict[str, Any]]:
    """Return PicoSpec's rows: by its formulas, as printed, and `TUNED` on virtual time, rates in tokens a second.

    The draft length is the printed one, or that at which the printed figures agree where it cannot be the printed one.
    Eq. 9 has the row's own times; virtual time those of its stop-and-wait row, in which nothing is hidden.
    """
    found = {}
    for row in progress(PICOSPEC, unit="row"):
        gamma = row.gamma if row.accepted <= row.gamma else row.gamma_of_both
        acceptance = replace(row, gamma=gamma).acceptance
        verify_s = 1.0 / row.cloud_rate
        own = Timings("own", row.drafting_s / gamma, verify_s=row.around_s)
        whole = replace(own, verify_s=verify_s, one_way_s=(row.serial_around_s - verify_s) / 2.0).with_cost(cost)
        source = Synthetic(tokens, acceptance, miss=1.0, image_bytes=0)
        arms = [Arm[Any](mode, mode, {"gamma": gamma, **changes}) for mode, changes in TUNED.items()]
        run = VirtualTime(source.draw(steps), whole).run(arms)
        rates = {mode: 1.0 / figures_of(run.answers[mode], whole)["per_token_s"]["median"] for mode in TUNED}
        found[row.label] = {
            "gamma": gamma,
            "acceptance": acceptance,
            "tokens": expected_tokens(acceptance, gamma - 1),
            "round_ms": 1e3 * formulas.pipelined_round_s(own, gamma, acceptance),
            "rate": 1.0 / formulas.pipelined_s(own, 1.0, gamma, acceptance),
            "virtual": rates,
            "printed": {"tokens": row.tokens, "round_ms": 1e3 * row.round_s, "rate": row.rate},
        }
    return found


def plot_speed_ups(found: Mapping[str, Mapping[str, Any]], cost: str) -> Figure:
    """Return speed-ups of Early Exits' systems in every way of `WAYS`; `cost`: what loads cost, in words."""
    figure = new_figure(4.6)
    panels: Any = figure.subplots(1, 2, sharey=True)
    for axes, (ratio, modes) in zip(panels, RATIOS.items(), strict=True):
        for row, system in enumerate(found.values()):
            axes.plot(list(system[ratio].values()), [row] * len(WAYS), "-", color="#cccccc", zorder=1)
        for way, (shape, colour, label) in WAYS.items():
            size = {"markersize": 18, "markeredgewidth": 3} if shape == "|" else {"markersize": 8}
            values = [system[ratio][way] for system in found.values()]
            axes.plot(values, range(len(found)), shape, color=colour, label=label, **size)
        axes.axvline(1.0, color="#888888", linestyle=":", zorder=0)
        axes.set_title(f"{modes[0]} to {modes[1]}, times faster", fontsize=11)
        axes.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(found)), [SYSTEMS[name].label for name in found], fontsize=9)
    panels[0].invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=9)
    figure.suptitle("Early Exits: virtual time keeps to the formula where drafts can be ready; the printed figures "
                    f"differ\nsquares: {cost}", fontsize=12)  # fmt: skip
    return figure


def plot_round_trips(found: Mapping[str, Sequence[float]], rtts_s: Sequence[float], source: Synthetic) -> Figure:
    """Return milliseconds a token over the round trip at the Go2's times: formulas as lines, virtual time as dots."""
    figure = new_figure(4.6)
    axes = figure.add_subplot()
    fine = np.linspace(min(rtts_s), max(rtts_s), 100)
    for mode, label in LABELS.items():
        at = [replace(GO2, one_way_s=float(rtt_s) / 2.0) for rtt_s in fine]
        line = [1e3 * answer_s(mode, each, source.rates[0], source.miss) / TOKENS for each in at]
        axes.plot(1e3 * fine, line, color=COLOURS[mode], linewidth=2, label=label)
        dots = [1e3 * each for each in found[mode]]
        axes.plot([1e3 * each for each in rtts_s], dots, "o", color=COLOURS[mode], markeredgecolor="black")
    axes.plot([], [], "o", color="white", markeredgecolor="black", label="virtual time")
    axes.set_ylim(0.0)
    axes.grid(alpha=0.3)
    axes.set_xlabel("round trip, ms")
    axes.set_ylabel("ms per token")
    axes.set_title("The Go2's times: formulas (lines), virtual time (dots), draft tokens cost nothing")
    axes.legend(fontsize=9, ncols=2, loc="lower right")
    return figure


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command_line("benchmarks.formulas", __doc__)
    line.add_argument("--steps", type=int, help="answers of each run (default: 8, quick: 1)")
    add_cost(line)
    add_outputs(line)
    return line


def run(options: argparse.Namespace) -> None:
    """Print the table, plot both figures and save what was asked."""
    options.steps = options.steps or (1 if options.quick else 8)
    source = Synthetic(tokens=QUICK_TOKENS if options.quick else TOKENS)
    systems = speed_ups(options.steps, source.tokens, options.cost)
    cost = GO2.with_cost(options.cost).cost_words
    rtts_s = [each / 1e3 for each in (QUICK_RTTS_MS if options.quick else RTTS_MS)]
    trips = [replace(GO2, one_way_s=rtt_s / 2.0) for rtt_s in rtts_s]
    found = [virtual(MODES, source, options.steps, timings) for timings in progress(trips)]
    ours = {mode: [each[mode]["token_s"] for each in found] for mode in MODES}
    lines = {mode: [answer_s(mode, times, source.rates[0], source.miss) / TOKENS for times in trips] for mode in MODES}
    print(f"Early Exits, Tables 4, 5, 6 and 8; {options.steps} synthetic answers of {source.tokens} tokens")
    print(f"virtual: each further token of a pass takes nothing, as in the formulas; profile: {cost}")
    print(figures_table("", {SYSTEMS[name].label: each for name, each in systems.items()}, COLUMNS))
    pipes = pipelines(options.steps, source.tokens, options.cost)
    print("\nPicoSpec, Tables 1 to 4: accepted tokens without the target's own; no bonus token after a full hit")
    print(figures_table("pair, task, printed draft length", pipes, PIPELINE_COLUMNS))
    keep(plot_speed_ups(systems, cost), "formulas_early_exits", options)
    keep(plot_round_trips(ours, rtts_s, source), "formulas_round_trip", options)
    if options.save:
        round_trips = {"rtt_s": rtts_s, "virtual_token_s": ours, "formula_token_s": lines}
        data = {"settings": settings_of(options), "source": repr(source), "systems": systems, "picospec": pipes}
        write_result("formulas", {**data, "round_trips": round_trips})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison. Returns the exit code: 0, or 2 after one sentence on stderr."""
    return main_of(parser, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
