"""Counts what the server's thread does, for other threads to read.

Only the server's thread calls `Figures`, but for `latest`, `beat` and `phase`, which are single attributes that it
replaces whole, and for the values of the store, each of which is read and written at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from cloud_verifier.choice import Act
from cloud_verifier.events import Begun, Committed, Deferred, Ended, Event, ExitJudged, Granted, Prefilled, Worked
from cloud_verifier.monitoring import series as s
from cloud_verifier.monitoring.series import CATALOGUE, MOST_ROBOTS, OTHER, SOURCES, STATES, Labels, SeriesStore
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.sessions import Session
from cloud_verifier.step import Step
from speculation.wire import Commit, Idle

PUBLISH_S = 1.0
"""What changes all the time is published so often."""
UNNAMED = "unnamed"
"""The label of robots that connect without a key."""
_OF_ROBOTS = (s.ROBOT_TOKENS, s.ROBOT_LEVELS, s.ROBOT_ACCEPTED, s.ROBOT_LOST)
"""Counters by robot, which begin at 0: no increase is seen of one whose first value is 1."""


class Phase(str, Enum):
    """A phase is what the process is doing."""

    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass
class StepRecord:
    """A record is what was measured of the step of a row, from its `BeginStep` on. Times are on the server's clock."""

    step: Step
    session: int
    robot: str
    begun: float
    answering: bool = False
    """Whether its first commit left."""
    tokens: int = 0
    """How many of its committed tokens were counted."""
    granted: float | None = None
    """When it got its memory."""
    prefilled: float | None = None
    early: list[tuple[int, tuple[int, ...], int]] = field(default_factory=list)
    """What exits said of the pass under way: layer, path and next token."""

    @property
    def service_class(self) -> str:
        """Return the name of its service class."""
        return self.step.request.service_class.name


@dataclass
class SessionTotals:
    """The totals are what a session's drafts came to, and the speed of its latest answer."""

    levels: int = 0
    accepted: int = 0
    tokens_per_s: float | None = None
    """How fast it came since its prefill was done; None: nothing was committed."""

    @property
    def acceptance(self) -> float | None:
        """Return which share of the levels of drafts was accepted; None: no draft was verified."""
        return self.accepted / self.levels if self.levels else None


class SessionFigures(msgspec.Struct, frozen=True):
    """One session as `/load` shows it. Times are seconds."""

    session: int
    robot: str
    service_class: str
    state: str
    step: int | None
    tokens: int
    """How many the step's answer has."""
    tokens_per_s: float | None
    acceptance: float | None
    credit: float | None
    """How far it leads decoding alone; None: no step is being answered, or none that keeps a ledger."""
    round_trip_s: float
    silent_s: float
    trace: str = ""
    """The step's trace id, 32 hexadecimal digits; empty: its robot gave none."""


class Snapshot(msgspec.Struct, frozen=True):
    """A snapshot shows what sessions were doing at a time on the server's clock."""

    at: float
    sessions: Sequence[SessionFigures] = ()
    problem: str = ""
    """Why no further robot can be taken; empty: one can."""


