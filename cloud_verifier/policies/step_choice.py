"""Chooses what a step would do next by itself, whatever other steps do."""

from __future__ import annotations

from cloud_verifier.choice import Act, Choice
from cloud_verifier.step import Step
from cloud_verifier.tree import Tree
from speculation.wire import Idle


def choose(step: Step, now: float, may_draft: bool = True) -> Choice | None:
    """Return what a step would do now; None where a pass may not begin, or only its edge can bring it on.

    With `Idle.LEDGER` it is its ledger's choice; `may_draft` False leaves drafts of the verifier's own out of it.
    """
    if not step.free:
        return None
    request, draft, prefill = step.request, step.drafts.best, step.prefill
    room = step.answer.room
    if request.idle is Idle.LEDGER:
        if draft is None and room < 1:
            return Choice(Act.DECODE)  # The last token: its edge drafts no further.
        can_draft = may_draft and (prefill.drafts_here or prefill.draft_inputs is not None)
        return step.ledger.choose(draft, step.hint, now, room if can_draft else 0, prefill.drafts_here)
    if draft is not None:
        return _verify(step, draft)
    if request.self_draft and room > 0:
        size = request.self_draft if request.self_depth else min(request.self_draft, room)
        depth = min(request.self_depth, room)
        return Choice(Act.SELF, size=size, depth=depth, drafting_s=step.ledger.drafting_s(depth or size))
    return Choice(Act.DECODE) if request.idle is Idle.DECODE else None


def choose_with_prefill(step: Step) -> Choice | None:
    """Return what of a step joins the forward that ends its prefill; None where only a draft of its edge may.

    Beside a prompt a few tokens cost next to nothing, so nobody waits for a draft, and all that is at hand is verified.
    """
    draft, hint = step.drafts.best, step.hint
    if draft is not None:
        return _verify(step, draft)
    if hint is not None:
        return Choice(Act.HINT, hint)
    awaits_draft = step.request.idle is Idle.WAIT and step.request.sampling.one_chain
    return None if awaits_draft else Choice(Act.DECODE)


def _verify(step: Step, draft: Tree) -> Choice:
    return Choice(Act.VERIFY, draft, gain=step.ledger.stats.edge.expected(draft.parents)[-1])
