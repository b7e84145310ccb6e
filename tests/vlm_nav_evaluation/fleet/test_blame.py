"""Who is to blame for a late verification: the queue, or a pass that took unusually long (WISP, Eq. 21)."""

from __future__ import annotations

import pytest

from cloud_verifier.config import Scheduling
from vlm_nav_evaluation.fleet.figures import Window, figures_of
from vlm_nav_evaluation.fleet.fleet import Fleet, Log, Verified
from vlm_nav_evaluation.fleet.systems import Drafting, Setting, System
from vlm_nav_evaluation.fleet.wisp import CLASSES, times_of
from vlm_nav_evaluation.fleet.workload import Workload

PROMPTS = Workload(((0.7,),), (1.0,), (8, 2000), (4, 40))
"""Some prompts are long, so that some passes are."""


def test_a_pass_is_unusual_by_half_beyond_the_mean_of_the_fifty_before_it() -> None:
    system = System("fcfs", Scheduling("fcfs", max_batch=6, hint_tokens=0, prefill_chunk=2000), drafting=Drafting(4))
    fleet = Fleet(Setting(system, times_of("appendix C"), PROMPTS, CLASSES), 12, seed=3)
    fleet.events.run(8.0)
    log, unusual = fleet.log, dict[float, bool]()
    for number, each in enumerate(log.passes):
        before = [other.seconds for other in log.passes[max(0, number - 50) : number]]
        unusual[each.ended] = bool(before) and each.seconds / (sum(before) / len(before)) > 1.5
    assert len(log.passes) > 100 and {False, True} == {each.spike for each in log.verified}
    assert all(each.spike == unusual[each.ended] for each in log.verified)


def test_late_verifications_are_shared_between_queue_and_computation() -> None:
    def verified(committed: int, queue_s: float, spike: bool, ended: float = 1.0) -> Verified:
        return Verified(ended, 0, "standard", 4, committed, 0.1, queue_s, 0.1, spike)

    log = Log()
    log.verified += [
        verified(1, 0.049, True),  # 4 tokens a second: 1 within 0.25 s
        verified(1, 0.051, True), verified(2, 0.4, False), verified(1, 0.06, False), verified(3, 0.56, False),
        verified(1, 9.0, True, ended=2.5),
    ]  # fmt: skip
    found = figures_of(log, 1, Window(0.5, 2.0), [], 3.0)
    assert [each.late for each in log.verified] == [False, True, True, True, True, True]
    assert found.late_rows == pytest.approx(4 / 5) and found.compute_blamed == pytest.approx(1 / 4)
