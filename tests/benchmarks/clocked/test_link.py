"""The virtual link: order, one message at a time, the wire's own bytes."""

from __future__ import annotations

import pytest

from benchmarks.clocked.link import Channel, VirtualLink, VirtualMailbox
from benchmarks.clocked.timeline import Timeline
from benchmarks.clocked.timings import Timings
from speculation.wire import AnyMessage, BeginStep, Commit, Ping, Pong, encode


def test_messages_leave_one_at_a_time_and_keep_their_order() -> None:
    timeline, seen = Timeline(), list[tuple[float, int]]()
    channel = Channel(timeline, 0.5, 800.0)

    def send() -> None:
        for number, size in enumerate((100, 50, 1)):
            channel.send(bytes(size), lambda number=number: seen.append((timeline.now, number)))  # type: ignore[misc]
        timeline.sleep(3.0)
        channel.send(bytes(10), lambda: seen.append((timeline.now, 3)))
        timeline.sleep(1.0)

    timeline.run([send])
    assert [number for _, number in seen] == [0, 1, 2, 3]
    assert [at for at, _ in seen] == pytest.approx([1.5, 2.0, 2.01, 3.6])
    assert channel.bytes == 161


def test_without_a_limit_size_does_not_matter() -> None:
    timeline = Timeline()
    channel = Channel(timeline, 0.25, 0.0)
    assert [channel.send(bytes(size), lambda: None) for size in (1, 10**6)] == [0.25, 0.25]


def test_both_ends_meet_and_bytes_are_those_of_the_wire() -> None:
    timeline = Timeline()
    mailbox = VirtualMailbox(timeline)
    link = VirtualLink(timeline, Timings(one_way_s=0.1, down_bits_per_s=8000.0), mailbox, b"edge")
    heard: list[tuple[float, AnyMessage | None]] = []

    def verifier() -> None:
        while True:
            mailbox.wait(1.0)
            mail = mailbox.receive()
            if mail is not None:
                assert mail == (b"edge", [encode(Ping(7))])
                mailbox.send(b"edge", Pong(7))

    def edge() -> None:
        link.send(Ping(7))
        heard.append((timeline.now, link.receive(0.0)))
        heard.append((timeline.now, link.receive(5.0)))
        heard.append((timeline.now, link.receive(0.2)))

    timeline.run([edge], [verifier])
    size = len(encode(Pong(7)))
    assert [message for _, message in heard] == [None, Pong(7), None]
    assert [at for at, _ in heard] == pytest.approx([0.0, 0.0, 0.2 + size * 1e-3])
    assert (link.bytes_up, link.bytes_down) == (len(encode(Ping(7))), size)


def test_a_new_step_finds_no_old_mail() -> None:
    timeline = Timeline()
    mailbox = VirtualMailbox(timeline)
    link = VirtualLink(timeline, Timings(), mailbox, b"edge")

    def edge() -> None:
        mailbox.send(b"edge", Commit(1, 0, 0, [300], bytes(8), False))
        timeline.sleep(0.1)
        link.send(BeginStep(2, "next", b"jpeg"))
        assert link.receive(0.0) is None

    timeline.run([edge])
