"""The verifier under attack: the real server on virtual time, vandals that send anything, an honest robot beside them.

The engine is a mock whose tokens can be computed by hand. Rows that are sampled by another rule than the greedy one are
judged by that very rule (`speculation.sampling`), on logits of its own.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np

from cloud_verifier import sessions
from cloud_verifier.config import ServerConfig
from cloud_verifier.interfaces import LayerVerdicts, Row
from cloud_verifier.machine import Machine
from cloud_verifier.server import Server
from cloud_verifier.tree import Tree
from speculation import wire
from speculation.acceptance import Verdict
from speculation.sampling import GREEDY
from speculation.text import printable
from speculation.wire import (
    BeginStep,
    Busy,
    Commit,
    Draft,
    EarlyTokens,
    EndStep,
    Fault,
    FaultCode,
    Features,
    Fetch,
    Hello,
    Idle,
    Masses,
    Ping,
    Pong,
    Redirect,
    Stage,
    Welcome,
    Working,
)
from tests.cloud_verifier.fake_target import VOCABULARY, FakeEngine, FakeSelfDraft, greedy, next_token
from tests.fuzz.campaign import Act, Broken, Choose, Side
from tests.fuzz.generator import disturbed, text
from vlm_nav_evaluation.virtual_time.link import VirtualMailbox
from vlm_nav_evaluation.virtual_time.timeline import Timeline

HONEST = b"honest"
VANDALS, SESSIONS = 5, 6
SAMPLINGS = (
    "greedy", "greedy", "coupled(temperature=0.8)", "point(temperature=1.0)", "whole(temperature=1.0)",
    "split(temperature=0.9)", "sparse(temperature=0.7)",
)  # fmt: skip
REJECTION = ("whole", "split", "sparse")
MOST_GONE = 256
TOGETHER = 8
"""Messages that come at the same moment."""
STARVED_S = 90.0
"""An honest robot whose answer gets no further for so long was starved: a peer that is full names at most 30 s, and
neither `Busy` nor a new session is an answer."""
REVOKED_EACH = 500
"""Turns of a server with keys, after which the vandals' key is taken back; they come again with another one."""
MEMORY = 90
"""Blocks: so few that sessions have to wait for each other's."""
IMAGE = b"jpeg of the room"


class FuzzEngine(FakeEngine):
    """Rows whose sampling draws at random are judged by their own rule."""

    def verify(self, rows: Sequence[Row]) -> Iterator[LayerVerdicts]:
        """Judge rows; what the base keeps of them for its tests would grow for ever."""
        for kept in (self.batches, self.chunks, self.released):
            kept.clear()
        yield from super().verify(rows)

    def _judge(self, row: Row) -> Verdict:
        if row.sampling == GREEDY:
            return super()._judge(row)
        self._last[row.index] = row
        state = self.rows[row.index]
        seed = next_token(state.prompt, state.jpeg, state.answer)
        logits = np.random.default_rng(seed).normal(size=(1 + len(row.tokens), VOCABULARY)).astype(np.float32)
        return row.rule().judge(row.tokens, row.parents, logits, row.draws)


class FuzzSelfDraft(FakeSelfDraft):
    def draft(self, rows: Sequence[Row]) -> Iterator[Mapping[int, Tree]]:
        self.batches.clear()
        self.chunks.clear()
        yield from super().draft(rows)


