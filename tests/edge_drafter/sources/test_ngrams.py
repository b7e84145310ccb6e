"""Earlier answers as a source: where they propose, how likely, and what the verifier gets of them."""

from __future__ import annotations

import pytest

from edge_drafter import DraftingConfig, StepRequest
from edge_drafter.acceptance_stats import AcceptanceStats
from edge_drafter.sources.ngrams import NgramSource
from edge_drafter.step import Step
from edge_drafter.tree import Origin
from speculation.ngrams import PRIOR
from tests.edge_drafter.fakes import EOS, FakeClock

ANSWER = (1, 2, 3, 4, 5, EOS)


def begun(source: NgramSource, max_tokens: int = 64, **changes: float) -> Step:
    config = DraftingConfig(ngrams=True, **changes)  # type: ignore[arg-type]
    step = Step(config, StepRequest(1, "p", b"j", (EOS,), max_tokens), AcceptanceStats(config), FakeClock())
    source.begin(step)
    return step


def proposed(step: Step, node: int) -> list[int]:
    """Return the tokens of the look-up chain behind a node."""
    tokens = []
    while found := [each for each in step.tree[node].children.values() if step.tree[each].origin is Origin.LOOKUP]:
        (node,) = found
        tokens.append(step.tree[node].token)
    return tokens


def test_verdicts_decide_how_likely_the_next_proposals_are_and_whether_there_are_any() -> None:
    source = NgramSource()
    source.end(ANSWER)
    step = begun(source)
    source.propose(step.tree.root)
    source.judge([1, 2, 6])
    chance = 0.5 + 0.05 * 0.5
    chance += 0.05 * (1.0 - chance)
    chance += 0.05 * (0.0 - chance)
    step.tree.reroot([1, 2, 6])
    step = begun(source)
    source.propose(step.tree.root)
    (first,) = step.tree[step.tree.root].children.values()
    (second,) = step.tree[first].children.values()
    (third,) = step.tree[second].children.values()
    assert step.tree[first].chance == step.tree[second].chance == pytest.approx((1.0 + PRIOR * chance) / (1.0 + PRIOR))
    assert step.tree[third].chance == pytest.approx(PRIOR * chance / (1.0 + PRIOR)), "behind three tokens it was wrong"
    step = begun(source, least=0.9)
    source.propose(step.tree.root)
    assert proposed(step, step.tree.root) == []
