"""Finds what each session is doing, as `/load` and `top` show it."""

from __future__ import annotations

from collections.abc import Sequence

from cloud_verifier.monitoring.figures import Figures, SessionFigures, SessionTotals
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.sessions import Session
from cloud_verifier.step import Step
from speculation.wire import Idle


def figures_of(
    sessions: Sequence[Session], scheduler: Scheduler, figures: Figures, now: float
) -> tuple[SessionFigures, ...]:
    """Return the figures of every session. `now`: seconds on the server's clock."""
    return tuple(_figures(session, scheduler.step(session.index), figures, now) for session in sessions)


def _figures(session: Session, step: Step | None, figures: Figures, now: float) -> SessionFigures:
    totals = figures.totals.get(session.number, SessionTotals())
    answered = step is not None and step.request.idle is Idle.LEDGER and not step.pending and not step.done
    return SessionFigures(
        session=session.number,
        robot=session.client,
        service_class=session.service_class,
        state=_state(session, step),
        step=step.number if step is not None else None,
        tokens=step.answer.position if step is not None else 0,
        tokens_per_s=totals.tokens_per_s,
        acceptance=totals.acceptance,
        credit=step.ledger.credit(now) if step is not None and answered else None,
        round_trip_s=step.request.round_trip_s if step is not None else 0.0,
        silent_s=now - session.last_received,
        trace=step.request.trace_id if step is not None else "",
    )


def _state(session: Session, step: Step | None) -> str:
    """Return one of `figures.STATES`."""
    if session.peer is None:
        return "away"
    if step is None or step.done:
        return "idle"
    if step.pending:
        return "queued" if step.prefill.inputs is None else "prefill"
    idle = step.request.idle
    waits = step.ledger.waits if idle is Idle.LEDGER else idle is Idle.WAIT
    return "drafting" if step.row is None and step.drafts.best is None and waits else "running"
