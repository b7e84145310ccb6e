"""Peers in the same run: transformers' `generate`, assisted generation and prompt lookup beside this system, RTT 0.

One pair, the same frames, turns taken frame by frame, raw times of this machine from prompt and JPEG to the last token.
The peers run in this process; this system runs as it does on a robot, over real sockets to a verifier process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
import transformers
from matplotlib.figure import Figure

from benchmarks.generation import Generate, check_alike
from edge_drafter import Mode
from speculation.settings import path_flag
from speculation.vlm.load import load_vlm
from speculation.vlm.model import Vlm
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.cpu_cores import Cores, add_cores
from vlm_nav_evaluation.experiment.cpu_cores import described as on_cores
from vlm_nav_evaluation.experiment.mmspec import is_mmspec, mmspec_figures
from vlm_nav_evaluation.experiment.questions import warmed_up
from vlm_nav_evaluation.experiment.reference_answers import Flip, ModelAlone, bugs, margins
from vlm_nav_evaluation.experiment.run import WARM_UP, Arm, Run
from vlm_nav_evaluation.experiment.sockets import modes_as_arms, sockets
from vlm_nav_evaluation.plots import MODE_COLOURS, SMALL, add_outputs, bar_plot, keep
from vlm_nav_evaluation.tables import Column, figures_table, spread_columns

STEPS, QUICK_STEPS = 60, 2
LOOKUP_TOKENS = 10
"""Tokens that prompt lookup proposes at once: the default of transformers' own candidate generator."""
GREEDY = "generate"
ASSISTED, SIGHTED = "assisted, as shipped", "assisted, with sight"
LOOKUP = "prompt lookup"
AT_PREFILL = (ASSISTED, SIGHTED, LOOKUP)
"""Peers whose prefill verifies a draft, too."""
ALONE = "own loop, target alone"
FORGETFUL = "full, earlier answers off"
"""No peer remembers its answers to the frames before; the last few answers propose tokens in `full`."""
FED = "sd, fed head"
MODES = (Mode.CLOUD.value, Mode.SD.value, Mode.FSD.value, Mode.FULL.value)
OURS = (*MODES, FORGETFUL, FED)
PEER_COLOUR = "#cccccc"
OWN_COLOURS = {
    **MODE_COLOURS,
    ALONE: "#777777",
    FORGETFUL: MODE_COLOURS[Mode.FULL.value],
    FED: MODE_COLOURS[Mode.SD.value],
}
COLUMNS = (
    *spread_columns("total_s"),
    Column("tokens/s", "tokens_per_s", ".0f"),
    Column("tau", "tau"),
    Column("forwards/token", "forwards_per_token"),
    Column("faster (95 %)", "ratio_low_median_high", ".2fx"),
    Column("other", "frames_other_than_target", "d", 1),
)


def peers_of(target: Vlm, draft: Vlm, max_tokens: int) -> list[Arm]:
    """Return transformers' arms; what is there for images' sake alone is left out of a pair of language models.

    Prompt lookup may propose the image's placeholders, which transformers then takes for a second image and refuses; so
    they are barred with its own option `suppress_tokens`, and no answer has them anyway.
    """
    lookup: dict[str, Any] = {"prompt_lookup_num_tokens": LOOKUP_TOKENS}
    if target.processor.frames is not None:
        image = target.processor.frames.placeholder(target.processor.frames.check_images()[0][1])
        # What an image adds to a prompt is no word.
        barred = {*target.processor.encode_text("go", [image]).tolist()} - {*target.words("go").tolist()}
        lookup["suppress_tokens"] = sorted(barred)
    decoders: dict[str, Generate] = {
        GREEDY: Generate(target, max_tokens),
        LOOKUP: Generate(target, max_tokens, **lookup),
        ASSISTED: Generate(target, max_tokens, draft),
    }
    if target.sees_images:
        decoders[SIGHTED] = Generate(target, max_tokens, draft, sight=True)
    return [Arm(name, decode=decode, optional=True) for name, decode in decoders.items()]


def load_pair(options: argparse.Namespace) -> tuple[Vlm, Vlm]:
    """Load the options' target and draft model, and let transformers be silent from now on.

    Its hints, one a step, and its progress bars would be all over the table.
    """
    logs: Any = transformers.logging
    logs.set_verbosity_error()
    logs.disable_progress_bar()
    folders = (options.target_model, options.draft_model)
    target, draft = (load_vlm(folder, dtype=options.dtype, threads=options.threads) for folder in folders)
    return target, draft


def figures_of(run: Run, flips: list[Flip]) -> dict[str, dict[str, Any]]:
    """Return the figures of every arm: rates are totals over totals, ratios are `generate`'s time over the arm's."""
    figures: dict[str, dict[str, Any]] = {}
    totals = run.figures()
    for name, found in margins(flips, run.answers).items():
        stats, seconds, tokens = run.stats(name), run.seconds(name), totals[name]["tokens"]
        figures[name] = {
            **{key: totals[name][key] for key in ("total_s", "tau")},
            "tokens": int(tokens),
            "tokens_per_s": tokens / sum(seconds),
            "forwards_per_token": sum(each.cloud_passes + 1 for each in stats) / tokens,
            "ratio_low_median_high": run.times_faster(GREEDY, name) if GREEDY in run.answers else None,
            "frames_other_than_target": len(found),
            "largest_margin": max(found, default=None),
        }
    return figures


