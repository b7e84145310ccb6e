"""Virtual time: production's own edge and verifier policies, side by side, where only clock, link and models are not.

`edge_drafter.Drafter` and `cloud_verifier.server.Server` run as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from cloud_verifier.config import ServerConfig
from cloud_verifier.machine import Machine
from cloud_verifier.server import Server
from edge_drafter import Drafter, DraftingConfig, Mode, StepInterrupted, StepRequest, StepResult, sources_of
from speculation.predictor import Predictor
from speculation.profiles import DeviceProfile
from speculation.trace import Trace
from speculation.wire import Hello, Welcome
from vlm_nav_evaluation.virtual_time.link import VirtualLink, VirtualMailbox
from vlm_nav_evaluation.virtual_time.models import FINGERPRINT, RecordedDraftModel, RecordedEngine, RecordedServerDraft
from vlm_nav_evaluation.virtual_time.recording import Recording
from vlm_nav_evaluation.virtual_time.timeline import Timeline
from vlm_nav_evaluation.virtual_time.timings import Timings

SERVER = ServerConfig.of(Path(FINGERPRINT), idle_s=86400.0)
"""A verifier's settings by default; a session is never closed for being quiet."""


def drafting(mode: Mode | str, recording: Recording, text: str = "", **changes: Any) -> DraftingConfig:
    """Return a mode's settings as the edge has them with this pair: drafts end where the predictor stops them.

    `text` and `changes` are those of `DraftingConfig.of`.
    """
    return DraftingConfig.of(mode, text, **{"stop_below": recording.stop_below, **changes})


def run_mode(
    mode: str,
    recording: Recording,
    timings: Timings,
    server: ServerConfig = SERVER,
    trace: Trace | None = None,
    beside: Recording | None = None,
    **changes: Any,
) -> list[StepResult]:
    """Decode a recording in one mode; `changes` are those of its `DraftingConfig`.

    `trace` and `beside` as in `decode`. Raises RuntimeError where an answer is not the target's own: that is a
    fault of a policy.
    """
    config = drafting(mode, recording, **changes)
    results = decode(recording, timings, config, server=server, trace=trace, beside=beside)
    for index, (result, step) in enumerate(zip(results, recording.steps, strict=True)):
        if mode != Mode.EDGE and result.tokens != step.tokens:
            raise RuntimeError(f"mode {mode} answers step {index} with other tokens than the target")
    return results


def decode(
    recording: Recording,
    timings: Timings,
    config: DraftingConfig,
    *,
    edges: int = 1,
    server: ServerConfig = SERVER,
    trace: Trace | None = None,
    beside: Recording | None = None,
) -> list[StepResult]:
    """Decode the steps of a recording one after another and return their results in that order.

    Several edges share the steps and one verifier. `trace` takes the spans of the first edge. A draft model
    stands beside the target where the mode needs one or `server` names one: `beside`, the same answers with its
    predictions, or the edge's own. The verifier starts from the timings' cost, as from a profile beside a model;
    without one it learns on line. The same arguments give the same results to the last bit. Raises RuntimeError where
    a step is interrupted: that is a fault of a policy.
    """
    timeline = Timeline()
    mailbox = VirtualMailbox(timeline)
    engine = RecordedEngine(recording, timings, timeline.sleep)
    has_draft = config.self_draft or server.target.draft_model is not None
    drafts = RecordedServerDraft(beside or recording, timings, timeline.sleep) if has_draft else None
    machine = Machine(engine, drafts, DeviceProfile(timings.name), timings.pass_cost)
    places = server.changed(max_sessions=max(edges, server.limits.max_sessions))
    verifier = Server(machine, places, mailbox, timeline.clock)
    results: dict[int, StepResult] = {}

    def edge(number: int) -> None:
        link = VirtualLink(timeline, timings.conditions, mailbox, f"edge {number}".encode())
        link.send(Hello(engine.model.tokenizer_fingerprint, engine.model.vocabulary))
        welcome = link.receive(float("inf"))
        if not isinstance(welcome, Welcome):
            raise RuntimeError(f"the verifier answers Hello with {welcome}")
        draft = RecordedDraftModel(recording, timings, timeline.sleep, link.wait_for_message)
        drafter = Drafter(
            sources_of(config, draft, cast(Predictor, draft.predictor)),
            link,
            config,
            clock=timeline.clock,
            trace=trace if number == 0 and trace is not None else Trace(timeline.clock, 1),
            max_draft=welcome.max_draft,
            cpu_clock=lambda: draft.busy_s,
        )
        for turn in range(number, len(recording.steps), edges):
            step = recording.steps[turn]
            request = StepRequest(turn + 1, step.prompt, recording.image(turn), recording.eos, recording.max_tokens)
            try:
                results[turn] = drafter.run(request)
            except StepInterrupted as stop:
                raise RuntimeError(f"step {turn} was interrupted on virtual time: {stop}") from stop

    timeline.run([lambda number=number: edge(number) for number in range(edges)], [verifier.run])  # type: ignore[misc]
    return [results[turn] for turn in range(len(recording.steps))]
