"""Scheduler: which sessions make the next batch. It knows messages and time (given, in seconds), no socket, no model.

All sessions with something to verify share a batch, the longest waiting first; a prefill is work of its own and never
comes twice in a row while somebody waits for a verification, so nobody waits longer than one prefill.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

import msgspec

from cloud_verifier.step import ForeignDraft, Progress, StepState, Tree
from cloud_verifier.work import DraftWish, ModelInfo, VerifyRow
from speculation.acceptance import Verdict
from speculation.wire import BeginStep, Commit, Draft, Fault, FaultCode, Idle


class Refused(ValueError):
    """A message that this session may not send now; `fault` is what its sender is told."""

    def __init__(self, code: FaultCode, message: str, step: int | None = None) -> None:
        super().__init__(message)
        self.fault = Fault(code, message, step)


@dataclass
class Tally:
    """What one step cost: tokens committed by target forwards, forwards, seconds; `finished` once its answer is."""

    step: int
    begun_at: float
    finished: bool = False
    tokens: int = 0
    passes: int = 0
    prefill_s: float = 0.0

    @property
    def tau(self) -> float:
        """Tokens per verification, 0 before the first."""
        return self.tokens / self.passes if self.passes else 0.0


@dataclass
class _Row:
    """A session's current step. `begin` is kept until it is prefilled; `since` is when it last became ready."""

    state: StepState
    begin: BeginStep | None
    tally: Tally
    since: float
    suspended: bool = False


@dataclass(frozen=True)
class Prefill:
    """Prefill one session's prompt, image and committed tokens."""

    row: int
    begin: BeginStep
    state: StepState


@dataclass(frozen=True)
class Item:
    """One session's share of a batch; `waited_s` from being ready to the start."""

    row: int
    state: StepState
    tree: Tree
    waited_s: float

    @property
    def wish(self) -> DraftWish | None:
        """What the verifier drafts here by itself: as many tokens as the step asks for and the answer has room for."""
        state = self.state
        count = min(state.self_draft, state.max_tokens - state.position - 1)
        return DraftWish(self.row, tuple(state.answer), count) if count > 0 and not self.tree.tokens else None

    def with_draft(self, tokens: tuple[int, ...]) -> Item:
        """Return the item with a draft of the verifier's own, a chain, in place of its tree."""
        nodes = tuple(range(len(tokens)))
        return replace(self, tree=Tree(0, tokens, tuple(node - 1 for node in nodes), nodes))

    @property
    def request(self) -> VerifyRow:
        return VerifyRow(self.row, self.tree.tokens, self.tree.parents, exits=self.tree.round > 0)


@dataclass(frozen=True)
class Batch:
    """Sessions whose drafts share one target forward."""

    items: tuple[Item, ...]


Work: TypeAlias = Prefill | Batch


@dataclass(frozen=True)
class Outcome:
    """What a verdict did: the commit to send, and whether the engine must keep the verified path."""

    commit: Commit
    keep: bool


