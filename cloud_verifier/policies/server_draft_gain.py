"""Weighs what a batch gains by drafts that are made for it beside the target: all of it waits for them."""

from __future__ import annotations

from collections.abc import Mapping

from cloud_verifier.choice import Act, Choice
from cloud_verifier.estimator import Costs, DraftCosts
from cloud_verifier.policies.step_choice import choose
from cloud_verifier.step import Step
from speculation.pass_cost import Load
from speculation.wire import Idle


def unless_held_up(choices: Mapping[Step, Choice], now: float, costs: Costs) -> Mapping[Step, Choice]:
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


def min_tokens_per_s(choices: Mapping[Step, Choice], costs: Costs) -> float:
    """Return the tokens per second that one more level of the drafts that are made for a batch must bring."""
    own = sum(choice.min_tokens_per_s for choice in choices.values())
    return own if costs.drafts is None or not own else max(own, _tokens_per_s(choices, costs, costs.drafts))


def _tokens_per_s(choices: Mapping[Step, Choice], costs: Costs, drafts: DraftCosts) -> float:
    """Return what a batch is expected to commit, drafting included."""
    own = [(step, choice) for step, choice in choices.items() if choice.act is Act.SELF]
    drafting_s = max((_drafting_s(choice, drafts) for _, choice in own), default=0.0)
    drafting_s += sum(step.prefill.draft_inputs is not None for step, _ in own) * (drafts.prefill_s or 0.0)
    verify_s = costs.passes.seconds(Load.total(step.load(each) for step, each in choices.items()))
    return sum(each.gain for each in choices.values()) / max(drafting_s + verify_s, 1e-9)


def _drafting_s(choice: Choice, drafts: DraftCosts) -> float:
    """Return the seconds that a draft which is made here is expected to take."""
    return choice.drafting_s or drafts.forwards_s(choice.depth or choice.size) or 0.0