class Figures(SeriesStore):
    """Counts what one server does. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(CATALOGUE)
        self.phase = Phase.LOADING
        self.beat = clock()
        """When the engine last gave a sign, between two layers or turns: see `/health`."""
        self._robots: set[str] = set()
        self._records: dict[int, StepRecord] = {}
        self.totals = defaultdict[int, SessionTotals](SessionTotals)
        """What sessions came to, by their numbers."""
        self._publish_at = clock()
        self.latest = Snapshot(clock())

    def robot(self, name: str) -> str:
        """Return the label of a robot: its name, or `OTHER` where MOST_ROBOTS have one already."""
        name = name or UNNAMED
        if name in self._robots:
            return name
        if len(self._robots) < MOST_ROBOTS:
            self._robots.add(name)
        else:
            name = OTHER
        for series in _OF_ROBOTS:
            self.child(series, name)
        return name

    # --- a step's life

    def take(self, event: Event) -> None:
        """Count an event."""
        match event:
            case Begun():
                record = StepRecord(event.step, event.session.number, self.robot(event.session.client), event.now)
                self._records[event.step.index] = record
            case Granted():
                self._granted(event)
            case Prefilled():
                self._prefilled(event)
            case ExitJudged():
                self._judged(event)
            case Committed():
                self._committed(event)
            case Ended():
                self._ended(event.step, event.how, event.now)
            case Deferred():
                if self.record(event.step) is not None:
                    del self._records[event.step.index]
            case Worked():
                self._worked(event)

    def record(self, step: Step) -> StepRecord | None:
        """Return what is known of a step, None where another one took its row."""
        found = self._records.get(step.index)
        return found if found is not None and found.step is step else None

    def _granted(self, event: Granted) -> None:
        if (record := self.record(event.step)) is not None:
            record.granted = event.now
            self.observe(s.QUEUE_TIME, event.now - record.begun)
        self.count(s.CACHE_QUERIES, event.prompt)
        self.count(s.CACHE_HITS, max(0, event.prompt - event.computed))

    def _prefilled(self, event: Prefilled) -> None:
        """Count a prefill where it is done."""
        step = event.step
        if step.pending:
            return
        self.count(s.PROMPT_TOKENS, step.prefill.prompt_tokens)
        if (record := self.record(step)) is not None and record.granted is not None:
            record.prefilled = event.now
            self.observe(s.PREFILL_TIME, event.now - record.granted)

    def _worked(self, event: Worked) -> None:
        seconds = event.now - event.start
        self.count(s.BUSY_TIME, seconds, event.kind)
        if event.tokens:
            self.observe(s.ITERATION, event.tokens)
            self.observe(s.PASS_TIME, seconds)

    def _judged(self, event: ExitJudged) -> None:
        """Keep what an exit said until the last layer has judged it."""
        layer, verdict = event.layer, event.verdict
        self.count(s.EARLY, 1, str(layer))
        self.child(s.EARLY_HITS, str(layer))  # one that is never right is at 0, not missing
        if (record := self.record(event.step)) is not None:
            record.early.append((layer, verdict.path, verdict.token))

    def _committed(self, event: Committed) -> None:
        step, verdict, commit, now = event.step, event.verdict, event.commit, event.now
        tokens = len(commit.tokens)
        # Behind the draft may stand tokens that the answer's grammar has settled.
        accepted = sum(index < len(step.tree.tokens) for index in verdict.path)
        self._verified(step, accepted)
        record = self.record(step)
        if record is None:
            return
        for layer, path, token in record.early:
            place = len(path)
            if verdict.path[:place] == path and place < tokens and commit.tokens[place] == token:
                self.count(s.EARLY_HITS, 1, str(layer))
        record.early.clear()
        totals = self.totals[record.session]
        if step.act is Act.VERIFY:
            levels = step.tree.levels[-1]
            self.count(s.ROBOT_LEVELS, levels, record.robot)
            self.count(s.ROBOT_ACCEPTED, accepted, record.robot)
            totals.levels += levels
            totals.accepted += accepted
        if record.prefilled is not None and now > record.prefilled:
            totals.tokens_per_s = step.usage.tokens / (now - record.prefilled)
        self._timed(record, commit, event.since, now)

    def _verified(self, step: Step, accepted: int) -> None:
        """Count a pass by what it did, and its draft, if it verified one."""
        self.count(s.CHOICES, 1, step.act.value)
        source = SOURCES.get(step.act)
        if source is None:
            return
        self.count(s.DRAFTS, 1, source)
        self.count(s.DRAFT_TOKENS, len(step.tree.tokens), source)
        self.count(s.DRAFT_LEVELS, step.tree.levels[-1], source)
        self.count(s.ACCEPTED, accepted, source)
        for position in range(accepted):
            self.count(s.ACCEPTED_AT, 1, str(position))

    def _timed(self, record: StepRecord, commit: Commit, since: float, now: float) -> None:
        """Count a commit's tokens, and how long they took since the commit before."""
        came = len(commit.tokens) + (commit.rest is not None)  # the robot draws one out of the rest; `ended` counts it
        if not came:
            return
        name, gap = record.service_class, max(0.0, now - since)
        if not record.answering:
            record.answering = True
            self.observe(s.TTFT, now - record.begun, name)
        self._tokens(record, len(commit.tokens))
        self.observe(s.INTER_TOKEN, gap / came, name, times=came)
        self.count(s.COMMITS, 1, name)
        if gap > came / record.step.request.service_class.tokens_per_s:
            self.count(s.VIOLATIONS, 1, name)

    def _tokens(self, record: StepRecord, tokens: int) -> None:
        record.tokens += tokens
        self.count(s.GENERATION_TOKENS, tokens, record.service_class)
        self.count(s.ROBOT_TOKENS, tokens, record.robot)

    def _ended(self, step: Step, how: str, now: float) -> None:
        self.count(s.REQUESTS, 1, how)
        self.count(s.LEDGER_WAITS, step.usage.waited_s)
        record = self.record(step)
        if record is None:
            return
        self._tokens(record, max(0, step.usage.tokens - record.tokens))  # those that its robot sampled itself
        if how == "done":
            self.observe(s.E2E, now - record.begun)
            if record.prefilled is not None:
                self.observe(s.DECODE_TIME, now - record.prefilled)
        del self._records[step.index]

    def closed(self, session: int) -> None:
        """Note that a session is over."""
        self.totals.pop(session, None)

    # --- what is published

    def due(self, now: float) -> bool:
        """Whether it is time to publish."""
        return now >= self._publish_at

    def publish(self, now: float, sessions: Sequence[SessionFigures], problem: str = "") -> None:
        """Publish what sessions are doing; `problem`: why no further robot can be taken."""
        self._publish_at = now + PUBLISH_S
        # Robots that are gone leave no gauge behind, which would be an alert for ever.
        silent: dict[Labels, float] = {}
        trip: dict[Labels, float] = {}
        for each in sorted(sessions, key=lambda each: each.silent_s, reverse=True):
            robot = (self.robot(each.robot),)
            if robot[0] in (UNNAMED, OTHER):  # several robots: the worst of them
                silent[robot] = max(each.silent_s, silent.get(robot, 0.0))
                trip[robot] = max(each.round_trip_s, trip.get(robot, 0.0))
            else:  # started anew it has a second session, and the first one's silence is none of its own
                silent[robot], trip[robot] = each.silent_s, each.round_trip_s
        self.set_all(s.ROBOT_SILENT, silent)
        self.set_all(s.ROBOT_RTT, trip)
        for state in STATES:
            self.set(s.ROBOTS, sum(each.state == state for each in sessions), state)
        credits = [each.credit for each in sessions if each.credit is not None]
        self.set(s.CREDIT, min(credits, default=0.0))
        self.set(s.CREDIT_MEAN, sum(credits) / len(credits) if credits else 0.0)
        self.latest = Snapshot(now, sessions, problem)


