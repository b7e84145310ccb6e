"""The link against a verifier of a few lines, over real sockets. Events decide, never durations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.auth
from msgspec.structs import replace

from edge_drafter import LinkLost, VerifierBusy
from edge_drafter.link import CONTROL_BYTES, Keys, LinkConfig, LinkState, ZmqLink, load_keys
from edge_drafter.link_socket import LinkSocket
from edge_drafter.step_exchange import INBOX_MESSAGES
from speculation.wire import (
    MAX_END_TOKENS,
    AnyMessage,
    BeginStep,
    Busy,
    Commit,
    Draft,
    EarlyTokens,
    EndStep,
    Fault,
    FaultCode,
    Hello,
    Ping,
    Pong,
    Redirect,
    Welcome,
    decode,
    encode,
    prefix_of,
)
from tests.edge_drafter.waiting import LIMIT_S, wait_for

HELLO = Hello("tok", 100)
WELCOME = Welcome("session 1", "model", HELLO.tokenizer, HELLO.vocabulary, 4, [1, 2], [9])
BEGIN = BeginStep(1, "find it", b"jpeg")
DRAFT = Draft(1, 1, 0, b"8 bytes!", [1, 2])


class TinyVerifier:
    """Answers Hello and Ping, keeps the rest. `mute` makes it deaf and dumb; `refuse` answers Hello with that."""

    def __init__(self, address: str = "tcp://127.0.0.1:*") -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger, self._socket.sndhwm = 0, 0
        self._socket.bind(address)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.hellos: list[Hello] = []
        self.messages: list[AnyMessage] = []
        self.to_say: list[AnyMessage | bytes] = []
        self.pongs = 0
        self.mute = False
        self.refuse: Fault | Busy | Redirect | Welcome | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it; safe to repeat."""
        self._stopping = True
        self._thread.join()
        self._socket.close()
        self._context.term()

    def _run(self) -> None:
        peer = b""
        while not self._stopping:
            if self._socket.poll(5):
                peer, payload = self._socket.recv_multipart()
                if not self.mute:
                    self._answer(peer, decode(payload))
            while self.to_say and peer:
                message = self.to_say.pop(0)
                self._socket.send_multipart([peer, message if isinstance(message, bytes) else encode(message)])

    def _answer(self, peer: bytes, message: AnyMessage) -> None:
        if isinstance(message, Hello):
            self.hellos.append(message)
            self._socket.send_multipart([peer, encode(self.refuse or WELCOME)])
        elif isinstance(message, Ping):
            self._socket.send_multipart([peer, encode(Pong(message.nonce))])
        elif isinstance(message, Pong):
            self.pongs += 1
        else:
            self.messages.append(message)


Listen = Callable[..., TinyVerifier]
Connect = Callable[..., ZmqLink]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one entry with every new connection that a link opens."""
    opened, reopen = list[int](), LinkSocket.reopen

    def counted(connection: LinkSocket, *place: Any) -> None:
        opened.append(1)
        reopen(connection, *place)

    monkeypatch.setattr(LinkSocket, "reopen", counted)
    return opened


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Starts a verifier at an address, or at any."""
    started: list[TinyVerifier] = []

    def make(*address: str) -> TinyVerifier:
        started.append(TinyVerifier(*address))
        return started[-1]

    yield make
    for each in started:
        each.stop()


@pytest.fixture
def verifier(listen: Listen) -> TinyVerifier:
    return listen()


@pytest.fixture
def others(listen: Listen) -> list[TinyVerifier]:
    return [listen(), listen()]


@pytest.fixture
def connect() -> Iterator[Connect]:
    links: list[ZmqLink] = []

    def make(address: str, clock: Callable[[], float] = time.monotonic, **changes: object) -> ZmqLink:
        settings: dict[str, object] = {"ping_s": 0.02, "silent_s": LIMIT_S, "hello_s": 0.1, **changes}
        links.append(ZmqLink(LinkConfig(address, HELLO, **settings), clock))  # type: ignore[arg-type]
        return links[-1]

    yield make
    for link in links:
        link.close()
        link.close()


@pytest.fixture
def link(verifier: TinyVerifier, connect: Connect) -> ZmqLink:
    """A link to the verifier that has shaken hands."""
    link = connect(verifier.address)
    assert link.wait_nominal(LIMIT_S)
    return link


