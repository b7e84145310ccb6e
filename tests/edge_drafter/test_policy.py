"""What is drafted and sent next, on trees that are made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from edge_drafter import DraftingConfig, StepRequest
from edge_drafter.acceptance_stats import AcceptanceStats
from edge_drafter.in_flight import SentDraft
from edge_drafter.policy import MAX_AHEAD, Policy
from edge_drafter.step import Step
from edge_drafter.tree import Origin
from speculation.wire import Draft
from tests.edge_drafter.fakes import EOS, FakeClock


class Scene:
    """A step whose tree a test grows; what the policy reads is set by hand."""

    def __init__(self, mode: str = "sd", **changes: Any) -> None:
        self.clock = FakeClock()
        config = DraftingConfig.of(mode, **changes)
        request = StepRequest(1, "p", b"j", (EOS,), 64)
        self.step = Step(config, request, AcceptanceStats(config), self.clock)
        self.policy = Policy(self.step)
        self.rounds = 0

    def chain(self, node: int, tokens: list[int], chance: float = 0.9, origin: Origin = Origin.DRAFT) -> list[int]:
        """Grow a chain behind a node; all but its last are fed."""
        nodes = []
        for token in tokens:
            if origin is Origin.DRAFT:
                self.step.tree.score(node, ((token, chance),))
            node = self.step.tree.add(node, token, chance, origin)
            nodes.append(node)
        self.policy.on_forward()
        return nodes

    def send(self, anchor: int, value: float | None = None) -> SentDraft:
        """Send what the selector makes of the tree behind a node."""
        step, self.rounds = self.step, self.rounds + 1
        nodes = step.selector.cut(anchor)
        message = Draft(1, self.rounds, 0, bytes(8), [step.tree[node].token for node in nodes])
        value = step.selector.value(anchor, nodes) if value is None else value
        draft = SentDraft(message, anchor, nodes, value, True, anchor != step.tree.root, 0.0, 0.0)
        step.sent.add(draft, step.tree.root)
        self.policy.on_sent(draft)
        return draft


def test_drafts_are_sent_ahead_for_the_likeliest_next_roots_and_never_too_many() -> None:
    scene = Scene("pipelined", gamma=1, truncate=False, partial=False, interrupt=False)
    tree, node = scene.step.tree, scene.step.tree.root
    (node,) = scene.chain(node, [1])
    scene.send(tree.root)
    for count in range(1, MAX_AHEAD):
        bonus, _ = scene.chain(node, [2, 3])
        assert scene.policy.next_draft() == bonus
        node = scene.send(bonus).nodes[-1]
        assert len(scene.step.sent) == count + 1
    scene.chain(node, [2, 3])
    assert scene.policy.next_draft() is None


def test_no_draft_is_sent_ahead_for_a_root_that_cannot_be() -> None:
    """With top-p a draft model proposes tokens of chance 0, where nothing else may follow."""
    scene = Scene("pipelined", gamma=4)
    tree, controller = scene.step.tree, scene.step.acceptance.controller
    *_, last = scene.chain(tree.root, [1, 2])
    scene.send(tree.root)
    scene.chain(last, [3, 4], chance=0.0)
    controller.drafted(0.05)
    controller.verified(1.0)
    controller.acceptance = 0.5
    assert scene.policy.next_draft() is None


@pytest.mark.parametrize(("draft_s", "sends"), [(0.001, False), (0.2, True)])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_full_tree_is_drafted_on_while_that_may_save_a_verification(draft_s: float, sends: bool, ahead: bool) -> None:
    """A token more is a verification less where the answer leaves the draft right behind it: in one case of ten."""
    scene = Scene("full", gamma=2, truncate=False, partial=False, early_tokens=False, ngrams=False)
    tree, controller = scene.step.tree, scene.step.acceptance.controller
    anchor = tree.root
    if ahead:
        *_, anchor = scene.chain(tree.root, [1, 2, 3])
        scene.send(tree.root, value=100.0).nodes.remove(anchor)
        scene.step.sent.decide(0, tree)
    *_, last = scene.chain(anchor, [4, 5])
    controller.drafted(draft_s)
    controller.verified(1.0)
    assert (scene.policy.next_draft() == anchor) is sends
    if not ahead:
        assert scene.policy.next_leaves() == ([] if sends else [last])
