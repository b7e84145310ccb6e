"""What each technique brings: `full` with one switched off, and `sd` with one switched on, at the Go2's times.

Of `full` as shipped, of `full` as it is fastest there, and the same without earlier answers; of `sd` as shipped and as
it is fastest. What a mode is tuned on is not what is reported.

Two tables of the papers stand in its place where they are asked for. `--queues`: Early Exits' Table 7 at the RTX's
times, `fsd` by Algorithms 1 and 2, with n branches for n threads, and what its exits name (`named`). `--picospec`: the
rows of PicoSpec's Tables 1 to 3 at its times, `pipelined` without each of its parts, and what it is compared with.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from benchmarks.recordings import VIRTUAL, add_cost, add_recording, of_recording, recorded
from cloud_verifier.exit_queue import QueuePolicy
from edge_drafter import Mode
from edge_drafter.settings import START_GAMMA
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.plots import MODE_COLOURS, PAPER, SMALL, add_outputs, keep, new_figure, plain
from vlm_nav_evaluation.results import RESULTS, provenance, settings_of, write_result
from vlm_nav_evaluation.tables import Column, markdown, table
from vlm_nav_evaluation.virtual_time import SERVER, Recording, Synthetic, Timings, VirtualTime, load_timings
from vlm_nav_evaluation.virtual_time.figures import figures_of
from vlm_nav_evaluation.virtual_time.tuning import NO_NGRAMS, TUNED, arms_at_best, split

FULL, SD = Mode.FULL.value, Mode.SD.value
STEPS, QUICK_STEPS = 40, 6
SYNTHETIC = Synthetic()
"""As Early Exits, Table 8 has its run on the Go2: tau 2.92, 55.6 % of verdicts named by no exit, mean exit 8."""
WITHOUT = {
    "drafts ahead": "ahead=off",
    "own guess": "own_guess=off,ahead=off",
    "early tokens": "early_tokens=off",
    "best leaf first": "best_first=off,branches=6",
    "trees (chains)": "draft_tokens=0,width=1",
    "second children": "width=1",
    "several leaves": "leaves=1",
    "a large tree": "max_nodes=64",
    "earlier answers": "ngrams=off",
    "the ledger": "idle=wait",
    "partial drafts": "partial=off",
    "truncation": "truncate=off",
    "longer trees": "extend=off",
    "interruption": "interrupt=off",
    "predicted ends": "stop_below=0",
    "effort 1": "effort=1",
    "effort 0.5": "effort=0.5",
    "effort 0": "effort=0",
}
"""`full` with one technique off, as `--drafting` takes it. Without a queue of branches best_first needs one.

Effort has no off: with 1 every draft forward that may save time runs, with 0 only those that save more than they take.
"""
WITH = {
    "early tokens (fsd)": "early_tokens=on,branches=6,leaves=6",
    "own guess": "own_guess=on",
    "own guess, ahead": "own_guess=on,ahead=on,ahead_above=0",
    "trees": "width=2,draft_tokens=16,leaves=4",
    "trees, own guess": "width=2,draft_tokens=16,leaves=4,own_guess=on,best_first=on",
    "earlier answers": "ngrams=on",
    "the ledger": "idle=ledger",
    "truncation": "truncate=on",
    "gamma=auto": "gamma=auto",
}
"""`sd` with one technique on; drafts ahead and best leaf first need a pre-draft to work on."""
WHOLE = "nothing changed"
COLUMNS = (
    Column("ms/token", "ms_per_token", ".0f"),
    Column("x time", "slower"),
    Column("busy", "target_busy"),
    Column("misses", "miss_rate", ".0%"),
    Column("passes/token", "passes_per_token"),
    Column("draft forwards/token", "forwards_per_token"),
    Column("edge CPU s", "cpu_s_per_step"),
    Column("", "drafting", ""),
)
SHOWN = ("target_busy", "passes_per_token", "forwards_per_token", "miss_rate", "cpu_s_per_step")
TABLE_7 = {
    ("confidence", "priority"): (79.85, 62.93, 27.57),
    ("confidence", "fifo"): (80.40, 63.48, 27.73),
    ("random", "priority"): (82.32, 63.25, 26.92),
    ("random", "fifo"): (84.56, 65.36, 27.68),
    ("fifo", "priority"): (82.61, 64.43, 27.69),
    ("fifo", "fifo"): (85.43, 65.67, 27.84),
}
"""Misses in percent by the edge's and the server's queue, with `PRINTED` threads."""
PRINTED, THREADS = (3, 5, 10), (1, 3, 5, 10, 15)
TABLE_6 = {
    "Vicuna 7B, 30 threads": (14 / 32, 80.41),
    "Vicuna 13B, 15 threads": (14 / 40, 74.38),
    "Llama2 7B, 30 threads": (9 / 32, 90.37),
    "Go2, Qwen2-VL 7B, 6 threads": (8 / 28, 44.37),
}
"""Early Exits, Tables 6 (RTX) and 8: the mean first exit that is right, as a share of the layers, and hits in percent.
It prints no agreement by layer."""
SMOLLM2_ROWS = {("lens", 5, 256): "no adapter", ("kl256", 12, 128): "rank 256, KL, 12 epochs"}
"""Rows of exits_by_depth.json, by exit, epochs and batch, that are drawn beside the recording's."""
WAYS = {FULL: WITHOUT, f"{FULL}, {TUNED}": WITHOUT, f"{FULL}, {NO_NGRAMS}, {TUNED}": WITHOUT, SD: WITH,
        f"{SD}, {TUNED}": WITH}  # fmt: skip
