"""Sessions of a verifier, or by a gateway of one of its replicas, that requests use one after the other.

It is the robots' protocol without drafts: Hello, BeginStep, commits until the answer is done. What is lost is taken up
again behind what was committed. A session that nobody uses is left silent, so a robot that needs its place gets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import zmq
import zmq.asyncio

from cloud_verifier.limits import Rate
from cloud_verifier.openai_api.messages import ApiError, refused, too_long
from cloud_verifier.security import client_keys
from speculation import wire
from speculation.address import check_address, host_of, is_v6
from speculation.ngrams import Ngrams
from speculation.service_classes import BATCH
from speculation.text import printable

SILENT_S = 5.0
"""A verifier that sends nothing for so long is lost; while it works it speaks twice a second."""
PING_S = 1.0
"""Below what a verifier takes for silence where others need the place (`cloud_verifier.sessions.SILENT_S`)."""
GREET_S = 5.0
"""How long a Hello waits for its answer."""
HELLO_S, HELLOS = 0.25, 16
"""A connection sends so many Hellos in a row, and then one in so many seconds: a verifier reads no more of them
(`cloud_verifier.outbox`)."""
PATIENCE_S = 5.0
"""How long a request waits altogether where the verifier asks it to come back later; longer waits are its client's."""
LOSSES, PAUSE_S = 20, 0.25
"""So often a step is taken up again, after such a pause."""
MOST_WAITING = 256
"""Requests of one client that wait for a session; further ones are asked to come back."""
LATER_S = 1.0
ANSWER_S = 600.0
"""How long a request may take, with its wait for a session."""


@dataclass(frozen=True)
class Question:
    """What the verifier is asked; as the fields of Hello and BeginStep of these names."""

    prompt: str
    jpeg: wire.Jpegs
    max_tokens: int
    sampling: str = "greedy"
    key: int = 0
    grammar: wire.Grammar = wire.Grammar.FREE
    schema: str = ""
    service_class: str = BATCH.name

    @property
    def digest(self) -> bytes:
        """What names the question, and all that shapes its answer."""
        return wire.begin_digest(self.prompt, self.jpeg, self.sampling, self.key, self.grammar, self.schema)


@dataclass(frozen=True)
class Home:
    """Where the verifier, or the cluster's gateway, is, and how its robots greet it."""

    address: str
    keys: Path | None
    """The folder of CURVE keys; None: plain text."""
    allow_plain: bool
    tokenizer: str
    vocabulary: int


class Lost(RuntimeError):
    """The step is over here, and goes on after another Hello."""


class Later(RuntimeError):
    """There is no room now; ask again after `seconds`."""

    def __init__(self, busy: wire.Busy) -> None:
        super().__init__(printable(busy.message))
        self.seconds = busy.retry_after_s


def unavailable(why: str) -> ApiError:
    """Return the error of a request that no verifier answers now."""
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, why, "service_unavailable", retry_after_s=LATER_S)


def too_many(why: str, seconds: float) -> ApiError:
    """Return the error of a request that is to come back after some seconds."""
    return ApiError(HTTPStatus.TOO_MANY_REQUESTS, why, "rate_limit_exceeded", retry_after_s=seconds)


