"""The fleet keeps production's promises: every answer is the target's, nothing is lost, time is what was declared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloud_verifier.config import Scheduling
from cloud_verifier.policies import POLICIES
from speculation.pass_cost import PassCost
from speculation.wire import Idle
from vlm_nav_evaluation.fleet import fleet as module
from vlm_nav_evaluation.fleet.fleet import Fleet
from vlm_nav_evaluation.fleet.systems import Drafting, Setting, System, Times
from vlm_nav_evaluation.fleet.wisp import CLASSES, times_of
from vlm_nav_evaluation.fleet.workload import Workload

SHORT = Workload(((0.6, 0.2), (0.9, 0.05)), (0.5, 0.5), (8, 64), (4, 40))
FLAT = Times("flat", PassCost(0.0, 0.0, 0.0, 0.1), 0.02, 0.01)


def system(policy: str, drafting: Drafting | None, **more: object) -> System:
    scheduling = Scheduling(policy, max_batch=6, collect_s=0.02, hint_tokens=0)
    return replace(System("tried", scheduling, drafting=drafting), **more)  # type: ignore[arg-type]


DRAFTINGS = {
    "none": (None, {"idle": Idle.DECODE}),
    "fixed": (Drafting(4), {}),
    "predictor": (Drafting(8, predictor=True), {}),
    "grows": (Drafting(3, ahead=True, most=12), {}),
    "grows, ledger": (Drafting(3, ahead=True, most=12), {"idle": Idle.LEDGER}),
    "tree": (Drafting(4, ahead=True, tree=12, heads=3), {}),
    "tree, ledger": (Drafting(4, ahead=True, tree=12, heads=3), {"idle": Idle.LEDGER}),
    "server": (None, {"server_draft": 8, "server_depth": 3}),
    "no cache": (Drafting(4), {"cached": False}),
}


@pytest.mark.parametrize(
    ("policy", "drafting"),
    [*(("full_budget", drafting) for drafting in DRAFTINGS), *((policy, "tree, ledger") for policy in POLICIES)],
)
def test_every_answer_is_the_targets_whole(policy: str, drafting: str) -> None:
    own, more = DRAFTINGS[drafting]
    fleet = Fleet(Setting(system(policy, own, **more), times_of("appendix C"), SHORT, CLASSES), 9, seed=1)
    fleet.timeline.advance(4.0)
    ended = [asked for asked in fleet.log.asked if asked.ended is not None]
    assert len(ended) >= 5
    numbers: dict[int, int] = {}
    for asked in fleet.log.asked:
        numbers[asked.robot] = number = numbers.get(asked.robot, 0) + 1
        answer = SHORT.request(asked.robot, number).answer[-asked.tokens :]
        assert tuple(asked.committed) == (answer if asked.ended is not None else answer[: len(asked.committed)])
    committed = sum(each.committed for each in fleet.log.verified)
    assert 0 <= committed - sum(len(asked.committed) for asked in fleet.log.asked) <= 13 * len(fleet.robots)


@pytest.mark.parametrize(
    ("chance", "drafting", "ended"),
    [
        # 0.01 up, 0.1 prefill with the first token, two passes of 0.1, 0.01 down.
        (0.0, None, 0.32),
        # The drafts came during the prefill: one pass commits all three.
        (1.0, Drafting(2), 0.22),
        # Commits leave at 0.11, 0.25 and 0.37: drafts of 1 and of no token follow the first two.
        (0.0, Drafting(2), 0.38),
    ],
)
def test_three_robots_by_hand(
    chance: float, drafting: Drafting | None, ended: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_S", 0.0)
    idle = Idle.WAIT if drafting else Idle.DECODE
    own = System("by hand", Scheduling("fcfs", max_batch=8, hint_tokens=0), idle, drafting)
    fleet = Fleet(Setting(own, FLAT, Workload(((chance,),), (1.0,), (2, 2), (3, 3))), 3)
    fleet.phases = (1.0, 1.0, 1.0)
    fleet.timeline.advance(ended + 0.001)
    assert [asked.ended for asked in fleet.log.asked[:3]] == pytest.approx([ended] * 3)
