"""The clocked engine: production's own edge and verifier policies, side by side on virtual time.

`edge_drafter.Drafter` and `cloud_verifier.server.Server` run as they are; link, models and clock are virtual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from benchmarks.clocked.facts import Recording
from benchmarks.clocked.link import VirtualLink, VirtualMailbox
from benchmarks.clocked.models import FINGERPRINT, FactsDraftModel, FactsEngine
from benchmarks.clocked.self_draft import FactsSelfDraft
from benchmarks.clocked.timeline import Timeline
from benchmarks.clocked.timings import Timings
from cloud_verifier.config import ServerConfig
from cloud_verifier.server import Server
from edge_drafter import Drafter, DraftingConfig, Mode, StepInterrupted, StepRequest, StepResult, sources_of
from speculation.predictor import Predictor
from speculation.profile import DeviceProfile
from speculation.trace import Trace
from speculation.wire import Hello, Welcome

SERVER = ServerConfig(Path(FINGERPRINT), idle_s=86400.0)
"""A verifier's settings by default; a session is never closed for being quiet."""


def drafting(mode: Mode | str, recording: Recording, text: str = "", **changes: Any) -> DraftingConfig:
    """Return a mode's settings as the edge has them with this pair: drafts end where the predictor stops them.

    `text` and `changes` are those of `DraftingConfig.of`.
    """
    return DraftingConfig.of(mode, text, **{"stop_below": recording.stop_below, **changes})


def decode(
    recording: Recording,
    timings: Timings,
    config: DraftingConfig,
    *,
    steps: Sequence[int] | None = None,
    edges: int = 1,
    server: ServerConfig = SERVER,
    trace: Trace | None = None,
    collect: int = 1,
) -> list[StepResult]:
    """Decode steps of a recording (None: all) one after another and return their results in that order.

    Several edges share the steps and one verifier. `trace` takes the spans of the first edge. collect: early tokens of
    a round reach the drafter once so many are there (batched pre-drafting of Early Exits, Appendix C), or never, where
    the commit comes first. The same arguments give the same results to the last bit. Raises RuntimeError where a step
    is interrupted: that is a fault of a policy.
    """
    world = _World(recording, timings, config, server, edges, trace, collect)
    chosen = list(range(len(recording.steps)) if steps is None else steps)
    results: dict[int, StepResult] = {}

    def edge(number: int) -> None:
        drafter = world.drafter(number)
        for turn in range(number, len(chosen), edges):
            results[turn] = world.step(drafter, chosen[turn], turn + 1)

    world.timeline.run([lambda number=number: edge(number) for number in range(edges)], [world.serve])  # type: ignore[misc]
    return [results[turn] for turn in range(len(chosen))]


class _World:
    """One verifier, its edges, and the time that they share."""

    def __init__(
        self,
        recording: Recording,
        timings: Timings,
        config: DraftingConfig,
        server: ServerConfig,
        edges: int,
        trace: Trace | None,
        collect: int,
    ) -> None:
        self._collect = collect
        self.timeline = Timeline()
        self._recording = recording
        self._timings = timings
        self._config = config
        self._trace = trace
        self._mailbox = VirtualMailbox(self.timeline)
        self._engine = FactsEngine(recording, timings, self.timeline.sleep)
        self._server = Server(
            self._engine,
            replace(server, max_sessions=max(edges, server.max_sessions)),
            DeviceProfile(timings.name),
            self._mailbox,
            clock=self.timeline.clock,
            self_draft=FactsSelfDraft(recording, timings, self.timeline.sleep),
        )

    def serve(self) -> None:
        """The verifier's task; it has no end."""
        self._server.run()

    def drafter(self, number: int) -> Drafter:
        """Return the drafter of edge `number`, with a session of its own. To be called in that edge's task."""
        model = self._engine.model
        link = VirtualLink(self.timeline, self._timings, self._mailbox, f"edge {number}".encode(), self._collect)
        link.send(Hello(model.tokenizer_fingerprint, model.vocabulary))
        welcome = link.receive(float("inf"))
        if not isinstance(welcome, Welcome):
            raise RuntimeError(f"the verifier answers Hello with {welcome}")
        draft = FactsDraftModel(self._recording, self._timings, self.timeline.sleep, link.listen)
        return Drafter(
            sources_of(self._config, draft, cast(Predictor, draft.predictor)),
            link,
            self._config,
            clock=self.timeline.clock,
            trace=self._trace if number == 0 and self._trace is not None else Trace(self.timeline.clock, 1),
            max_draft=welcome.max_draft,
        )

    def step(self, drafter: Drafter, index: int, number: int) -> StepResult:
        """Decode one step of the recording; `number` is its number on the wire."""
        recording = self._recording
        facts = recording.steps[index]
        request = StepRequest(number, facts.prompt, recording.image(index), recording.eos, recording.max_tokens)
        try:
            return drafter.run(request)
        except StepInterrupted as stop:
            raise RuntimeError(f"step {index} was interrupted on virtual time: {stop}") from stop
