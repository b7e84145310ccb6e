"""The gateway: every Hello gets a replica with a ticket for it, or a time to come again; all else is refused."""

from __future__ import annotations

from cloud_verifier.cluster.directory import Directory, Phase, Status
from cloud_verifier.cluster.gateway import BACK_S, Gateway
from cloud_verifier.cluster.tickets import SECRET_BYTES, Tickets
from cloud_verifier.outbox import REFUSALS_AT_ONCE
from speculation import wire
from speculation.wire import PROTOCOL, Busy, Fault, FaultCode, Hello, Ping, Pong, Redirect
from tests.cloud_verifier.bench import FakePost, begin

TICKETS = Tickets(bytes(range(SECRET_BYTES)))


class World:
    """A gateway with replicas a and b; peers' keys are named as they are."""

    def __init__(self, *names: str) -> None:
        self.post, self.directory = FakePost(), Directory()
        self.names = names
        self.gateway = Gateway(self.post, self.directory, TICKETS, self.post.clock, self.post.clock)

    def ask(self, peer: bytes, *payloads: wire.AnyMessage | bytes) -> list[wire.AnyMessage]:
        """Send messages and return the answers. Replicas report before."""
        for name in self.names:
            report = Status(name, Phase.READY, 1.0, f"tcp://{name}:1", f"key of {name}", session_places=8)
            self.directory.report(report, self.post.now)
        before, self.post.clients[peer] = len(self.post.sent), peer.decode()
        for each in payloads:
            payload = each if isinstance(each, bytes) else wire.encode(each)
            self.post.mail.append((self.post.now, peer, [payload]))
        self.gateway.turn(0.0)
        return [message for _, who, message in self.post.sent[before:] if who == peer]

    def redirect(self, peer: bytes, ticket: bytes = b"") -> Redirect:
        (answer,) = self.ask(peer, Hello("tok", 100, ticket=ticket))
        assert isinstance(answer, Redirect)
        return answer


def name_of(redirect: Redirect) -> str:
    return redirect.address[len("tcp://") :].partition(":")[0]


def test_a_robot_that_comes_back_is_sent_to_the_same_replica_whatever_the_ring_has() -> None:
    for peer in (b"robot", b""):  # with a key, and without keys
        world = World("a", "b")
        ticket = TICKETS.sign("b", peer.decode(), "its key", 0.0)
        world.post.now = BACK_S + 60.0
        again = world.redirect(peer, ticket)
        assert name_of(again) == "b"
        world.post.now += 60.0
        assert name_of(world.redirect(peer, again.ticket)) == "b"


def test_a_robot_that_is_back_at_once_is_sent_elsewhere_where_there_is_another_one() -> None:
    world = World("a", "b")
    first = world.redirect(b"robot")
    assert name_of(world.redirect(b"robot", first.ticket)) != name_of(first)
    alone = World("a")
    assert name_of(alone.redirect(b"robot", alone.redirect(b"robot").ticket)) == "a"


def test_a_ticket_of_somebody_else_says_nothing_of_where_a_robot_was() -> None:
    world = World("a", "b")
    world.post.now = 60.0
    home = name_of(world.redirect(b"robot"))
    other = "b" if home == "a" else "a"
    assert name_of(world.redirect(b"robot", TICKETS.sign(other, "thief", "key", 0.0))) == home


def test_without_a_replica_a_robot_is_to_come_again() -> None:
    (busy,) = World().ask(b"robot", Hello("tok", 100))
    assert isinstance(busy, Busy) and busy.message == "no replica is ready yet" and busy.step is None
    world = World("a")
    answers = [world.ask(f"robot {number}".encode(), Hello("tok", 100))[0] for number in range(9)]
    assert isinstance(answers[8], Busy) and answers[8].message.startswith("all 1 replicas are full")
    assert (world.gateway.redirected, world.gateway.turned_away) == (8, 1)


def test_what_is_no_hello_of_this_version_is_refused_in_words() -> None:
    world = World("a")
    pong, lost, old, bent = world.ask(
        b"robot", Ping(7), begin(3), Hello("tok", 100, protocol=PROTOCOL - 1), b"\x00 junk"
    )
    assert pong == Pong(7)
    assert isinstance(lost, Fault) and (lost.code, lost.step) == (FaultCode.NO_SESSION, 3)
    assert isinstance(old, Fault) and old.code is FaultCode.PROTOCOL_MISMATCH
    assert isinstance(bent, Fault) and bent.code is FaultCode.MALFORMED


def test_who_sends_without_end_is_read_no_more() -> None:
    world = World("a")
    assert len(world.ask(b"robot", *[b"junk"] * 200)) == REFUSALS_AT_ONCE
    assert isinstance(world.ask(b"another", Hello("tok", 100))[0], Redirect)