class VerifierSession:
    """One connection, for one request at a time."""

    def __init__(self, context: zmq.asyncio.Context, home: Home, client: str) -> None:
        """`client` names the CURVE keys, where there are any."""
        self._context, self._home, self.client = context, home, client
        self._socket: zmq.asyncio.Socket | None = None
        self._is_home = True
        """Whether it is connected to where it began, and not to where a redirect has sent it."""
        self._resume, self._ticket, self._step = "", b"", 0
        self._greeting: tuple[str, str] | None = None
        """The sampling and class of the session; None where it has none, as far as is known."""
        self._hellos = Rate.counted(1.0 / HELLO_S, HELLOS)
        self._heard_at = self._pinged_at = 0.0

    def is_ready_for(self, question: Question) -> bool:
        """Return whether the question can be asked at once, without another Hello."""
        return self._greeting == (question.sampling, question.service_class)

    def close(self) -> None:
        """End the connection; the session's place is a robot's that needs it. Safe to repeat."""
        self._greeting = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def answer(self, question: Question, hints: list[list[int]]) -> AsyncGenerator[list[int], None]:
        """Yield the answer's tokens as they are committed. Raises ApiError.

        Where it is not read to its end, or is cancelled, the step ends at the verifier.
        """
        digest = question.digest
        committed: list[int] = []
        waited, losses = 0.0, 0
        while True:
            try:
                await self._greet(question)
                async with contextlib.aclosing(self._go_on(question, hints, committed, digest)) as commits:
                    async for tokens in commits:
                        committed += tokens
                        yield tokens
                return
            except Later as later:
                waited += later.seconds
                if waited > PATIENCE_S:
                    raise too_many(str(later), later.seconds) from None
                await asyncio.sleep(later.seconds)
            except Lost as lost:
                losses += 1
                self.close()
                if losses > LOSSES:
                    raise unavailable(str(lost)) from None
                await asyncio.sleep(PAUSE_S)

    async def _go_on(
        self, question: Question, hints: list[list[int]], committed: list[int], begun: bytes
    ) -> AsyncGenerator[list[int], None]:
        """Begin a step behind `committed` and yield what follows. Raises Later, Lost and ApiError."""
        self._step += 1
        step, tokens = self._step, list(committed)
        digest = wire.extend_digest(begun, tokens)
        begin = wire.BeginStep(
            step, question.prompt, question.jpeg, tokens, question.max_tokens, wire.Idle.LEDGER, ANSWER_S, hints,
            key=question.key, early=False, grammar=question.grammar, schema=question.schema,
        )  # fmt: skip
        is_done = False
        try:
            await self._send(begin)
            while not is_done:
                commit = await self._commit(step)
                new = commit.tokens[len(tokens) - commit.start :]
                digest = wire.extend_digest(digest, new)
                if commit.start > len(tokens) or digest != commit.digest:
                    raise Lost("a commit was about another answer")
                tokens += new
                is_done = commit.done
                if new:
                    yield new
        finally:
            if not is_done and self._socket is not None:
                # Never waited for: whoever gave up the answer does not wait for the verifier.
                with contextlib.suppress(zmq.ZMQError):
                    self._socket.send(wire.encode(wire.EndStep(step, "the client is gone or has enough")), zmq.NOBLOCK)

    async def _commit(self, step: int) -> wire.Commit:
        """Return the next commit of a step. Raises Later, Lost and ApiError where there is none."""
        while True:
            message = await self._receive()
            about = getattr(message, "step", None)
            if isinstance(message, wire.Redirect):
                await self._follow(message)
                raise Lost("its verifier is drained")
            if about != step:
                if isinstance(message, wire.Fault) and about is None and message.code is wire.FaultCode.NO_SESSION:
                    raise Lost(printable(message.message))
            elif isinstance(message, wire.Commit):
                return message
            elif isinstance(message, wire.Busy):
                raise Later(message)
            elif isinstance(message, wire.EndStep):
                if self._is_home:
                    raise unavailable(f"the verifier ended the answer: {printable(message.reason)}")
                raise Lost(printable(message.reason))
            elif isinstance(message, wire.Fault):
                raise _refusal(message)

    async def _greet(self, question: Question) -> None:
        """Have a session, with the question's sampling and class. Raises Later, Lost and ApiError."""
        if self._socket is None:
            self._open(self._home.address, "")
            self._is_home = True
        greeting, home = (question.sampling, question.service_class), self._home
        if greeting == self._greeting:
            return
        until, self._greeting = time.monotonic() + GREET_S, None
        while True:
            await asyncio.sleep(self._hellos.use(None, 1.0, time.monotonic()))
            hello = wire.Hello(
                home.tokenizer, home.vocabulary, sampling=question.sampling, service_class=question.service_class,
                resume=self._resume, ticket=self._ticket, prefix=wire.prefix_of(question.prompt),
            )  # fmt: skip
            await self._send(hello)
            while not isinstance(message := await self._receive(until), wire.Redirect):
                if isinstance(message, wire.Welcome):
                    self._resume, self._greeting = message.session, greeting
                    return
                if isinstance(message, wire.Busy) and message.step is None:
                    raise Later(message)
                if isinstance(message, wire.Fault) and message.step is None:
                    if message.code in (wire.FaultCode.NO_SESSION, wire.FaultCode.NO_TICKET):
                        raise Lost(printable(message.message))
                    raise _refusal(message)
            await self._follow(message)

    async def _follow(self, redirect: wire.Redirect) -> None:
        """Connect to where a verifier sends this session. Raises Lost, or ApiError where there is no such place."""
        why = printable(redirect.reason) or "it sends requests elsewhere"
        if not redirect.address:
            was_home = self._is_home
            self.close()
            if was_home:
                raise unavailable(f"the verifier takes no requests now: {why}")
            raise Lost(why)
        flags, home = ("keys of that verifier", "--allow-plain"), self._home
        allows_plain = home.allow_plain and home.keys is None
        try:
            check_address(redirect.address, bool(home.keys and redirect.server_key), allows_plain, flags)
        except ValueError as error:
            raise unavailable(f"the gateway names a replica that cannot be used: {error}") from None
        self._ticket, self._is_home = redirect.ticket, False
        self._open(redirect.address, redirect.server_key)

    def _open(self, address: str, server_key: str) -> None:
        """Connect to a verifier, which has this key or, where that is empty, the one in the folder of keys."""
        self.close()
        dealer = self._socket = self._context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.maxmsgsize = wire.MAX_MESSAGE_BYTES
        if self._home.keys is not None:
            server, dealer.curve_publickey, dealer.curve_secretkey = client_keys(self._home.keys, self.client)
            dealer.curve_serverkey = server_key.encode() or server
        dealer.ipv6 = is_v6(host_of(address))
        dealer.connect(address)

    async def _send(self, message: wire.AnyMessage) -> None:
        assert self._socket is not None, "a message before the connection"
        self._heard_at = self._pinged_at = time.monotonic()
        await self._socket.send(wire.encode(message))

    async def _receive(self, until: float | None = None) -> wire.AnyMessage:
        """Return the next message, answering and sending pings meanwhile. Raises Lost, or ApiError after `until`."""
        assert self._socket is not None, "a message before the connection"
        while True:
            now = time.monotonic()
            if until is not None and now > until:
                self.close()
                if not self._is_home:  # it was sent to a replica that is gone, as its gateway will know
                    raise Lost("the replica does not answer")
                raise unavailable("no verifier answers; it may still be loading its model")
            if now > self._heard_at + SILENT_S:
                raise Lost(f"the verifier was silent for {SILENT_S:g} s")
            if now > self._pinged_at + PING_S:
                self._pinged_at = now
                await self._socket.send(wire.encode(wire.Ping(0)))
            if not await self._socket.poll(int(1000 * PING_S)):
                continue
            try:
                (frame,) = await self._socket.recv_multipart()
                message = wire.decode(frame)
                wire.check_tokens(message, self._home.vocabulary)
            except (wire.WireError, ValueError) as error:
                raise Lost(f"the verifier sent what is no message: {error}") from None
            self._heard_at = time.monotonic()
            if isinstance(message, wire.Ping):
                await self._socket.send(wire.encode(wire.Pong(message.nonce)))
            else:
                return message


