"""Mode edge: the draft's own answer; nothing is verified."""

from __future__ import annotations

from edge_drafter.question import CANCELLED
from edge_drafter.sources import DraftSource
from edge_drafter.step import Interruption, Step, StepResult
from edge_drafter.tracing import StepTrace
from speculation.cancellation import Abandoned
from speculation.trace import Trace


def decode_alone(step: Step, source: DraftSource, trace: Trace) -> StepResult:
    """Return the answer of a source that can grow the tree by itself. Raises StepInterrupted."""
    answer, tree, stats = step.answer, step.tree, step.stats
    spans = StepTrace(trace, step.request.step, step.started, step.request.trace)
    try:
        try:
            source.begin(step)
            source.read(step.stop)
        except ValueError as error:
            raise step.interrupted(Interruption.UNREADABLE, str(error)) from error
        except Abandoned:
            raise step.interrupted(Interruption.CANCELLED, CANCELLED) from None
        now = step.clock()
        stats.prefill_s = now - step.started
        spans.prefill(step.started, now)
        while not answer.done:
            if step.is_late(step.clock()):
                raise step.interrupted(Interruption.DEADLINE, step.too_late)
            if step.cancelled:
                raise step.interrupted(Interruption.CANCELLED, CANCELLED)
            started = step.clock()
            token = None if step.jump_forward is None or not step.config.forced else step.jump_forward.only
            if token is None:
                try:
                    with spans.drafting():
                        source.grow([tree.root], step.stop)
                except Abandoned:
                    continue
                stats.add_forward(step.clock() - started, verifying=False, abandoned=False)
                token = tree[tree.likeliest_path(tree.root, 1)[0]].token
            source.commit(tree.reroot([token]), None)
            if step.jump_forward is not None:
                step.jump_forward.follow([token])
            answer.append([token])
            if stats.first_commit_s is None:
                stats.first_commit_s = step.clock() - step.started
            step.show()
    except (ValueError, ArithmeticError) as error:
        raise step.interrupted(Interruption.FAILED, str(error)) from error
    finally:
        spans.step(stats, step.finish())
    return StepResult(tuple(answer.tokens), stats)
