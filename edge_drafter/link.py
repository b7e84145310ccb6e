"""The link to the verifier: a ZeroMQ DEALER in a thread of its own, so that neither drafting nor ROS waits for it.

It sends Hello until a verifier answers, pings, detects silence, opens a new connection and resumes the session. There
may be several verifiers, and one may send the robot to another (`edge_drafter.verifier_route`): the link then opens a
connection there, and a step under way begins again behind what was committed. A verifier that is full (`Busy`) is asked
for nothing, neither a session nor a step, before the time that it names.
It decodes small messages about the connection only; those of a step wait, bounded, for the thread that decodes it.
Declared conditions (`speculation.links`) hold for every message, Hellos and pings too, each way, but for the
last one, by which a link that is closed ends its session.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq
import zmq.auth

from edge_drafter.link_socket import EmulatedLinkSocket, LinkSocket
from edge_drafter.protocols import Clock
from edge_drafter.step_exchange import LinkState, StepExchange
from edge_drafter.verifier_route import Place, RedirectRefused, Route, check_verifier
from speculation.address import addresses_of
from speculation.language.prompts import PROMPT_FORMS
from speculation.links import IDEAL, LinkConditions
from speculation.settings import expanded
from speculation.text import printable
from speculation.wire import (
    Busy,
    Commit,
    EarlyTokens,
    EndStep,
    Fault,
    FaultCode,
    Features,
    Hello,
    Ping,
    Pong,
    Redirect,
    Welcome,
    WireError,
    Working,
    check_tokens,
    decode,
    encode,
    kind_of,
)

__all__ = ["Keys", "LinkConfig", "LinkState", "ZmqLink", "load_keys"]
_log = logging.getLogger(__name__)
CONTROL_BYTES = 96 << 10
"""Largest message about the connection: a Welcome with the longest list of objects."""
RTT_WEIGHT = 0.2
PINGS = 64
"""Pings whose answers are still waited for."""
LEAVE_S = 0.1
"""A place where nobody accepts connections, or that ended one, is left after so long where there is another one."""
STEP_KINDS = (Commit, EarlyTokens, EndStep, Features, Working)
FINAL = frozenset(
    {
        FaultCode.PROTOCOL_MISMATCH,
        FaultCode.TOKENIZER_MISMATCH,
        FaultCode.MODEL_MISMATCH,
        FaultCode.UNSUPPORTED_SAMPLING,
    }
)
"""Refusals of a Hello that waiting does not change. All others pass, so Hello is sent again."""


@dataclass(frozen=True)
class Keys:
    """CURVE keys, z85: the server's public key, and this robot's pair."""

    server: bytes
    public: bytes
    secret: bytes
    next_server: bytes = b""
    """What is to replace the server's key; empty: nothing is known of that."""
    folder: Path | None = None
    """Where they were read."""


def load_keys(folder: Path) -> Keys:
    """Read `server.key` and the robot's one `NAME.key_secret`. Raises ValueError, naming what is missing."""
    folder = expanded(folder)
    robots = sorted(path for path in folder.glob("*.key_secret") if path.stem not in ("server", "server_next"))
    if len(robots) != 1:
        names = ", ".join(path.name for path in robots) or "none"
        raise ValueError(f"keys {folder}: expected one NAME.key_secret of this robot, found {names}")
    try:
        server, _ = zmq.auth.load_certificate(folder / "server.key")
        coming = folder / "server_next.key"
        following = zmq.auth.load_certificate(coming)[0] if coming.exists() else b""
        public, secret = zmq.auth.load_certificate(robots[0])
    except (OSError, ValueError) as error:
        raise ValueError(f"keys {folder}: {error}; it must hold server.key and {robots[0].name}") from None
    if secret is None:
        raise ValueError(f"keys {folder}: {robots[0].name} holds no secret key")
    return Keys(server, public, secret, following, folder)