def _refusal(fault: wire.Fault) -> ApiError | Lost:
    """Return what a fault is to the request: an error for its client, or a session that has to be opened anew."""
    text, code = printable(fault.message), fault.code
    if code is wire.FaultCode.TOO_LARGE:
        return too_long(text)
    if code is wire.FaultCode.NO_SESSION:
        return Lost(text)
    if code in (wire.FaultCode.BAD_IMAGE, wire.FaultCode.MALFORMED, wire.FaultCode.UNSUPPORTED_SAMPLING):
        return refused(text)
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, f"{code.name}: {text}", "internal_error")


class VerifierSessions:
    """At most `most` sessions at once, of one client at most `per_client`; further requests wait in turn."""

    def __init__(self, home: Home, most: int, per_client: int) -> None:
        self._home, self._context = home, zmq.asyncio.Context()
        self._free = asyncio.Semaphore(most)
        self._own = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(per_client))
        self._idle: list[VerifierSession] = []
        self._earlier = defaultdict[str, Ngrams](Ngrams)
        """Earlier answers of each client, which are hints for its next ones."""
        self._waiting = Counter[str]()

    async def answer(self, client: str, question: Question) -> AsyncGenerator[list[int], None]:
        """Yield the tokens of an answer for a client as they are committed. Raises ApiError."""
        if self._waiting[client] >= MOST_WAITING:
            raise too_many(f"{MOST_WAITING} of your requests wait already", LATER_S)
        earlier, tokens = self._earlier[client], list[int]()
        async with contextlib.AsyncExitStack() as stack:
            self._waiting[client] += 1
            try:
                await stack.enter_async_context(self._own[client])
                await stack.enter_async_context(self._free)
            finally:
                self._waiting[client] -= 1
            session = self._take(client, question)
            stack.callback(self._idle.append, session)
            answers = contextlib.aclosing(session.answer(question, earlier.hints))
            async for new in await stack.enter_async_context(answers):
                tokens += new
                yield new
        earlier.remember(tokens)

    def _take(self, client: str, question: Question) -> VerifierSession:
        """Return a session that this client used before, one of the same greeting first; else another in its place."""
        own = [each for each in self._idle if each.client == client or self._home.keys is None]
        if own:
            chosen = ([each for each in own if each.is_ready_for(question)] or own)[-1]
            self._idle.remove(chosen)
            return chosen
        if self._idle:
            self._idle.pop(0).close()
        return VerifierSession(self._context, self._home, client)

    def close(self) -> None:
        """End all connections."""
        for session in self._idle:
            session.close()
        self._context.destroy(linger=0)
