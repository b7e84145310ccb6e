"""What came of it: one table of all ways to decode, one of the exits by layer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.real_text.setup import Setup
from benchmarks.real_text.speed import DISTILLED, FED
from vlm_nav_evaluation.results import write_result
from vlm_nav_evaluation.tables import Column, markdown

NAME = "real_text"
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
    for name, folder in {DISTILLED: setup.draft, FED: setup.fed_head}.items():
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
        named = FED if arm.endswith(f", {FED}") else DISTILLED
        draft = {} if arm in DRAFTLESS else {"draft": named, **drafts.get(named, {})}
        # An arm's own tau, not that of its draft on held-out answers.
        made[arm] = {**draft, **figures}
    return made


def show(setup: Setup, save: bool) -> None:
    """Print the tables; with `save`, keep the figures. Raises ValueError where not all of them are there then."""
    found = gather(setup)
    if "speed" in found:
        print(markdown("way to decode", rows(found), COLUMNS))
        for name, why in found["speed"]["refused"].items():
            print(f"{name}: left out, transformers fails: {why}")
    for name, each in found.get("drafts", {}).items():
        print(
            f"{name}: {each['weights'] / 1e6:.1f} M weights, right in {each['agreement']:.1%} of {each['tokens']:,} "
            f"held-out tokens, {each['tau']:.2f} tokens a verification of {each['gamma']}"
        )
    if "exits" in found:
        print(markdown("after layer", found["exits"]["layers"], EXIT_COLUMNS))
    if save:
        if missing := {"speed", "exits", "drafts"} - found.keys():
            raise ValueError(f"{setup.out} lacks {', '.join(sorted(missing))}: run all stages")
        write_result(NAME, found)