def test_it_shakes_hands_and_carries_messages_both_ways(verifier: TinyVerifier, link: ZmqLink) -> None:
    assert link.welcome is not None and link.welcome.eos == [9]
    link.send(BEGIN)
    link.send(DRAFT)
    wait_for(lambda: verifier.messages == [BEGIN, DRAFT])
    early = EarlyTokens(1, 1, 0, 0, 5, 2, 0.5)
    verifier.to_say.append(early)
    assert link.receive(LIMIT_S) == early
    assert link.receive(0.0) is None and link.receive(0.01) is None
    assert link.bytes_up == len(encode(BEGIN)) + len(encode(DRAFT)) and link.bytes_down == len(encode(early))
    wait_for(lambda: link.rtt_s is not None)
    verifier.to_say.append(Ping(3))
    wait_for(lambda: verifier.pongs == 1)


def test_the_end_of_a_step_may_come_from_any_thread_and_is_its_last_message(
    verifier: TinyVerifier, link: ZmqLink
) -> None:
    """Whoever waits for the step's next message waits no longer, and what it still sends does not leave."""
    link.send(BEGIN)
    received: list[AnyMessage | None] = []
    waiting = threading.Thread(target=lambda: received.append(link.receive(100 * LIMIT_S)), daemon=True)
    waiting.start()
    end = EndStep(1, "cancelled")
    link.send(end)
    waiting.join(LIMIT_S)
    assert received == [None]
    assert link.receive(100 * LIMIT_S) is None
    link.send(DRAFT)
    begin = BeginStep(2, "find it", b"jpeg")
    link.send(begin)
    draft = Draft(2, 1, 0, b"8 bytes!", [1, 2])
    link.send(end)  # late: of the step before
    link.send(draft)
    wait_for(lambda: draft in verifier.messages)
    assert verifier.messages == [BEGIN, end, begin, end, draft]
    early = EarlyTokens(2, 1, 0, 0, 5, 2, 0.5)
    verifier.to_say.append(early)
    assert link.receive(LIMIT_S) == early


