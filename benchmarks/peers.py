"""Peers in the same run: transformers' `generate`, assisted generation and prompt lookup beside this system, RTT 0.

One pair, the same frames, turns taken frame by frame, raw times of this machine from prompt and JPEG to the last token.
The peers run in this process; this system runs as it does on a robot, over real sockets to a verifier process. With
--tune the strongest peer and this system's modes are there a second time, with the settings that a search found.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from typing import Any

import torch
import transformers
from matplotlib.figure import Figure

from benchmarks.generation import Generate, check_alike
from edge_drafter import Mode
from speculation.vlm.load import Vlm, load_vlm
from speculation.vlm.processing import IMAGE_PLACE
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.alone import Flip, TargetAlone, bugs, margins
from vlm_nav_evaluation.experiment.processor import add_cores
from vlm_nav_evaluation.experiment.processor import described as on_cores
from vlm_nav_evaluation.experiment.questions import warmed_up
from vlm_nav_evaluation.experiment.run import WARM_UP, Arm, Backend, Question, Run
from vlm_nav_evaluation.experiment.sockets import modes_as_arms, sockets
from vlm_nav_evaluation.plots import MODE_COLOURS, add_outputs, bar_plot, keep
from vlm_nav_evaluation.tables import MS, Column, figures_table, spread_columns

STEPS, QUICK_STEPS = 60, 2
TUNING, FIRST, BEST = 10, 4, 3
"""Frames of the search, which are none of those that are measured: all settings answer the first, the best the rest."""
TUNED = ", tuned"
SESSIONS = 16
"""At the verifier: every setting that a search tries has an edge of its own."""
LOOKUP_TOKENS = 10
"""Tokens that prompt lookup proposes at once: the default of transformers' own candidate generator."""
GREEDY = "generate"
ASSISTED, SIGHTED, FIXED = "assisted, as shipped", "assisted, with sight", "assisted, with sight, fixed gamma"
FIXED_WORDS = "assisted, fixed gamma"
LOOKUP, LOOKUP_WORDS = "prompt lookup", "prompt lookup, words alone"
ALONE = "own loop, target alone"
IMAGE_TOKENS = ("<|vision_start|>", "<|vision_end|>", IMAGE_PLACE)
FORGETFUL = "full, earlier answers off"
"""No peer remembers its answers to the frames before; the last few answers propose tokens in `full`."""
OURS = (Mode.CLOUD.value, Mode.SD.value, Mode.FULL.value, FORGETFUL)
PEER_COLOUR = "#bab0ac"
OWN_COLOURS = {**MODE_COLOURS, ALONE: "#79706e", FORGETFUL: MODE_COLOURS[Mode.FULL.value]}
COLUMNS = (
    *spread_columns("total_s"),
    Column("tokens/s", "tokens_per_s", ".0f"),
    Column("tau", "tau"),
    Column("forwards/token", "forwards_per_token"),
    Column("CPU ms", "cpu_s", ".0f", MS),
    Column("faster (95 %)", "ratio_low_median_high", ".2fx"),
    Column("other", "frames_other_than_target", "d", 1),
)


def peers_of(target: Vlm, draft: Vlm, max_tokens: int, gamma: int | str) -> list[Arm[Question]]:
    """Return transformers' arms; what is there for images' sake alone is left out of a pair of language models.

    Prompt lookup may propose the image's placeholders, which transformers then takes for a second image and refuses;
    with `suppress_tokens` they are barred, as its own option, and no answer has them anyway.
    """
    lookup: dict[str, Any] = {"prompt_lookup_num_tokens": LOOKUP_TOKENS}
    # As many tokens a round as ours, always all of them: what the dynamic end of drafts, its default, costs or brings.
    fixed: dict[str, Any] = {"num_assistant_tokens": gamma if isinstance(gamma, int) else 4}
    fixed |= {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}
    decoders: dict[str, Generate] = {
        GREEDY: Generate(target, max_tokens),
        LOOKUP: Generate(target, max_tokens, **lookup),
        ASSISTED: Generate(target, max_tokens, draft),
    }
    if target.sees_images:
        barred = target.tokenizer.convert_tokens_to_ids(list(IMAGE_TOKENS))
        decoders[LOOKUP_WORDS] = Generate(target, max_tokens, suppress_tokens=barred, **lookup)
        decoders[SIGHTED] = Generate(target, max_tokens, draft, sight=True)
    decoders[FIXED if target.sees_images else FIXED_WORDS] = Generate(target, max_tokens, draft, sight=True, **fixed)
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


