"""Each technique of each mode switched off alone: the answer stays the target's, and the technique is gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from edge_drafter import DecodingStats, DraftingConfig, Mode
from edge_drafter.branches import Branch, BranchQueue
from edge_drafter.config import START_GAMMA
from edge_drafter.in_flight import SentDraft, SentDrafts
from edge_drafter.step_drafter import StepDrafter
from edge_drafter.tree import Origin, TokenTree
from speculation.settings import fields_of
from speculation.trace import Kind
from speculation.wire import Draft
from tests.edge_drafter.fakes import Weather, alone, hashed_draft, hashed_target
from tests.edge_drafter.test_drafter import DRAFT_S, WEATHERS, Bench, patient, request

MODES = (Mode.FSD, Mode.PROACTIVE, Mode.PIPELINED, Mode.FULL)
OFF = DraftingConfig()
"""Every technique switched off: stop and wait."""
ABLATIONS = [
    (mode, name)
    for name, mode in {
        each.name: mode
        for mode in MODES
        for each in fields_of(DraftingConfig)
        if getattr(DraftingConfig.of(mode), each.name) != getattr(OFF, each.name)
    }.items()
]
"""Each technique, in the mode that has most of the others beside it."""


def without(config: DraftingConfig, name: str) -> DraftingConfig:
    return replace(config, **{name: getattr(OFF, name)})


@pytest.mark.parametrize(("mode", "name"), ABLATIONS, ids=lambda each: getattr(each, "value", each))
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    agreement=st.floats(0.0, 1.0),
    gamma=st.one_of(st.integers(1, 6), st.sampled_from(["auto", "balance"])),
    weather=WEATHERS,
)
@example(seed=592, agreement=0.0, gamma="auto", weather=Weather(verify_s=0.01, one_way_s=0.0, losses=0.1875, seed=507))
def test_without_any_one_technique_the_answer_is_the_targets(
    mode: Mode, name: str, seed: int, agreement: float, gamma: int | str, weather: Weather
) -> None:
    """In the example a commit and all that ask for it again are lost for 20 s, by chance."""
    target = hashed_target(seed)
    config = without(patient(mode, gamma=gamma), name)
    bench = Bench(target, hashed_draft(target, seed, agreement), weather, config)
    for step in (1, 2):
        assert bench.run(request(step)).tokens == alone(target, 24)


@dataclass
class Seen:
    """What happened inside while benches ran."""

    stats: DecodingStats = field(default_factory=DecodingStats)
    drafts: list[Draft] = field(default_factory=list)
    decoded: int = 0
    sent: list[SentDraft] = field(default_factory=list)
    forwards: list[int] = field(default_factory=list)
    """Leaves that the policy chose for each forward."""
    branches: list[int] = field(default_factory=list)
    lookups: int = 0

    def forget(self) -> None:
        vars(self).update(vars(Seen()))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found = Seen()
    add_draft, add_node, grow, best = SentDrafts.add, TokenTree.add, StepDrafter.grow, BranchQueue.best

    def spy_draft(self: SentDrafts, draft: SentDraft, root: int) -> None:
        found.sent.append(draft)
        add_draft(self, draft, root)

    def spy_node(self: TokenTree, parent: int, token: int, probability: float, origin: Origin) -> int:
        found.lookups += origin is Origin.LOOKUP
        return add_node(self, parent, token, probability, origin)

    def spy_grow(self: StepDrafter, nodes: list[int], poll: Any = None) -> float:
        found.forwards.append(len(nodes))
        return grow(self, nodes, poll)

    def spy_best(self: BranchQueue, is_full: Callable[[Branch], bool]) -> list[Branch]:
        branches = best(self, is_full)
        found.branches.append(len(branches))
        return branches

    for owner, name, spy in (
        (SentDrafts, "add", spy_draft), (TokenTree, "add", spy_node), (StepDrafter, "grow", spy_grow),
        (BranchQueue, "best", spy_best),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, spy)
    return found


@dataclass(frozen=True)
class Sign:
    """What gives a technique away: a figure that is 0 without it, where `changes` and `exits` leave nothing like it."""

    figure: Callable[[Seen], float]
    changes: dict[str, Any] = field(default_factory=dict)
    exits: int = 2
    draft_s: float = DRAFT_S


SIGNS = {
    "idle": Sign(lambda seen: seen.decoded),
    "width": Sign(lambda seen: sum(draft.parents is not None for draft in seen.drafts), {"ngrams": False}, exits=0),
    "draft_tokens": Sign(lambda seen: sum(draft.parents is not None for draft in seen.drafts)),
    "leaves": Sign(lambda seen: sum(count > 1 for count in seen.forwards)),
    "own_guess": Sign(lambda seen: seen.stats.predraft_s, exits=0),
    "early_tokens": Sign(lambda seen: sum(seen.stats.early_hits.values())),
    "best_first": Sign(lambda seen: seen.stats.predraft_s, {"branches": 0}),
    "branches": Sign(lambda seen: sum(count > 1 for count in seen.branches)),
    "ahead": Sign(lambda seen: seen.stats.sent_ahead),
    "partial": Sign(lambda seen: sum(each.ahead and not each.full for each in seen.sent), draft_s=0.2),
    "truncate": Sign(
        lambda seen: sum(not each.ahead and not each.full for each in seen.sent),
        {"idle": OFF.idle, "effort": 1.0},
        draft_s=0.2,
    ),
    "extend": Sign(
        lambda seen: sum(len(each.nodes) > START_GAMMA for each in seen.sent),
        {"width": 1, "own_guess": False, "early_tokens": False, "ahead": False, "ngrams": False, "effort": 1.0},
        exits=0,
        draft_s=0.001,
    ),
    "interrupt": Sign(lambda seen: seen.stats.abandoned),
    "ngrams": Sign(lambda seen: seen.lookups),
}
MEASURES = ("max_nodes", "ahead_above", "send_gain", "exit_gain", "effort")
"""Sizes and thresholds of techniques that are listed by themselves."""


@pytest.mark.parametrize(("mode", "name"), [each for each in ABLATIONS if each[1] not in MEASURES])
def test_a_technique_that_is_switched_off_is_gone(mode: Mode, name: str, seen: Seen) -> None:
    sign = SIGNS[name]
    whole = DraftingConfig.of(mode, **sign.changes)
    figures = {}
    for config in (whole, without(whole, name)):
        seen.forget()
        for seed in range(4):
            target = hashed_target(seed, eos_rate=0.0)
            weather = Weather(jitter_s=0.05, exits=sign.exits, wrong_exits=0.2, seed=seed)
            bench = Bench(target, hashed_draft(target, seed, 0.7), weather, config, draft_s=sign.draft_s)
            for step in (1, 2):
                seen.stats.add(bench.run(request(step, 30)).stats)
            seen.drafts += [message for _, message in bench.link.sent if isinstance(message, Draft)]
            seen.decoded += sum(span.name == Kind.DECODE.value for span in bench.trace.spans)
        figures[config] = sign.figure(seen)
    on, off = figures.values()
    assert on > 0 and off == 0