def test_a_verifier_that_is_away_is_silent_once(
    listen: Listen, connect: Connect, opened: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Through any number of new connections, until one of them is answered."""
    first = listen()
    link = connect(first.address, silent_s=0.1, hello_s=0.05)
    assert link.wait_nominal(LIMIT_S)
    first.stop()
    # Before that, a busy machine may have been silent for as long.
    wait_for(lambda: link.state is LinkState.SILENT)
    before = len(opened)
    wait_for(lambda: f"link silent: {link.why}" in caplog.text)
    silences = caplog.text.count("link silent")
    wait_for(lambda: len(opened) >= before + 3)
    assert caplog.text.count("link silent") == silences and "connecting" not in caplog.text
    assert link.state is LinkState.SILENT and f"link silent: {link.why}" in caplog.text
    listen(first.address)
    assert link.wait_nominal(LIMIT_S)


def test_a_verifier_that_was_restarted_is_found_again_and_the_step_is_told(listen: Listen, connect: Connect) -> None:
    first = listen()
    link = connect(first.address, silent_s=2.0)
    assert link.wait_nominal(LIMIT_S)
    link.send(BEGIN)
    first.stop()
    with pytest.raises(LinkLost, match="nothing received"):
        link.receive(LIMIT_S)
    assert link.state is LinkState.SILENT and not link.wait_nominal(0.01)
    with pytest.raises(LinkLost, match="nothing received"):
        link.send(DRAFT)
    second = listen(first.address)
    assert link.wait_nominal(LIMIT_S)
    assert second.hellos[0].resume == "session 1"
    with pytest.raises(LinkLost, match="must begin again"):
        link.receive(0.0)
    link.send(BEGIN)
    wait_for(lambda: second.messages == [BEGIN])
    assert link.receive(0.0) is None


def test_a_link_that_is_closed_ends_its_session(verifier: TinyVerifier, link: ZmqLink) -> None:
    link.close()
    wait_for(lambda: verifier.messages)
    (left,) = verifier.messages
    assert isinstance(left, Fault) and left.code is FaultCode.NO_SESSION


def test_a_forgotten_session_is_opened_again_at_once(verifier: TinyVerifier, connect: Connect) -> None:
    link = connect(verifier.address, silent_s=1000.0, hello_s=1000.0)
    assert link.wait_nominal(LIMIT_S)
    link.send(BEGIN)
    verifier.to_say.append(Fault(FaultCode.NO_SESSION, "who are you?"))
    with pytest.raises(LinkLost):
        link.receive(LIMIT_S)
    wait_for(lambda: len(verifier.hellos) == 2)
    assert link.wait_nominal(LIMIT_S)


@pytest.mark.parametrize(
    ("greeting", "why"),
    [
        (Fault(FaultCode.TOKENIZER_MISMATCH, "other\ntokens"), r"refuses: other\ntokens"),
        (
            replace(WELCOME, tokenizer="other"),
            "its tokenizer is not the draft model's; draft and target must share one",
        ),
        (replace(WELCOME, form=3), "its model is asked in prompts of form 3; this program knows 1, 2: update it"),
        (replace(WELCOME, eos=list(range(MAX_END_TOKENS + 1))), "a Welcome that cannot be read (malformed message: "),
    ],
)
def test_a_verifier_that_does_not_fit_is_refused_in_a_sentence_and_asked_again(
    greeting: Fault | Welcome, why: str, verifier: TinyVerifier, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    verifier.refuse = greeting
    link = connect(verifier.address)
    assert not link.wait_nominal(LIMIT_S) and link.state is LinkState.REFUSED
    assert verifier.address in link.why and why in link.why
    wait_for(lambda: link.why in caplog.text)
    with pytest.raises(LinkLost, match="the verifier at "):
        link.send(BEGIN)
    verifier.refuse = None
    wait_for(lambda: link.state is LinkState.NOMINAL)


def test_what_can_pass_is_tried_again_with_its_reason_in_the_state(verifier: TinyVerifier, connect: Connect) -> None:
    verifier.refuse = Fault(FaultCode.INTERNAL, "all 8 sessions are taken\n\x1b[2J")
    link = connect(verifier.address)
    wait_for(lambda: "refuses for now" in link.why)
    assert link.state is LinkState.CONNECTING and r"all 8 sessions are taken\n\x1b[2J" in link.why
    assert not link.wait_nominal(0.05), "it is not final: somebody may wait for it"
    verifier.refuse = None
    assert link.wait_nominal(LIMIT_S)


class Shifted:
    """The steady clock and as much on top of it as a test adds."""

    def __init__(self) -> None:
        self.more_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.more_s


def test_a_full_verifier_is_not_greeted_again_before_it_asks_for_that(
    verifier: TinyVerifier, connect: Connect, opened: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither on this connection nor on a new one, which silence would open: it owes no answer meanwhile."""
    verifier.refuse, clock = Busy(1000.0, "all 8 sessions are taken\n\x1b[2J"), Shifted()
    link = connect(verifier.address, clock, silent_s=60.0, hello_s=0.01)
    wait_for(lambda: link.state is LinkState.BUSY)
    sentence = (
        f"the verifier at {verifier.address} is full: all 8 sessions are taken\\n\\x1b[2J; trying again in 1000.0 s"
    )
    assert link.why == sentence
    wait_for(lambda: f"link busy: {sentence}" in caplog.text)  # logged once the state is set
    with pytest.raises(LinkLost, match="is full"):
        link.send(BEGIN)
    clock.more_s = 900.0
    assert not link.wait_nominal(0.01), "it may be waited for: a refusal is not final"

    def is_left_alone() -> bool:
        before = len(verifier.hellos)
        assert not link.wait_nominal(0.3)
        return len(verifier.hellos) == before

    wait_for(is_left_alone)  # those that were on their way when its answer came have arrived
    greetings = len(verifier.hellos)
    assert opened == []
    verifier.refuse = None
    clock.more_s = 2001.0  # an answer to a greeting may have come as late as at 900
    assert link.wait_nominal(LIMIT_S) and len(verifier.hellos) > greetings


def test_a_step_that_is_turned_away_begins_again_when_it_may(verifier: TinyVerifier, connect: Connect) -> None:
    """In the same session: no Hello, and pings go on. A draft that crossed the answer costs no session either."""
    clock = Shifted()
    link = connect(verifier.address, clock, ping_s=0.01, silent_s=1e4, hello_s=1e4)
    assert link.wait_nominal(LIMIT_S)
    link.send(BEGIN)
    verifier.to_say += [Busy(1000.0, "no room for 3 more blocks", 1), Fault(FaultCode.NO_SESSION, "unknown", 1)]
    with pytest.raises(VerifierBusy, match=r"is full: no room for 3 more blocks; trying again in 1000\.0 s"):
        link.receive(LIMIT_S)
    verifier.to_say += [Ping(5), Busy(1000.0, "of another step", 0), Busy(1000.0, "of a Hello"), Ping(6)]
    wait_for(lambda: verifier.pongs == 2)
    assert link.state is LinkState.BUSY and "3 more blocks" in link.why
    with pytest.raises(LinkLost, match="3 more blocks"):
        link.send(BeginStep(2, "find it", b"jpeg"))
    clock.more_s = 1001.0
    assert link.wait_nominal(LIMIT_S) and "serves model" in link.why
    link.send(BeginStep(3, "find it", b"jpeg"))
    end = EndStep(3, "over")
    verifier.to_say += [Busy(1000.0, "late", 1), Fault(FaultCode.NO_SESSION, "late", 1), end]
    assert link.receive(LIMIT_S) == end
    wait_for(lambda: len(verifier.messages) == 2)
    assert [message.step for message in verifier.messages if isinstance(message, BeginStep)] == [1, 3]
    assert len(verifier.hellos) == 1


def test_messages_that_nobody_takes_are_bounded(verifier: TinyVerifier, link: ZmqLink) -> None:
    link.send(BEGIN)
    early = EarlyTokens(1, 1, 0, 0, 5, 2, 0.5)
    verifier.to_say += [early] * (INBOX_MESSAGES + 200)
    verifier.to_say.append(Ping(5))
    wait_for(lambda: verifier.pongs == 1)
    count = 0
    while link.receive(0.0) is not None:
        count += 1
    assert count == INBOX_MESSAGES
    assert link.bytes_down == INBOX_MESSAGES * len(encode(early))


def test_large_messages_are_not_decoded_by_the_links_thread(
    verifier: TinyVerifier, link: ZmqLink, caplog: pytest.LogCaptureFixture
) -> None:
    """A commit is decoded by whoever takes it; anything else that is large is garbage."""
    link.send(BEGIN)
    bad = encode(Commit(1, 1, 0, [5], b"8 bytes!", False))[:-1] + bytes(100_000)
    end = EndStep(1, "over")
    verifier.to_say += [bad, bytes((0x92, 8)) + bytes(100_000), end]
    wait_for(lambda: f"the limit is {CONTROL_BYTES} for its kind" in caplog.text)
    assert "Commit" not in caplog.text
    assert link.receive(LIMIT_S) == end and link.state is LinkState.NOMINAL


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "tcp://[::1]:9", "tcp://localhost:9"])
def test_a_port_where_nobody_listens_is_said_before_silence_shows_it(connect: Connect, address: str) -> None:
    link = connect(address, silent_s=60.0)
    wait_for(lambda: link.why.startswith(f"no verifier answers at {address}: nobody accepts connections there"))
    assert link.state is LinkState.CONNECTING, "it may be started yet"