def settings_of_peer(target: Vlm, draft: Vlm, max_tokens: int) -> list[Arm[Question]]:
    """Return what the search tries for assisted generation: how many tokens at most, where drafts end, how it adapts.

    The first is transformers' own.
    """
    chosen: list[dict[str, Any]] = [{}]
    for tokens, threshold in product((5, 10, 20), (0.0, 0.2, 0.4, 0.7)):
        chosen.append({
            "num_assistant_tokens": tokens, "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": threshold,
        })  # fmt: skip
    return [
        Arm(_named(each), decode=Generate(target, max_tokens, draft, sight=True, **each), optional=True)
        for each in chosen
    ]


def settings_of_mode(mode: str, drafting: str, rtt_s: float = 0.0) -> list[Arm[Question]]:
    """Return what the search tries for a mode of ours; the first is as shipped."""
    grid: list[dict[str, Any]] = [{}, *({"gamma": gamma} for gamma in (2, 6, 8, 12))]
    if mode == Mode.FULL.value:
        trees = product((4, 8), (8, 16), (2, 8))
        grid += [{"gamma": gamma, "draft_tokens": tokens, "leaves": leaves} for gamma, tokens, leaves in trees]
    arms = list[Arm[Question]]()
    for each in grid:
        changes = {"rtt_s": rtt_s} | {name: value for name, value in each.items() if name == "gamma"}
        words = [drafting, *(f"{name}={value}" for name, value in each.items() if name != "gamma")]
        arms.append(Arm(_named(each), mode, changes | {"drafting": ",".join(filter(None, words))}))
    return arms


def fastest(settings: Sequence[Arm[Question]], edges: Backend, asked: Sequence[Question]) -> Arm[Question]:
    """Return the fastest by the total time of the frames asked: all answer the first, the best of them the rest."""
    first = edges.run(settings, asked[:FIRST], asked[:1])
    ranked = sorted(
        (arm for arm in settings if arm.name in first.answers), key=lambda arm: sum(first.seconds(arm.name))
    )
    then = edges.run(ranked[:BEST], asked[FIRST:], [])
    return min(ranked[:BEST], key=lambda arm: sum(first.seconds(arm.name)) + sum(then.seconds(arm.name)))