def figures_of(
    sessions: Sequence[Session], scheduler: Scheduler, figures: Figures, now: float
) -> tuple[SessionFigures, ...]:
    """Return the figures of every session. `now`: seconds on the server's clock."""
    return tuple(_figures(session, scheduler.step(session.index), figures, now) for session in sessions)


def _figures(session: Session, step: Step | None, figures: Figures, now: float) -> SessionFigures:
    totals = figures.totals.get(session.number, SessionTotals())
    answered = step is not None and step.request.idle is Idle.LEDGER and not step.pending and not step.done
    return SessionFigures(
        session=session.number,
        robot=session.client,
        service_class=session.service_class,
        state=_state(session, step),
        step=step.number if step is not None else None,
        tokens=step.answer.position if step is not None else 0,
        tokens_per_s=totals.tokens_per_s,
        acceptance=totals.acceptance,
        credit=step.ledger.credit(now) if step is not None and answered else None,
        round_trip_s=step.request.round_trip_s if step is not None else 0.0,
        silent_s=now - session.last_received,
        trace=step.request.trace_id if step is not None else "",
    )


def _state(session: Session, step: Step | None) -> str:
    """Return one of `STATES`."""
    if session.peer is None:
        return "away"
    if step is None or step.done:
        return "idle"
    if step.pending:
        return "queued" if step.prefill.inputs is None else "prefill"
    idle = step.request.idle
    waits = step.ledger.waits if idle is Idle.LEDGER else idle is Idle.WAIT
    return "drafting" if step.row is None and step.drafts.best is None and waits else "running"
