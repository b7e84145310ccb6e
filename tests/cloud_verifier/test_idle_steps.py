"""Whose memory others may have: steps that only their edges can bring on, never one that the verifier keeps waiting."""

from __future__ import annotations

from cloud_verifier.ledger import Act, Choice
from cloud_verifier.scheduler import WAITED_S
from speculation.wire import Draft, Idle, begin_digest
from tests.cloud_verifier.scheduling import JPEG, Bench


def test_a_step_with_work_is_not_idle_however_long_it_waits_for_its_turn() -> None:
    """Rows: 0 waits for a draft, 1 has one, 2 decodes, 3 is silent or not, 4 has an edge that is gone."""
    bench = Bench(max_batch=8)
    for row in range(5):
        bench.begin(row, idle=Idle.DECODE if row > 1 else Idle.WAIT)
    while any(bench.step(row).pending for row in range(5)):
        bench.turn()
    idle, early = bench.scheduler.idle, bench.now
    bench.step(4).suspend()
    bench.scheduler.offer(1, Draft(1, 1, 0, begin_digest("long 1", JPEG), [1, 2]), bench.now)
    assert idle(early, silent=()) == [4]
    late = bench.now + WAITED_S + 1.0
    assert idle(late, silent=()) == [4, 0], "who is gone comes first"
    assert set(idle(late, silent=(3,))) == {0, 3, 4} and idle(late, silent=(3,))[-1] == 0
    bench.step(3).start(Choice(Act.DECODE), late)
    assert idle(late, silent=(3,)) == [4, 0], "a pass reads what its rows hold"