@dataclass
class Scheduler:
    """Steps of all sessions by engine row; `collect_s` is how long a lone ready session waits for company.

    `self_drafts`: a draft model stands beside the target.
    """

    model: ModelInfo
    max_batch: int = 8
    max_draft: int = 64
    collect_s: float = 0.0
    self_drafts: bool = False
    _rows: dict[int, _Row] = field(default_factory=dict)
    _last_was_prefill: bool = False

    def begin(self, row: int, begin: BeginStep, now: float) -> list[Commit]:
        """Start a step, in place of the one before. Returns commits that are due at once. Raises Refused."""
        self._check_tokens("BeginStep.committed", begin.committed, begin.step)
        begin = self._by_itself(begin) if begin.self_draft else begin
        active = self._rows.get(row)
        if active is not None and begin.step < active.state.step:
            raise Refused(
                FaultCode.MALFORMED,
                f"BeginStep.step {begin.step} comes before the current step {active.state.step}; steps must increase",
                begin.step,
            )
        if active is not None and active.state.continues(begin):
            active.state.idle = begin.idle
            active.suspended = False
            return active.state.repeat(len(begin.committed), 0)
        state = StepState(begin, self.model.eos)
        self._rows[row] = _Row(state, None if state.done else begin, Tally(begin.step, now, state.done), since=now)
        return state.repeat(state.position, 0)

    def offer(self, row: int, draft: Draft, now: float) -> list[Commit]:
        """Take in a draft. Returns the commits that answer it at once. Raises Refused."""
        active = self._rows.get(row)
        if active is None or draft.step > active.state.step:
            message = f"step {draft.step} was not begun here; send Hello and BeginStep again"
            raise Refused(FaultCode.NO_SESSION, message, draft.step)
        if draft.step < active.state.step:
            return []
        if len(draft.tokens) > self.max_draft:
            message = f"Draft.tokens has {len(draft.tokens)} tokens, the limit is {self.max_draft} (Welcome.max_draft)"
            raise Refused(FaultCode.TOO_LARGE, message, draft.step)
        self._check_tokens("Draft.tokens", draft.tokens, draft.step)
        active.suspended = False
        was_ready = self._ready(active)
        try:
            commits = active.state.offer(draft)
        except ForeignDraft as error:
            raise Refused(FaultCode.NO_SESSION, str(error), draft.step) from None
        if not was_ready and active.begin is None:
            active.since = now
        return commits

    def end(self, row: int, step: int | None = None) -> Tally | None:
        """Drop a session's step (`step` only, where given). Returns what it cost; None where there was none."""
        active = self._rows.get(row)
        if active is None or (step is not None and active.state.step != step):
            return None
        del self._rows[row]
        return active.tally

    def suspend(self, row: int) -> None:
        """Its edge is gone: hold the step until BeginStep asks for it again."""
        if row in self._rows:
            self._rows[row].suspended = True

    def next(self, now: float) -> Work | None:
        """Return what to do now, or None where nothing is ready or company is still awaited."""
        prefills = sorted((a.since, row) for row, a in self._rows.items() if a.begin and not a.suspended)
        ready = sorted((a.since, row) for row, a in self._rows.items() if self._ready(a))
        if ready and not self._complete(ready, now):
            ready = []
        if prefills and (not ready or (prefills[0] < ready[0] and not self._last_was_prefill)):
            self._last_was_prefill = True
            return self._prefill(prefills[0][1])
        if not ready:
            return None
        self._last_was_prefill = False
        items = []
        for since, row in ready[: self.max_batch]:
            state = self._rows[row].state
            items.append(Item(row, state, state.take(), max(0.0, now - since)))
        return Batch(tuple(items))

    def next_time(self, now: float) -> float | None:
        """Return when `next` will have work without any further message; None for never."""
        if any(a.begin is not None and not a.suspended for a in self._rows.values()):
            return now
        ready = [a.since for a in self._rows.values() if self._ready(a)]
        return min(ready) + self.collect_s if ready else None

    def prefilled(self, work: Prefill, now: float, seconds: float) -> None:
        """A prefill is done; its step may be verified from now on, unless another took its place."""
        active = self._active(work.row, work.state)
        if active is not None:
            active.begin = None
            active.since = now
            active.tally.prefill_s = seconds

    def accept(self, item: Item, verdict: Verdict, now: float, compute_s: float) -> Outcome | None:
        """Commit a verdict. Returns None where the step was superseded while the batch ran."""
        active = self._active(item.row, item.state)
        if active is None:
            return None
        progress: Progress = item.state.accept(item.tree, verdict.path, verdict.token)
        active.since = now
        first = active.tally.passes == 0
        active.tally.passes += 1
        active.tally.tokens += len(progress.tokens)
        active.tally.finished = progress.done
        commit = Commit(
            step=item.state.step,
            round=item.tree.round,
            start=progress.start,
            tokens=list(progress.tokens),
            digest=progress.digest,
            done=progress.done,
            passes=1,
            queue_s=item.waited_s,
            compute_s=compute_s,
            prefill_s=active.tally.prefill_s if first else 0.0,
        )
        return Outcome(commit, keep=not progress.done)

    def is_current(self, item: Item) -> bool:
        """Whether anybody still wants this item's verdict."""
        return self._active(item.row, item.state) is not None

    def tally(self, row: int) -> Tally | None:
        """Return what the current step of `row` cost so far."""
        return self._rows[row].tally if row in self._rows else None

    def _prefill(self, row: int) -> Prefill | None:
        active = self._rows[row]
        return Prefill(row, active.begin, active.state) if active.begin else None

    def _active(self, row: int, state: StepState) -> _Row | None:
        active = self._rows.get(row)
        return active if active is not None and active.state is state else None

    def _ready(self, active: _Row) -> bool:
        return active.begin is None and not active.suspended and active.state.ready()

    def _complete(self, ready: list[tuple[float, int]], now: float) -> bool:
        """Whether a batch should start: it is full, nobody else could join, or the first has waited long enough."""
        live = sum(not (a.suspended or a.state.done) for a in self._rows.values())
        return len(ready) >= min(self.max_batch, live) or now - ready[0][0] >= self.collect_s

    def _by_itself(self, begin: BeginStep) -> BeginStep:
        """Return a step that is drafted for here as one that never waits for its edge. Raises Refused."""
        if not self.self_drafts:
            raise Refused(
                FaultCode.MODEL_MISMATCH,
                "BeginStep.self_draft: this verifier has no draft model; start it with --draft-model FOLDER, or choose "
                "a mode in which the edge drafts",
                begin.step,
            )
        return msgspec.structs.replace(begin, self_draft=min(begin.self_draft, self.max_draft), idle=Idle.DECODE)

    def _check_tokens(self, name: str, tokens: list[int], step: int) -> None:
        for index, token in enumerate(tokens):
            if token >= self.model.vocabulary:
                raise Refused(
                    FaultCode.MALFORMED,
                    f"{name}[{index}] = {token} is no token of this model (vocabulary {self.model.vocabulary})",
                    step,
                )
