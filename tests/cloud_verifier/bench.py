"""A server on a virtual clock, with a post box that is no socket and an engine that is no model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec

from cloud_verifier.config import ServerConfig
from cloud_verifier.machine import Machine
from cloud_verifier.server import Server
from speculation import wire
from speculation.profiles import RAW, DeviceProfile
from speculation.trace import Trace
from speculation.wire import BeginStep, Busy, Commit, Draft, Fault, FaultCode, Hello, Idle, Ping, Welcome
from tests.cloud_verifier.fake_target import VOCABULARY, FakeEngine, FakeSelfDraft

CONFIG = ServerConfig.of(Path("model"), max_sessions=2, early_rate=1000.0)
HELLO = Hello(tokenizer="t" * 16, vocabulary=VOCABULARY)
JPEG = b"jpeg"


class FakePost:
    """Time passes only in `wait`; mail arrives when it is due."""

    def __init__(self) -> None:
        self.now = 0.0
        self.mail: list[tuple[float, bytes, list[bytes]]] = []
        self.sent: list[tuple[float, bytes, wire.AnyMessage]] = []
        self.gone: set[bytes] = set()
        self.clients: dict[bytes, str] = {}
        self.taken_back: list[str] = []
        self.dropped = self.restarts = 0

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        due = min((at for at, _, _ in self.mail), default=self.now + seconds)
        self.now = max(self.now, min(due, self.now + seconds))

    def receive(self) -> tuple[bytes, list[bytes]] | None:
        for index, (at, peer, frames) in enumerate(self.mail):
            if at <= self.now:
                del self.mail[index]
                return peer, frames
        return None

    def send(self, peer: bytes, message: wire.AnyMessage, droppable: bool = False) -> bool:
        if peer in self.gone:
            return False
        self.sent.append((self.now, peer, wire.decode(wire.encode(message))))
        return True

    def admit(self, peer: bytes, has_session: bool = True) -> None: ...

    def notify(self) -> None: ...

    def waits(self, peer: bytes) -> bool:
        return any(at <= self.now and who == peer for at, who, _ in self.mail)

    def forget(self, peer: bytes) -> None: ...

    def client(self, peer: bytes) -> str:
        return self.clients.get(peer, "")

    def revoked(self) -> list[str]:
        revoked, self.taken_back = self.taken_back, []
        return revoked


class Bench:
    def __init__(
        self,
        config: ServerConfig = CONFIG,
        profile: DeviceProfile = RAW,
        engine: FakeEngine | None = None,
        self_draft: FakeSelfDraft | None = None,
        threads: int = 0,
    ) -> None:
        self.post = FakePost()
        self.engine = engine or FakeEngine()
        self.trace = Trace(self.post.clock)
        self.machine = Machine(self.engine, self_draft, profile)
        self.server = Server(
            self.machine, config, self.post, self.post.clock, trace=self.trace, preparation_threads=threads
        )

    def send(self, peer: bytes, message: wire.AnyMessage | bytes, after: float = 0.0) -> None:
        payload = message if isinstance(message, bytes) else wire.encode(message)
        self.post.mail.append((self.post.now + after, peer, [payload]))

    def turns(self, count: int = 30) -> None:
        for _ in range(count):
            self.server.turn()

    def received(self, peer: bytes, *, since: float = 0.0) -> list[wire.AnyMessage]:
        return [message for at, who, message in self.post.sent if who == peer and at >= since]

    def ask(self, peer: bytes, *messages: wire.AnyMessage | bytes) -> list[wire.AnyMessage]:
        """Send it, let the server work, and return what `peer` received of it."""
        before = len(self.received(peer))
        for message in messages:
            self.send(peer, message)
        self.turns()
        return self.received(peer)[before:]

    def with_robots(self, *peers: bytes) -> Bench:
        """Return itself, once these have a session each."""
        for peer in peers:
            self.welcome(peer)
        return self

    def welcome(self, peer: bytes, hello: Hello = HELLO) -> Welcome:
        answers = self.ask(peer, hello)
        assert len(answers) == 1 and isinstance(answers[0], Welcome)
        return answers[0]


class Robot:
    """Asks one question again and again, checks every token, obeys Busy, and begins again where it stood.

    With `dice` it drafts, right and wrong, and is silent for a while now and then; without, the verifier decodes.
    """

    def __init__(
        self, bench: Bench, name: str, question: BeginStep, truth: list[int], dice: random.Random | None = None,
        hello: Hello = HELLO,
    ) -> None:  # fmt: skip
        self.bench, self.peer, self.truth = bench, name.encode(), truth
        self._question, self._dice = question, dice
        self.answer: list[int] = []
        self.answers = self.tokens = self.refused = self.evicted = 0
        self._step, self._round, self._read = 1, 0, 0
        self._begun, self._at = False, 0.0
        bench.send(self.peer, hello)

    def turn(self) -> None:
        """Take what came, and send what is due."""
        now, sent = self.bench.post.now, self.bench.post.sent
        new, self._read = sent[self._read :], len(sent)
        for message in (message for _, who, message in new if who == self.peer):
            self._take(message, now)
        if now >= self._at:
            self.bench.send(self.peer, self._next())
            dice = self._dice
            pause = 1.0 if dice is None else dice.random() * (8.0 if dice.random() < 0.1 else 0.2)
            self._at = max(self._at, now + pause)

    def _take(self, message: wire.AnyMessage, now: float) -> None:
        if isinstance(message, Commit) and message.step == self._step:
            assert message.start <= len(self.answer)
            self.answer = [*self.answer[: message.start], *message.tokens]
            assert self.answer == self.truth[: len(self.answer)]
            self.tokens += len(message.tokens) if message.passes else 0
            if message.done:
                assert self.answer == self.truth
                self.answers, self._step = self.answers + 1, self._step + 1
                self.answer, self._begun, self._at = [], False, now
        elif isinstance(message, Busy):
            self.refused, self._begun, self._at = self.refused + 1, False, now + message.retry_after_s
        elif isinstance(message, Fault):
            assert message.code is FaultCode.NO_SESSION, message
            self.evicted, self._begun = self.evicted + 1, False

    def _next(self) -> wire.AnyMessage:
        if not self._begun:
            self._begun = True
            idle = Idle.DECODE if self._dice is None else self._dice.choice([Idle.WAIT, Idle.WAIT, Idle.DECODE])
            return msgspec.structs.replace(self._question, step=self._step, committed=self.answer, idle=idle)
        if self._dice is None:
            return Ping(1)
        self._round += 1
        right = self.truth[len(self.answer) :][: self._dice.randrange(4)]
        digest = wire.extend_digest(wire.begin_digest(self._question.prompt, self._question.jpeg), self.answer)
        return Draft(self._step, self._round, len(self.answer), digest, [*right, self._dice.randrange(VOCABULARY)])


def begin(step: int = 1, prompt: str = "long", **fields: object) -> BeginStep:
    return BeginStep(step, prompt, JPEG, **fields)  # type: ignore[arg-type]


def draft(tokens: list[int], round: int = 1, prompt: str = "long", step: int = 1, behind: Sequence[int] = ()) -> Draft:
    """Return a draft behind so many tokens of the answer."""
    digest = wire.extend_digest(wire.begin_digest(prompt, JPEG), behind)
    return Draft(step, round, len(behind), digest, tokens)


def tokens_of(messages: list[wire.AnyMessage]) -> list[int]:
    return [token for message in messages if isinstance(message, Commit) for token in message.tokens]


def faults(messages: list[wire.AnyMessage]) -> list[FaultCode]:
    return [message.code for message in messages if isinstance(message, Fault)]
