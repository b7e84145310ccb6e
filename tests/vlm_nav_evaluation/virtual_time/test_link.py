"""The virtual link: order, one message at a time, the wire's own bytes."""

from __future__ import annotations

import pytest

from speculation.links import load_link
from speculation.wire import AnyMessage, Ping, Pong, encode
from vlm_nav_evaluation.virtual_time.link import Channel, VirtualLink, VirtualMailbox
from vlm_nav_evaluation.virtual_time.timeline import Timeline
from vlm_nav_evaluation.virtual_time.timings import Timings


def test_a_named_link_is_the_one_that_real_sockets_have() -> None:
    """Its random delays, its rate, and the profile's delay on top; a rate of the timings replaces the link's."""
    timeline = Timeline()
    timings = Timings(one_way_s=0.1, link="congested")
    up, _ = Channel.pair(timeline, timings.conditions)
    way, _ = load_link("congested").delayed(0.1).ways(0.0)
    sizes = (12_000, 50, 50, 12_000)
    assert [up.send(bytes(size), lambda: None) for size in sizes] == [way.put(None, size, 0.0) for size in sizes]
    slow = Timings(link="congested", up_bits_per_s=1e4).conditions
    assert (slow.up.rate_bps, slow.down.rate_bps) == (1e4, load_link("congested").down.rate_bps)
    with pytest.raises(ValueError, match="unknown link 'string'"):
        Timings(link="string")


def test_both_ends_meet_and_bytes_are_those_of_the_wire() -> None:
    timeline = Timeline()
    mailbox = VirtualMailbox(timeline)
    link = VirtualLink(timeline, Timings(one_way_s=0.1, down_bits_per_s=8000.0).conditions, mailbox, b"edge")
    received: list[tuple[float, AnyMessage | None]] = []

    def verifier() -> None:
        while True:
            mailbox.wait(1.0)
            message = mailbox.receive()
            if message is not None:
                assert message == (b"edge", [encode(Ping(7))])
                mailbox.send(b"edge", Pong(7))

    def edge() -> None:
        link.send(Ping(7))
        received.append((timeline.now, link.receive(0.0)))
        received.append((timeline.now, link.receive(5.0)))
        received.append((timeline.now, link.receive(0.2)))

    timeline.run([edge], [verifier])
    size = len(encode(Pong(7)))
    assert [message for _, message in received] == [None, Pong(7), None]
    assert [at for at, _ in received] == pytest.approx([0.0, 0.0, 0.2 + size * 1e-3])
    assert (link.bytes_up, link.bytes_down) == (len(encode(Ping(7))), size)
