"""What holds for every policy: it comes in as one class and one entry, and its queries change nothing."""

from __future__ import annotations

import random
from collections.abc import Collection

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloud_verifier.choice import Act
from cloud_verifier.config import Scheduling, StartError
from cloud_verifier.estimator import Costs
from cloud_verifier.policies import POLICIES, Batch, Budget
from cloud_verifier.policies.step_choice import choose
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.step import Step
from speculation.pass_cost import Load, PassCost
from speculation.profiles import DeviceProfile
from speculation.service_classes import SERVICE_CLASSES
from speculation.wire import Draft, Idle, begin_digest, extend_digest
from tests.cloud_verifier import bench as server
from tests.cloud_verifier import timeline
from tests.cloud_verifier.fake_target import greedy
from tests.cloud_verifier.policies.fleet import Fleet, Robot
from tests.cloud_verifier.scheduling import JPEG, Bench, waiting_bench


class Youngest:
    """A toy: one step at a time, the one that began last; whoever may be prefilled comes first."""

    def schedule(self, steps: Collection[Step], now: float, costs: Costs, budget: Budget) -> Batch:
        for step in steps:
            if step.can_prefill:
                prefill = step.prefill
                return Batch(chunks={step: prefill.left}) if prefill.encoded else Batch(encodes=(step,))
        choices = {step: choice for step in steps if (choice := choose(step, now)) is not None}
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
def test_every_answer_is_the_targets_own_under_every_policy(policy: str) -> None:
    """Robots in every mode at the real server, with right drafts and wrong ones, one of them beginning anew."""
    config = server.CONFIG.changed(policy=policy, max_sessions=6, max_batch=3, collect_s=0.1)
    world = server.Bench(config, DeviceProfile("slow", verify_s=0.05))
    prompts = {bytes([97 + n]): f"long {n}" for n in range(6)}
    classes = list(SERVICE_CLASSES) * 2
    for number, peer in enumerate(prompts):
        world.welcome(peer, msgspec.structs.replace(server.HELLO, service_class=classes[number]))
    idles = [Idle.LEDGER, Idle.WAIT, Idle.DECODE, Idle.LEDGER, Idle.WAIT, Idle.DECODE]
    for number, (peer, prompt) in enumerate(prompts.items()):
        world.send(peer, server.begin(1, prompt, max_tokens=12, idle=idles[number]), after=0.02 * number)
    answers: dict[bytes, list[int]] = {peer: [] for peer in prompts}
    for turn in range(120):
        world.turns(3)
        for peer, prompt in prompts.items():
            truth = greedy(prompt, JPEG, 12)
            done = answers[peer] = server.tokens_of(world.received(peer))
            assert done == truth[: len(done)]
            if len(done) < 12 and idles[peer[0] - 97] is not Idle.DECODE:
                tokens = [
                    token if (turn + place) % 5 else 1 + token % 5 for place, token in enumerate(truth[len(done) :])
                ]
                digest = extend_digest(begin_digest(prompt, JPEG), done)
                world.send(peer, Draft(1, turn + 1, len(done), digest, tokens[: turn % 5]))
    assert [len(answer) for answer in answers.values()] == [12] * 6


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
    ready = [step for step in fleet.steps if choose(step, fleet.now)]
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


def test_a_policy_that_is_not_there_is_named() -> None:
    with pytest.raises(StartError, match=r"--policy 'oldest' is none of fcfs"):
        Scheduling(policy="oldest")


def ask(bench: Bench, now: float) -> None:
    """Ask everything that may be asked."""
    for row in range(4):
        step = bench.scheduler.step(row)
        if step is None:
            continue
        bench.scheduler.is_current(step)
        choose(step, now)
        step.drafts.hint(3)
        step.repeat(0, 1)
        step.ledger.credit(now)
        step.ledger.choose(step.drafts.best, step.drafts.hint(2), now)
        _ = step.free, step.can_prefill, step.done, step.stage, step.ledger.drafts_pay


operations = st.lists(
    st.tuples(
        st.sampled_from(["begin", "draft", "turn", "turn", "turn", "suspend", "pass"]),
        st.integers(0, 2),
        st.integers(0, 6),
        st.floats(0.0, 1.5),
    ),
    max_size=40,
)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=10, deadline=None)
@given(
    operations=operations,
    asked=st.lists(st.lists(st.floats(-1.0, 9.0), max_size=3), min_size=40, max_size=40),
    idles=st.tuples(*[st.sampled_from([Idle.LEDGER, Idle.LEDGER, Idle.WAIT, Idle.DECODE])] * 3),
    collect_s=st.sampled_from([0.0, 0.5]),
)
def test_queries_change_nothing(
    policy: str,
    operations: list[tuple[str, int, int, float]],
    asked: list[list[float]],
    idles: tuple[Idle, ...],
    collect_s: float,
) -> None:
    """Two verifiers do the same; one is asked at any time, any number of times, the other never: both go on alike."""
    quiet, busy = (waiting_bench(policy=policy, max_batch=2, collect_s=collect_s, hint_tokens=3) for _ in range(2))
    seen: list[list[object]] = [[], []]
    for (what, row, number, seconds), times in zip(operations, asked, strict=False):
        for bench, log in zip((quiet, busy), seen, strict=True):
            if bench is busy:
                for offset in times:
                    ask(bench, bench.now + offset)
            log.append(do(bench, what, row, number, seconds, idles[row]))
    assert seen[0] == seen[1]
    for row in range(3):
        one, other = quiet.scheduler.step(row), busy.scheduler.step(row)
        assert (one and one.usage) == (other and other.usage)
    for bench, log in zip((quiet, busy), seen, strict=True):
        log.append([bench.turn(), bench.turn()])
    assert seen[0] == seen[1]


def do(bench: Bench, what: str, row: int, number: int, seconds: float, idle: Idle) -> object:
    """Do one thing to a verifier and return all that comes of it."""
    step = bench.scheduler.step(row)
    if what == "begin":
        truth = greedy(f"long {row}", JPEG, 20)
        return bench.begin(row, (step.number if step else 0) + 1, idle=idle, hints=[truth] if number % 2 else [])
    if what == "draft" and step is not None:
        truth = greedy(f"long {row}", JPEG, 20)
        tokens = [*truth[step.answer.position :][:number], 1 + number % 5]
        rounds = 1 + step.usage.passes + 10 * number
        return bench.scheduler.offer(
            row, Draft(step.number, rounds, step.answer.position, step.answer.digest, tokens), bench.now
        )
    if what == "suspend" and step is not None:
        return step.suspend()
    if what == "turn":
        return bench.turn()
    bench.now += seconds
    return None
