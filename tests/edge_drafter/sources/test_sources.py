"""What a new source of drafts takes: one class, with which answers stay the target's."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from edge_drafter import Drafter, DraftSource, Mode, sources_of
from edge_drafter.step import Step
from edge_drafter.tree import Origin
from speculation.cancellation import Stop
from tests.edge_drafter.fakes import (
    EOS,
    WEATHERS,
    FakeClock,
    FakeLink,
    FakeModel,
    Weather,
    alone,
    hashed_draft,
    hashed_target,
    patient,
    request,
)  # fmt: skip

DRAFTING = [mode for mode in Mode if mode.drafts]


class Counting(DraftSource):
    """Drafts one more than the token before, without a model."""

    def begin(self, step: Step) -> None:
        self._tree = step.tree

    def grow(self, leaves: Sequence[int], stop: Stop | None = None) -> list[int]:
        for leaf in leaves:
            self._tree.score(leaf, (((self._tree[leaf].token + 1) % EOS, 0.9),))
        return [self._tree.add(leaf, (self._tree[leaf].token + 1) % EOS, 0.9, Origin.DRAFT) for leaf in leaves]


class Repeating(DraftSource):
    """Proposes the token before once more, which costs no forward."""

    def begin(self, step: Step) -> None:
        self._tree = step.tree

    def propose(self, node: int) -> None:
        if node in self._tree and self._tree[node].token >= 0:
            self._tree.add(node, self._tree[node].token, 0.5, Origin.LOOKUP)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(DRAFTING), st.integers(0, 10_000), st.booleans(), WEATHERS)
def test_with_a_new_source_the_answer_is_still_the_targets(
    mode: Mode, seed: int, beside: bool, weather: Weather
) -> None:
    """In place of the draft model, and beside it."""
    clock, config, target = FakeClock(), patient(mode), hashed_target(seed)
    model = FakeModel(hashed_draft(target, seed, 0.7), clock, 0.05)
    sources = (Repeating(), *sources_of(config, model)) if beside else (Repeating(), Counting())
    drafter = Drafter(sources, FakeLink(target, clock, weather), config, clock)
    for number in (1, 2):
        assert drafter.run(request(number)).tokens == alone(target, 24)