def test_a_name_without_an_address_is_final_for_now_and_found_when_it_has_one(
    verifier: TinyVerifier, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By any system's name service: what the name has is given here."""
    known: list[str] = []

    def resolve(host: str) -> list[str]:
        if not known:
            raise ValueError(f"the name {host} does not resolve: check its spelling or DNS")
        return known

    monkeypatch.setattr("edge_drafter.link_socket.resolve", resolve)
    port = verifier.address.rpartition(":")[2]
    link = connect(f"tcp://robot-server:{port}", silent_s=0.3, allow_plain=True)
    assert not link.wait_nominal(100 * LIMIT_S) and link.state is LinkState.REFUSED
    assert "the name robot-server does not resolve: check its spelling or DNS" in link.why
    known += ["127.0.0.1"]
    wait_for(lambda: link.state is LinkState.NOMINAL)


def test_a_redirect_is_followed_with_its_ticket_and_back_when_that_verifier_goes(
    verifier: TinyVerifier, others: list[TinyVerifier], connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    verifier.refuse = Redirect(others[0].address, ticket=b"for the first")
    link = connect(verifier.address, silent_s=60.0)
    assert link.wait_nominal(LIMIT_S) and link.has_elsewhere
    assert others[0].hellos[0].ticket == b"for the first" and others[0].hellos[0].prefix == b""
    assert link.why == f"the verifier at {others[0].address} serves model"
    link.send(BEGIN)
    wait_for(lambda: others[0].messages == [BEGIN])
    verifier.refuse = Redirect(others[1].address, ticket=b"for the second")
    others[0].stop()
    with pytest.raises(LinkLost):  # it may be elsewhere already when this thread looks
        link.receive(LIMIT_S)
    assert link.wait_nominal(LIMIT_S)
    # In silence the robot would drop its question at once.
    assert f"link connecting: the verifier at {others[0].address} ended the connection" in caplog.text
    again = verifier.hellos[-1]
    assert (again.ticket, again.resume, again.prefix) == (b"for the first", "session 1", prefix_of(BEGIN.prompt))
    assert others[1].hellos[0].ticket == b"for the second"
    link.send(BEGIN)
    wait_for(lambda: others[1].messages == [BEGIN])


def test_a_verifier_that_drains_sends_its_robot_to_the_next_of_the_list(
    verifier: TinyVerifier, others: list[TinyVerifier], connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    link = connect(f"{verifier.address}, {others[0].address}", silent_s=60.0)
    assert link.wait_nominal(LIMIT_S) and others[0].hellos == []
    link.send(BEGIN)
    verifier.to_say.append(Redirect(reason="it is being drained"))
    with pytest.raises(LinkLost):
        link.receive(LIMIT_S)
    assert link.wait_nominal(LIMIT_S)
    assert f"{verifier.address} sends this robot elsewhere: it is being drained" in caplog.text
    assert link.why == f"the verifier at {others[0].address} serves model"


def test_a_redirect_that_must_not_be_trusted_leaves_the_robot_at_its_list(
    verifier: TinyVerifier, connect: Connect
) -> None:
    verifier.refuse = Redirect("tcp://192.0.2.1:5555")
    link = connect(verifier.address)
    wait_for(lambda: "neither encrypted nor authenticated" in link.why)
    assert link.state is LinkState.CONNECTING
    verifier.refuse = None
    assert link.wait_nominal(LIMIT_S)


def test_a_replica_that_wants_another_ticket_or_is_full_sends_the_robot_back_to_the_door(
    verifier: TinyVerifier, others: list[TinyVerifier], connect: Connect
) -> None:
    verifier.refuse = Redirect(others[0].address, ticket=b"old")
    others[0].refuse = Fault(FaultCode.NO_TICKET, "the ticket is old")
    link = connect(verifier.address, silent_s=60.0)
    wait_for(lambda: len(verifier.hellos) >= 2)
    others[0].refuse = Busy(3600.0, "full")
    before = len(verifier.hellos)
    wait_for(lambda: len(verifier.hellos) >= before + 2)
    verifier.refuse = Redirect(others[1].address)
    assert link.wait_nominal(LIMIT_S)


def test_a_verifier_elsewhere_is_trusted_with_keys_or_by_permission_only() -> None:
    """Without keys anybody may answer there, and whoever answers moves the robot."""
    address = "tcp://10.0.0.5:5555"
    with pytest.raises(ValueError, match=r"^verifier tcp://10\.0\.0\.5:5555 .*give keys.*allow_plain"):
        LinkConfig(address, HELLO)
    with pytest.raises(ValueError, match="neither encrypted nor authenticated"):
        LinkConfig(f"tcp://127.0.0.1:1,{address}", HELLO)
    assert LinkConfig(address, HELLO, allow_plain=True).address == address
    assert LinkConfig(address, HELLO, Keys(b"s", b"p", b"q")).address == address


def test_keys_are_read_or_their_lack_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected one NAME\.key_secret of this robot, found none"):
        load_keys(tmp_path)
    zmq.auth.create_certificates(tmp_path, "server")
    zmq.auth.create_certificates(tmp_path, "rex")
    keys = load_keys(tmp_path)
    assert len(keys.server) == len(keys.public) == len(keys.secret) == 40
    zmq.auth.create_certificates(tmp_path, "fido")
    with pytest.raises(ValueError, match=r"found fido\.key_secret, rex\.key_secret"):
        load_keys(tmp_path)
    (tmp_path / "fido.key_secret").unlink()
    (tmp_path / "server.key").unlink()
    with pytest.raises(ValueError, match=r"must hold server\.key and rex\.key_secret"):
        load_keys(tmp_path)
