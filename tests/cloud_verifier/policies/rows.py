"""Steps that wait for a pass, made by hand: for tests that ask a policy directly, and whose deadlines it keeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cloud_verifier.choice import Choice
from cloud_verifier.estimator import Costs, Estimator
from cloud_verifier.ledger import Ledger
from cloud_verifier.policies import Budget, Policy
from cloud_verifier.policies.batch_builder import Candidate
from cloud_verifier.policies.step_choice import choose
from cloud_verifier.step import Step
from speculation.pass_cost import Load
from speculation.service_classes import INTERACTIVE, ServiceClass
from speculation.wire import BeginStep, Draft, Idle, begin_digest
from tests.cloud_verifier.steps import step_of

BUDGET = Budget(rows=8, tokens=1000, collect_s=0.0)


def waiting(
    index: int,
    since: float = 0.0,
    *,
    draft: Sequence[int] | None = None,
    parents: Sequence[int] | None = None,
    service: ServiceClass = INTERACTIVE,
    prompt: int = 100,
    draft_ms: int = 0,
    arrives: float | None = None,
    judged: Iterable[tuple[int, int]] = (),
    **begin: object,
) -> Step:
    """Return a step whose prefill of `prompt` tokens was done at `since` and whose draft came at `arrives`, or then.

    Without a draft it decodes. `judged`: for each earlier draft of its session, a chain, how long it was and how much
    of it was accepted.
    """
    ledger = Ledger(Costs())
    for size, accepted in judged:
        ledger.stats.edge.judged(range(-1, size - 1), range(accepted))
    idle = Idle.DECODE if draft is None else Idle.WAIT
    message = BeginStep(1, "p", b"j", idle=idle, **begin)  # type: ignore[arg-type]
    step = step_of(message, index=index, now=since, service=service, ledger=ledger)
    step.prefill.prepared((), prompt, image_tokens=0)
    step.prefilled(prompt, since)
    if draft is not None:
        given = None if parents is None else list(parents)
        came = since if arrives is None else arrives
        step.offer(Draft(1, 1, 0, begin_digest("p", b"j"), list(draft), given, draft_ms=draft_ms), came)
    return step


def choice_of(step: Step) -> Choice:
    choice = choose(step, 0.0)
    assert choice is not None
    return choice


def kept_by(policy: Policy, steps: Sequence[Step], cost: Estimator, budget: Budget) -> set[Step]:
    """Return the steps whose first pass ends by their deadline, as it was at time 0."""
    now, left, kept = 0.0, list(steps), set()
    while left:
        batch = policy.schedule(left, now, Costs(cost), budget)
        assert batch.choices, "nothing runs while something is ready"
        now += cost.seconds(Load.total(step.load(choice) for step, choice in batch.choices.items()))
        kept |= {step for step in batch.choices if now <= Candidate(step, choice_of(step), 0.0, cost).deadline}
        left = [step for step in left if step not in batch.choices]
    return kept
