"""What the scheduler hands out: a prefill, or a batch of sessions that share one target forward, and what it made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from cloud_verifier.ledger import Act
from cloud_verifier.step import StepState, Tree
from cloud_verifier.work import DraftWish, VerifyRow
from speculation.acceptance import Verdict
from speculation.wire import BeginStep, Commit, EarlyTokens


@dataclass(frozen=True)
class Prefill:
    """Prefill one session's prompt, image and committed tokens; `inputs` are what `prepared` was given."""

    row: int
    begin: BeginStep
    state: StepState
    inputs: Any


@dataclass(frozen=True)
class Item:
    """One session's share of a batch; `waited_s` from being ready to the start.

    `exits`: early tokens help its edge. `company` is what shares the pass: sessions, this one among them, and the
    tokens that the others feed.
    """

    row: int
    state: StepState
    act: Act
    tree: Tree
    waited_s: float
    exits: bool
    company: tuple[int, int] = (1, 0)

    @property
    def wish(self) -> DraftWish | None:
        """What the verifier drafts here by itself: as many tokens as the step asks for and the answer has room for."""
        state = self.state
        count = min(state.self_draft, state.max_tokens - state.position - 1)
        if count < 1 or self.tree.tokens:
            return None
        return DraftWish(self.row, tuple(state.answer), count, state.sampling, state.draws, state.digest)

    def early(self, layer: int, verdict: Verdict | None) -> EarlyTokens | None:
        """Return what an exit's verdict is to its edge; None without one, or where the edge does not know its node."""
        # Where the verifier goes on alone, the edge knows no node but the root.
        if verdict is None or (self.tree.round == 0 and verdict.path):
            return None
        node = self.tree.nodes[verdict.path[-1]] if verdict.path else self.tree.origin
        confidence = min(1.0, max(0.0, verdict.confidence))
        start = self.state.position + len(verdict.path)
        return EarlyTokens(self.state.step, self.tree.round, start, node, verdict.token, layer, confidence)

    def with_draft(self, tokens: tuple[int, ...]) -> Item:
        """Return the item with a draft of the verifier's own, a chain, in place of its tree."""
        nodes = tuple(range(len(tokens)))
        return replace(self, act=Act.SELF, tree=Tree(0, tokens, tuple(node - 1 for node in nodes), nodes))

    @property
    def request(self) -> VerifyRow:
        state = self.state
        return VerifyRow(
            self.row, self.tree.tokens, self.tree.parents, self.exits, state.sampling, state.draws,
            state.answer[-1] if state.answer else None, state.digest, self.tree.drawn,
        )  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """Sessions whose drafts share one target forward."""

    items: tuple[Item, ...]

    @property
    def tokens(self) -> int:
        """Tokens that it feeds, every session's root among them."""
        return sum(1 + len(item.tree.tokens) for item in self.items)


Work: TypeAlias = Prefill | Batch


@dataclass(frozen=True)
class Outcome:
    """What a verdict did: the commit to send, and whether the engine must keep the verified path."""

    commit: Commit
    keep: bool
