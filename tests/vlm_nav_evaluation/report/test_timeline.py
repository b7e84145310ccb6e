"""One step cut out of a trace and plotted."""

from __future__ import annotations

from speculation.trace import Kind, Lane, Trace
from vlm_nav_evaluation.report.timeline import most_useful_step, plot_step, steps


def traced_step(
    trace: Trace, number: int, start: float, rounds: int = 2, action: str = "", useful: int | None = None
) -> None:
    """Add a step: in each round of 100 ms the edge pre-drafts for 60 ms, then it drafts for 20 ms."""
    trace.add(Kind.PREFILL.value, Lane.EDGE, start, start + 0.05, step=number)
    now = start + 0.05
    for turn in range(1, rounds + 1):
        names = {"step": number, "round": turn}
        landing = "hit" if turn % 2 else "miss"
        trace.add(Kind.DRAFT.value, Lane.EDGE, now, now + 0.02, **names)
        now += 0.02
        trace.add(Kind.PREDRAFT.value, Lane.EDGE, now, now + 0.06, **names)
        trace.mark(
            Kind.EARLY.value, Lane.LINK, now + 0.04, **names, layer=2, node=1, token=5, confidence=0.5, used=True
        )
        trace.add(Kind.VERIFY.value, Lane.CLOUD, now + 0.01, now + 0.09, **names)
        now += 0.1
        trace.add(Kind.ROUND.value, Lane.LINK, now - 0.1, now, **names, tokens=3)
        trace.mark(Kind.COMMIT.value, Lane.EDGE, now, **names, tokens=3, landing=landing)
    counts = {} if useful is None else {"useful_forwards": useful}
    trace.add(Kind.STEP.value, Lane.EDGE, start, now, step=number, tokens=3 * rounds, **counts)
    if action:
        trace.mark(Kind.DECISION.value, Lane.EDGE, now + 0.01, goal=1, decision=number - 100, action=action)


def test_the_step_that_is_shown_is_one_in_which_drafts_were_of_use() -> None:
    trace = Trace()
    for place, (rounds, useful) in enumerate(((9, 0), (3, 4), (5, 4), (4, 4), (2, 1))):
        traced_step(trace, 101 + place, 5.0 * place, rounds, useful=useful)
    assert most_useful_step(steps(trace.spans)).number == 104
    old = Trace()
    for place, rounds in enumerate((2, 7, 3)):
        traced_step(old, 101 + place, 5.0 * place, rounds)
    assert most_useful_step(steps(old.spans)).number == 103, "without the counts, the one of median duration"


def test_a_long_step_gets_a_close_up_of_whole_rounds() -> None:
    trace = Trace()
    traced_step(trace, 1, 0.0, 12)
    whole, part = plot_step(steps(trace.spans)[0]).axes
    assert sum(text.get_text().startswith("+3") for text in whole.texts) == 12
    assert 4 <= sum(text.get_text().startswith("+3") for text in part.texts) <= 5
    assert sum(text.get_text() == "exit 2" for text in part.texts) == 4
