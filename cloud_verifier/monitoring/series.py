"""Declares the series of `/metrics`, and keeps their values by prometheus-client. docs/operating.md lists them.

Names and meanings are those of vLLM's production metrics where it has the same thing, behind our prefix; its
`spec_decode_*` are figures of drafts. Every label is bounded: classes, choices, codes and states are fixed sets, exit
layers are the model's, positions end at the longest draft, and robots are named up to `MOST_ROBOTS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from cloud_verifier.choice import Act
from speculation.service_classes import SERVICE_CLASSES
from speculation.wire import FaultCode

disable_created_metrics()  # type: ignore[no-untyped-call]

PREFIX = "spec_vlm_nav_"
MOST_ROBOTS = 64
"""So many robots, the first ones, have a label of their own; the others share `OTHER`."""
OTHER = "other"
REASONS = ("done", "superseded", "cancelled", "evicted", "refused", "failed", "lost")
"""A step ends in one of these ways."""
SOURCES = {Act.VERIFY: "edge", Act.HINT: "hint", Act.SELF: "self"}
STATES = ("idle", "queued", "prefill", "running", "drafting", "away")
WORK = ("encode", "prefill", "verify", "draft", "read")
KNOWN: dict[str, Iterable[str]] = {
    "class": SERVICE_CLASSES, "source": SOURCES.values(), "state": STATES, "finished_reason": REASONS, "work": WORK,
    "choice": [act.value for act in Act if act is not Act.WAIT], "code": [code.name for code in FaultCode],
}  # fmt: skip
"""Values of a label that are there before anything happens: they begin at 0, so that rates have a beginning."""
MS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.125, 0.1667, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds, a millisecond to a minute; 0.125, 0.1667, 0.25 and 0.5 are what the service classes promise for a token."""
TOKENS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0)
Labels: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Series:
    """Declares a series; in queries a counter's name ends in `_total`, a histogram's in `_bucket`, `_sum`, `_count`."""

    name: str
    kind: type[Counter | Gauge | Histogram]
    help: str
    labels: Labels = ()
    bounds: tuple[float, ...] = ()
    """Inclusive upper limits of a histogram's buckets, ascending; infinity comes behind them."""


def _counter(name: str, help: str, *labels: str) -> Series:
    return Series(name, Counter, help, labels)


def _gauge(name: str, help: str, *labels: str) -> Series:
    return Series(name, Gauge, help, labels)


def _histogram(name: str, help: str, *labels: str, bounds: tuple[float, ...] = MS) -> Series:
    return Series(name, Histogram, help, labels, bounds)


class SeriesStore:
    """Keeps the values of all series of a catalogue. One thread writes, any may read."""

    def __init__(self, catalogue: Iterable[Series]) -> None:
        self.registry = CollectorRegistry()
        self._metrics: dict[Series, Any] = {}
        self._kept: dict[Series, float] = {}
        """The latest values of counters that are kept elsewhere."""
        for series in catalogue:
            buckets: dict[str, Any] = {"buckets": series.bounds} if series.bounds else {}
            name = PREFIX + series.name
            self._metrics[series] = series.kind(name, series.help, series.labels, registry=self.registry, **buckets)
            for value in (value for label in series.labels for value in KNOWN.get(label, ())):
                self.child(series, value)

    def child(self, series: Series, *labels: str) -> Any:
        """Return the metric of these labels; it begins at 0."""
        metric = self._metrics[series]
        return metric.labels(*labels) if labels else metric

    def count(self, series: Series, amount: float = 1.0, *labels: str) -> None:
        """Add to a counter."""
        self.child(series, *labels).inc(amount)

    def set(self, series: Series, value: float, *labels: str) -> None:
        """Set a gauge, or a counter without labels that is kept elsewhere, which may begin anew."""
        if series.kind is Gauge:
            self.child(series, *labels).set(value)
        else:
            self.child(series).inc(max(0.0, value - self._kept.get(series, 0.0)))
            self._kept[series] = value

    def set_all(self, series: Series, values: Mapping[Labels, float]) -> None:
        """Set a gauge for these labels and for no others."""
        for labels in self.values(series).keys() - values.keys():
            self._metrics[series].remove(*labels)
        for labels, value in values.items():
            self.set(series, value, *labels)

    def observe(self, series: Series, value: float, *labels: str, times: int = 1) -> None:
        """Enter a value in a histogram, so many times."""
        child = self.child(series, *labels)
        for _ in range(times):
            child.observe(value)

    def values(self, series: Series) -> dict[Labels, float]:
        """Return a counter or gauge by the values of its labels."""
        return {
            tuple(sample.labels.values()): sample.value
            for family in self._metrics[series].collect()
            for sample in family.samples
        }

    def value(self, series: Series, *labels: str) -> float:
        """Return a counter or gauge, 0 where it was never touched."""
        return self.values(series).get(labels, 0.0)

    def total(self, series: Series) -> float:
        """Return the sum over all labels."""
        return sum(self.values(series).values())


