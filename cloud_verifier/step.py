"""One step of one session: the committed answer, and what each draft means to it.

State: answer tokens and the digest of every prefix. A draft is placed by its digest alone. In the past it is walked
down: its tokens are compared with the answer until the walk stands where the answer ends; what hangs below is then
the current draft. Ahead it is held until a commit makes it current or void.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from speculation.wire import (
    MAX_DRAFT_TOKENS,
    ROOT,
    BeginStep,
    Commit,
    Draft,
    Idle,
    begin_digest,
    extend_digest,
    parents_of,
)

HELD_DRAFTS = 4
"""Drafts that a step holds, current or ahead; the oldest rounds give way."""
MAX_COMMIT = MAX_DRAFT_TOKENS + 1


class ForeignDraft(ValueError):
    """A draft about a prompt, image or committed answer that this step does not have: the edge must begin again."""


@dataclass(frozen=True)
class Tree:
    """What to verify after the answer's last token: a draft, or nothing (`round` 0, no tokens) to decode alone.

    `nodes[i]` is token i's node in the draft as it was sent, `origin` that of the root.
    """

    round: int = 0
    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    origin: int = ROOT


@dataclass(frozen=True)
class Progress:
    """Tokens that a verdict added to the answer, from `start`; `digest` after them."""

    start: int
    tokens: tuple[int, ...]
    digest: bytes
    done: bool


class StepState:
    """The answer of one step and the drafts for its continuation."""

    def __init__(self, begin: BeginStep, eos: Collection[int]) -> None:
        self.step = begin.step
        self.idle = begin.idle
        self.max_tokens = begin.max_tokens
        self.self_draft = begin.self_draft
        self.answer: list[int] = []
        self._eos = frozenset(eos)
        self._digests = [begin_digest(begin.prompt, begin.jpeg)]
        self._held: dict[int, Draft] = {}
        self._verifying = False
        self._append(begin.committed)
        self.base = self.position

    @property
    def position(self) -> int:
        return len(self.answer)

    @property
    def digest(self) -> bytes:
        return self._digests[-1]

    @property
    def done(self) -> bool:
        return self.position >= self.max_tokens or (self.position > 0 and self.answer[-1] in self._eos)

    def continues(self, begin: BeginStep) -> bool:
        """Whether `begin` asks again for this very step, from a position that this answer has passed."""
        if begin.step != self.step or len(begin.committed) > self.position or begin.max_tokens != self.max_tokens:
            return False
        digest = extend_digest(begin_digest(begin.prompt, begin.jpeg), begin.committed)
        return digest == self._digests[len(begin.committed)]

    def offer(self, draft: Draft) -> list[Commit]:
        """Take in a draft. Returns the commits that answer it at once: those it has missed. Raises ForeignDraft."""
        if draft.start <= self.base and draft.digest != self._digests[draft.start]:
            raise ForeignDraft(
                f"Draft.digest {draft.digest.hex()} at answer position {draft.start} is not this step's "
                f"{self._digests[draft.start].hex()}: prompt, image or committed tokens differ; begin the step again"
            )
        if draft.start > self.max_tokens:
            return []
        if draft.start <= self.position:
            if self._digests[draft.start] != draft.digest:
                return []
            if self.done or self._walk(draft) is None:
                return self.repeat(draft.start, draft.round)
        self._held[draft.round] = draft
        while len(self._held) > HELD_DRAFTS:
            del self._held[min(self._held)]
        return []

    def ready(self) -> bool:
        """Whether `take` has something to verify."""
        return not self._verifying and not self.done and (self.idle is not Idle.WAIT or self._current() is not None)

    def take(self) -> Tree:
        """Return what to verify now, the newest current draft before anything else; `accept` ends it."""
        tree = self._current() or Tree()
        self._held.pop(tree.round, None)
        self._verifying = True
        return tree

    def accept(self, tree: Tree, path: Sequence[int], token: int) -> Progress:
        """Append a verdict: the tokens at `path`, then `token`, cut at the answer's end; re-place what is held."""
        start = self.position
        self._append([*(tree.tokens[node] for node in path), token])
        self._verifying = False
        self._held = {} if self.done else {r: d for r, d in self._held.items() if self._hopeful(d)}
        return Progress(start, tuple(self.answer[start:]), self.digest, self.done)

    def repeat(self, start: int, round: int) -> list[Commit]:
        """Return the answer from `start` as commits again, or an empty one where nothing follows and all is done."""
        commits: list[Commit] = []
        while start < self.position or (self.done and not commits):
            tokens = self.answer[start : start + MAX_COMMIT]
            end = start + len(tokens)
            done = self.done and end == self.position
            commits.append(Commit(self.step, round, start, tokens, self._digests[end], done, passes=0))
            start = end
        return commits

    def _append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self.done:
                return
            self.answer.append(token)
            self._digests.append(extend_digest(self.digest, [token]))

    def _hopeful(self, draft: Draft) -> bool:
        if draft.start > self.position:
            return True
        return self._digests[draft.start] == draft.digest and self._walk(draft) is not None

    def _current(self) -> Tree | None:
        for round in sorted(self._held, reverse=True):
            draft = self._held[round]
            if draft.start <= self.position and self._digests[draft.start] == draft.digest:
                return self._walk(draft)
        return None

    def _walk(self, draft: Draft) -> Tree | None:
        """Return what of a draft continues the answer; None where the answer left it or used it up."""
        parents = parents_of(draft)
        root = ROOT
        for token in self.answer[draft.start :]:
            below = (n for n, parent in enumerate(parents) if parent == root and draft.tokens[n] == token)
            found = next(below, None)
            if found is None:
                return None
            root = found
        if root != ROOT and root not in parents:
            return None
        index = {root: ROOT}
        nodes: list[int] = []
        for node, parent in enumerate(parents):
            if parent in index:
                index[node] = len(nodes)
                nodes.append(node)
        return Tree(
            round=draft.round,
            tokens=tuple(draft.tokens[node] for node in nodes),
            parents=tuple(index[parents[node]] for node in nodes),
            nodes=tuple(nodes),
            origin=root,
        )
