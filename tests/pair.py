"""Edges and one verifier, all of it real but time and the link: tiny models, both policies, a link that misbehaves."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from cloud_verifier.config import ServerConfig
from cloud_verifier.engine import VlmEngine
from cloud_verifier.machine import Machine
from cloud_verifier.server import Server
from cloud_verifier.server_draft.drafting import ServerDraft
from edge_drafter import (
    DecodingStats,
    Drafter,
    DraftingConfig,
    Interruption,
    LinkLost,
    PacedFedModel,
    PacedModel,
    StepInterrupted,
    StepRequest,
    sources_of,
)
from speculation.exits import ExitHeads
from speculation.fed.encoder import FeatureEncoder
from speculation.fed.head import FedHead
from speculation.fed.session import FedSession
from speculation.links import LinkConditions, WayConditions
from speculation.logits_processors import RepetitionPenalty
from speculation.profiles import DeviceProfile
from speculation.vlm.inputs import prepare
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession
from speculation.wire import AnyMessage, BeginStep, Fault, Hello, Welcome
from tests.edge_drafter.fakes import Weather
from vlm_nav_evaluation.virtual_time.link import Channel, VirtualLink, VirtualMailbox
from vlm_nav_evaluation.virtual_time.timeline import Timeline

MAX_DRAFT = 16
CAPACITY = 256
SERVER = ServerConfig.of(Path("target"), max_sessions=2, max_draft=MAX_DRAFT, early_rate=1000.0, idle_s=86400.0)


class Post(VirtualMailbox):
    """The verifier's end; it notices where an edge is gone when it next sends there."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__(timeline)
        self.gone: set[bytes] = set()

    def send(self, peer: bytes, message: AnyMessage, droppable: bool = False) -> bool:
        return peer not in self.gone and super().send(peer, message, droppable)


class StormyLink(VirtualLink):
    """The edge's end. Messages overtake each other, come twice or never, and it breaks again and again.

    Only Hello and BeginStep are spared: without them there is no step that could be wrong.
    """

    def __init__(
        self, timeline: Timeline, post: Post, name: str, weather: Weather, hello: Hello, rtt_s: float | None
    ) -> None:
        super().__init__(timeline, LinkConditions(seed=weather.seed), post, name.encode())
        self._post = post
        self._name = name
        self._weather = weather
        self._rtt_s = rtt_s
        self._hello = hello
        self._dice = random.Random(weather.seed)
        self._lost = True
        self._left = weather.cut_after
        self.cuts = 0

    def connect(self, resume: str = "") -> Welcome:
        """Say Hello at new addresses until one lasts for the Welcome; messages to and from old ones are lost."""
        while True:
            try:
                return self._connect(resume)
            except LinkLost:
                continue

    def _connect(self, resume: str) -> Welcome:
        self._peer = f"{self._name}.{self.cuts}".encode()
        self._lost = False
        self._inbox.clear()
        self._mailbox.join(self._peer, self._send_down)
        self.send(msgspec.structs.replace(self._hello, resume=resume))
        while True:
            message = self.receive(math.inf)
            assert not isinstance(message, Fault), message
            if isinstance(message, Welcome):
                return message

    def send(self, message: AnyMessage) -> None:
        if self._lost:
            raise LinkLost("the verifier is gone")
        for _ in range(self._copies(self._up, message)):
            super().send(message)

    def receive(self, timeout: float) -> AnyMessage | None:
        message = None if self._lost else super().receive(timeout)
        if self._lost:
            raise LinkLost("the verifier is gone")
        return message

    def _copies(self, channel: Channel, message: AnyMessage) -> int:
        """Return how often a message arrives, and let the channel treat it as the weather does."""
        is_spared = isinstance(message, Hello | BeginStep)
        jitter_s = 0.0 if is_spared else self._weather.jitter_s
        channel.way.conditions = WayConditions(self._weather.one_way_s, jitter_s, reorder=True)
        return 1 if is_spared or isinstance(message, Welcome) else self._weather.copies(self._dice)

    def _send_down(self, message: AnyMessage) -> None:
        for _ in range(self._copies(self._down, message)):
            super()._send_down(message)

    def _take(self, payload: bytes) -> None:
        if self._left == 0:
            self._lost = True
            self.cuts += 1
            # Each time it lasts longer, so that every answer has an end.
            self._left = (self._weather.cut_after or 0) * 2**self.cuts
            self._post.gone.add(self._peer)
            self._up.way.clear()
            self._down.way.clear()
            self._inbox.notify()
        else:
            self._left = None if self._left is None else self._left - 1
            super()._take(payload)