# --- now

RUNNING = _gauge("num_requests_running", "Steps that hold memory and whose answers are not complete")
WAITING = _gauge("num_requests_waiting", "Steps whose frame is being decoded or that wait for memory")
KV_CACHE = _gauge("kv_cache_usage_perc", "Share of the blocks of keys and values that steps hold, 0 to 1")
ROBOTS = _gauge(
    "robots",
    "Sessions by what their robot is doing: idle, queued, prefill, running (a pass is under way or due), drafting (the "
    "verifier waits for its draft), away (not connected)",
    "state",
)
PLACES = _gauge("session_places", "Sessions that there is room for (--max-sessions)")
READY = _gauge("ready", "1 where /ready answers 200")
PREDICTED = _gauge(
    "predicted_pass_seconds", "What the estimator predicts for a pass in which every answered step decodes"
)

# --- requests, which are steps: one frame and question in, one answer out

REQUESTS = _counter(
    "request_success",
    "Steps that ended, by how: done, superseded, cancelled (by the robot), evicted, refused, failed, lost",
    "finished_reason",
)
PROMPT_TOKENS = _counter("prompt_tokens", "Tokens of image and prompt of steps that were prefilled")
GENERATION_TOKENS = _counter("generation_tokens", "Committed tokens", "class")
CACHE_QUERIES = _counter("prefix_cache_queries", "Tokens of prompts that were looked for in other robots' memory")
CACHE_HITS = _counter("prefix_cache_hits", "Of them, tokens that were found, and not computed again")
TTFT = _histogram("time_to_first_token_seconds", "From BeginStep to the first commit", "class")
INTER_TOKEN = _histogram(
    "inter_token_latency_seconds",
    "Seconds from one commit to the next by the tokens of the latter; each token counts once",
    "class",
)
E2E = _histogram("e2e_request_latency_seconds", "From BeginStep to the end of the answer, of answers that are complete")
QUEUE_TIME = _histogram("request_queue_time_seconds", "From BeginStep until the step has its memory, decoding included")
PREFILL_TIME = _histogram("request_prefill_time_seconds", "From then until the prefill is done")
DECODE_TIME = _histogram("request_decode_time_seconds", "From then to the end of the answer")
ITERATION = _histogram("iteration_tokens_total", "Tokens that one target forward computed", bounds=TOKENS)
PASS_TIME = _histogram("pass_seconds", "What a target forward took, the wait for a declared time included")
BUSY_TIME = _counter("engine_busy_seconds", "Seconds that the models worked; its rate is the utilisation", "work")
PREEMPTIONS = _counter("num_preemptions", "Steps whose memory was given to others while they were idle")

# --- drafts

DRAFTS = _counter("spec_decode_num_drafts", "Drafts that were verified, by who made them: edge, hint, self", "source")
DRAFT_TOKENS = _counter("spec_decode_num_draft_tokens", "Their tokens, all branches of a tree", "source")
DRAFT_LEVELS = _counter(
    "spec_decode_num_draft_levels",
    "Their depths, the most tokens that could be accepted: acceptance is of these",
    "source",
)
ACCEPTED = _counter("spec_decode_num_accepted_tokens", "Draft tokens that were accepted", "source")
ACCEPTED_AT = _counter(
    "spec_decode_num_accepted_tokens_per_pos", "Drafts whose token at this depth, from 0, was accepted", "position"
)
EARLY = _counter("early_tokens", "Verdicts of early exits that were made", "layer")
EARLY_HITS = _counter("early_token_hits", "Of them, those that the last layer confirmed", "layer")
EARLY_SENT = _counter("early_tokens_sent", "Early tokens that left")
EARLY_DROPPED = _counter("early_tokens_dropped", "Early tokens that were overtaken or limited by --early-rate")
CHOICES = _counter(
    "ledger_choices", "Passes by what they did: verify a draft, a hint, a draft made here (self), or decode", "choice"
)
LEDGER_WAITS = _counter("ledger_wait_seconds", "Seconds that steps waited for a draft by the ledger's choice")
CREDIT = _gauge("ledger_credit_tokens_min", "Smallest credit of the steps that are being answered, tokens")
CREDIT_MEAN = _gauge("ledger_credit_tokens_mean", "Mean of their credit, tokens; above 0 drafting is ahead of decoding")