class FuzzPost(VirtualMailbox):
    """What the server sends must be within the wire's own limits."""

    def __init__(self, timeline: Timeline, has_keys: bool) -> None:
        super().__init__(timeline)
        self._timeline = timeline
        self.has_keys = has_keys
        self.gone: dict[bytes, None] = {}
        """The last ones, in their order."""
        self.takers: dict[bytes, Any] = {}
        self.taken_back: list[str] = []

    def send(self, peer: bytes, message: wire.AnyMessage, droppable: bool = False) -> bool:
        if peer in self.gone:
            return False
        message = wire.decode(wire.encode(message))
        sentence = _sentence(message)
        if sentence != printable(sentence, wire.MAX_TEXT_CHARS):
            raise Broken(f"a sentence to {peer!r} is not printable: {sentence!r}")
        if peer in self.takers:
            self.takers[peer].take(message, self._timeline.now)
        return True

    def client(self, peer: bytes) -> str:
        """All vandals have one key, which is not the honest robot's."""
        return "" if not self.has_keys else "honest" if peer == HONEST else "vandal"

    def revoked(self) -> Sequence[str]:
        revoked, self.taken_back = self.taken_back, []
        return revoked


def _sentence(message: wire.AnyMessage) -> str:
    """Return what a message has for people."""
    if isinstance(message, EndStep | Redirect):
        return message.reason
    return message.message if isinstance(message, Fault | Busy) else ""


@dataclass
class Honest:
    """A robot that keeps to the protocol. Raises Broken for an answer that is not the target's, or for none."""

    answers: int = 0
    token: str = ""
    step: int = 0
    round: int = 0
    has_session: bool = False
    answer: list[int] = field(default_factory=list)
    truth: list[int] = field(default_factory=list)
    begin: BeginStep | None = None
    outbox: list[wire.AnyMessage] = field(default_factory=list)
    at: float = 0.0
    """When something is to be sent again."""
    moved_at: float = 0.0
    ping_at: float = 0.0

    def turn(self, now: float) -> list[wire.AnyMessage]:
        """Return what it sends now."""
        if now - self.moved_at > STARVED_S:
            raise Broken(f"the honest robot's step {self.step} got no further for {now - self.moved_at:.0f} s")
        if not self.has_session:
            if now >= self.at:
                self.at = now + 1.0
                self.outbox.append(Hello("t" * 16, VOCABULARY, resume=self.token))
        elif self.begin is None:
            self._ask(now)
        elif now >= self.at:
            self.at = now + 1.0
            self.outbox.append(self.begin if self.begin.idle is Idle.DECODE else self._draft())
        if now >= self.ping_at:
            self.ping_at = now + 0.25
            self.outbox.append(Ping(7))
        sent, self.outbox = self.outbox, []
        return sent

    def _ask(self, now: float) -> None:
        if len(self.answer) == len(self.truth):
            self.answers += 1
            self.answer, self.truth = [], greedy(f"question {self.answers}", IMAGE, 8)
        self.step += 1
        idle = list(Idle)[self.step % 3]
        trace = b"%016d" % self.answers  # by which an answer that was lost is taken up under the next number
        self.begin = BeginStep(self.step, f"question {self.answers}", IMAGE, list(self.answer), 8, idle, trace=trace)
        self.at, self.round = now + 1.0, 0
        self.outbox.append(self.begin)
        if idle is not Idle.DECODE:
            self.outbox.append(self._draft())

    def _draft(self) -> Draft:
        self.round += 1
        here = len(self.answer)
        right = self.truth[here : here + self.round % 4]
        return Draft(self.step, self.round, here, self._digest(here), [*right, 1 + self.round % 4])

    def _digest(self, end: int) -> bytes:
        return wire.extend_digest(wire.begin_digest(f"question {self.answers}", IMAGE), self.truth[:end])

    def take(self, message: wire.AnyMessage, now: float) -> None:
        match message:
            case Welcome():
                self.token, self.has_session, self.begin = message.session, True, None
            case Commit() if message.step == self.step and self.begin is not None:
                end = message.start + len(message.tokens)
                if message.tokens != self.truth[message.start : end] or message.digest != self._digest(end):
                    raise Broken(f"{message} to the honest robot, whose answer is {self.truth}")
                if message.done != (end == len(self.truth)):
                    raise Broken(f"{message} to the honest robot: its answer {self.truth} ends elsewhere")
                if message.start <= len(self.answer) < end:
                    self.answer, self.moved_at = self.truth[:end], now
                if len(self.answer) == len(self.truth):
                    self.begin = None
                elif self.begin.idle is not Idle.DECODE:
                    self.outbox.append(self._draft())
                    self.at = now + 1.0
            case Busy():
                self.begin, self.has_session = None, False
                self.at = now + message.retry_after_s
            case Fault() if message.code is FaultCode.NO_SESSION:
                self.has_session, self.begin, self.at = False, None, now
            case Fault() | EndStep():
                raise Broken(f"{message} to the honest robot")