"""What is changed of what; an arm of `arms_at_best`."""


class Pipeline(NamedTuple):
    """A pair and task of PicoSpec, as its Tables 1 to 3 print them; times in seconds, rates in tokens a second."""

    gamma: int
    """The printed draft length, or the one that the printed rate asks for where more tokens are accepted than that."""
    accepted: float
    """Draft tokens accepted a round, a + a^2 + ... + a^gamma."""
    drafting_s: float
    """Seconds that drafting gamma tokens takes."""
    around_s: float
    """T_verify + T_rtt of the stop-and-wait round, in which nothing is hidden."""
    whole_s: float
    """Seconds that `around_s` grows by where whole distributions go up."""
    layer_bytes: float
    layers: int
    printed: tuple[float, float, float, float, float, float, float]
    """Rates in the order of `PARTS`; those of Table 1 are printed as multiples of the cloud's."""

    @property
    def timings(self) -> Timings:
        """T_p, T_q = one token of cloud decoding, and T_c = what the stop-and-wait round leaves."""
        verify_s = 1.0 / self.printed[0]
        return Timings(
            "picospec", self.drafting_s / self.gamma, 0.0, verify_s, one_way_s=(self.around_s - verify_s) / 2
        )

    @property
    def acceptance(self) -> float:
        """The chance a that a draft token whose ancestors stand does, too."""
        chances = np.linspace(0.0, 1.0, 10_001)
        accepted = np.sum(chances ** np.arange(1, self.gamma + 1)[:, None], axis=0)
        return float(chances[np.argmin(np.abs(accepted - self.accepted))])

    @property
    def split_token_s(self) -> float:
        """A token of split inference with three layers on the edge: their weights are read there, the others' in the
        cloud, and a hidden state goes up and a token comes down."""
        timings = self.timings
        on_edge_s = EDGE_LAYERS * self.layer_bytes / EDGE_BYTES_PER_S
        return on_edge_s + timings.verify_s * (1.0 - EDGE_LAYERS / self.layers) + 2.0 * timings.one_way_s


