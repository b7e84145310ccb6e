"""What holds for every policy: it comes in as one class and one entry, and its queries change nothing."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.config import Scheduling, StartError
from cloud_verifier.ledger import Act, Estimates
from cloud_verifier.policies import POLICIES, Batch, Budget
from cloud_verifier.step import Step
from speculation.profiles import DeviceProfile
from speculation.wire import Draft, Idle
from tests.cloud_verifier import bench as server
from tests.cloud_verifier.fake_target import greedy
from tests.cloud_verifier.scheduling import JPEG, Bench, waiting_bench


class Youngest:
    """A toy: one step at a time, the one that began last; whoever may be prefilled comes first."""

    def schedule(self, steps: Collection[Step], now: float, estimates: Estimates, budget: Budget) -> Batch:
        for step in steps:
            if step.can_prefill:
                return Batch(chunks={step: step.prompt_left}) if step.encoded else Batch(encodes=(step,))
        ready = [step for step in steps if (choice := step.choice(now)) is not None and choice.act is not Act.WAIT]
        if not ready:
            return Batch()
        step = max(ready, key=lambda step: step.begun_at)
        choice = step.choice(now)
        assert choice is not None
        return Batch(choices={step: choice})

    def next_time(self, steps: Collection[Step], now: float, estimates: Estimates, budget: Budget) -> float | None:
        choices = [choice for step in steps if (choice := step.choice(now)) is not None]
        waits = [choice.until for choice in choices if choice.act is Act.WAIT]
        return now if len(waits) < len(choices) or any(s.can_prefill for s in steps) else min(waits, default=None)


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


def test_a_policy_that_is_not_there_is_named() -> None:
    with pytest.raises(StartError, match=r"--policy 'oldest' is none of fcfs"):
        Scheduling(policy="oldest")


def ask(bench: Bench, now: float) -> None:
    """Ask everything that may be asked."""
    bench.scheduler.next_time(now)
    for row in range(4):
        step = bench.scheduler.step(row)
        if step is None:
            continue
        bench.scheduler.is_current(step)
        step.choice(now)
        step.hint(3)
        step.repeat(0, 1)
        step.ledger.credit(now)
        step.ledger.choose(step.best, step.hint(2), now)
        _ = step.free, step.can_prefill, step.done, step.best, step.draws, step.ledger.drafts_pay


operations = st.lists(
    st.tuples(
        st.sampled_from(["begin", "draft", "turn", "turn", "turn", "suspend", "wait", "pass"]),
        st.integers(0, 2),
        st.integers(0, 6),
        st.floats(0.0, 1.5),
    ),
    max_size=40,
)


@settings(max_examples=120, deadline=None)
@given(
    operations=operations,
    asked=st.lists(st.lists(st.floats(-1.0, 9.0), max_size=3), min_size=40, max_size=40),
    idles=st.tuples(*[st.sampled_from([Idle.LEDGER, Idle.LEDGER, Idle.WAIT, Idle.DECODE])] * 3),
    collect_s=st.sampled_from([0.0, 0.5]),
)
def test_queries_change_nothing(
    operations: list[tuple[str, int, int, float]],
    asked: list[list[float]],
    idles: tuple[Idle, ...],
    collect_s: float,
) -> None:
    """Two verifiers do the same; one is asked at any time, any number of times, the other never: both go on alike."""
    quiet, busy = (waiting_bench(max_batch=2, collect_s=collect_s, hint_tokens=3) for _ in range(2))
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
        assert (one and one.tally) == (other and other.tally)
    for bench, log in zip((quiet, busy), seen, strict=True):
        log.append([bench.scheduler.next_time(bench.now), bench.turn(), bench.turn()])
    assert seen[0] == seen[1]


def do(bench: Bench, what: str, row: int, number: int, seconds: float, idle: Idle) -> object:
    """Do one thing to a verifier and return all that comes of it."""
    step = bench.scheduler.step(row)
    if what == "begin":
        truth = greedy(f"long {row}", JPEG, 20)
        return bench.begin(row, (step.number if step else 0) + 1, idle=idle, hints=[truth] if number % 2 else [])
    if what == "draft" and step is not None:
        truth = greedy(f"long {row}", JPEG, 20)
        tokens = [*truth[step.position :][:number], 1 + number % 5]
        rounds = 1 + step.tally.passes + 10 * number
        return bench.scheduler.offer(row, Draft(step.number, rounds, step.position, step.digest, tokens), bench.now)
    if what == "suspend" and step is not None:
        return step.suspend()
    if what == "wait":
        return bench.scheduler.wait(bench.now)
    if what == "turn":
        return bench.turn()
    bench.now += seconds
    return None
