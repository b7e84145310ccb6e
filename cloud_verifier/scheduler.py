"""Scheduler: which sessions make the next batch. It knows messages and time (given, in seconds), no socket, no model.

All sessions with something to verify share a batch, the longest waiting first; a prefill is work of its own and never
comes twice in a row while somebody waits for a verification, so nobody waits longer than one prefill. What a session
does while it has no draft its `Idle` says; with LEDGER its ledger does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from cloud_verifier.batch import Batch, Item, Outcome, Prefill, Work
from cloud_verifier.estimator import Estimator
from cloud_verifier.ledger import PASS_PRICE, Act, Choice, Ledger
from cloud_verifier.step import ForeignDraft, Progress, StepState, Tree, empty_digest
from cloud_verifier.work import ModelInfo
from speculation.acceptance import Verdict
from speculation.sampling import GREEDY, SamplingSettings
from speculation.wire import BeginStep, Commit, Draft, Fault, FaultCode, Fetch, Idle, parents_of

HINT_TOKENS = 8
_CHEAP = 0.1
"""Share by which a pass may grow for a session that joins it while it waits for a draft."""


class Refused(ValueError):
    """A message that this session may not send now; `fault` is what its sender is told."""

    def __init__(self, code: FaultCode, message: str, step: int | None = None) -> None:
        super().__init__(message)
        self.fault = Fault(code, message, step)


@dataclass
class Tally:
    """What one step cost: tokens committed by target forwards, forwards, seconds; `finished` once its answer is.

    `hinted` and `decoded` passes had no draft of the edge; `waited_s` were waited for one by the ledger.
    """

    step: int
    begun_at: float
    finished: bool = False
    tokens: int = 0
    passes: int = 0
    hinted: int = 0
    decoded: int = 0
    waited_s: float = 0.0
    prefill_s: float = 0.0

    def __str__(self) -> str:
        return (
            f"tokens={self.tokens} passes={self.passes} tau={self.tau:.2f} verified={self.verified} "
            f"hinted={self.hinted} decoded={self.decoded} waited={self.waited_s * 1e3:.1f}ms "
            f"prefill={self.prefill_s * 1e3:.1f}ms"
        )

    @property
    def tau(self) -> float:
        """Tokens per verification, 0 before the first."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def verified(self) -> int:
        """Passes that verified a draft."""
        return self.passes - self.hinted - self.decoded

    def count(self, act: Act, tokens: int) -> None:
        """Enter a pass that committed so many tokens."""
        self.passes += 1
        self.tokens += tokens
        self.hinted += act is Act.HINT
        self.decoded += act is Act.DECODE


@dataclass
class _Row:
    """A session's current step. `begin` is kept until it is prefilled, for which its `inputs` must be there; `since` is
    when it last became ready."""

    state: StepState
    begin: BeginStep | None
    tally: Tally
    since: float
    ledger: Ledger
    suspended: bool = False
    inputs: object = None
    hint: tuple[int, Tree | None] = (-1, None)
    """What a hint proposes at this answer position: a look-up for each pass, not for each message."""

    @property
    def can_prefill(self) -> bool:
        return self.begin is not None and self.inputs is not None and not self.suspended