EDGE_LAYERS, EDGE_BYTES_PER_S = 3, 204.8e9
"""PicoSpec's split, and the memory of a Jetson AGX Orin."""
QWEN, LLAMA = (0.975e9, 64), (1.711e9, 80)
"""Bytes of a layer in 16 bits, and layers, of Qwen3 32B and Llama 3.1 70B."""
PICOSPEC = {
    "Qwen3 0.6B/32B, GSM8K": Pipeline(4, 2.50, 0.09746, 0.11981, 0.07963, *QWEN,
                                      (13.89, 8.06, 7.50, 11.92, 17.87, 12.62, 20.19)),
    "Qwen3 0.6B/32B, HumanEval": Pipeline(4, 1.88, 0.09717, 0.11903, 0.09023, *QWEN,
                                          (14.18, 6.24, 7.52, 10.25, 13.86, 10.23, 16.04)),
    "Llama 1B/70B, GSM8K": Pipeline(6, 4.29, 0.17105, 0.19468, 0.11733, *LLAMA,
                                    (6.87, 9.27, 4.33, 12.51, 16.64, 12.12, 17.22)),
    "Llama 1B/70B, HumanEval": Pipeline(7, 4.90, 0.17241, 0.18660, 0.09888, *LLAMA,
                                        (6.86, 9.95, 4.53, 13.60, 19.67, 14.29, 19.88)),
}  # fmt: skip
SPLIT, VANILLA, WHOLE_ROWS = "split inference", "vanilla", "without separate rejection"
PARTS = {
    "cloud": ("cloud", ""),
    VANILLA: (SD, ""),
    SPLIT: None,
    "without pre-draft": (Mode.PIPELINED.value, "own_guess=off,ahead=off"),
    "without PreVerify": (Mode.PIPELINED.value, "preverify=off,partial=off"),
    WHOLE_ROWS: (Mode.PIPELINED.value, ""),
    "all": (Mode.PIPELINED.value, ""),
}
"""Mode and changes of PicoSpec's rows. Split inference drafts nothing: it has a formula."""
GAMMAS, PICOSPEC_STEPS = (2, 4, 6), 12
PICOSPEC_COLUMNS = (
    Column("printed tokens/s", "printed", ".1f"), Column("of all", "printed_share"),
    Column("ours", "rate", ".1f"), Column("of all", "share"), Column("passes/token", "passes_per_token"),
    Column("best gamma", "gamma", ".0f"), Column("its tokens/s", "best", ".1f"),
)  # fmt: skip


def picospec(options: argparse.Namespace) -> None:
    """Print PicoSpec's ablation for each pair and task, and save what was asked."""
    count = options.steps or (QUICK_STEPS if options.quick else PICOSPEC_STEPS)
    found: dict[str, dict[str, Any]] = {}
    for name, row in PICOSPEC.items():
        first, shown = split(Synthetic(acceptance=row.acceptance, miss=1.0, image_bytes=0, seed=20_000).draw(count))
        found[name] = parts_of(row, first, shown, options.cost)
        print(f"\n{name}: gamma {row.gamma}, acceptance {row.acceptance:.3f}, {row.timings.with_cost(options.cost)}\n")
        print(markdown("", found[name], PICOSPEC_COLUMNS), flush=True)
    if options.save:
        about = {"settings": settings_of(options), **provenance(options), "kind": VIRTUAL}
        write_result("picospec_ablation", {**about, "rows": {name: row._asdict() for name, row in PICOSPEC.items()},
                                           "found": found})  # fmt: skip


def parts_of(row: Pipeline, first: Recording, shown: Recording, cost: str) -> dict[str, dict[str, Any]]:
    """Return the rates of PicoSpec's rows at its draft length, and of each at the length of `GAMMAS` that is fastest on
    `first`."""
    plain = row.timings.with_cost(cost)
    whole = replace(plain, one_way_s=plain.one_way_s + row.whole_s / 2.0)
    found: dict[str, dict[str, Any]] = {}
    for (name, part), printed in zip(PARTS.items(), row.printed, strict=True):
        found[name] = {"printed": printed}
        if part is None:
            found[name] |= {"rate": 1.0 / row.split_token_s}
            continue
        timings, (mode, text) = whole if name in (VANILLA, WHOLE_ROWS) else plain, part
        drafts = GAMMAS if Mode(mode).drafts else ()

        def rates(recording: Recording, gammas: Sequence[int], at: Timings = timings, mode: str = mode,
                  text: str = text) -> dict[int, dict[str, float]]:  # fmt: skip
            arms = [Arm[Any](str(gamma), mode, {"text": text, "gamma": gamma}) for gamma in gammas]
            answers = VirtualTime(recording, at).run(arms).answers
            figures = {gamma: figures_of(answers[str(gamma)], at) for gamma in gammas}
            return {gamma: {"rate": 1.0 / each["per_token_s"]["median"], "passes_per_token": each["passes_per_token"]}
                    for gamma, each in figures.items()}  # fmt: skip

        found[name] |= rates(shown, [row.gamma])[row.gamma]
        if drafts:
            tried = rates(first, drafts)
            best = max(tried, key=lambda gamma, tried=tried: tried[gamma]["rate"])  # type: ignore[misc]
            found[name] |= {"gamma": best, "best": rates(shown, [best])[best]["rate"]}
    for each in found.values():
        each |= {"share": each["rate"] / found["all"]["rate"], "printed_share": each["printed"] / row.printed[-1]}
    return found