@dataclass(frozen=True)
class LinkConfig:
    """Where the verifier is, and after which times the link acts.

    Raises ValueError for what is no address, and for another machine's without keys or allow_plain.
    """

    address: str
    """One, or several separated by commas: gateways of a cluster, or verifiers of one model."""
    hello: Hello
    keys: Keys | None = None
    conditions: LinkConditions = IDEAL
    """Declared delays, rates and losses; blackouts count from the link's start."""
    ping_s: float = 0.25
    silent_s: float = 1.5
    """Seconds without a message, on top of the conditions' longest round trip, that count as silence."""
    hello_s: float = 1.0
    """An unanswered Hello is repeated after so many seconds."""
    allow_plain: bool = False
    """Without keys, trust a verifier on another machine all the same."""

    def __post_init__(self) -> None:
        check_verifier(self.address, self.keys is not None, self.allow_plain)


class ZmqLink(StepExchange):
    """A `edge_drafter.Link` over ZeroMQ."""

    def __init__(self, config: LinkConfig, clock: Clock = time.monotonic) -> None:
        why = f"looking for a verifier at {config.address}"
        super().__init__(threading.Condition(), clock, config.hello.vocabulary, why)
        self.config = config
        self.welcome: Welcome | None = None
        """Names the verifier's model and limits as its last handshake gave them; None before the first one."""
        self._greeted = False
        """Whether the verifier has answered Hello, and knows the session as far as is known here."""
        self._keys = keys = config.keys
        self._route = Route(addresses_of(config.address), keys.server if keys else b"", config.allow_plain)
        """Where the verifier is; the link's thread changes it, others may read it."""
        self._moves = False
        """Whether the next connection is due, to the route's place."""
        self._unresolved = False
        """Whether it counts as refused because the verifier's name has no address."""
        self._again_at = -math.inf
        """When a verifier that was full, or that is one redirect too many, may be asked again."""
        self._received_at: float | None = None
        self.rtt_s: float | None = None
        """Smoothed round trip of a ping in seconds; None before the first."""
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self._thread.start()

    # -- for any thread

    @property
    def has_elsewhere(self) -> bool:
        """Whether another verifier may go on with a step that this one loses."""
        return self._route.is_one_of_many

    def close(self) -> None:
        """Stop the thread and free the socket; safe to repeat."""
        self._stopping = True
        self._wake()
        self._thread.join()
        self._wake_in.close()
        self._wake_out.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # a full pipe wakes just as well; a closed one needs no waking
            self._wake_in.send(b"\0")

    # -- the link's thread

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        place = self._route.place
        where = (context, place.address, self._curve(place))
        conditions = self.config.conditions
        if conditions == IDEAL:
            connection = LinkSocket(*where)
        else:
            connection = EmulatedLinkSocket(*where, conditions, self._clock())
        try:
            while not self._stopping:
                self._serve(connection)
                place = self._route.place
                connection.reopen(place.address, self._curve(place))
        except Exception as error:
            _log.exception("the link's thread failed")
            self._become(LinkState.REFUSED, f"the link to the verifier failed: {error}")
        finally:
            connection.close()
            context.term()

    def _curve(self, place: Place) -> tuple[tuple[bytes, ...], bytes, bytes] | None:
        """Return the keys that a verifier there may have, and this robot's pair; None for plain text."""
        if self._keys is None:
            return None
        if self._keys.folder is not None:
            # A server's key may be replaced while the robot is on its way, and whoever does it copies files only.
            with contextlib.suppress(ValueError):
                self._keys = load_keys(self._keys.folder)
        keys = self._keys
        # A place that a redirect named may have taken up the next key since.
        first = place.server_key if self._route.is_sent else keys.server
        servers = dict.fromkeys((first, keys.server, keys.next_server))
        return tuple(each for each in servers if each), keys.public, keys.secret

    def _serve(self, connection: LinkSocket) -> None:
        """Use one connection until it has been silent too long, or another one is due."""
        self._moves = False
        if self._unresolved and not connection.unresolved:
            self._unresolved = False
            self._become(LinkState.CONNECTING, f"looking for a verifier at {self._route.place.address}")
        hello_at = ping_at = opened = self._clock()
        pings: dict[int, float] = {}
        nonces = itertools.count(1)
        limit = self.config.silent_s + self.config.conditions.longest_trip_s
        while not self._stopping:
            now = self._clock()
            if self._greeted and self.state is LinkState.BUSY and now >= self._again_at:
                self._become_nominal()
            if not self._greeted and now >= max(hello_at, self._again_at):
                self._outbox.clear()
                connection.put(encode(self._hello()), now)
                hello_at = now + self.config.hello_s
            if self._greeted and (now >= ping_at or connection.is_new):
                connection.is_new = False
                nonce = next(nonces)
                pings[nonce] = now
                pings.pop(nonce - PINGS, None)
                connection.put(encode(Ping(nonce)), now)
                ping_at = now + self.config.ping_s
            while self._outbox:
                connection.put(self._outbox.popleft(), now)
            for payload in connection.turn(now):
                self._received_at = now
                if self._take(payload, pings, connection, now):
                    hello_at = now
                if self._moves:
                    return
            if not self._greeted and connection.absence:
                self._explain(connection)
            quiet = now - max(opened, self._received_at or opened, -math.inf if self._greeted else self._again_at)
            ended = connection.lost and self._route.has_others and now - opened > LEAVE_S
            if quiet > limit or ended:
                # A new connection, because the old one may wait minutes for a network that is gone.
                self._fall_silent(quiet, ended and quiet <= limit, connection)
                self._route.leave()
                self._again_at = max(self._again_at, self._route.full_until)
                return
            busy = self._greeted and self.state is LinkState.BUSY
            due = min(ping_at, self._again_at if busy else math.inf) if self._greeted else max(hello_at, self._again_at)
            connection.wait(min(due, now + limit), self._wake_out, self._clock())
        if self._greeted:  # its place at the verifier need not wait until it was silent for long
            connection.leave(encode(Fault(FaultCode.NO_SESSION, "the robot has closed its link")))

    def _take(self, payload: bytes, pings: dict[int, float], connection: LinkSocket, now: float) -> bool:
        """Handle one message; return whether a new Hello is due at once."""
        nominal = self.state is LinkState.NOMINAL
        if kind_of(payload) in STEP_KINDS:
            if nominal:
                self._keep(payload)
            return False
        try:
            if len(payload) > CONTROL_BYTES:
                raise WireError(f"message of {len(payload)} bytes, the limit is {CONTROL_BYTES} for its kind")
            message = decode(payload)
            check_tokens(message, self._vocabulary)
        except WireError as error:
            self._note_malformed(error)
            if kind_of(payload) is Welcome and not self._greeted:
                why = f"{self._where} answers with a Welcome that cannot be read"
                self._become(
                    LinkState.REFUSED, f"{why} ({printable(str(error))}); install the same version on both sides"
                )
            return False
        if isinstance(message, Welcome):
            self._welcomed(message)
        elif isinstance(message, Ping):
            connection.put(encode(Pong(message.nonce)), now)
        elif isinstance(message, Pong):
            sent = pings.pop(message.nonce, None)
            if sent is not None:
                self.rtt_s = now - sent if self.rtt_s is None else self.rtt_s + RTT_WEIGHT * (now - sent - self.rtt_s)
        elif isinstance(message, Busy):
            return self._turn_away(message, now)
        elif isinstance(message, Redirect):
            self._redirected(message, now)
        elif isinstance(message, Fault) and message.code is FaultCode.NO_SESSION:
            if self._greeted and not self._is_late(message):
                self._greeted, self._again_at = False, -math.inf
                self._become(LinkState.CONNECTING, "the verifier has no such session any more; sending Hello again")
                return True
        elif isinstance(message, Fault) and not self._greeted:
            self._refused(message)
            if message.code is FaultCode.NO_TICKET:
                self._go_on(now + self.config.hello_s)
        elif nominal:
            self._keep(payload)
        return False

    @property
    def _where(self) -> str:
        return f"the verifier at {self._route.place.address}"

    def _hello(self) -> Hello:
        """Return what greets the verifier at the route's place."""
        session = self.welcome.session if self.welcome is not None else ""
        return msgspec.structs.replace(
            self.config.hello, resume=session, ticket=self._route.ticket, prefix=self._prefix
        )

    def _redirected(self, redirect: Redirect, now: float) -> None:
        """Go where the verifier sends this robot; a session here is over."""
        why = f"{self._where} sends this robot elsewhere"
        why += f": {printable(redirect.reason)}" if redirect.reason else ""
        try:
            self._again_at = self._route.follow(redirect, now)
        except RedirectRefused as error:
            self._again_at = now + self.config.hello_s
            why = f"this robot {error}"
        self._greeted, self._moves = False, True
        self._become(LinkState.CONNECTING, why)

    def _go_on(self, due: float) -> None:
        """Leave this place for the next one, where a Hello is due then."""
        if self._route.has_others:
            self._route.leave()
            self._moves = True
        self._again_at = due

    def _turn_away(self, busy: Busy, now: float) -> bool:
        """Leave a full verifier alone for as long as it asks; return whether a Hello is the next that is due.

        It had no room for this session, or else for its step; anything else that it refuses so is decided.
        """
        of_step = busy.step is not None
        if of_step is not self._greeted or (of_step and busy.step != self._step):
            return False
        why = f"{self._where} is full: {printable(busy.message)}"
        why += f"; trying again in {busy.retry_after_s:.1f} s"
        self._again_at = now + busy.retry_after_s
        self._become(LinkState.BUSY, why, turns_away=of_step)
        if not of_step and self._route.is_sent:  # the gateway knows of others
            self._go_on(now + min(busy.retry_after_s, self.config.hello_s))
        elif not of_step:  # perhaps the list has one that is not full
            here = self._route.place
            self._again_at = self._route.full(self._again_at, now)
            self._moves = self._route.place != here
        return not of_step

    def _is_late(self, fault: Fault) -> bool:
        """Whether a fault is about a draft of a step that is over: one that was turned away while the draft came."""
        if fault.step is None:
            return False
        return fault.step < self._step or (fault.step == self._step and bool(self._turned_away))

    def _refused(self, fault: Fault) -> None:
        reason = printable(fault.message)
        if fault.code in FINAL:
            self._become(LinkState.REFUSED, f"{self._where} refuses: {reason}")
        else:
            self._become(LinkState.CONNECTING, f"{self._where} refuses for now: {reason}")

    def _welcomed(self, welcome: Welcome) -> None:
        hello, text = self.config.hello, ""
        if (welcome.tokenizer, welcome.vocabulary) != (hello.tokenizer, hello.vocabulary):
            text = "its tokenizer is not the draft model's; draft and target must share one tokenizer"
        elif welcome.form not in PROMPT_FORMS:
            known = ", ".join(map(str, PROMPT_FORMS))
            text = f"its model is asked in prompts of form {welcome.form}; this program knows {known}: update it"
        if text:
            self._greeted = False
            self._become(LinkState.REFUSED, f"{self._where} does not fit: {text}")
            return
        if self._greeted:
            return
        self._greeted, self.welcome = True, welcome
        self._epoch += 1
        self._route.arrived()
        self._become_nominal()

    def _become_nominal(self) -> None:
        model = self.welcome.model if self.welcome is not None else ""
        self._become(LinkState.NOMINAL, f"{self._where} serves {printable(model, 64)}")

    def _fall_silent(self, seconds: float, ended: bool, connection: LinkSocket) -> None:
        """Note silence, or that the connection `ended`.

        A link that is silent, or refused, stays so with its first reason until a verifier answers. Why a handshake
        failed is a better reason than that.
        """
        if self._greeted:
            self._greeted = False
            if ended:  # the next place is asked at once, so that there is no silence yet
                self._become(LinkState.CONNECTING, f"{self._where} ended the connection")
            else:
                self._become(LinkState.SILENT, f"nothing received from {self._where} for {seconds:.1f} s")
        elif connection.refusal:
            state = LinkState.CONNECTING if self.state is LinkState.BUSY else self.state
            self._become(state, connection.refusal)
        elif self.state in (LinkState.CONNECTING, LinkState.BUSY):
            why = connection.absence or f"no verifier answers at {self._route.place.address}; is it running there?"
            self._become(LinkState.CONNECTING, why)

    def _explain(self, connection: LinkSocket) -> None:
        """Say why nobody is reached before silence shows it. A name without an address is final for now, as a refusal,
        for a robot that was never served: waiting rarely changes it."""
        final = connection.unresolved and self.welcome is None and not self._route.has_others
        if final:
            self._unresolved = True
            self._become(LinkState.REFUSED, connection.absence)
        elif self.state is LinkState.CONNECTING:
            self._become(LinkState.CONNECTING, connection.absence)