@dataclass
class Vandal:
    """A peer that knows the protocol well enough to break it anywhere."""

    peer: bytes
    left: int
    """Acts until it is gone."""
    sampling: str = "greedy"
    token: str = ""
    begin: BeginStep | None = None
    answer: list[int] = field(default_factory=list)
    digest: bytes = bytes(8)
    round: int = 0
    step: int = 0

    def take(self, message: wire.AnyMessage, now: float) -> None:
        """Learn from what came."""
        if isinstance(message, Welcome):
            self.token = message.session
            self.begin = None
        elif isinstance(message, Fault) and message.code is FaultCode.NO_SESSION:
            self.begin, self.token = None, self.token if message.step is not None else ""
        elif isinstance(message, Busy | EndStep):
            self.begin = None
        elif self.begin is not None and isinstance(message, Commit) and message.step == self.begin.step:
            if message.done:
                self.begin = None
            elif message.start <= len(self.answer):
                self.answer = [*self.answer[: message.start], *message.tokens]
                self.digest = message.digest

    def good(self, rng: random.Random, tokens: Sequence[str]) -> wire.AnyMessage:
        """Return what a robot might send next."""
        draw = rng.random()
        if not self.token or draw < 0.03:
            resume = rng.choice((self.token, *tokens, "")) if draw < 0.3 else ""
            if not self.token:
                self.sampling = rng.choice(SAMPLINGS)
            return Hello("t" * 16, VOCABULARY, sampling=self.sampling, resume=resume)
        if self.begin is None or draw < 0.12:
            self.step += 1
            name = rng.choice(("long", "", "find")) + text(rng)
            key = rng.choice((0, 5))
            is_free = not self.sampling.startswith(REJECTION) or rng.random() < 0.1
            hints = [[1, 2, 3]] if draw < 0.04 and is_free else []
            self.answer = [1, 2, 3][: rng.randrange(4)] if rng.random() < 0.2 else []
            idle = rng.choice(list(Idle)) if is_free else Idle.WAIT
            self_draft = 4 if is_free and rng.random() < 0.1 else 0
            begin = BeginStep(
                self.step, name, IMAGE if rng.random() < 0.9 else b"", list(self.answer),
                rng.choice((1, 8, 40, 512)), idle, rng.choice((0.0, 0.3, 3600.0)), hints, self_draft, key,
                early=rng.random() < 0.8,
            )  # fmt: skip
            self.begin, self.round = begin, 0
            start = wire.begin_digest(begin.prompt, begin.jpeg, self.sampling, key)
            self.digest = wire.extend_digest(start, self.answer)
            return begin
        if draw < 0.25:
            return EndStep(self.begin.step, text(rng))
        if draw < 0.3:
            return rng.choice((Ping(7), Pong(9), Fetch(self.begin.step, len(self.answer), self.digest)))
        return self._draft(rng)

    def _draft(self, rng: random.Random) -> Draft:
        assert self.begin is not None
        self.round += rng.choice((0, 1, 1, 1, 2))
        ahead = [rng.randrange(VOCABULARY) for _ in range(rng.choice((0, 0, 0, 1, 3)))]
        tokens = [rng.randrange(VOCABULARY) for _ in range(rng.randrange(0, 9))]
        if rng.random() < 0.6:
            known = list(self.answer + ahead)
            for place in range(len(tokens) // 2):
                tokens[place] = next_token(self.begin.prompt, self.begin.jpeg, known)
                known.append(tokens[place])
        is_tree = rng.random() < (0.05 if self.sampling.startswith(REJECTION) else 0.3)
        parents = [rng.randrange(-1, place) for place in range(len(tokens))] if is_tree else None
        draft = Draft(
            self.begin.step, max(1, self.round), min(512, len(self.answer) + len(ahead)),
            wire.extend_digest(self.digest, ahead), tokens, parents, draft_ms=rng.choice((0, 50)),
        )  # fmt: skip
        if self.sampling.startswith(REJECTION) and rng.random() < 0.8:
            draft = _with_evidence(draft, self.sampling, rng)
        return draft


def _with_evidence(draft: Draft, sampling: str, rng: random.Random) -> Draft:
    """Return a chain with what its tokens are claimed to be sampled from."""
    tokens = draft.tokens
    if sampling.startswith("whole"):
        rows = np.random.default_rng(rng.randrange(9)).random((len(tokens), VOCABULARY)).astype("<f4")
        whole = [Masses(row.tobytes(), float(row.sum())) for row in rows]
        return Draft(draft.step, draft.round, draft.start, draft.digest, tokens, whole=whole)
    drawn = rng.choice((None, None, rng.randrange(VOCABULARY)))
    chosen = [rng.choice((0.5, 1.0, 0.01)) for _ in tokens]
    return Draft(draft.step, draft.round, draft.start, draft.digest, tokens, chosen=chosen, drawn=drawn)


class Watch(logging.Handler):
    """Keeps the tracebacks that the verifier logs: each is a failure that it did not foresee."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.tracebacks: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.tracebacks.append(f"{record.getMessage()}: {record.exc_info[1]!r}")

    def check(self) -> None:
        """Raise Broken for the first traceback."""
        if self.tracebacks:
            raise Broken(self.tracebacks[0])


@contextlib.contextmanager
def watched(dice: random.Random) -> Iterator[Watch]:
    """Keep the logs quiet and the verifier's tracebacks, and let resume tokens follow from `dice`."""
    watch, log, edge = Watch(), logging.getLogger("cloud_verifier"), logging.getLogger("edge_drafter")
    before = log.level, edge.level, log.propagate
    log.addHandler(watch)
    log.propagate = False
    log.setLevel(logging.WARNING)
    edge.setLevel(logging.CRITICAL)
    try:
        with mock.patch.object(sessions.secrets, "token_hex", lambda size: dice.randbytes(size).hex()):
            yield watch
    finally:
        log.removeHandler(watch)
        log.setLevel(before[0])
        edge.setLevel(before[1])
        log.propagate = before[2]


class Verifier:
    """One server from its start to its end."""

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(f"tokens {seed}")
        self._seed = seed
        self.timeline = Timeline()
        self.post = FuzzPost(self.timeline, has_keys=random.Random(f"keys {seed}").random() < 0.5)
        self.vandals: dict[bytes, Vandal] = {}
        self.honest = Honest(truth=[1])
        self.honest.answer = [1]
        self.made = 0
        self.history: deque[bytes] = deque(maxlen=256)
        self.tokens: deque[str] = deque(maxlen=16)
        """Resume tokens that were given out, for those who steal them."""
        self.server: Server | None = None

    @property
    def counts(self) -> dict[str, int]:
        server = self.server
        assert server is not None
        return {
            "honest answers": self.honest.answers - 1,
            "faults": server.outbox.faults,
            "ignored": server._inbox.ignored,
            "steps": server.step_log.steps,
            "sessions": server._sessions.opened,
            "busy": server.outbox.busy,
            "evicted": server.outbox.evicted,
        }

    def live(self, choose: Choose) -> None:
        with watched(self._rng) as watch:
            self.timeline.run([lambda: self._live(choose, watch)])

    def _live(self, choose: Choose, watch: Watch) -> None:
        dice = random.Random(f"server {self._seed}")
        policy, beside = dice.choice(("fcfs", "full_budget", "wisp")), dice.choice((FuzzSelfDraft(), None))
        config = ServerConfig.of(Path("model"), max_sessions=SESSIONS, early_rate=1000.0, max_draft=16, policy=policy)
        engine = FuzzEngine(memory=MEMORY)
        self.server = Server(Machine(engine, beside), config, self.post, self.timeline.clock)
        self.post.takers[HONEST] = self.honest
        turns = 0
        while (act := choose(self)) is not None:
            self.timeline.sleep(act.gap_s)
            if act.frames:
                self.post.deliver(act.peer, *act.frames)
            else:
                self.post.gone[act.peer] = None
                self.post.takers.pop(act.peer, None)
            if act.frames and not act.gap_s and len(self.post.inbox) < TOGETHER:
                continue
            for message in self.honest.turn(self.timeline.now):
                self.post.deliver(HONEST, wire.encode(message))
            self.server.turn()
            turns += 1
            if self.post.has_keys and turns % REVOKED_EACH == 0:
                self.post.taken_back.append("vandal")
            watch.check()
            while len(self.post.gone) > MOST_GONE:
                del self.post.gone[next(iter(self.post.gone))]


def _wrong(draft: Draft, rng: random.Random) -> Draft:
    """Return a draft about another prefix than the one that it names."""
    return rng.choice(
        (
            msgspec.structs.replace(draft, digest=rng.randbytes(8)),
            msgspec.structs.replace(draft, start=min(512, draft.start + 1)),
            msgspec.structs.replace(draft, step=draft.step + 1),
        )
    )


def _downward(rng: random.Random, vandal: Vandal) -> wire.AnyMessage:
    """Return a message that goes from verifier to edge only."""
    return rng.choice(
        (
            EarlyTokens(vandal.step, 1, 0, 0, 5, 2, 0.5),
            Commit(vandal.step, 1, 0, [1, 2], vandal.digest, False),
            Welcome("session", "model", "t" * 16, 6, 4, [1, 2], [0]),
            Fault(FaultCode.INTERNAL, text(rng), vandal.step),
            Busy(0.5, text(rng), vandal.step),
            Features(vandal.step, 0, [3, 4], bytes(24)),
            Redirect("tcp://127.0.0.1:1", "", b"ticket", text(rng)),
            Working(vandal.step, rng.choice(list(Stage))),
        )
    )


def _act(knows: Verifier, rng: random.Random) -> Act:
    if len(knows.vandals) < VANDALS:
        knows.made += 1
        peer = b"vandal %d" % knows.made
        knows.vandals[peer] = knows.post.takers[peer] = Vandal(peer, rng.randrange(5, 80))
    vandal = rng.choice(list(knows.vandals.values()))
    vandal.left -= 1
    gap = rng.choice((0.001, 0.01, 0.1, 0.5)) if rng.random() < 0.15 else 0.0
    if vandal.left <= 0:
        del knows.vandals[vandal.peer]
        if vandal.token:
            knows.tokens.append(vandal.token)
        if knows.post.has_keys:  # of no use to anybody else
            knows.tokens.append(knows.honest.token)
        return Act(vandal.peer, (), gap + rng.choice((0.0, 0.0, 7.0)))
    good, draw = vandal.good(rng, knows.tokens), rng.random()
    frames: tuple[bytes, ...] = (disturbed(good, knows.history, rng),)
    if draw < 0.02 and isinstance(good, Draft):
        frames = (wire.encode(_wrong(good, rng)),)
    elif draw < 0.03:
        frames = (*frames, *frames)
    elif draw < 0.05:
        frames = (b"",) if draw < 0.035 else (wire.encode(_downward(rng, vandal)),)
    return Act(vandal.peer, frames, gap)


VERIFIER = Side("server", Verifier, _act)
"""Vandals against a server."""
