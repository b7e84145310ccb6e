"""Steps without a scheduler."""

from __future__ import annotations

from collections.abc import Collection

from cloud_verifier.answer import Answer
from cloud_verifier.estimator import Costs
from cloud_verifier.ledger import Ledger
from cloud_verifier.request import Request, empty_digest
from cloud_verifier.step import Step
from speculation.sampling import GREEDY, SamplingScheme
from speculation.service_classes import INTERACTIVE, ServiceClass
from speculation.wire import BeginStep


def step_of(
    begin: BeginStep,
    eos: Collection[int] = (0,),
    sampling: SamplingScheme = GREEDY,
    *,
    index: int = 0,
    now: float = 0.0,
    service: ServiceClass = INTERACTIVE,
    ledger: Ledger | None = None,
) -> Step:
    """Return the step that a message begins, in a session of its own where no ledger is given."""
    answer = Answer(empty_digest(begin, sampling), begin.max_tokens, eos)
    answer.append(begin.committed)
    request = Request.of(begin, index, now, sampling, service)
    return Step(request, answer, ledger or Ledger(Costs()), begin.hints, now=now)


def prefilled(step: Step, now: float = 0.0) -> Step:
    """Let a step's prefill be done."""
    step.prefilled(0, now)
    return step
