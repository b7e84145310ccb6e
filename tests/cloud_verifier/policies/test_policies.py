"""What holds for every policy: it comes in as one class and one entry, and its queries change nothing."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloud_verifier.choice import Act
from cloud_verifier.config import Scheduling
from cloud_verifier.estimator import Costs
from cloud_verifier.policies import POLICIES, Batch, Budget
from cloud_verifier.policies.step_choice import choose
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.step import Step
from speculation.pass_cost import Load, PassCost
from speculation.profiles import DeviceProfile
from speculation.service_classes import SERVICE_CLASSES
from speculation.wire import Idle
from tests.cloud_verifier import bench as server
from tests.cloud_verifier import timeline
from tests.cloud_verifier.fake_target import greedy
from tests.cloud_verifier.policies.fleet import Fleet, Robot
from tests.cloud_verifier.scheduling import JPEG


class Youngest:
    """A toy: one step at a time, the one that began last; whoever may be prefilled comes first."""

    def schedule(self, steps: Collection[Step], now: float, costs: Costs, budget: Budget) -> Batch:
        for step in steps:
            if step.can_prefill:
                prefill = step.prefill
                return Batch(chunks={step: prefill.left}) if prefill.encoded else Batch(encodes=(step,))
        choices = {step: choice for step in steps if (choice := choose(step, now, costs.passes)) is not None}
        ready = [step for step, choice in choices.items() if choice.act is not Act.WAIT]
        if ready:
            step = max(ready, key=lambda step: step.begun_at)
            return Batch(choices={step: choices[step]})
        return Batch(waiting=tuple(choices), again=min((each.until for each in choices.values()), default=None))


def test_a_new_policy_is_a_class_and_its_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two robots at the real server, with drafts and without: the younger step goes first, and both are answered."""
    monkeypatch.setitem(POLICIES, "youngest", Youngest)
    config = server.CONFIG.changed(policy="youngest")
    world = server.Bench(config, DeviceProfile("slow", verify_s=0.2))
    prompts = {b"a": "long a", b"b": "long b"}
    for peer in prompts:
        world.welcome(peer)
    for number, (peer, prompt) in enumerate(prompts.items()):
        world.send(peer, server.begin(prompt=prompt, max_tokens=8, idle=Idle.LEDGER), after=0.5 * number)
    world.turns(60)
    for peer, prompt in prompts.items():
        assert server.tokens_of(world.received(peer)) == greedy(prompt, JPEG, 8)
    turns = [row for batch in world.engine.batches for row in batch]
    assert len(turns) == 16 and turns[:2] == [0, 0] and turns[-2:] == [0, 0]
    first = turns.index(1)
    assert turns[first : first + 8] == [1] * 8, "nothing comes between the younger step's forwards"
    truth = greedy("long c", JPEG, 20)
    world.ask(b"a", server.begin(2, prompt="long c", max_tokens=20))
    received = world.ask(b"a", server.draft(truth[:3], prompt="long c", step=2))
    assert server.tokens_of(received) == truth[:4]


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_nobody_waits_for_ever_and_no_promise_is_broken(policy: str, data: st.DataObject) -> None:
    """Any robots, at a verifier that is too slow for them. `Fleet` holds commits and promises to the truth."""
    robots = data.draw(
        st.lists(
            st.builds(
                Robot,
                service=st.sampled_from(list(SERVICE_CLASSES.values())),
                idle=st.sampled_from([Idle.WAIT, Idle.WAIT, Idle.DECODE, Idle.LEDGER]),
                draft_s=st.floats(0.001, 0.05),
                round_trip_s=st.floats(0.0, 0.1),
                depth=st.integers(0, 6),
                chance=st.sampled_from([0.0, 0.5, 0.9]),
                prompt=st.integers(1, 2000),
                answer=st.integers(1, 20),
                starts_at=st.floats(0.0, 0.5),
            ),
            min_size=1,
            max_size=12,
        )
    )
    cost = PassCost(
        data.draw(st.floats(0.0, 0.002)), 0.0, data.draw(st.floats(0.0, 2e-5)), data.draw(st.floats(0.01, 0.05))
    )
    rows, patience, collect = (
        data.draw(st.integers(1, 5)),
        data.draw(st.floats(0.0, 0.5)),
        data.draw(st.sampled_from([0.0, 0.03])),
    )
    plan = Scheduling(policy=policy, max_batch=rows, patience_s=patience, collect_s=collect)
    slowest = 0.0

    def note(batch: Batch) -> None:
        nonlocal slowest
        assert batch.choices and len(batch.choices) <= rows
        slowest = max(
            slowest, cost.seconds(Load.total(step.row.load for step in batch.choices if step.row is not None))
        )

    fleet = Fleet(robots, cost, plan, on_batch=note).run(2.0)
    passes = -(-len(robots) // max(1, rows // 4)) + 3
    bound = patience + collect + passes * slowest
    # A step whose ledger waits for a draft is ready all that time, but not by the verifier's fault.
    waits = [each.waited_s for each in fleet.rounds if robots[each.robot].idle is not Idle.LEDGER]
    ready = [step for step in fleet.steps if choose(step, fleet.now, fleet.scheduler.costs.passes)]
    waits += [fleet.now - step.since for step in ready if step.request.idle is not Idle.LEDGER]
    assert max(waits, default=0.0) <= bound + 1e-9
    assert fleet.rounds


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("chance", [0.1, 0.9])
def test_no_policy_makes_a_robot_slower_than_decoding_alone(policy: str, chance: float) -> None:
    """The ledger's promise, where every draft token makes a pass longer."""
    line = timeline.Timeline(Scheduler(timeline.MODEL, Scheduling(policy=policy)), lambda n: 0.1 + 0.0175 * (n - 1))
    rng = random.Random(5)
    timeline.SteadyEdge(line, rng, draft_s=0.02, one_way_s=0.03, depth=6, chance=chance, ahead=0.3)
    for _ in range(6):
        begun = line.now
        passes = line.run(timeline.answer(rng))
        # Below 2 before a commit is one token short.
        assert max(timeline.behind(passes, 0.1, begun)) <= 2.0 + line.lent + 1e-6
