"""One step of one session: the committed answer, and what each draft means to it.

State: answer tokens and the digest of every prefix. A draft is placed by its digest alone. In the past it is walked
down: its tokens are compared with the answer until the walk stands where the answer ends; what hangs below is then
current. Ahead it is held until a commit makes it current or void. Of several current drafts the deepest is verified.

Hints are earlier answers: what followed there is proposed here, where no draft is at hand.

A verdict may leave the token after a rejected one to the edge (`speculation.acceptance.Rest`).
Then the answer waits for it: the next draft brings it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from speculation import acceptance
from speculation.ngrams import Ngrams
from speculation.sampling import GREEDY, Evidence, SamplingSettings, StepDraws
from speculation.wire import (
    MAX_DRAFT_TOKENS,
    ROOT,
    BeginStep,
    Commit,
    Draft,
    Fetch,
    Idle,
    Masses,
    begin_digest,
    extend_digest,
    parents_of,
)

HELD_DRAFTS = 16
"""Drafts that a step holds, current or ahead; the one that starts farthest ahead gives way, of equals the oldest."""
MAX_COMMIT = MAX_DRAFT_TOKENS + 1
MAX_FETCHES = 8
"""Times that one distribution is sent whole: a short question for a large answer."""


class ForeignDraft(ValueError):
    """A draft about a prompt, image or committed answer that this step does not have: the edge must begin again."""


@dataclass(frozen=True)
class Tree:
    """What to verify after the answer's last token: a draft, or nothing (`round` 0, no tokens) to decode alone.

    `nodes[i]` is token i's node in the draft as it was sent, `origin` that of the root. `drawn`: the evidence that
    came with the tokens.
    """

    round: int = 0
    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    origin: int = ROOT
    drawn: Evidence = ()

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """How deep the first 0, 1, 2, ... tokens reach."""
        depths: list[int] = []
        deepest = [0]
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
            deepest.append(max(deepest[-1], depths[-1]))
        return tuple(deepest)

    def head(self, size: int) -> Tree:
        """Return the tree of the first `size` tokens."""
        if size >= len(self.tokens):
            return self
        parts = {name: getattr(self, name)[:size] for name in ("tokens", "parents", "nodes", "drawn")}
        return replace(self, **parts)


NOTHING = Tree()
"""No draft: decode one token alone."""


@dataclass(eq=False)
class Rest:
    """What the verdict on a `round` left to the edge. fetches: how often the whole of it may still be asked for."""

    round: int
    left: acceptance.Rest
    fetches: int = MAX_FETCHES


@dataclass(frozen=True)
class Progress:
    """Tokens that a verdict added to the answer, from `start`; `digest` after them."""

    start: int
    tokens: tuple[int, ...]
    digest: bytes
    done: bool


class Held(NamedTuple):
    """A draft that is held, and the evidence that came with it."""

    draft: Draft
    drawn: Evidence

    @property
    def start(self) -> int:
        """Where its tokens begin in the answer."""
        return self.draft.start


class StepState:
    """The answer of one step and the drafts for its continuation."""

    def __init__(
        self, begin: BeginStep, eos: Collection[int], sampling: SamplingSettings = GREEDY, digest: bytes | None = None
    ) -> None:
        """`digest` names the empty answer, see `empty_digest`; None: it is computed here."""
        self.step = begin.step
        self.idle = begin.idle
        self.max_tokens = begin.max_tokens
        self.self_draft = begin.self_draft
        self.sampling = sampling
        self.key = begin.key
        self.answer: list[int] = []
        self._eos = frozenset(eos)
        self._digests = [empty_digest(begin, sampling) if digest is None else digest]
        self._held: dict[int, Held] = {}
        self._rest: Rest | None = None
        self._best: Tree | None = None
        self._earlier = Ngrams()
        for hint in reversed(begin.hints):
            self._earlier.remember(hint)
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

    @property
    def draws(self) -> StepDraws:
        """The random draws of the next token."""
        return StepDraws(self.key, self.position)

    def continues(self, begin: BeginStep, digest: bytes) -> bool:
        """Whether `begin`, whose empty answer has `digest`, asks again for this very step, from a position that this
        answer has passed.

        Not where a token is left to an edge that may have forgotten what to draw it with: drafting again repeats it.
        """
        if begin.step != self.step or len(begin.committed) > self.position or begin.max_tokens != self.max_tokens:
            return False
        if self._rest is not None:
            return False
        return extend_digest(digest, begin.committed) == self._digests[len(begin.committed)]

    def offer(self, draft: Draft, drawn: Evidence = ()) -> list[Commit]:
        """Take in a draft. Returns the commits that answer it at once: those it has missed. Raises ForeignDraft.

        `drawn`: the evidence that came with it, see `SamplingScheme.read`.
        """
        if self._rest is not None:
            self._take_drawn(draft, self._rest)
        if draft.start <= self.base and draft.digest != self._digests[draft.start]:
            raise ForeignDraft(
                f"Draft.digest {draft.digest.hex()} at answer position {draft.start} is not this step's "
                f"{self._digests[draft.start].hex()}: prompt, image, sampling or committed tokens "
                "differ; begin the step again"
            )
        if draft.start > self.max_tokens or (draft.start > self.position and self.sampling.one_chain):
            return []
        if draft.start <= self.position:
            if self._digests[draft.start] != draft.digest:
                return []
            if self.done or self._rest is not None or self._walk(Held(draft, drawn)) is None:
                return self.repeat(draft.start, draft.round)
        place = (draft.start, draft.digest)
        rivals = [round for round, (other, _) in self._held.items() if (other.start, other.digest) == place]
        if any(round > draft.round for round in rivals):
            return []
        for round in rivals:
            del self._held[round]
        self._held[draft.round] = Held(draft, drawn)
        while len(self._held) > HELD_DRAFTS:
            del self._held[max(self._held, key=lambda round: (self._held[round].start, -round))]
        self._best = self._current()
        return []

    @property
    def free(self) -> bool:
        """Whether a pass may begin: none is under way, the answer is not complete and waits for no token."""
        return not self._verifying and not self.done and self._rest is None

    def ready(self) -> bool:
        """Whether `take` has something to verify."""
        return self.free and (self.idle is not Idle.WAIT or self._best is not None)

    def best(self) -> Tree | None:
        """Return the current draft with the most to verify: the deepest, of equals the newest. None: there is none."""
        return self._best

    def holds_current(self, round: int) -> bool:
        """Whether a round is held and continues the answer as it is now."""
        return round in self._held and self._held[round].start <= self.position

    def hint(self, most: int) -> Tree | None:
        """Return at most `most` tokens that followed in an earlier answer, None where none fits.

        It followed the longest n-gram that ends the answer, see `Ngrams.lookup` (prompt lookup decoding).
        """
        room = min(most, self.max_tokens - self.position - 1)
        if room < 1:
            return None
        tokens = _until(tuple(self._earlier.lookup(self.answer, room)), self._eos)
        return Tree(0, tokens, tuple(range(ROOT, len(tokens) - 1)), tuple(range(len(tokens)))) if tokens else None

    def take(self, tree: Tree | None = None) -> Tree:
        """Return what to verify now, the best current draft or nothing but the next token; `accept` ends it.

        `tree` is what to verify instead: a part of that draft, whose rest stays held, or a tree of round 0.
        """
        best = self._best
        if tree is None:
            tree = best or NOTHING
        if best is None or len(tree.tokens) >= len(best.tokens):
            self._held.pop(tree.round, None)
        self._best = self._current()
        self._verifying = True
        return tree

    def accept(self, tree: Tree, path: Sequence[int], token: int, rest: acceptance.Rest | None = None) -> Progress:
        """Append a verdict: the tokens at `path`, then `token`, cut at the answer's end; re-place what is held.

        `rest`: not `token` follows them, but what the edge draws out of it.
        """
        start = self.position
        self._append([*(tree.tokens[node] for node in path), *([token] if rest is None else [])])
        self._rest = None if rest is None or self.done else Rest(tree.round, rest)
        self._verifying = False
        self._held = {} if self.done else {r: held for r, held in self._held.items() if self._hopeful(held)}
        self._best = self._current()
        return Progress(start, tuple(self.answer[start:]), self.digest, self.done)

    @property
    def rest(self) -> Masses | None:
        """What the edge is to draw the next token from; None where nothing is left to it."""
        return None if self._rest is None else self._rest.left.part

    def fetch(self, fetch: Fetch) -> list[Commit]:
        """Return the commit that says the whole of what the next token is drawn from; none where that is decided."""
        rest = self._rest
        if rest is None or (fetch.start, fetch.digest) != (self.position, self.digest) or rest.fetches < 1:
            return []
        rest.fetches -= 1
        return [Commit(self.step, rest.round, self.position, [], self.digest, False, passes=0, rest=rest.left.whole)]

    def repeat(self, start: int, round: int) -> list[Commit]:
        """Return the answer from `start` as commits again, or an empty one where nothing follows and all is done.

        The last one says what the edge is to draw, too.
        """
        commits: list[Commit] = []
        open_end = self.done or self._rest is not None
        while start < self.position or (open_end and not commits):
            tokens = self.answer[start : start + MAX_COMMIT]
            end = start + len(tokens)
            last = end == self.position
            rest = self.rest if last else None
            commits.append(
                Commit(self.step, round, start, tokens, self._digests[end], self.done and last, passes=0, rest=rest)
            )
            start = end
        return commits

    def _take_drawn(self, draft: Draft, rest: Rest) -> None:
        """Append the token that the edge drew, where this draft brings it; ForeignDraft for an impossible one."""
        token = draft.drawn
        if token is None or draft.start != self.position + 1 or extend_digest(self.digest, [token]) != draft.digest:
            return
        if not rest.left.allows(token):
            raise ForeignDraft(f"Draft.drawn {token} has no probability at answer position {self.position}")
        self._rest = None
        self._append([token])
        self._best = self._current()

    def _append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self.done:
                return
            self.answer.append(token)
            self._digests.append(extend_digest(self.digest, [token]))

    def _fits(self, held: Held) -> bool:
        """Whether the answer stands where the draft begins, or has passed it, and is the draft's own up to there."""
        return held.start <= self.position and self._digests[held.start] == held.draft.digest

    def _hopeful(self, held: Held) -> bool:
        return held.start > self.position or (self._fits(held) and self._walk(held) is not None)

    def _current(self) -> Tree | None:
        trees = (tree for held in self._held.values() if self._fits(held) and (tree := self._walk(held)) is not None)
        return max(trees, key=lambda tree: (tree.levels[-1], tree.round), default=None)

    def _walk(self, held: Held) -> Tree | None:
        """Return what of a draft continues the answer; None where the answer left it or used it up."""
        draft, drawn = held
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
            drawn=tuple(drawn[node] for node in nodes) if drawn else (),
        )


def empty_digest(begin: BeginStep, sampling: SamplingSettings) -> bytes:
    """Return the digest of a step's empty answer. It reads the whole frame: once for each message is enough."""
    return begin_digest(begin.prompt, begin.jpeg, sampling.text, begin.key)


def _until(tokens: tuple[int, ...], ends: Collection[int]) -> tuple[int, ...]:
    """Return the tokens up to the first that ends an answer, that one included."""
    end = next((index for index, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: end + 1]
