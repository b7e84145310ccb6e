"""Virtual time: production's own edge and verifier policies, side by side, where only clock, link and models are not.

`edge_drafter.Drafter` and `cloud_verifier.server.Server` run as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from cloud_verifier.config import ServerConfig
from cloud_verifier.machine import Machine
from cloud_verifier.server import Server
from edge_drafter import Drafter, DraftingConfig, Mode, StepInterrupted, StepRequest, StepResult, sources_of
from speculation.predictor import Predictor
from speculation.profiles import DeviceProfile
from speculation.progress import progress
from speculation.trace import Kind, Span, Trace
from speculation.wire import Hello, Welcome
from vlm_nav_evaluation.experiment.run import Answer, Arm, Run
from vlm_nav_evaluation.virtual_time.link import VirtualLink, VirtualMailbox
from vlm_nav_evaluation.virtual_time.models import FINGERPRINT, RecordedDraftModel, RecordedEngine, RecordedServerDraft
from vlm_nav_evaluation.virtual_time.recording import RecordedStep, Recording
from vlm_nav_evaluation.virtual_time.timeline import Timeline
from vlm_nav_evaluation.virtual_time.timings import Timings

SERVER = ServerConfig.of(Path(FINGERPRINT), idle_s=86400.0)
"""A verifier's settings by default; a session is never closed for being quiet."""
SPANS = 1_000_000
Arrivals = Sequence[tuple[float, int]]
"""Seconds since the step began, and how many more tokens were committed then."""


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
            sources_of(config, draft, cast(Predictor, draft)),
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


def run_arms(
    arms: Sequence[Arm],
    recording: Recording,
    timings: Timings,
    warm_up: Sequence[RecordedStep] = (),
    with_arrivals: bool = False,
) -> Run:
    """Return the answers of all arms: the experiment engine's backend on virtual time.

    An arm's changes are those of `run_mode`, a `recording` of its own among them. warm_up: decoded first and not
    counted. with_arrivals: every answer that the verifier commits has when its tokens came, `Arrivals`. Raises as
    `run_mode`.
    """
    recording = replace(recording, steps=(*warm_up, *recording.steps))
    answers: dict[str, list[Answer]] = {}
    for arm in progress(arms, unit="arm", leave=False):
        trace = Trace(limit=SPANS) if with_arrivals else None
        results = run_mode(arm.mode, **{"recording": recording, "timings": timings, "trace": trace, **arm.changes})
        more = [{} for _ in results] if trace is None else [{"arrivals": each} for each in arrivals(trace.spans)]
        found = [Answer(each.tokens, each.stats, own) for each, own in zip(results, more, strict=True)]
        answers[arm.name] = found[len(warm_up) :]
    return Run(answers)


def arrivals(spans: Iterable[Span]) -> list[Arrivals]:
    """Return when the tokens of each step came, in the order of the steps."""
    begun: dict[int, float] = {}
    commits: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        if span.name == Kind.STEP.value:
            begun[int(str(span.args["step"]))] = span.start
        elif span.name == Kind.COMMIT.value:
            commits[int(str(span.args["step"]))].append(span)
    return [
        [
            (span.start - begun[step], int(str(span.args["tokens"])))
            for span in sorted(commits[step], key=lambda span: span.end)
        ]
        for step in sorted(begun)
    ]


def figures_of(run: Run, timings: Timings) -> dict[str, dict[str, Any]]:
    """Return every arm's `vlm_nav_evaluation.figures.summary` with hits and misses.

    target_busy: target passes x T_q / time, at most 1; 1 is a step without a bubble, in which the target runs all the
    time, whatever was drafted: a chain, a tree or nothing. Divided by passes a token it is T_q over a token's time.
    """
    found = run.figures()
    for arm, figures in found.items():
        stats = run.stats(arm)
        figures |= {name: sum(getattr(each, name) for each in stats) for name in ("hits", "misses", "rounds")}
        passes_s = timings.verify_s * sum(each.cloud_passes for each in stats)
        figures["target_busy"] = passes_s / sum(each.total_s for each in stats)
    return found
