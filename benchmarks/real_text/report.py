"""What came of it: one table of all ways to decode, one of the exits by layer, a plot; and the same in the docs."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks import peers
from benchmarks.real_text.setup import Setup
from benchmarks.real_text.speed import DISTILLED, FED, FIRST, UNTRAINED
from vlm_nav_evaluation.experiment.command import RESULTS, write_result
from vlm_nav_evaluation.plots import keep, new_figure, plain
from vlm_nav_evaluation.tables import Column, figures_table, markdown

NAME = "real_text"
PAGE = RESULTS / "real_text.md"
NOT_RUN = "not run yet"
PERCENT = 100.0
COLUMNS = (
    Column("tokens/s", "tokens_per_s", ".1f"),
    Column("faster than generate (95 %)", "ratio_low_median_high", ".2fx"),
    Column("tau", "tau"),
    Column("target forwards/token", "forwards_per_token"),
    Column("drafted by", "draft"),
    Column("M weights", "weights", ".1f", 1e-6),
    Column("its tokens right, %", "agreement", ".1f", PERCENT),
    Column("answers other than the target's", "frames_other_than_target", "d", 1),
)
EXIT_COLUMNS = (
    Column("no adapter, %", "bare", ".1f", PERCENT),
    Column("adapter, %", "agreement", ".1f", PERCENT),
    Column("as served: tokens right, %", "token_rate", ".1f", PERCENT),
    Column("verdicts right, %", "right", ".1f", PERCENT),
    Column("adds to a pass, %", "cost", ".1f", PERCENT),
)
DRAFTLESS = (peers.GREEDY, peers.ALONE, "cloud", peers.LOOKUP)


def gather(setup: Setup) -> dict[str, Any]:
    """Return all figures that are there: of drafts, exits and speed, by these names."""
    found: dict[str, Any] = {}
    drafts = {UNTRAINED: setup.untrained, FIRST: setup.first_layers, DISTILLED: setup.draft, FED: setup.fed_head}
    for name, folder in drafts.items():
        if (results := _read(folder / "results.json")) is not None:
            found.setdefault("drafts", {})[name] = _draft(results)
    results, measured = _read(setup.exits / "results.json"), _read(setup.exits / "measured.json")
    if results is not None:
        found["exits"] = _exits(results, measured)
    if (speed := _read(setup.speed)) is not None:
        found["speed"] = speed
    if (files := _read(setup.corpus / "corpus.json")) is not None:
        found["corpus"] = files
    return found


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _draft(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return a draft's figures on held-out answers of the target, whichever command measured them."""
    figures = results["draft" if "weights of the draft" in results else "head"]
    agreement = figures["agreement"]
    return {
        "weights": results.get("weights of the draft") or results["weights of the head"],
        "agreement": agreement[0] if isinstance(agreement, list) else agreement,
        "tau": figures["tokens a verification"],
        "gamma": results["gamma"],
        "tokens": results["tokens"],
        "own": results["own"],
        "seconds": results.get("seconds"),
    }


def _exits(results: Mapping[str, Any], measured: Mapping[str, Any] | None) -> dict[str, Any]:
    layers = {
        layer: {"agreement": rate, "bare": results["agreement without adapter"][layer]}
        for layer, rate in results["agreement"].items()
    }
    exits: dict[str, Any] = {"tokens": results["tokens"], "layers": layers}
    if measured is not None:
        # With the short list, as a verifier runs them, where there is one: its figures come last.
        for each in sorted(measured["exits"], key=lambda exit: exit["head"]):
            cost = each["cost_s"] / measured["verify_s"]["median"]
            layers[str(each["layer"])] |= {"token_rate": each["token_rate"], "right": each["right"], "cost": cost}
        exits |= {"verifications": measured["verifications"], "tau": measured["tau"]}
        exits |= {"short list": measured["short_list"]}
    return exits