def _named(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "as shipped"


def figures_of(run: Run, flips: list[Flip]) -> dict[str, dict[str, Any]]:
    """Return the figures of every arm: rates are totals over totals, ratios are `generate`'s time over the arm's."""
    figures: dict[str, dict[str, Any]] = {}
    totals, cpu_s = run.figures(), run.means("cpu_s")
    for name, found in margins(flips, run.answers).items():
        stats, seconds, tokens = run.stats(name), run.seconds(name), totals[name]["tokens"]
        figures[name] = {
            **{key: totals[name][key] for key in ("total_s", "tau")},
            "tokens": int(tokens),
            "tokens_per_s": tokens / sum(seconds),
            "cpu_s": cpu_s.get(name),
            "forwards_per_token": sum(each.cloud_passes + 1 for each in stats) / tokens,
            "ratio_low_median_high": run.times_faster(GREEDY, name) if GREEDY in run.answers else None,
            "frames_other_than_target": len(found),
            "largest_margin": max(found, default=None),
        }
    return figures


def plot(figures: Mapping[str, Mapping[str, Any]], title: str) -> Figure:
    """Return one bar an arm: the median step, a whisker from the fastest to the slowest, the ratio to `generate`."""
    ours = (ALONE, *OURS)
    whose = {name: "this project" if name.removesuffix(TUNED) in ours else "transformers" for name in figures}
    labels = [f"{whose[name]}: {'target alone' if name == ALONE else name}" for name in figures]
    words = "ms per step: median, whiskers to the fastest and the slowest (1.5x: faster than generate)"
    figure, axes = bar_plot(1.5 + 0.42 * len(figures), labels, title, words)
    for row, (name, entry) in enumerate(figures.items()):
        low, middle, high = (1e3 * entry["total_s"][key] for key in ("min", "median", "max"))
        colour = OWN_COLOURS.get(name.removesuffix(TUNED), PEER_COLOUR)
        ends = [[middle - low], [high - middle]]
        axes.barh(row, middle, 0.66, color=colour, xerr=ends, ecolor="#333333", capsize=2)
        ratio = entry["ratio_low_median_high"]
        label = f"{middle:.0f} ms" + (f", {ratio[1]:.2f}x" if ratio is not None and name != GREEDY else "")
        axes.text(1.01, row, label, va="center", fontsize=10, transform=axes.get_yaxis_transform())
    axes.set_xlim(left=0)
    return figure


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    edge = ("drafting", "fed_head", "predictor", "threads")
    line = command.experiment_line("benchmarks.peers", __doc__, STEPS, edge, QUICK_STEPS)
    command.add_journal(line)
    line.add_argument("--tune", action="store_true", help=f"search settings on {TUNING} other frames, two minutes")
    add_cores(line)
    add_outputs(line)
    return line


def run(options: argparse.Namespace) -> int:
    """Run the comparison. Returns 1 where an answer of ours is not the target's."""
    options.steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
    where = on_cores(options.cores)
    target, draft = load_pair(options)
    warm_up, asked = warmed_up(options, options.steps, WARM_UP + TUNING * options.tune)
    warm_up, tuning = warm_up[:WARM_UP], warm_up[WARM_UP:]
    check_alike(target, draft, asked[0])
    alone = TargetAlone(target, options.max_tokens)
    with sockets(options, (), "--max-sessions", str(SESSIONS), vlm=draft) as edges:
        forgetful = {"rtt_s": 0.0, "drafting": ",".join(filter(None, (options.drafting, "ngrams=off")))}
        arms = [
            *peers_of(target, draft, options.max_tokens, options.gamma),
            alone.arm(ALONE),
            *modes_as_arms(OURS[:-1], rtt_s=0.0),
            Arm(FORGETFUL, Mode.FULL.value, forgetful),
        ]
        found: dict[str, str] = {}
        if options.tune:
            forgotten = str(forgetful["drafting"])
            searched = {name: settings_of_mode(name, options.drafting) for name in (Mode.SD.value, Mode.FULL.value)}
            searched[FORGETFUL] = settings_of_mode(Mode.FULL.value, forgotten)
            if target.sees_images:
                searched[SIGHTED] = settings_of_peer(target, draft, options.max_tokens)
            for name, tried in searched.items():
                best = fastest(tried, edges, tuning)
                edges.close()
                found[name + TUNED] = best.name
                arms.append(replace(best, name=name + TUNED))
        measured = edges.run(arms, asked, warm_up, command.journal_of(options))
    flips = alone.flips(measured, asked, ALONE)
    figures = figures_of(measured, flips)
    print(f"{command.described(options)}, transformers {transformers.__version__}; nothing declared, nothing waited "
          f"for, round trip 0 on loopback; {where}; peers are where the edge is")  # fmt: skip
    print(f"{torch.get_num_threads()} thread(s) in each process: the peers are one process, cloud, sd and full are two "
          "(edge and verifier), which may work at the same time")  # fmt: skip
    print(figures_table("arm", figures, COLUMNS))
    for name, settings in found.items():
        print(f"{name}: {settings}")
    print(f"other: frames whose tokens are not those of '{ALONE}', in {options.dtype}; faster: than '{GREEDY}'")
    for flip in flips:
        print(f"{flip.mode}: frame {flip.frame} leaves at token {flip.position}, margin {flip.margin:.2g}")
    for name, why in measured.refused.items():
        print(f"{name}: left out, transformers fails: {why}")
    title = f"A step at round trip 0, {options.steps} frames, raw times of this machine"
    keep(plot(figures, title), command.result_name("peers", options.frames), options)
    shown = {"figures": figures, "flips": [asdict(flip) for flip in flips], "refused": dict(measured.refused)}
    shown |= {"cores": where, "tuned": found}
    data = {"transformers": transformers.__version__, **shown}
    command.finish(options, "peers", data, measured)
    return 1 if bugs(flips, options.dtype, (*OURS, *(f"{name}{TUNED}" for name in OURS))) else 0


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
