"""The robot under attack: its real link and its real step loop on virtual time, and a verifier that sends anything.

What must hold whatever comes: no error but those that a step may end in, no step that outlives its deadline, no token
that no commit named with the digest of this very answer, no token outside the vocabulary, no text that is taken for an
action but one of the ten.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from cloud_verifier.tree import Tree
from edge_drafter import Drafter, DraftingConfig, Interruption, Mode, StepInterrupted, StepRequest, sources_of
from edge_drafter.answer import Answer
from edge_drafter.link import LinkConfig, LinkState, ZmqLink
from speculation import wire
from speculation.address import host_of, is_loopback
from speculation.cancellation import Abandoned, Stop
from speculation.language.growing_text import GrowingText
from speculation.language.prompts import ACTIONS, committed_action, parse_answer
from speculation.sampling import SamplingScheme
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
    Masses,
    Ping,
    Pong,
    Redirect,
    Stage,
    Welcome,
    Working,
)
from tests.edge_drafter.fakes import FakeModel, NextToken, hashed_target
from tests.fuzz.campaign import Act, Broken, Choose, Side
from tests.fuzz.generator import disturbed, text
from tests.fuzz.verifier import watched
from tests.fuzz.virtual_link import VirtualLink, Wire, virtual_links
from vlm_nav_evaluation.virtual_time.timeline import Timeline

WORDS = (
    "Action:", " forward", " turn left", " turn right", " stop", " small", " medium", " large", "\n", ".", " The",
    " silver", " bottle", " is", " ahead", " Action: forward", " Action: turn left large\n", " sto", "p", "\x1b[2J",
)  # fmt: skip
VOCABULARY, EOS = len(WORDS) + 1, len(WORDS)
MAX_TOKENS = 24
DEADLINE_S, LATE_S = 20.0, 1.0
"""A question's deadline, and how much later it may end: the longest draft forward and a look at the link."""
DRAFT_S = 0.02
STEPS = 4
"""So few numbers and questions, that they come again and what is stale may look current."""
MODES = (Mode.CLOUD, Mode.SD, Mode.FSD, Mode.FULL, Mode.PIPELINED, Mode.SERVER_SD)
SCHEMES = (
    "greedy",
    "greedy",
    "greedy",
    "coupled(temperature=0.8)",
    "split(temperature=0.9)",
    "sparse(temperature=0.7)",
)
ADDRESS = "tcp://127.0.0.1:1"
REDIRECTED = ("", ADDRESS, "tcp://127.0.0.1:2", "tcp://localhost:3", "tcp://192.0.2.1:5", "tcp://127.0.0.1.evil:1", "x")
HELLO_TOKENIZER = "t" * 16
FRAME = b"jpeg of the room"
LAYERS = 4
COUNTED = ("answers", "actions", "steps", "connections", *(cause.value for cause in Interruption))


_hashed = hashed_target(5)


def read(tokens: Sequence[int]) -> str:
    """Return the text of tokens. Raises IndexError for one outside the vocabulary, which no tokenizer has to take."""
    return "".join(WORDS[token] for token in tokens if token != EOS)