# --- promises

COMMITS = _counter("class_commits", "Commits", "class")
VIOLATIONS = _counter(
    "deadline_violations",
    "Commits whose tokens, since the commit before, came slower than their class promises",
    "class",
)

# --- robots and links

OPENED = _counter("sessions_opened", "Sessions that were opened")
RESUMED = _counter("sessions_resumed", "Sessions that a robot took up again, after its link was gone")
LOST = _counter("sessions_lost", "Times that a session's robot was gone")
TURNED_AWAY = _counter("requests_busy", "Times that a robot was asked to come back, for want of a place or memory")
FAULTS = _counter("faults", "Messages that were refused", "code")
IGNORED = _counter("messages_ignored", "Messages of peers that had too many refused, dropped unread")
MAIL_DROPPED = _counter("messages_dropped", "Messages that found the queue of their peer full")
FRONTEND_RESTARTS = _counter("frontend_restarts", "Times that the socket's own process was started anew")
ROBOT_TOKENS = _counter("robot_generation_tokens", "Committed tokens", "robot")
ROBOT_LEVELS = _counter("robot_draft_levels", "Depths of the robot's verified drafts", "robot")
ROBOT_ACCEPTED = _counter("robot_accepted_tokens", "Tokens of its drafts that were accepted", "robot")
ROBOT_RTT = _gauge("robot_round_trip_seconds", "Of its link, as it measured at its step; 0: not yet", "robot")
ROBOT_SILENT = _gauge("robot_silent_seconds", "Since the latest message of a robot that has a session", "robot")
ROBOT_LOST = _counter("robot_sessions_lost", "Times that it was gone", "robot")

# --- this process

INFO = _gauge("info", "1; its labels name program and model", "version", "model", "fingerprint", "protocol")
HEARTBEAT = _gauge("engine_heartbeat_age_seconds", "Since the engine last gave a sign; /health turns to 503 by it")
SNAPSHOT_AGE = _gauge("snapshot_age_seconds", "Age of these figures")

CATALOGUE = tuple(each for each in globals().values() if isinstance(each, Series))
"""All series of a verifier, in the order of `/metrics`."""

# --- a cluster's gateway, which has no engine

REPLICAS = _gauge("cluster_replicas", "Replicas by what they do: joining, ready, draining", "phase")
REPLICA_SESSIONS = _gauge("replica_sessions", "Robots of a replica", "replica")
REPLICA_PLACES = _gauge("replica_session_places", "Robots that it has room for", "replica")
REPLICA_MEMORY = _gauge("replica_memory", "Share of its blocks that steps hold", "replica")
REPLICA_LOAD = _gauge(
    "replica_utilisation", "Work that its robots' classes ask for, seconds a second; above 1 it is too much", "replica"
)
REPLICA_LATE = _gauge("replica_late", "Share of its commits of late that broke their class's promise", "replica")
SENT_ON = _counter("gateway_redirects", "Robots that were sent to a replica")
NO_REPLICA = _counter("gateway_turned_away", "Robots for which there was no replica")
GATEWAY_CATALOGUE = (
    READY, REPLICAS, REPLICA_SESSIONS, REPLICA_PLACES, REPLICA_MEMORY, REPLICA_LOAD, REPLICA_LATE, SENT_ON, NO_REPLICA,
    FRONTEND_RESTARTS, INFO, HEARTBEAT, SNAPSHOT_AGE,
)  # fmt: skip
"""All series of a cluster's gateway."""