def run(options: argparse.Namespace) -> None:
    """Print a table for each recording and way, plot `full`'s, and save what was asked."""
    if options.queues:
        return queues(options)
    if options.picospec:
        return picospec(options)
    options.steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
    timings, pair = load_timings("go2", options.cost).with_server_draft(), recorded(options, options.steps)
    sources = {"embedded pair": pair, "synthetic": SYNTHETIC.draw(max(2, options.steps // 5))}
    print(f"{timings}\n{VIRTUAL}")
    found, counts = {}, {}
    for name, recording in sources.items():
        first, shown = split(recording)
        counts[name] = {"tuned_on": len(first.steps), "reported": len(shown.steps)}
        print(f"\n{name}: {len(shown.steps)} steps, tuned on {len(first.steps)} others")
        found[name] = ablate(first, shown, timings)
        for way, rows in found[name].items():
            print(
                f"\n{markdown(f'`{way}` with' if way.startswith(SD) else f'`{way}` without', by_name(rows), COLUMNS)}"
            )
    bars = {name: arms[FULL][1:] for name, arms in found.items()}
    keep(plot(bars, timings.cost_words), "decoding_ablation", options)
    if options.save:
        about = {"settings": settings_of(options), **provenance(options), **of_recording(pair)}
        about |= {"timings": asdict(timings), "kind": VIRTUAL}
        name = f"{command.result_name('decoding', options.frames)}_ablation"
        write_result(name, {**about, "steps": counts, "sources": found})


def queues(options: argparse.Namespace) -> None:
    """Print the misses of Table 7 beside the paper's, and those of this project's own order, and save what was asked.

    The paper's rule: an exit is as confident as its most probable token (s = max q), it leaves the server and is
    drafted for in that order, an early token after another, each of which takes T_c.
    """
    timings = load_timings("rtx_vicuna_7b", options.cost)
    steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
    # Answers are all that is needed, so that a recording may be of models that are not there any more.
    recording = Recording.load(options.recording) if options.recording else recorded(options, steps)
    recording = replace(recording, steps=recording.steps[:steps])
    theirs = replace(recording, reliability={}, by_highest=True)
    rows = [(order, theirs) for order in TABLE_7] + [(("priority", "priority"), recording)]
    arms = []
    for (edge, server), source in rows:
        changes = {"recording": source, "server": SERVER.changed(
            queue_policy=QueuePolicy(server), early_rate=1.0 / timings.one_way_s, early_burst=1)}  # fmt: skip
        for threads in THREADS:
            text = f"queue_policy={edge},branches={threads},leaves={threads}"
            arms.append(Arm[Any](f"{edge}, {server}, {threads}", Mode.FSD.value, {**changes, "text": text}))
    run = VirtualTime(recording, timings).run(arms)
    misses = iter([figures_of(run.answers[arm.name], timings)["miss_rate"] for arm in arms])
    found = {f"{edge}, {server}": [next(misses) for _ in THREADS] for (edge, server), _ in rows}
    about = named(recording)
    print(f"{timings}\n{VIRTUAL}\n{about}\nmisses in percent, the paper's in brackets\n")
    lines = []
    for (order, _), values in zip(rows, found.values(), strict=True):
        paper = dict(zip(PRINTED, TABLE_7.get(order, ()), strict=False))
        shown = (
            f"{100 * value:.1f}" + (f" ({paper[n]})" if n in paper else "")
            for n, value in zip(THREADS, values, strict=True)
        )
        lines.append((", ".join(order), *shown))
    print(table(("edge, server", *map(str, THREADS)), lines))
    keep(plot_queues(about, found), "decoding_queues", options)
    if options.save:
        about |= {"settings": settings_of(options), **provenance(options), **of_recording(recording)}
        about |= {"timings": asdict(timings), "kind": VIRTUAL, "threads": THREADS}
        write_result(
            "decoding_queues", {**about, "misses": found, "paper": {", ".join(k): v for k, v in TABLE_7.items()}}
        )


def named(recording: Recording, gamma: int = START_GAMMA) -> dict[str, Any]:
    """Return what exits say about chains of `gamma` drafted tokens: how many different verdicts they give of one, and
    by layer how often the verdict is the target's (`right`) and how often that or an earlier one is (`by then`).

    Every chain begins behind the target's last verdict. Raises ValueError for synthetic exits.
    """
    different, right = list[int](), list[Any]()
    for step in recording.steps:
        if step.exit_tokens is None:
            raise ValueError("synthetic exits have no tokens of their own; give a --recording")
        tokens, drafted, place = np.array(step.tokens), step.draft_tokens[:, 0], 1
        accepted = (drafted == tokens).tolist()
        while place < len(tokens):
            most = min(place + gamma, len(tokens) - 1)
            ends = []
            for column in (*step.exit_tokens.T, tokens):
                end = place
                while end < most and column[end] == drafted[end] and accepted[end]:
                    end += 1
                ends.append((end, int(column[end])))
            *exits, final = ends
            different.append(len(set(exits)))
            right.append([verdict == final for verdict in exits])
            place = final[0] + 1
    by_then = np.maximum.accumulate(np.array(right), axis=1)
    depth = (np.array(recording.exit_layers) + 1) / recording.layers
    is_named = by_then[:, -1]
    return {
        "verifications": len(right),
        "different": float(np.mean(different)),
        "depth": depth.round(4).tolist(),
        "right": np.mean(right, axis=0).round(4).tolist(),
        "by then": by_then.mean(axis=0).round(4).tolist(),
        "mean depth": float(depth[by_then[is_named].argmax(axis=1)].mean()) if is_named.any() else None,
    }


def plot_queues(about: Mapping[str, Any], misses: Mapping[str, Sequence[float]]) -> Figure:
    """Return how many verdicts exits name by depth and the misses by threads, with the paper's figures beside both."""
    figure = new_figure(5.4)
    by_depth, by_threads = figure.subplots(1, 2)
    for name, style in (("right", "o-"), ("by then", "--")):
        by_depth.plot(about["depth"], 100 * np.array(about[name]), style, color=MODE_COLOURS["fsd"], markersize=5,
                      label={"right": "this exit", "by then": "this or an earlier one"}[name])  # fmt: skip
    for number, (name, (depth, hits)) in enumerate(TABLE_6.items()):
        by_depth.plot([depth], [hits], "DsoX"[number], color=PAPER, label=f"paper: {name}")
    smollm2 = json.loads((RESULTS / "exits_by_depth.json").read_text(encoding="utf-8"))["SmolLM2-135M-Instruct"]
    for (name, epochs, batch), label in SMOLLM2_ROWS.items():
        rows = [row for row in smollm2["rows"] if (row["exit"], row["epochs"], row["batch"]) == (name, epochs, batch)]
        rows.sort(key=lambda row: row["layer"])
        by_depth.plot([(row["layer"] + 1) / smollm2["layers"] for row in rows], [100 * row["right"] for row in rows],
                      "s-" if name != "lens" else ":", color=MODE_COLOURS["sd"], markersize=4,
                      label=f"SmolLM2: {label}")  # fmt: skip
    by_depth.set_xlabel("depth of the exit (paper: mean first right one)")
    by_depth.set_ylabel("verdicts of the target, %")
    for order, colour in (("confidence, priority", "fsd"), ("fifo, fifo", "sd")):
        paper = TABLE_7[tuple(order.split(", "))]  # type: ignore[index]
        by_threads.plot(THREADS, 100 * np.array(misses[order]), "o-", color=MODE_COLOURS[colour], label=order)
        by_threads.plot(PRINTED, paper, "D", color=MODE_COLOURS[colour], markeredgecolor=PAPER, label=f"paper: {order}")
    by_threads.set_xlabel("threads")
    by_threads.set_ylabel("misses, %")
    for axes in (by_depth, by_threads):
        axes.set_ylim(0, 100)
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15))
        plain(axes)
    return figure


def by_name(rows: list[dict[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """Return rows by their names, with what was changed as code."""
    return {row["name"]: {**row, "drafting": f"`{row['drafting']}`" if row["drafting"] else ""} for row in rows}


def ablate(first: Recording, shown: Recording, timings: Timings) -> dict[str, list[dict[str, Any]]]:
    """Return rows for `full` without each technique and for `sd` with each, the whole mode first, by `WAYS`.

    first: answers to tune on. slower: how many times as long as in the whole mode its steps took, frame by frame.
    """
    bases, _ = arms_at_best((FULL, SD), first, timings)
    found = {}
    for base in (each for each in bases if each.name in WAYS):
        own, changes = base.changes.get("text", ""), WAYS[base.name]
        # Without earlier answers already, there is nothing to switch off.
        variants = {WHOLE: "", **{name: text for name, text in changes.items() if text not in own.split(",")}}
        texts = {name: ",".join(filter(None, (own, text))) for name, text in variants.items()}
        run = VirtualTime(shown, timings).run(
            [Arm[Any](name, base.mode, {"text": text}) for name, text in texts.items()]
        )
        every = {name: figures_of(answers, timings) for name, answers in run.answers.items()}
        found[base.name] = [
            {
                "name": name,
                "drafting": texts[name],
                "slower": run.times_faster(name, WHOLE),
                "ms_per_token": 1e3 * each["per_token_s"]["median"],
                **{figure: each[figure] for figure in SHOWN},
            }
            for name, each in every.items()
        ]
    return found


def plot(sources: Mapping[str, Sequence[Mapping[str, Any]]], cost: str) -> Figure:
    """Return bars of a step's time without each technique over that of `full`, one panel for each recording.

    cost: what loads cost, in words.
    """
    figure = new_figure(1.8 + 0.4 * max(len(rows) for rows in sources.values()))
    panels = figure.subplots(1, len(sources), sharey=True, squeeze=False)[0]
    for axes, (title, rows) in zip(panels, sources.items(), strict=True):
        places = np.arange(len(rows))
        low, middle, high = 100.0 * (np.array([row["slower"] for row in rows]).T - 1.0)
        axes.barh(
            places, middle, 0.66, color=[MODE_COLOURS[FULL if value > 0 else Mode.EDGE.value] for value in middle]
        )
        axes.hlines(places, low, high, color=PAPER, linewidth=1.2)
        for place, value in zip(places, middle, strict=True):
            label = f"{round(value):+d} %" if round(value) else "0 %"
            axes.text(1.0, place, label, va="center", fontsize=SMALL, transform=axes.get_yaxis_transform())
        axes.axvline(0.0, color=PAPER, linewidth=1.0)
        axes.set_yticks(places, [row["name"] for row in rows])
        axes.set_title(title)
        axes.set_xlabel("step time, % more than with it")
        plain(axes, "x")
    panels[0].invert_yaxis()
    title = f"What {FULL} loses without one technique\n(Go2 times, virtual; line: 95 % interval)"
    figure.suptitle(f"{title}\n{cost}", fontsize=14)
    return figure


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command.command_line("benchmarks.ablation", __doc__)
    add_outputs(line)
    add_cost(line)
    shown = "recorded frames; a fifth as many answers, five times as long, are synthetic"
    line.add_argument("--steps", type=int, help=f"{shown} (default: {STEPS}, with --quick {QUICK_STEPS})")
    papers = line.add_mutually_exclusive_group()
    papers.add_argument("--queues", action="store_true", help="the queues of Early Exits, Table 7, in their place")
    papers.add_argument(
        "--picospec", action="store_true", help="PicoSpec's Tables 1 to 3 instead, of synthetic answers"
    )
    add_recording(line)
    return line


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