@dataclass
class Robot:
    """One edge: its draft model or fed head, settings, what it asks, its link's weather, and how it comes back."""

    draft: Vlm = field(repr=False)
    config: DraftingConfig
    requests: Sequence[StepRequest]
    weather: Weather
    draft_s: float = 0.05
    resumes: bool = True
    answers: list[tuple[int, ...]] = field(default_factory=list)
    stats: DecodingStats = field(default_factory=DecodingStats, repr=False)
    head: FedHead | None = field(default=None, repr=False)
    rtt_s: float | None = None
    """The round trip that the edge reports, right or wrong."""
    is_old: bool = False
    """Whether it knows nothing of the target's repetition penalty."""

    def run(self, timeline: Timeline, post: Post, name: str, target: Vlm, capacity: int) -> None:
        """Ask everything; a lost link is taken up again where the answer stood."""
        sampling = self.requests[0].sampling.text
        head = self.head
        asked = "" if head is None else head.config.features
        hello = Hello(target.tokenizer_fingerprint, target.vocabulary, sampling=sampling, features=asked)
        link = StormyLink(timeline, post, name, self.weather, hello, self.rtt_s)
        welcome = link.connect()
        session = VlmSession(self.draft, 2 * capacity)
        model = PacedModel(session, self.draft_s, timeline.clock, timeline.sleep, self.draft.num_layers)
        fed = None
        if head is not None:
            fed = PacedFedModel(FedSession(head), self.draft_s, timeline.clock, timeline.sleep)
        sources = sources_of(self.config, model, fed=fed)
        drafter = Drafter(sources, link, self.config, timeline.clock, max_draft=welcome.max_draft)
        step = 0
        for request in self.requests:
            committed: tuple[int, ...] = ()
            while len(self.answers) < len(self.requests):
                step += 1
                try:
                    penalty = self._penalty(welcome, request)
                    result = drafter.run(replace(request, step=step, committed=committed, penalty=penalty))
                except StepInterrupted as stop:
                    assert stop.cause is Interruption.LINK_LOST, stop
                    self.stats.add(stop.stats)
                    committed = stop.committed
                    welcome = link.connect(welcome.session if self.resumes else "")
                else:
                    self.stats.add(result.stats)
                    self.answers.append(result.tokens)
                    break

    def _penalty(self, welcome: Welcome, request: StepRequest) -> RepetitionPenalty | None:
        words = prepare(self.draft, request.prompt, None).ids
        return None if self.is_old else RepetitionPenalty.of(welcome.repetition_penalty, words, welcome.vocabulary)


def run(
    target: Vlm,
    robots: Sequence[Robot],
    *,
    verify_s: float = 0.2,
    exits: ExitHeads | None = None,
    self_draft: Vlm | None = None,
    config: ServerConfig = SERVER,
    encoder: FeatureEncoder | None = None,
    capacity: int = CAPACITY,
) -> None:
    """Let robots ask one verifier at the same time; what they heard is in `Robot.answers` and `Robot.stats`.

    capacity: tokens of a verifier's session, prompt and image among them.
    """
    timeline = Timeline()
    post = Post(timeline)
    engine = VlmEngine(target, config.limits.max_sessions, capacity, exits, config.limits.max_draft, encoder=encoder)
    beside = None
    if self_draft is not None:
        beside = ServerDraft(
            self_draft, config.limits.max_sessions, capacity, target.eos, config.limits.max_draft,
            repetition_penalty=target.repetition_penalty,
        )  # fmt: skip
    profile = DeviceProfile("virtual", verify_s=verify_s, server_draft_s=verify_s / 10)
    server = Server(Machine(engine, beside, profile), config, post, timeline.clock)

    def task(number: int, robot: Robot) -> Callable[[], None]:
        return lambda: robot.run(timeline, post, f"robot {number}", target, capacity)

    timeline.run([task(number, robot) for number, robot in enumerate(robots)], [server.run])
