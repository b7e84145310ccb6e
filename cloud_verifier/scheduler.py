"""Scheduler: the steps of all sessions, what they may be sent, and by a policy which of them run next.

It knows messages and time (given, in seconds), no socket and no model. Which steps share a forward is a policy's
business (`cloud_verifier.policies`); what a step does while it has no draft, its `Idle`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from cloud_verifier.answer import Answer
from cloud_verifier.batching import Traffic, best_batch, best_wait
from cloud_verifier.choice import Act, Choice
from cloud_verifier.config import Limits, Scheduling
from cloud_verifier.estimator import Costs
from cloud_verifier.interfaces import ModelInfo
from cloud_verifier.ledger import Ledger
from cloud_verifier.policies import POLICIES, Batch, Budget
from cloud_verifier.prefill import FeatureLog
from cloud_verifier.request import Request, empty_digest
from cloud_verifier.server_draft.value import OWN_TOKENS
from cloud_verifier.step import Step, StepSettings
from cloud_verifier.tree import ForeignDraft, Tree
from speculation.language.grammar import Automaton, Grammars
from speculation.language.json_schema import schema_automaton
from speculation.pass_cost import Load
from speculation.sampling import GREEDY, SamplingScheme
from speculation.service_classes import INTERACTIVE
from speculation.service_classes import service_class as class_named
from speculation.wire import BeginStep, Commit, Draft, Fault, FaultCode, Fetch, Grammar, Idle

WAITED_S = 6.0
"""How long a step may wait for its edge before others may have its memory."""


class Refused(ValueError):
    """A message that this session may not send now; `fault` is the reply to its sender."""

    def __init__(self, code: FaultCode, message: str, step: int | None = None) -> None:
        super().__init__(message)
        self.fault = Fault(code, message, step)


class Scheduler:
    """Steps by their row of the engine, and what work on them is predicted to cost."""

    def __init__(
        self,
        model: ModelInfo,
        settings: Scheduling | None = None,
        limits: Limits | None = None,
        costs: Costs | None = None,
    ) -> None:
        """`costs`: with those of a draft model where one stands beside the target; None: nothing is known yet."""
        self._settings = settings = settings or Scheduling()
        self._limits = limits = limits or Limits()
        self._model = model
        self._max_draft = limits.max_draft
        self._step_settings = StepSettings(settings.hint_tokens, settings.forced_tokens, limits.max_draft)
        self._policy = POLICIES[settings.policy]()
        self.costs = costs or Costs()
        self._traffic = Traffic()
        self._budget = self._make_budget()
        self._min_tokens_per_s = 0.0
        """Tokens per second that one more level of the drafts for the latest batch must bring."""
        self._ledgers: dict[int, Ledger] = {}
        self._steps: dict[int, Step] = {}
        self._ended: dict[int, int] = {}
        """The number of the step of a row that was ended last."""

    # --- queries

    def step(self, index: int) -> Step | None:
        """Return the current step of a row."""
        return self._steps.get(index)

    def is_current(self, step: Step) -> bool:
        """Whether no other step took its place and it was not ended."""
        return self._steps.get(step.index) is step

    def active(self, index: int) -> list[int]:
        """Return the other rows that have a step under way."""
        return [row for row, step in self._steps.items() if row != index and not (step.done or step.suspended)]

    @property
    def image_waits(self) -> bool:
        """Whether a step's image is to be encoded."""
        return any(step.can_prefill and not step.prefill.encoded for step in self._steps.values())

    @property
    def decoding_s(self) -> float:
        """Predicted seconds of a forward in which every step that is being answered decodes."""
        return self.costs.passes.seconds(Load.total(step.load(Choice(Act.DECODE)) for step in self._answered))

    @property
    def asked(self) -> float:
        """Predicted seconds of passes a second, at the speeds that the classes of the steps under way promise.

        Each step needs as many passes a second as its class has tokens over those that its passes have committed so
        far; each row costs its share of a forward that all of them are in.
        """
        answered = self._answered
        if not answered:
            return 0.0
        rows = sum(step.request.service_class.tokens_per_s / max(1.0, step.usage.tau) for step in answered)
        return rows * self.costs.passes.seconds(Load.total([self._traffic.row] * len(answered))) / len(answered)

    @property
    def _answered(self) -> list[Step]:
        return [step for step in self._steps.values() if step.is_answered]

    def idle(self, now: float, silent: Collection[int]) -> list[int]:
        """Return the rows whose steps can go on only when their edges act, the longest idle first.

        Those whose edges are gone, or `silent` for long, come before those that wait for a draft.
        """
        idle = []
        for row, step in self._steps.items():
            gone = step.suspended or row in silent
            waits = now - step.since > WAITED_S and not step.pending and (step.awaits_draft or not step.free)
            if step.row is None and (gone or waits):
                idle.append((not gone, step.since, row))
        return [row for *_, row in sorted(idle)]

    # --- messages

    def begin(
        self,
        index: int,
        begin: BeginStep,
        now: float,
        sampling: SamplingScheme = GREEDY,
        service_class: str = INTERACTIVE.name,
        features: bool = False,
    ) -> list[Commit]:
        """Start a step in place of the one before, or take it up again. `sampling` and class are its session's, and
        whether its edge may get the target's `features`, where the step asks for them.

        Returns commits that are due at once. Raises Refused; ValueError for a class that is not known.
        """
        self._check_tokens("BeginStep.committed", begin.committed, begin.step)
        for number, hint in enumerate(begin.hints):
            self._check_tokens(f"BeginStep.hints[{number}]", hint, begin.step)
        begin = self._by_itself(begin) if begin.self_draft else begin
        try:
            sampling.check_begin(begin)
        except ValueError as error:
            raise Refused(FaultCode.UNSUPPORTED_SAMPLING, str(error), begin.step) from None
        step = self._steps.get(index)
        if step is not None and begin.step < step.number:
            raise Refused(
                FaultCode.MALFORMED,
                f"BeginStep.step {begin.step} comes before the current step {step.number}; steps must increase",
                begin.step,
            )
        grammar = self._grammar(begin)
        request = Request.of(begin, index, now, sampling, class_named(service_class))
        digest = empty_digest(begin, sampling)
        if step is not None and step.continues(begin, request, digest):
            step.resume(request)
            return step.repeat(len(begin.committed), 0)
        answer = Answer(digest, begin.max_tokens, self._model.eos, grammar)
        answer.append(begin.committed)
        log = FeatureLog(self._model.prompt_features if features and begin.features else None)
        new = Ledger(self.costs, self._settings.pass_price, min(OWN_TOKENS, self._max_draft))
        ledger = self._ledgers.setdefault(index, new)
        step = self._steps[index] = Step(request, answer, ledger, begin.hints, log, self._step_settings, now)
        return step.repeat(answer.position, 0)

    def offer(self, index: int, draft: Draft, now: float) -> list[Commit]:
        """Take in a draft. Returns the commits that answer it at once. Raises Refused."""
        step = self._steps.get(index)
        if step is None and draft.step <= self._ended.get(index, -1):
            # It crossed the message that ended its step, so its edge knows, or is about to.
            return []
        if step is None or draft.step > step.number:
            message = f"step {draft.step} was not begun here; send Hello and BeginStep again"
            raise Refused(FaultCode.NO_SESSION, message, draft.step)
        if draft.step < step.number:
            return []
        if len(draft.tokens) > self._max_draft:
            message = f"Draft.tokens has {len(draft.tokens)} tokens, the limit is {self._max_draft} (Welcome.max_draft)"
            raise Refused(FaultCode.TOO_LARGE, message, draft.step)
        self._check_tokens("Draft.tokens", draft.tokens, draft.step)
        self._check_tokens("Draft.drawn", [] if draft.drawn is None else [draft.drawn], draft.step)
        try:
            evidence = step.request.sampling.read(draft, self._model.vocabulary, step.request.idle)
        except ValueError as error:
            raise Refused(FaultCode.UNSUPPORTED_SAMPLING, str(error), draft.step) from None
        try:
            return step.offer(draft, now, evidence)
        except ForeignDraft as error:
            raise Refused(FaultCode.NO_SESSION, str(error), draft.step) from None

    def fetch(self, index: int, fetch: Fetch) -> list[Commit]:
        """Return what an edge needs to sample the token that is left to it; nothing where that is settled."""
        step = self._steps.get(index)
        return step.fetch(fetch) if step is not None and step.number == fetch.step else []

    def end(self, index: int, number: int | None = None) -> Step | None:
        """Drop a session's step (step `number` only, where given) and return it; None where there was none."""
        step = self._steps.get(index)
        if step is None or (number is not None and step.number != number):
            return None
        self._ended[index] = step.number
        return self._steps.pop(index)

    def evict(self, index: int) -> Step | None:
        """Drop a step that its edge does not know to be over: the next `Draft` for it is answered with NO_SESSION."""
        self._ended.pop(index, None)
        return self._steps.pop(index, None)

    def forget(self, index: int) -> None:
        """A session is over: what was learned of its edge is dropped."""
        self._ledgers.pop(index, None)
        self._ended.pop(index, None)

    # --- work

    def next(self, now: float) -> Batch:
        """Start what is to run now and return it; where nothing is ready, or others may still join, when to ask again.

        Steps that wait for a draft do so from now on.
        """
        batch = self._policy.schedule(self._steps.values(), now, self.costs, self._budget)
        for step in batch.waiting:
            step.ledger.wait(now)
        if not batch:
            return batch
        loads = {step: step.load(choice) for step, choice in batch.choices.items()}
        for step, tokens in batch.chunks.items():
            first = batch.choices.get(step)
            loads[step] = step.prefill.load(tokens + (0 if first is None else first.tokens))
        together = Load.total(loads.values())
        for step, choice in batch.choices.items():
            step.start(choice, now, together - loads[step])
        self._min_tokens_per_s = batch.min_tokens_per_s
        self._traffic.ran([loads[step] for step in batch.choices if step not in batch.chunks], now)
        self._budget = self._make_budget()
        return batch

    def _make_budget(self) -> Budget:
        """Return what the next batch may take: as the settings have it, else as predicted times and traffic have it."""
        settings, limits, row = self._settings, self._limits, self._traffic.row
        rows, wait = settings.max_batch, settings.collect_s
        if rows is None:
            rows = best_batch(self.costs.passes, row, limits.max_sessions)
        if wait is None:
            wait = best_wait(self.costs.passes, row, self._traffic.gap_s)
        return Budget(
            rows=rows,
            tokens=rows * (1 + limits.max_draft),
            collect_s=wait,
            chunk=settings.prefill_chunk,
            guard_s=settings.guard_s,
            patience_s=settings.patience_s,
        )

    def goes_on(self, drafts: Mapping[int, Tree], turn: int, spent_s: float, now: float) -> bool:
        """Return whether drafts, by row, that are being made here get one level more, which is `turn`.

        What it adds is to be worth its forward by the tokens per second that the batch is expected to commit.
        """
        forward_s = self.costs.drafts.forward_s(turn) if self.costs.drafts is not None else None
        if forward_s is None:
            return True
        steps = [(self._steps[row], tree) for row, tree in drafts.items() if row in self._steps]
        if any(step.request.idle is not Idle.LEDGER for step, _ in steps):  # its robot has set the size of its draft
            return True
        further = sum(step.ledger.further(tree, spent_s, forward_s, now) for step, tree in steps)
        return further > self._min_tokens_per_s * forward_s

    # --- checks

    def _by_itself(self, begin: BeginStep) -> BeginStep:
        """Return a step that is drafted for here as one that never waits for its edge. Raises Refused."""
        if self.costs.drafts is None:
            raise Refused(
                FaultCode.MODEL_MISMATCH,
                "BeginStep.self_draft: this verifier has no draft model; start it with --draft-model FOLDER, or choose "
                "a mode in which the edge drafts",
                begin.step,
            )
        return msgspec.structs.replace(begin, self_draft=min(begin.self_draft, self._max_draft), idle=Idle.DECODE)

    def _grammar(self, begin: BeginStep) -> Automaton | None:
        """Return the grammar of a step's answer. Raises Refused where there is none, or the answer has left it."""
        if begin.grammar is Grammar.FREE and not begin.schema:
            return None
        if self._model.grammars is None:
            text = f"BeginStep.grammar {begin.grammar.name}: the target's tokenizer takes none; ask for free answers"
            raise Refused(FaultCode.UNSUPPORTED_SAMPLING, text, begin.step)
        if begin.schema:
            grammar = self._schema(begin, self._model.grammars)
        else:
            grammar = self._model.grammars.of(begin.grammar, self._model.eos, self._model.thinking)
        ended = next((place for place, token in enumerate(begin.committed) if token in self._model.eos), None)
        if grammar.after(begin.committed[:ended], begin.max_tokens) is None:
            text = f"BeginStep.committed begins no answer of grammar {begin.grammar.name}; begin the step anew"
            raise Refused(FaultCode.MALFORMED, text, begin.step)
        return grammar

    def _schema(self, begin: BeginStep, grammars: Grammars) -> Automaton:
        """Return the automaton of a step's schema. Raises Refused for one that is not taken."""
        model = self._model
        try:
            if begin.grammar is not Grammar.FREE:
                raise ValueError("a step has a grammar or a schema; leave one of the two out")
            if model.thinking is not None:
                raise ValueError("this model thinks before it answers, so that its answers are no JSON; leave it out")
            return schema_automaton(begin.schema, grammars.words, model.eos)
        except ValueError as error:
            raise Refused(FaultCode.UNSUPPORTED_SAMPLING, f"BeginStep.schema: {error}", begin.step) from None

    def _check_tokens(self, name: str, tokens: list[int], step: int) -> None:
        for place, token in enumerate(tokens):
            if token >= self._model.vocabulary:
                raise Refused(
                    FaultCode.MALFORMED,
                    f"{name}[{place}] = {token} is no token of this model (vocabulary {self._model.vocabulary})",
                    step,
                )
