"""Whose memory others may have: steps that only their edges can bring on, never one that the verifier keeps waiting."""

from __future__ import annotations

from cloud_verifier.choice import Act, Choice
from cloud_verifier.scheduler import WAITED_S
from cloud_verifier.sessions import SILENT_S
from speculation.wire import Commit, Draft, Idle, Ping
from tests.cloud_verifier import bench as server
from tests.cloud_verifier.scheduling import Bench, waiting_bench


def test_a_step_with_work_is_not_idle_however_long_it_waits_for_its_turn() -> None:
    """Rows: 0 waits for a draft, 1 has one, 2 decodes, 3 is silent or not, 4 has an edge that is gone."""
    bench = Bench(max_batch=8)
    for row in range(5):
        bench.begin(row, idle=Idle.DECODE if row > 1 else Idle.WAIT)
    first: dict[int, Commit] = {}
    while any(bench.step(row).pending for row in range(5)):
        first = bench.turn() | first
    idle, early = bench.scheduler.idle, bench.now
    bench.step(4).suspend()
    bench.scheduler.offer(1, Draft(1, 1, 1, first[1].digest, [1, 2]), bench.now)
    assert idle(early, silent=()) == [4]
    late = bench.now + WAITED_S + 1.0
    assert idle(late, silent=()) == [4, 0], "who is gone comes first"
    assert set(idle(late, silent=(3,))) == {0, 3, 4} and idle(late, silent=(3,))[-1] == 0
    bench.step(3).start(Choice(Act.DECODE), late)
    assert idle(late, silent=(3,)) == [4, 0], "a pass reads what its rows hold"


def test_an_edge_whose_mail_is_not_read_yet_is_not_silent() -> None:
    """While the verifier was held up nobody's pings were read."""
    bench = server.Bench(server.CONFIG)
    for peer in (b"a", b"b"):
        bench.welcome(peer)
        bench.ask(peer, server.begin(max_tokens=9, idle=Idle.WAIT))
    now = bench.post.now = bench.post.now + SILENT_S + 1.0
    bench.server._scheduler.step(0).since = bench.server._scheduler.step(1).since = now  # type: ignore[union-attr]
    bench.send(b"b", Ping(1))
    assert bench.server._admission.idle(now) == [0]


def test_a_draft_brings_a_step_back_whose_edge_was_taken_to_be_gone() -> None:
    bench = Bench()
    bench.begin(0)
    first = bench.turn()[0]
    bench.step(0).suspend()
    assert not bench.next()
    bench.scheduler.offer(0, Draft(1, 1, 1, first.digest, [1, 2]), bench.now)
    assert [step.index for step in bench.next().choices] == [0]


def test_drafts_that_help_nothing_do_not_put_a_step_off_that_waits_for_company() -> None:
    bench = waiting_bench(collect_s=0.6)
    since, step = bench.now, bench.step(0)
    for round in range(50, 62):  # one every 0.1 s, far ahead of the answer
        if bench.next():
            break
        bench.now += 0.1
        ahead = Draft(1, round, step.answer.position + 5, bytes([1] * 8), [1, 2])
        bench.scheduler.offer(0, ahead, bench.now)
    assert bench.now - since <= 0.7 + 1e-9