def rows(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the rows of the one table: every arm with the draft that drafts for it."""
    drafts = found.get("drafts", {})
    made = {}
    for arm, figures in found["speed"]["figures"].items():
        named = next((name for name in (FIRST, UNTRAINED, FED) if arm.endswith(f", {name}")), DISTILLED)
        draft = {} if arm in DRAFTLESS else {"draft": named, **drafts.get(named, {})}
        # An arm's own tau, not that of its draft on held-out answers.
        made[arm] = {**draft, **figures}
    return made


def plot(exits: Mapping[str, Any]) -> Figure:
    """Return agreement with the last layer over the exits' layers."""
    figure = new_figure(3.6)
    axes = figure.add_subplot()
    layers = {int(layer): each for layer, each in exits["layers"].items()}
    lines = (("bare", "no adapter", "#9d9d9d", "--"), ("agreement", "adapter, tokens", "#54a24b", "-"),
             ("right", "adapter, whole verdicts on drafts", "#4c78a8", "-"))  # fmt: skip
    for key, name, colour, style in lines:
        places = [layer for layer, each in layers.items() if key in each]
        if places:
            shares = [PERCENT * layers[layer][key] for layer in places]
            axes.plot(places, shares, style, marker="o", markersize=4, color=colour, label=name)
    axes.set_xlabel("exit after layer (from 0, of 30)")
    axes.set_ylabel("the last layer's, %")
    axes.set_ylim(0, 100)
    axes.set_title(f"SmolLM2-135M, exits on {exits['tokens']:,} held-out tokens", fontsize=11)
    plain(axes)
    axes.legend(frameon=False)
    return figure


def tables(found: Mapping[str, Any] | None) -> str:
    """Return what the page shows of the figures, or that there are none."""
    if not found or "speed" not in found or "exits" not in found:
        return f"Speed, acceptance, exits by layer: {NOT_RUN}."
    speed, exits = found["speed"], found["exits"]
    listed = exits.get("short list")
    words = (
        f"{speed['prompts']} prompts, at most {speed['max_tokens']} tokens each, greedy, {speed['dtype']}, gamma "
        f"{speed['gamma']}, {speed['threads']} thread(s) a process, round trip 0 on loopback; transformers "
        f"{speed['transformers']}; {speed['machine']}."
    )
    parts = [markdown("way to decode", rows(found), COLUMNS), words]
    parts += [f"Left out, transformers fails: {name}: {why}." for name, why in speed["refused"].items()]
    parts.append(markdown("after layer", exits["layers"], EXIT_COLUMNS))
    if listed:
        parts.append(
            f"{exits['tokens']:,} held-out tokens of real conversations; {exits['verifications']} verifications of "
            f"real drafts; a short list of {listed['tokens']:,} tokens, which has {listed['covered']:.1%} of those of "
            "the answers."
        )
    return "\n\n".join(parts)


def on_page(page: str, shown: str) -> str:
    """Return a page with `shown` between its marks. Raises ValueError for a page without them."""
    begin, end = "<!-- figures -->\n", "<!-- end of figures -->"
    if begin not in page or end not in page:
        raise ValueError(f"{PAGE} lacks the marks {begin.strip()} and {end}; put them around its figures")
    return re.sub(f"{begin}.*?{end}", lambda _: f"{begin}{shown}\n{end}", page, flags=re.DOTALL)


def saved() -> dict[str, Any] | None:
    """Return the figures that are kept in benchmarks/results, None where there are none."""
    return _read(RESULTS / f"{NAME}.json")


def show(setup: Setup, save: bool) -> None:
    """Print the tables and write the plot; with `save`, keep figures and plot and put the tables on the page.

    Raises ValueError where something is to be kept and not all of it is there.
    """
    found = gather(setup)
    if "speed" in found:
        print(figures_table("way to decode", rows(found), COLUMNS))
        for name, why in found["speed"]["refused"].items():
            print(f"{name}: left out, transformers fails: {why}")
    for name, each in found.get("drafts", {}).items():
        print(
            f"{name}: {each['weights'] / 1e6:.1f} M weights, right in {each['agreement']:.1%} of {each['tokens']:,} "
            f"held-out tokens, {each['tau']:.2f} tokens a verification of {each['gamma']}"
        )
    if "exits" in found:
        print(figures_table("after layer", found["exits"]["layers"], EXIT_COLUMNS))
        keep(plot(found["exits"]), "real_text_exits", argparse.Namespace(save=save, out=setup.out))
    if save:
        if not {"speed", "exits", "drafts"} <= found.keys():
            raise ValueError(
                f"{setup.out} lacks {', '.join({'speed', 'exits', 'drafts'} - found.keys())}: run all stages"
            )
        write_result(NAME, found)
        PAGE.write_text(on_page(PAGE.read_text(encoding="utf-8"), tables(found)), encoding="utf-8")
        print(f"filled in {PAGE}")