def plot(figures: Mapping[str, Mapping[str, Any]], title: str) -> Figure:
    """Return one bar an arm: the median step, a whisker from the fastest to the slowest, the ratio to `generate`."""
    whose = {name: "this project" if name in (ALONE, *OURS) else "transformers" for name in figures}
    labels = [f"{whose[name]}: {'target alone' if name == ALONE else name}" for name in figures]
    words = "ms a step: median, fastest, slowest"
    figure, axes = bar_plot(1.8 + 0.48 * len(figures), labels, title, words)
    for row, (name, entry) in enumerate(figures.items()):
        low, middle, high = (1e3 * entry["total_s"][key] for key in ("min", "median", "max"))
        colour = OWN_COLOURS.get(name, PEER_COLOUR)
        ends = [[middle - low], [high - middle]]
        axes.barh(row, middle, 0.66, color=colour, xerr=ends, ecolor="#333333", capsize=2)
        ratio = entry["ratio_low_median_high"]
        label = f"{middle:.0f} ms" + (f", {ratio[1]:.2f}x" if ratio is not None and name != GREEDY else "")
        axes.text(1.01, row, label, va="center", fontsize=SMALL, transform=axes.get_yaxis_transform())
    axes.set_xlim(left=0)
    return figure


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    edge = ("drafting", "predictor", "threads", "capacity")
    line = command.experiment_line("benchmarks.peers", __doc__, STEPS, edge, QUICK_STEPS)
    command.add_journal(line)
    line.add_argument("--exits", type=path_flag, help="folder of exit heads (default: where the verifier finds them)")
    shown = "folder of a fed head: `sd` is there a second time, and it drafts"
    line.add_argument("--fed-head", dest="head", type=path_flag, metavar="FOLDER", help=shown)
    add_cores(line)
    add_outputs(line)
    return line


def run(options: argparse.Namespace) -> int:
    """Run the comparison. Returns 1 where an answer of ours is not the target's."""
    options.steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
    where = on_cores(options.cores)
    target, draft = load_pair(options)
    warm_up, asked = warmed_up(options, options.steps, WARM_UP)
    check_alike(target, draft, asked[0])
    alone = ModelAlone(target, options.max_tokens, capacity=options.capacity)
    forgetful = ",".join(filter(None, (options.drafting, "ngrams=off")))
    arms = [
        *peers_of(target, draft, options.max_tokens),
        alone.arm(ALONE),
        *modes_as_arms(MODES, rtt_s=0.0),
        Arm(FORGETFUL, Mode.FULL.value, {"rtt_s": 0.0, "drafting": forgetful}),
    ]
    flags: tuple[str, ...] = ()
    if options.head is not None:
        head = str(options.head.resolve())
        flags = ("--fed-head", head)
        arms.append(Arm(FED, Mode.SD.value, {"rtt_s": 0.0, "fed_head": head}))
    with sockets(options, (), *flags, vlm=draft) as edges:
        asked = edges.conversations(asked) if is_mmspec(options.frames) else asked
        measured = edges.run(arms, asked, warm_up, command.journal_of(options))
    flips = alone.flips(measured, asked, ALONE)
    figures = figures_of(measured, flips)
    print(f"{command.described(options)}, transformers {transformers.__version__}; nothing declared, nothing waited "
          f"for, round trip 0 on loopback; {where}; peers are where the edge is")  # fmt: skip
    print(f"{torch.get_num_threads()} thread(s) in each process: the peers are one process, cloud, sd and full are two "
          "(edge and verifier), which may work at the same time")  # fmt: skip
    print(figures_table("arm", figures, COLUMNS))
    print(f"other: frames whose tokens are not those of '{ALONE}', in {options.dtype}; faster: than '{GREEDY}'")
    for flip in flips:
        print(f"{flip.mode}: frame {flip.frame} leaves at token {flip.position}, margin {flip.margin:.2g}")
    for name, why in measured.refused.items():
        print(f"{name}: left out, transformers fails: {why}")
    shown: dict[str, Any] = {"figures": figures, "flips": [asdict(flip) for flip in flips]}
    base = GREEDY if GREEDY in measured.answers else ALONE
    shown |= mmspec_figures(options.frames, measured, asked, base, AT_PREFILL)
    title = f"A step at round trip 0, {options.steps} frames, raw times of this machine"
    name = command.result_name("peers", options.frames) + ("_one_core" if options.cores is Cores.ONE else "")
    keep(plot(figures, title), name, options)
    shown["refused"] = dict(measured.refused)
    data = {"transformers": transformers.__version__, "cores": where, **shown}
    command.finish(options, "peers", data, measured)
    return 1 if bugs(flips, options.dtype, OURS) else 0


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
