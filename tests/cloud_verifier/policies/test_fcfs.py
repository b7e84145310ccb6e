"""First come, first served: the longest waiting first, one prefill at a time, company where it is cheap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.estimator import Estimator
from cloud_verifier.ledger import Act
from cloud_verifier.policies.chunks import LEAST
from speculation.pass_cost import Load
from speculation.wire import Draft, Idle, begin_digest
from tests.cloud_verifier.scheduling import JPEG, Bench, rows_of, waiting_bench


def test_all_ready_sessions_share_a_forward_the_longest_waiting_first() -> None:
    bench = Bench(max_batch=2)
    for row in range(3):
        bench.begin(row, idle=Idle.DECODE)
    while any(bench.step(row).pending for row in range(3)):
        bench.turn()
    bench.engine.batches.clear()
    for _ in range(3):
        bench.turn()
    assert all(len(batch) == 2 for batch in bench.engine.batches)
    assert {row for batch in bench.engine.batches[:2] for row in batch} == {0, 1, 2}


def test_nobody_waits_for_two_images_and_prefills_share_forwards_with_verifications() -> None:
    bench = Bench()
    bench.begin(0, idle=Idle.DECODE, max_tokens=200)
    bench.turn()
    for row in (1, 2, 3):
        bench.begin(row)
    kinds = []
    while any(bench.step(row).pending for row in (1, 2, 3)):
        bench.now += 1.0
        batch = bench.next()
        kinds.append("image" if batch.encodes else "forward")
        assert len(batch.encodes) <= 1 and not (batch.encodes and (batch.chunks or batch.choices))
        bench.run(batch)
    assert kinds == ["forward", *["image", "forward"] * 3]
    assert [0 in judged for judged in bench.engine.batches] == [True] * 4
    assert [set(fed) for fed in bench.engine.chunks[1:]] == [set(), {1}, {2}, {3}]


class Line(Estimator):
    """A forward takes 1 s, and `token_s` each token, whatever is measured."""

    def __init__(self, token_s: float) -> None:
        super().__init__()
        self.token_s = token_s

    def seconds(self, load: Load) -> float:
        return 1.0 + self.token_s * load.new


def prefill_bench(token_s: float, length: int, **settings: object) -> Bench:
    """Return a bench where robot 0 decodes and robot 1, whose prompt is `length` tokens long, has its image encoded."""
    bench = Bench(**settings)  # type: ignore[arg-type]
    bench.scheduler.estimates = Line(token_s)
    bench.begin(0, idle=Idle.DECODE, max_tokens=200)
    bench.turn(), bench.turn()
    bench.begin(1, prompt="long ".ljust(length + 1, "x"))
    while not bench.step(1).encoded:
        bench.now += 1.0
        bench.run(bench.next())
    assert bench.step(1).prompt_left == length
    return bench


def test_a_prompt_is_fed_whole_where_no_other_robot_is_under_way() -> None:
    bench = prefill_bench(0.1, 120)
    bench.scheduler.end(0)
    bench.turn()
    assert bench.engine.chunks[-1] == {1: 120} and not bench.step(1).pending


@given(token_s=st.floats(0.0, 2.0), length=st.integers(4, 400))
def test_a_forward_with_a_chunk_takes_at_most_twice_one_without(token_s: float, length: int) -> None:
    """A chunk is as large as that allows, or a block where that is more; meanwhile the other robot decodes."""
    bench = prefill_bench(token_s, length)
    most = max(LEAST, max(n for n in range(length + 1) if 1.0 + token_s * (n + 1) <= 2.0 * (1.0 + token_s)))
    while bench.step(1).pending:
        left = bench.step(1).prompt_left
        bench.turn()
        assert bench.engine.chunks[-1] == {1: min(left, most)} and bench.engine.batches[-1] == (0,)


def test_several_prompts_share_a_forward_of_so_many_tokens() -> None:
    bench = prefill_bench(0.5, 70, prefill_chunk=32)
    for row, length in ((2, 20), (3, 30)):
        bench.begin(row, prompt="long ".ljust(length + 1, "y"))
    while any(bench.step(row).pending for row in (1, 2, 3)):
        bench.turn()
    fed = [each for each in bench.engine.chunks if each][1:]
    assert all(sum(each.values()) == 32 for each in fed[:-1]), "no room is left empty"
    assert fed == [{1: 32}, {1: 32}, {1: 6, 2: 20, 3: 6}, {3: 24}]


def test_prompts_that_wait_for_their_turn_take_no_row_of_a_forward() -> None:
    """Three prompts of which one is fed at a time: the two robots under way share every other forward with it."""
    bench = prefill_bench(2.0, 64, max_batch=3)
    bench.begin(4, idle=Idle.DECODE, max_tokens=200)
    while bench.step(4).pending:
        bench.turn()
    for row in (2, 3):
        bench.begin(row, prompt="long ".ljust(65, "y"))
    while any(not bench.step(row).encoded for row in (2, 3)):
        bench.turn()
    before = len(bench.engine.batches)
    for _ in range(4):
        bench.turn()
    assert [set(judged) for judged in bench.engine.batches[before:]] == [{0, 4}] * 4
    assert [len(fed) for fed in bench.engine.chunks[-4:]] == [1] * 4


def test_a_ready_session_waits_for_company_only_so_long() -> None:
    bench = Bench(collect_s=1.0)
    for row in (0, 1):
        bench.begin(row)
    bench.turn(), bench.turn()
    bench.scheduler.offer(0, Draft(1, 1, 0, begin_digest("long 0", JPEG), [1]), now=bench.now)
    assert not bench.next(bench.now + 0.5)
    assert bench.scheduler.next_time(bench.now) == bench.now + 1.0
    bench.scheduler.offer(1, Draft(1, 1, 0, begin_digest("long 1", JPEG), [1]), now=bench.now + 0.5)
    assert [step.index for step in bench.next(bench.now + 0.5).choices] == [0, 1]


@given(collect_s=st.floats(0.0, 1.0), ready=st.floats(2.0, 100.0))
def test_a_ready_session_gives_up_waiting_for_company(collect_s: float, ready: float) -> None:
    """At the very moment that was promised, however the sum of times rounds: a server would turn in circles else."""
    bench = Bench(collect_s=collect_s)
    for row in (0, 1):
        bench.begin(row)
    bench.turn(), bench.turn()
    bench.scheduler.offer(0, Draft(1, 1, 0, begin_digest("long 0", JPEG), [1]), now=ready)
    due = bench.scheduler.next_time(ready)
    assert due == ready + collect_s
    assert [step.index for step in bench.next(due).choices] == [0]


def test_who_waits_for_a_draft_joins_a_pass_that_runs_anyway() -> None:
    bench = waiting_bench()
    assert not bench.next()
    bench.scheduler.offer(1, Draft(1, 1, 0, begin_digest("long 1", JPEG), [1]), bench.now)
    rows = rows_of(bench.next())
    assert {row.index: len(row.tokens) for row in rows} == {0: 0, 1: 1}  # 2 is to WAIT, and nothing is there


def test_nobody_joins_a_pass_that_would_become_dear_by_it() -> None:
    bench = waiting_bench()
    for tokens in range(1, 200):
        bench.scheduler.estimates.observe(Load.row(tokens), 1.0 + 0.3 * tokens)
    assert not bench.next()
    bench.scheduler.offer(1, Draft(1, 1, 0, begin_digest("long 1", JPEG), [1]), bench.now)
    assert [(step.index, step.act) for step in bench.next().choices] == [(1, Act.VERIFY)]
