"""Whose memory others may have: steps that only their edges can bring on, never one that the verifier keeps waiting."""

from __future__ import annotations

from cloud_verifier.sessions import SILENT_S
from speculation.wire import Draft, Idle, Ping
from tests.cloud_verifier import bench as server
from tests.cloud_verifier.scheduling import Bench


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
