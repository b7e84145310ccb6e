"""Each technique of the modes switched off alone is gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from edge_drafter import DecodingStats, DraftingConfig, Mode
from edge_drafter.settings import START_GAMMA
from speculation.settings import fields_of
from speculation.trace import Kind
from speculation.wire import Draft
from tests.edge_drafter.fakes import DRAFT_S, Bench, Weather, hashed_draft, hashed_target, request

OFF = DraftingConfig()
"""Every technique switched off: stop and wait."""
TOKENS = 30


@dataclass
class Seen:
    """What happened while benches ran."""

    stats: DecodingStats = field(default_factory=DecodingStats)
    drafts: list[Draft] = field(default_factory=list)
    hints: int = 0
    decoded: int = 0
    most_fed: int = 0

    @property
    def trees(self) -> int:
        return sum(draft.parents is not None for draft in self.drafts)

    @property
    def short(self) -> int:
        """Drafts that have less than gamma tokens although there is room for more."""
        fits = (len(draft.tokens) < min(START_GAMMA, TOKENS - draft.start - 1) for draft in self.drafts)
        return sum(fits)


@dataclass(frozen=True)
class Sign:
    """What gives a technique away: a figure that is 0 without it, where `changes` and `exits` leave nothing like it."""

    figure: Callable[[Seen], float]
    changes: dict[str, Any] = field(default_factory=dict)
    exits: int = 2
    draft_s: float = DRAFT_S


SIGNS = {
    "idle": Sign(lambda seen: seen.decoded),
    "width": Sign(lambda seen: seen.trees, {"ngrams": False}, exits=0),
    "draft_tokens": Sign(lambda seen: seen.trees),
    "leaves": Sign(lambda seen: max(0, seen.most_fed - 1), {"ngrams": False}, exits=0),
    "own_guess": Sign(lambda seen: seen.stats.predraft_s, exits=0),
    "early_tokens": Sign(lambda seen: sum(seen.stats.early_hits.values())),
    "best_first": Sign(lambda seen: seen.stats.predraft_s, {"branches": 0}),
    "ahead": Sign(lambda seen: seen.stats.sent_ahead),
    "partial": Sign(
        lambda seen: seen.short, {"truncate": False, "preverify": False, "ngrams": False, "idle": OFF.idle}, draft_s=0.2
    ),
    "preverify": Sign(lambda seen: seen.short, {"partial": False, "truncate": False}, draft_s=0.2),
    "truncate": Sign(
        lambda seen: seen.short,
        {"partial": False, "preverify": False, "ngrams": False, "idle": OFF.idle, "effort": 1.0},
        draft_s=0.2,
    ),
    "extend": Sign(
        lambda seen: sum(len(draft.tokens) > START_GAMMA for draft in seen.drafts),
        {"width": 1, "own_guess": False, "early_tokens": False, "ahead": False, "ngrams": False, "effort": 1.0},
        exits=0,
        draft_s=0.001,
    ),
    "interrupt": Sign(lambda seen: seen.stats.abandoned),
    "ngrams": Sign(lambda seen: seen.hints),
}  # fmt: skip
SIZES = ("max_nodes", "ahead_above", "send_gain", "exit_gain", "effort", "branches")
"""Sizes and thresholds of techniques that are listed by themselves."""
ABLATIONS = {
    each.name: mode
    for mode in (Mode.FSD, Mode.PROACTIVE, Mode.PIPELINED, Mode.FULL)
    for each in fields_of(DraftingConfig)
    if each.name not in SIZES and getattr(DraftingConfig.of(mode), each.name) != getattr(OFF, each.name)
}
"""Each technique, in the mode that has most of the others beside it."""


@pytest.mark.parametrize(("name", "mode"), ABLATIONS.items())
def test_a_technique_that_is_switched_off_is_gone(name: str, mode: Mode) -> None:
    sign, figures = SIGNS[name], []
    whole = DraftingConfig.of(mode, **sign.changes)
    for config in (whole, replace(whole, **{name: getattr(OFF, name)})):
        seen = Seen()
        for seed in range(2):
            target = hashed_target(seed, eos_rate=0.0)
            weather = Weather(jitter_s=0.05, exits=sign.exits, wrong_exits=0.2, seed=seed)
            bench = Bench(target, hashed_draft(target, seed, 0.7), weather, config, draft_s=sign.draft_s)
            for step in (1, 2):
                seen.stats.add(bench.run(request(step, TOKENS)).stats)
            seen.drafts += [draft for _, draft in bench.drafts]
            seen.hints += sum(len(begun.hints) for begun in bench.link.begun)
            seen.decoded += sum(span.name == Kind.DECODE.value for span in bench.trace.spans)
            seen.most_fed = max(seen.most_fed, bench.model.most_fed)
        figures.append(sign.figure(seen))
    on, off = figures
    assert on > 0 and off == 0
