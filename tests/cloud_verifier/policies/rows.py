"""Steps that wait for a pass, made by hand: for tests that ask a policy directly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cloud_verifier.estimator import Costs, Estimator
from cloud_verifier.ledger import Ledger
from cloud_verifier.policies import Budget
from cloud_verifier.step import Step
from speculation.pass_cost import Load, PassCost
from speculation.service_classes import INTERACTIVE, ServiceClass
from speculation.wire import BeginStep, Draft, Idle, begin_digest
from tests.cloud_verifier.steps import step_of

BUDGET = Budget(rows=8, tokens=1000, collect_s=0.0)


class Declared(Estimator):
    """An estimator that knows the price of a pass."""

    def __init__(self, cost: PassCost) -> None:
        super().__init__()
        self._declared = cost

    @property
    def known(self) -> bool:
        return True

    @property
    def priced(self) -> bool:
        return True

    def observe(self, load: Load, seconds: float) -> None: ...

    def seconds(self, load: Load) -> float:
        return self._declared.seconds(load)


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