@dataclass
class Scheduler:
    """Steps of all sessions by engine row; `collect_s` is how long a lone ready session waits for company.

    `pass_price` is the ledgers', `hint_tokens` bounds what is proposed from a hint. `self_drafts`: a draft model stands
    beside the target. `prepares`: a prefill waits until `prepared` brings its inputs.
    """

    model: ModelInfo
    max_batch: int = 8
    max_draft: int = 64
    collect_s: float = 0.0
    pass_price: float = PASS_PRICE
    hint_tokens: int = HINT_TOKENS
    self_drafts: bool = False
    prepares: bool = False
    times: Estimator = field(default_factory=Estimator)
    _ledgers: dict[int, Ledger] = field(default_factory=dict)
    _rows: dict[int, _Row] = field(default_factory=dict)
    _last_was_prefill: bool = False

    def begin(self, row: int, begin: BeginStep, now: float, sampling: SamplingSettings = GREEDY) -> list[Commit]:
        """Start a step, in place of the one before, whose tokens are drawn as its session's `sampling` says.

        Returns commits that are due at once. Raises Refused.
        """
        self._check_tokens("BeginStep.committed", begin.committed, begin.step)
        for index, hint in enumerate(begin.hints):
            self._check_tokens(f"BeginStep.hints[{index}]", hint, begin.step)
        begin = self._by_itself(begin) if begin.self_draft else begin
        try:
            sampling.check_begin(begin)
        except ValueError as error:
            raise Refused(FaultCode.UNSUPPORTED_SAMPLING, str(error), begin.step) from None
        active = self._rows.get(row)
        if active is not None and begin.step < active.state.step:
            raise Refused(
                FaultCode.MALFORMED,
                f"BeginStep.step {begin.step} comes before the current step {active.state.step}; steps must increase",
                begin.step,
            )
        digest = empty_digest(begin, sampling)
        if active is not None and active.state.continues(begin, digest):
            active.state.idle = begin.idle
            active.suspended = False
            active.ledger.pause()
            return active.state.repeat(len(begin.committed), 0)
        state = StepState(begin, self.model.eos, sampling, digest)
        ledger = self._ledgers.setdefault(row, Ledger(self.times, self.pass_price))
        pending = None if state.done else begin
        tally = Tally(begin.step, now, state.done)
        self._rows[row] = _Row(state, pending, tally, now, ledger, inputs=None if self.prepares else ())
        return state.repeat(state.position, 0)

    def unprepared(self, row: int, state: StepState | None = None) -> tuple[StepState, BeginStep] | None:
        """Return the step of `row` (`state` only, where given) whose inputs are missing; None where there is none."""
        active = self._rows.get(row)
        if active is None or active.begin is None or active.inputs is not None or state not in (None, active.state):
            return None
        return active.state, active.begin

    def prepared(self, row: int, state: StepState, inputs: object, seconds: float) -> None:
        """A step may be prefilled with these `inputs`, which took so long, unless another took its place."""
        active = self._active(row, state)
        if active is not None:
            active.inputs = inputs
            active.tally.prefill_s = seconds

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
        self._check_tokens("Draft.drawn", [] if draft.drawn is None else [draft.drawn], draft.step)
        try:
            drawn = active.state.sampling.read(draft, self.model.vocabulary, active.state.idle)
        except ValueError as error:
            raise Refused(FaultCode.UNSUPPORTED_SAMPLING, str(error), draft.step) from None
        active.suspended = False
        was_ready, known = self._ready(active, now), active.state.position
        try:
            commits = active.state.offer(draft, drawn)
        except ForeignDraft as error:
            raise Refused(FaultCode.NO_SESSION, str(error), draft.step) from None
        active.tally.tokens += active.state.position - known
        if not was_ready and active.begin is None:
            active.since = now
        if draft.start <= active.state.position:
            depth = Tree(tokens=tuple(draft.tokens), parents=tuple(parents_of(draft))).levels[-1]
            active.ledger.draft_came(draft.start, active.state.holds_current(draft.round), depth, now)
        return commits

    def fetch(self, row: int, fetch: Fetch) -> list[Commit]:
        """Return what an edge needs to draw the token that is left to it; nothing where that was decided meanwhile."""
        active = self._rows.get(row)
        return active.state.fetch(fetch) if active is not None and active.state.step == fetch.step else []

    def end(self, row: int, step: int | None = None) -> Tally | None:
        """Drop a session's step (`step` only, where given). Returns what it cost; None where there was none."""
        active = self._rows.get(row)
        if active is None or (step is not None and active.state.step != step):
            return None
        del self._rows[row]
        return active.tally

    def forget(self, row: int) -> None:
        """A session is over: what was learned of its edge is dropped."""
        self._ledgers.pop(row, None)

    def suspend(self, row: int) -> None:
        """Its edge is gone: hold the step until BeginStep asks for it again."""
        if row in self._rows:
            self._rows[row].suspended = True
            self._rows[row].ledger.pause()

    def next(self, now: float) -> Work | None:
        """Return what to do now, or None where nothing is ready or company is still awaited."""
        prefills = sorted((a.since, row) for row, a in self._rows.items() if a.can_prefill)
        ready = sorted((a.since, row) for row, a in self._rows.items() if self._ready(a, now))
        if ready and not self._complete(ready, now):
            ready = []
        if prefills and (not ready or (prefills[0] < ready[0] and not self._last_was_prefill)):
            self._last_was_prefill = True
            return self._prefill(prefills[0][1])
        if not ready:
            return None
        self._last_was_prefill = False
        return self._batch([row for _, row in ready[: self.max_batch]], now)

    def next_time(self, now: float) -> float | None:
        """Return when `next` will have work without any further message; None for never."""
        if any(a.can_prefill for a in self._rows.values()):
            return now
        times = []
        for active in self._rows.values():
            choice = self._choice(active, now)
            if choice is not None:
                times.append(choice.until if choice.act is Act.WAIT else active.since + self.collect_s)
        return min(times, default=None)

    def measured(self, batch: Batch, seconds: float) -> None:
        """A pass took so long, with what a declared profile made it wait; tell this before its verdicts."""
        self.times.observe(len(batch.items), batch.tokens, seconds)

    def prefilled(self, work: Prefill, now: float, seconds: float) -> None:
        """A prefill is done; its step may be verified from now on, unless another took its place."""
        active = self._active(work.row, work.state)
        if active is not None:
            active.begin = active.inputs = None
            active.since = now
            active.tally.prefill_s += seconds
            active.ledger.begin()
            self.times.observe_prefill(seconds)

    def accept(self, item: Item, verdict: Verdict, now: float, compute_s: float) -> Outcome | None:
        """Commit a verdict. Returns None where the step was superseded while the batch ran."""
        active = self._active(item.row, item.state)
        if active is None:
            return None
        progress: Progress = item.state.accept(item.tree, verdict.path, verdict.token, verdict.rest)
        active.since = now
        first = active.tally.passes == 0
        active.tally.count(item.act, len(progress.tokens))
        active.tally.finished = progress.done
        active.ledger.finish(item.act, item.tree, len(verdict.path), len(progress.tokens), *item.company)
        active.ledger.committed(item.state.position, item.state.best() is not None, now)
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
            rest=item.state.rest,
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
        return Prefill(row, active.begin, active.state, active.inputs) if active.begin else None

    def _active(self, row: int, state: StepState) -> _Row | None:
        active = self._rows.get(row)
        return active if active is not None and active.state is state else None

    def _choice(self, active: _Row, now: float) -> Choice | None:
        """Return what a step does now; None where a pass may not begin, or nobody but its edge can go on."""
        state = active.state
        if active.begin is not None or active.suspended or not state.free:
            return None
        best = state.best()
        if state.idle is Idle.LEDGER:
            if active.hint[0] != state.position:
                active.hint = (state.position, state.hint(self.hint_tokens))
            return active.ledger.choose(best, active.hint[1], now)
        if best is not None:
            return Choice(Act.VERIFY, best)
        return Choice(Act.DECODE) if state.idle is Idle.DECODE else None

    def _ready(self, active: _Row, now: float) -> bool:
        choice = self._choice(active, now)
        return choice is not None and choice.act is not Act.WAIT

    def _batch(self, rows: list[int], now: float) -> Batch:
        """Start a pass of these sessions, and of those that only wait for a draft where they join it cheaply."""
        choices = {row: choice for row, a in self._rows.items() if (choice := self._choice(a, now)) is not None}
        fed = sum(1 + len(choices[row].tree.tokens) for row in rows)
        chosen = {row: choices[row] for row in rows}
        for row, choice in choices.items():
            grown = self.times.seconds(len(chosen) + 1, fed + 1) - self.times.seconds(len(chosen), fed)
            cheap = grown <= _CHEAP * self.times.seconds(len(chosen), fed)
            if choice.act is Act.WAIT and len(chosen) < self.max_batch and cheap:
                chosen[row] = Choice(Act.DECODE)
                fed += 1
        return Batch(tuple(self._item(row, choice, (len(chosen), fed), now) for row, choice in chosen.items()))

    def _item(self, row: int, choice: Choice, load: tuple[int, int], now: float) -> Item:
        active = self._rows[row]
        heard = choice.act is Act.VERIFY
        if active.state.idle is Idle.LEDGER:
            active.tally.waited_s += active.ledger.start(choice, now)
            heard = heard or active.ledger.drafts_pay
        tree = active.state.take(choice.tree)
        company = (load[0], load[1] - 1 - len(tree.tokens))
        return Item(row, active.state, choice.act, tree, max(0.0, now - active.since), heard, company)

    def _complete(self, ready: list[tuple[float, int]], now: float) -> bool:
        """Whether a batch should start: it is full, nobody else could join, or the first has waited long enough."""
        live = sum(not (a.suspended or a.state.done) for a in self._rows.values())
        return len(ready) >= min(self.max_batch, live) or now >= ready[0][0] + self.collect_s

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