class TimedModel(FakeModel):
    """A draft model on virtual time; it refuses tokens outside its vocabulary, as real ones do."""

    def __init__(self, sleep: Callable[[float], None], following: NextToken, vocabulary: int) -> None:
        super().__init__(following)
        self._sleep, self._vocabulary = sleep, vocabulary
        self.prompt = ""

    def begin(self, prompt: str, image: bytes, committed: Sequence[int] = (), stop: Stop | None = None) -> None:
        self._check(committed)
        self.prompt = prompt
        super().begin(prompt, image, committed, stop)

    def extend(
        self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None
    ) -> npt.NDArray[np.floating[Any]]:
        self._check(tokens)
        return super().extend(tokens, parents, stop)

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        self._check([next_token])
        return super().commit(path, next_token)

    def _check(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if not 0 <= token < self._vocabulary:
                raise ValueError(f"token {token} is outside the vocabulary 0..{self._vocabulary - 1}")

    def _pass_time(self, stop: Stop | None) -> None:
        for _ in range(LAYERS):
            self._sleep(DRAFT_S / LAYERS)
            if stop is not None and stop():
                raise Abandoned

    def _logits(self, prefix: Sequence[int]) -> npt.NDArray[np.floating[Any]]:
        row = np.zeros(self._vocabulary)
        row[self._following(prefix)] = 3.0
        return row


class Edge:
    """One robot from its start to its end."""

    def __init__(self, seed: str) -> None:
        dice = random.Random(f"robot {seed}")
        self.timeline = Timeline()
        self.scheme = SamplingScheme.parse(dice.choice(SCHEMES))
        self.wire = Wire(self.timeline, self._sent)
        self.hostile = Hostile(self)
        self.over = False
        self.counts = dict.fromkeys(COUNTED, 0)

    def live(self, choose: Choose) -> None:
        with watched(random.Random(0)), virtual_links(self.timeline):
            self.timeline.run([self._ask, lambda: self._attack(choose)])
        self.counts["connections"] = self.wire.opened
        for address in self.wire.addresses:
            if not is_loopback(host_of(address)):
                raise Broken(f"a robot without keys was sent to {address}")

    def _attack(self, choose: Choose) -> None:
        try:
            while (act := choose(self.hostile)) is not None:
                self.timeline.sleep(act.gap_s)
                for payload in act.frames:
                    self.hostile.learn(payload)
                    self.wire.inbox.put(payload)
        finally:
            self.over = True

    def _sent(self, payload: bytes) -> None:
        try:
            self.hostile.take(wire.decode(payload))
        except wire.WireError as error:
            raise Broken(f"the robot sent what is no message: {error}") from error

    # --- the robot

    def _ask(self) -> None:
        hello = Hello(HELLO_TOKENIZER, VOCABULARY, sampling=self.scheme.text)
        link = VirtualLink(self.wire, LinkConfig(ADDRESS, hello), self.timeline.clock)
        drafters: dict[tuple[Mode, int], Drafter] = {}
        number = 0
        while not self.over:
            number += 1
            self._question(link, number, drafters)
        link.close()
        if link.state is LinkState.REFUSED and "failed" in link.why:
            raise Broken(link.why)

    def _question(self, link: ZmqLink, number: int, drafters: dict[tuple[Mode, int], Drafter]) -> None:
        """Ask one question as `EdgeDecoder` does: again from where it stood, until its deadline."""
        modes = (Mode.SD, Mode.FSD) if self.scheme.one_chain else MODES
        mode, committed = modes[number % len(modes)], tuple[int, ...]()
        until = self.timeline.now + DEADLINE_S
        while not self.over and self.timeline.now < until:
            if link.state is LinkState.REFUSED and "failed" in link.why:
                raise Broken(link.why)
            if not link.wait_nominal(1.0, lambda: self.over) or link.welcome is None:
                self.timeline.sleep(0.2)
                continue
            welcome = link.welcome
            most = min(welcome.max_draft, self.scheme.draft_limit(welcome.vocabulary))
            self.counts["steps"] += 1
            request = StepRequest(
                self.counts["steps"] % STEPS, f"find it {number % STEPS}", FRAME, tuple(welcome.eos), MAX_TOKENS,
                until - self.timeline.now, committed, self.scheme, number % STEPS,
            )  # fmt: skip
            try:
                result = self._drafter(drafters, mode, link, most).run(request)
            except StepInterrupted as stop:
                self.counts[stop.cause.value] += 1
                self._check(request, stop.committed, committed)
                committed = stop.committed
                if stop.cause is not Interruption.LINK_LOST:
                    return
            else:
                self._check(request, result.tokens, committed)
                if not Answer(b"", request.eos, MAX_TOKENS, result.tokens).done:
                    raise Broken(f"{result.tokens} is no whole answer; it ends with one of {request.eos}")
                self.counts["answers"] += 1
                return
            finally:
                if self.timeline.now > until + LATE_S:
                    raise Broken(f"a step ended {self.timeline.now - until:.1f} s after its deadline")

    def _drafter(self, drafters: dict[tuple[Mode, int], Drafter], mode: Mode, link: ZmqLink, most: int) -> Drafter:
        if (mode, most) not in drafters:
            changes = "gamma=4" if self.scheme.one_chain else ""
            config = DraftingConfig.of(mode, changes)
            model = TimedModel(self.timeline.sleep, lambda prefix: _hashed(prefix) * 7 % VOCABULARY, VOCABULARY)
            drafters[mode, most] = Drafter(
                sources_of(config, model), link, config, self.timeline.clock, max_draft=most, cpu_clock=lambda: 0.0
            )
        return drafters[mode, most]

    def _check(self, request: StepRequest, tokens: tuple[int, ...], before: tuple[int, ...]) -> None:
        if tokens[: len(before)] != before or len(tokens) > MAX_TOKENS:
            raise Broken(f"{tokens} followed {before}")
        named = wire.begin_digest(request.prompt, request.jpeg, self.scheme.text, request.key)
        digest = wire.extend_digest(named, list(tokens))
        if len(tokens) > len(before) and digest not in self.hostile.digests and not self.scheme.one_chain:
            raise Broken(f"{tokens} was committed, and no commit named it")
        try:
            answer = read(tokens)
        except IndexError:
            raise Broken(f"{tokens} has tokens outside the vocabulary 0..{VOCABULARY - 1}") from None
        growing = GrowingText(read)
        for token in tokens:
            growing.add([token])
            committed_action(growing.text)
        parsed = parse_answer(answer)
        if parsed.action is not None:
            self.counts["actions"] += 1
            exact = re.search(rf"Action:\s*{parsed.action.text.replace(' ', chr(92) + 's+')}", answer, re.IGNORECASE)
            if parsed.action not in ACTIONS or exact is None:
                raise Broken(f"{answer!r} was taken for {parsed.action}")


class Hostile:
    """A verifier that knows the protocol well enough to break it anywhere."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self.hello: Hello | None = None
        self.begin: BeginStep | None = None
        self.drafts: deque[Draft] = deque(maxlen=8)
        self.pings: deque[int] = deque(maxlen=8)
        self.answer: list[int] = []
        self.digest = bytes(8)
        self.digests: set[bytes] = set()
        """What commits that are well formed have named, for the questions of late."""
        self.history: deque[bytes] = deque(maxlen=128)
        self.has_session = False
        self.last: Commit | None = None
        """The last commit with a distribution, of which the robot may fetch the whole."""
        self.fetched = False

    def take(self, message: wire.AnyMessage) -> None:
        """Learn from what the robot sends."""
        match message:
            case Hello():
                self.hello, self.has_session = message, False
            case BeginStep():
                if not message.committed:
                    self.digests.clear()
                self.begin, self.answer = message, list(message.committed)
                start = wire.begin_digest(message.prompt, message.jpeg, self._edge.scheme.text, message.key)
                self.digest = wire.extend_digest(start, self.answer)
                self.drafts.clear()
            case Draft():
                self.drafts.append(message)
                if message.drawn is not None and message.start == len(self.answer) + 1:
                    self.answer, self.digest = [*self.answer, message.drawn], message.digest
            case Ping():
                self.pings.append(message.nonce)
            case EndStep():
                self.begin = None
            case Fetch():
                self.fetched = True
            case Fault(code=FaultCode.NO_SESSION):
                self.begin = None  # a link that was closed ends its session
            case Fault() | Welcome() | Commit() | EarlyTokens() | Features() | Busy() | Redirect() | Working():
                raise Broken(f"the robot sent {message}")

    def learn(self, payload: bytes) -> None:
        """Note which digest a payload names, if it is a commit."""
        with contextlib.suppress(wire.WireError):
            message = wire.decode(payload)
            if isinstance(message, Commit):
                self.digests.add(message.digest)

    def good(self, rng: random.Random) -> wire.AnyMessage:
        """Return what a verifier might send next."""
        draw = rng.random()
        if not self.has_session or draw < 0.02:
            self.has_session = True
            eos = [EOS] if rng.random() < 0.8 else [EOS, _token(rng)]
            return Welcome(
                f"session {rng.randrange(3)}", "model", HELLO_TOKENIZER, VOCABULARY, 4, [1, 2], eos,
                rng.choice((1, 4, 16, 64)), colours=["silver"], classes=["bottle"],
            )  # fmt: skip
        if self.fetched and self.last is not None and draw < 0.3:
            self.fetched = False
            return msgspec.structs.replace(self.last, rest=_masses(rng, VOCABULARY))
        if self.pings and draw < 0.4:
            return Pong(self.pings.popleft())
        step = self.begin.step if self.begin is not None else 1
        if draw < 0.44:
            reply = Fault(rng.choice(list(FaultCode)), text(rng), rng.choice((None, step, step - 1)))
            return reply if rng.random() < 0.1 else Ping(rng.randrange(2**63))
        if draw < 0.46:
            return Busy(rng.choice((0.1, 1.0)), text(rng), rng.choice((None, step))) if rng.random() < 0.3 else Ping(1)
        if draw < 0.462:
            return EndStep(step, text(rng))
        if draw < 0.464:
            return Redirect(rng.choice(REDIRECTED), rng.choice(("", "k" * 40)), rng.randbytes(4), text(rng))
        if draw < 0.47:
            return Working(rng.choice((step, step + 1)), rng.choice(list(Stage)))
        draft = self.drafts[-1] if self.drafts else None
        if draw < 0.65 and draft is not None:
            node = rng.randrange(-1, max(1, len(draft.tokens)))
            at = min(wire.MAX_ANSWER_TOKENS, len(self.answer) + rng.randrange(3))
            return EarlyTokens(step, draft.round, at, node, _token(rng), rng.randrange(4), rng.random())
        return self._commit(step, draft, rng)

    def _commit(self, step: int, draft: Draft | None, rng: random.Random) -> Commit:
        tokens: list[int] = []
        if draft is not None and draft.start == len(self.answer) and rng.random() < 0.7:
            tree = Tree.own(draft.tokens, wire.parents_of(draft), [1.0] * len(draft.tokens))
            node = rng.randrange(-1, len(draft.tokens)) if draft.tokens else -1
            while node != -1:
                tokens.insert(0, draft.tokens[node])
                node = tree.parents[node]
        tokens += [_token(rng) for _ in range(rng.choice((0, 1, 1, 2)))]
        room = self.begin.max_tokens - len(self.answer) if self.begin is not None else 3
        for place, token in enumerate(tokens):
            if token == EOS:
                tokens = tokens[: place + 1]
                break
        tokens, start = tokens[: max(0, room)], len(self.answer)
        digest = wire.extend_digest(self.digest, tokens)
        done = len(tokens) == room or EOS in tokens
        if rng.random() < 0.85:
            self.answer, self.digest = [*self.answer, *tokens], digest
        rest = None
        if self._edge.scheme.one_chain and not done and rng.random() < 0.6:
            rest = _masses(rng, rng.choice((1, 3, VOCABULARY)))
        # The digest names what is before the token that is left to the robot.
        round_ = draft.round if draft is not None else 0
        commit = Commit(step, round_, start, tokens, digest, done, 1, 0.01, rng.random(), 0.0, rest)
        self.last = commit if rest is not None else self.last
        return commit


def _masses(rng: random.Random, count: int) -> Masses:
    """Return a distribution over so many tokens, or over all."""
    numbers = np.random.default_rng(rng.randrange(99))
    row = numbers.random(count).astype("<f4")
    if count == VOCABULARY:
        return Masses(row.tobytes(), float(row.sum()))
    ids = np.sort(numbers.choice(VOCABULARY, count, replace=False)).astype("<u4")
    return Masses(row.tobytes(), float(row.sum()), ids.tobytes(), rng.choice((0.0, 0.1)))


def _token(rng: random.Random) -> int:
    """Return a token, now and then one that the robot's tokenizer does not have."""
    return rng.randrange(VOCABULARY) if rng.random() < 0.99 else rng.choice((VOCABULARY, 2**20 - 1))


def _act(knows: Hostile, rng: random.Random) -> Act:
    gap = rng.choice((0.002, 0.02, 0.05, 0.1)) if rng.random() < 0.25 else 0.0
    if rng.random() < 0.0005:
        gap = rng.choice((1.0, 3.0, 30.0))  # silence
    payload = disturbed(knows.good(rng), knows.history, rng)
    if rng.random() < 0.01:
        payload = rng.choice((b"", b"\xc1", bytes(100_000)))
    return Act(b"verifier", (payload,), gap)


EDGE = Side("edge", Edge, _act)
"""A hostile verifier against a robot."""
