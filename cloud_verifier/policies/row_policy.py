"""RowPolicy: when a batch starts, and what of images and prompts joins it; which rows, a policy of its own says."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from cloud_verifier.choice import Act, Choice
from cloud_verifier.estimator import Costs, DraftCosts, Estimator
from cloud_verifier.policies.base import Batch, Budget
from cloud_verifier.policies.batch_builder import CHEAP, BatchBuilder, Candidate
from cloud_verifier.policies.step_choice import choose, choose_with_prefill
from cloud_verifier.prefill import Prefill
from cloud_verifier.step import Step
from speculation.pass_cost import Load
from speculation.wire import Idle

LEAST = 16
"""Tokens below which a chunk, but for a prompt's rest, is not worth its share of a forward: a block of the cache."""
_SLOWER = 2.0
"""Times that a forward with chunks of prefills may take of one in which every robot under way decodes."""


class RowPolicy(ABC):
    """Verifications and decodes share a forward, and prefills join it in chunks.

    A batch starts when enough steps are ready or one has waited for `Budget.collect_s`, at once where a prefill is to
    be fed. A prefill commits nothing and has no deadline, for classes are promises about what comes after it: it gets
    the place that its waiting gives it among the rows, and as many tokens as the deadlines in the batch leave, a
    forward being at most about `_SLOWER` times one in which every robot under way decodes, or of `Budget.chunk` tokens,
    where these are given. Where it has waited for more than `Budget.patience_s` no deadline counts. Where no robot is
    under way a prompt is fed whole.

    An image is work of its own and never comes twice in a row while others wait, so none waits longer than one. As a
    chunk it gives way to deadlines that it is predicted to break, until it has waited for too long. A step that waits
    for a draft joins a forward with its next token where that is cheap.
    """

    def __init__(self) -> None:
        self._encoded = False
        """The latest batch was an image."""
        self.latest: frozenset[int] = frozenset()
        """Names the sessions whose rows ran in the latest batch that had any."""

    @abstractmethod
    def order(self, batch: BatchBuilder, rows: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return which of the ready rows, at least one, are admitted to a batch one after another, until one does not
        fit; they come in the order of their waiting."""

    def due(self, row: Candidate) -> float:
        """Return the deadline of a row that is to be kept: none, unless a policy keeps deadlines."""
        return math.inf

    def size(self, steps: Collection[Step], budget: Budget) -> int:
        """Return how many ready rows start a batch at once: all that could come, or as many as it can hold."""
        return min(budget.rows, under_way(steps))

    def schedule(self, steps: Collection[Step], now: float, costs: Costs, budget: Budget) -> Batch:
        """See `Policy.schedule`."""
        estimates = costs.passes
        begun = sorted((step for step in steps if step.can_prefill), key=lambda step: (step.begun_at, step.index))
        prefills = [step for step in begun if step.prefill.encoded]
        choices = {step: choice for step in steps if (choice := choose(step, now)) is not None}
        waiting = tuple(step for step, choice in choices.items() if choice.act is Act.WAIT)
        # A forward with chunks runs anyway, so nobody waits for company then.
        start = now if prefills else self._start(steps, choices, now, budget)
        ready = [step for step, choice in choices.items() if choice.act is not Act.WAIT]
        ready = sorted(ready, key=_order) if start is not None and start <= now else []
        beside = Load.total(step.load(choices[step]) for step in ready[: budget.rows])
        fed = _chunks(prefills, beside, steps, estimates, budget)
        work = sorted((*ready, *fed), key=_order)
        candidates = [Candidate(step, choices[step], now, estimates) for step in ready]
        image = next((step for step in begun if not step.prefill.encoded), None)
        if image is not None and (not work or (_order(image) < _order(work[0]) and not self._encoded)):
            ends = now + image.prefill.encode_s + estimates.seconds(beside)
            if not ready or ends <= min(map(self.due, candidates)) or now - image.begun_at > budget.patience_s:
                self._encoded = True
                return Batch(encodes=(image,), waiting=waiting)
        if not work:
            return Batch(waiting=waiting, again=start)
        self._encoded = False
        places = [step for step in begun if step in work[: budget.rows]]
        batch = BatchBuilder(now, estimates, replace(budget, rows=budget.rows - len(places)), under_way(steps))
        if ready and batch.budget.rows:
            for row in self.order(batch, candidates):
                if not batch.add(row, self.due(row)):
                    break
            self.latest = frozenset(step.index for step in batch.choices)
            for step in waiting:
                batch.invite(step)
        overdue = any(now - step.begun_at > budget.patience_s for step in places)
        limit_s = math.inf if overdue or not batch.choices else batch.due - now
        chunks = _chunks(places, batch.load, steps, estimates, budget, limit_s)
        chosen = _unless_held_up(batch.choices, now, costs)
        ended = {step: choose_with_prefill(step) for step, tokens in chunks.items() if tokens == step.prefill.left}
        first = {step: choice for step, choice in ended.items() if choice is not None}
        return Batch((), chunks, {**chosen, **first}, waiting, start, _min_tokens_per_s(chosen, costs))

    def _start(
        self, steps: Collection[Step], choices: Mapping[Step, Choice], now: float, budget: Budget
    ) -> float | None:
        """Return when a batch starts if nothing else comes: it is complete, or one step has waited long enough."""
        at = {step: choice.until if choice.act is Act.WAIT else now for step, choice in choices.items()}
        over = min((max(ready, step.since + budget.collect_s) for step, ready in at.items()), default=None)
        size = self.size(steps, budget)
        return over if over is None or len(at) < size else min(over, sorted(at.values())[size - 1])


def under_way(steps: Collection[Step]) -> int:
    """Return how many steps there are that something may come of."""
    return sum(not (step.suspended or step.done) for step in steps)


def _order(step: Step) -> tuple[float, int]:
    """The longest waiting first."""
    return step.since, step.index


def _chunks(
    prefills: Sequence[Step],
    beside: Load,
    steps: Collection[Step],
    estimates: Estimator,
    budget: Budget,
    most_s: float = math.inf,
) -> dict[Step, int]:
    """Return how much of each prefill, the first come first, joins a forward that computes `beside`.

    None where the forward would take more than `most_s` seconds with the least chunk of the first one. Else that one
    gets LEAST tokens, or what it has left, whatever they take.
    """
    if not prefills:
        return {}
    first = prefills[0].prefill
    if estimates.seconds(beside + first.load(min(LEAST, first.left))) > most_s:
        return {}
    limit_s = min(most_s, _limit_s(first, beside, steps, estimates, budget))
    chunks: dict[Step, int] = {}
    load, room = beside, budget.chunk or math.inf
    for step in prefills:
        prefill, least = step.prefill, min(LEAST, step.prefill.left)
        fits = estimates.largest(prefill.left, limit_s, prefill.cached, load)
        if fits < least:
            fits = 0 if chunks else least
        size = int(min(fits, room))
        if size:
            chunks[step], room, load = size, room - size, load + prefill.load(size)
    return chunks


def _limit_s(first: Prefill, beside: Load, steps: Collection[Step], estimates: Estimator, budget: Budget) -> float:
    """Return how many seconds a forward with chunks of prefills may take, if no deadline is looked at."""
    if budget.chunk:
        return math.inf
    decoding = Load.total(step.load(Choice(Act.DECODE)) for step in steps if step.is_answered)
    if decoding.rows:
        return max(_SLOWER * estimates.seconds(decoding), estimates.seconds(beside))
    # The first prompt is fed whole, and the next ones with it where that is cheap.
    return (1.0 + CHEAP) * estimates.seconds(first.load(first.left))


# --- drafts that are made beside the target, for which all of a batch waits


def _unless_held_up(choices: Mapping[Step, Choice], now: float, costs: Costs) -> Mapping[Step, Choice]:
    """Return the choices of a batch, without ledgers' drafts here where the batch commits more per second so.

    A step that would rather wait for its edge then leaves the batch.
    """
    drafting = [s for s, each in choices.items() if each.act is Act.SELF and s.request.idle is Idle.LEDGER]
    if costs.drafts is None or not drafting or len(drafting) == len(choices):
        return choices
    others = {step: each for step, each in choices.items() if step not in drafting}
    for step in drafting:
        choice = choose(step, now, may_draft=False)
        if choice is not None and choice.act is not Act.WAIT:
            others[step] = choice
    drafts = costs.drafts
    return max(choices, others, key=lambda each: _tokens_per_s(each, costs, drafts))


def _min_tokens_per_s(choices: Mapping[Step, Choice], costs: Costs) -> float:
    """Return the tokens per second that one more level of the drafts that are made for a batch must bring."""
    own = sum(choice.min_tokens_per_s for choice in choices.values())
    return own if costs.drafts is None or not own else max(own, _tokens_per_s(choices, costs, costs.drafts))


def _tokens_per_s(choices: Mapping[Step, Choice], costs: Costs, drafts: DraftCosts) -> float:
    """Return what a batch is expected to commit, drafting included."""
    own = [(step, choice) for step, choice in choices.items() if choice.act is Act.SELF]
    forwards = (each.drafting_s or drafts.forwards_s(each.depth or each.size) for _, each in own)
    drafting_s = max((seconds or 0.0 for seconds in forwards), default=0.0)
    drafting_s += sum(step.prefill.draft_inputs is not None for step, _ in own) * (drafts.prefill_s or 0.0)
    verify_s = costs.passes.seconds(Load.total(step.load(each) for step, each in choices.items()))
    return sum(each.gain for each in choices.values()) / max(drafting_s + verify_s, 1e-9)
