"""The client's side of a goal: what it asks for, what comes back, and when it is given up. No ROS.

Time is given: seconds of a steady clock. `nodes/goal_client.py` carries out what `Pursuit` orders.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import msgspec
from msgspec import Meta

from spec_vlm_nav.goal_file import RESUME_MOST_S
from speculation.language.instructions import is_sentence, is_stop, sentence_for
from speculation.settings import check

SERVER_S = 10.0
"""How long a new goal waits for somebody to take it."""
ANSWER_S = 5.0
"""How long an action server may take to accept a goal, before it is sent again."""
GONE_S = RESUME_MOST_S + 80.0
"""How long an action server that took the goal may be gone: a model loads again, and says then how the goal ended."""
LOST_S = 6.0
"""How long a restarted server that knows no such goal is asked for it: it may not have read yet what it was at."""
PROBE_S = 2.0
"""Silence after which the server is asked whether it still has the goal, and how often it is asked then."""
GAP_S, SUSPECT_S = 0.5, 6.0
"""What comes after such a gap may be a restarted server's, which knows of no question: it is asked for so long."""
RETRY_S = 1.0
"""How soon a server that is not active yet is asked again, and a cancellation repeated."""
STARTING_S = 3.0
"""How long a report that the nodes still start holds: lifecycle_manager makes one a second. A goal that is refused as
NOT_ACTIVE is sent again for as long, as it may have come before the first report."""
STOP_S = 10.0
"""How long a cancelled goal may take to end."""
STOPPED = "told to stop: the robot stands"
"""The message of a goal whose instruction was to stop."""


class Request(msgspec.Struct, frozen=True):
    """What a goal asks for. Raises ValueError, naming the field, for a value beyond its limits."""

    instruction: Annotated[str, Meta(description="what to find")]
    time_s: Annotated[float, Meta(ge=0.0, le=86400.0, description="time allowance, s; 0: the node's default")] = 0.0
    max_actions: Annotated[int, Meta(ge=0, le=65535, description="most actions; 0: no limit but time")] = 0
    dry_run: Annotated[bool, Meta(description="decide only; the robot stands")] = False

    def __post_init__(self) -> None:
        check(self)
        sentence_for(self.instruction, None)


@dataclass(frozen=True)
class Progress:
    """One feedback message of the action."""

    state: str = ""
    reason: str = ""
    link: str = ""
    understood: str = ""
    """What is looked for, e.g. 'find the silver bottle'; empty for a model that takes any instruction."""
    answer: str = ""
    """The committed text of the running answer."""
    guess: str = ""
    """What the draft model expects behind `answer`, which may be wrong."""
    step: int = -1
    action: str = ""
    """The last decision, e.g. 'turn left large' or 'HOLD'; empty before the first."""
    source: str = ""
    reasoning: str = ""
    """Reasons of the last decision; they are whole where `answer` may lag behind."""
    complete: bool = True
    """Whether the answer that the decision is from has ended."""
    done: tuple[str, ...] = ()
    distance_m: float = 0.0


class Outcome(Enum):
    """How a goal ended, and the exit status of `find`."""

    FOUND = 0
    FAILED = 1
    REFUSED = 2
    NOT_FOUND = 3
    """The model searched all that can be reached and says that the object is not there."""
    CANCELLED = 130


@dataclass(frozen=True)
class GoalEnd:
    """How a goal ended."""

    outcome: Outcome
    code: str
    """The result's error code by name, e.g. TIMEOUT; empty where no server answered."""
    message: str
    actions: int = 0
    elapsed_s: float = 0.0
    distance_m: float = 0.0
    stopped: bool = True
    """Whether the server confirmed that the robot stands."""


class Do(Enum):
    """What a pursuit orders."""

    SEND = "send the goal"
    ASK = "ask for the goal's result"
    CANCEL = "cancel the goal"


@dataclass(frozen=True)
class Order:
    """One order. Each sending of the goal is an attempt with a number and an identity of its own."""

    do: Do
    attempt: int


def instruction_of(words: str) -> str:
    """Return the instruction of what a person typed: 'the red ball' becomes 'find the red ball', 'halt' stays."""
    text = " ".join(words.split())
    return text if not text or is_sentence(text) or is_stop(text) else f"find {text}"


class Pursuit:
    """One goal, from its sending to its end, across deaths of the action server.

    A server that died goes on with the goal by itself when it is back, or says why it does not. Here it is asked for
    the result once more, and a cancel is repeated until it is heard.
    """

    def __init__(self, request: Request, now: float) -> None:
        self.request = request
        self.end: GoalEnd | None = None
        self.progress = Progress()
        self.note = ""
        """What the goal waits for, in a sentence; empty while a server works on it."""
        self._ready = False
        self._attempt = 0
        self._unanswered = False
        self._accepted: int | None = None
        self._strays: list[int] = []
        self._sent_at = self._asked_at = self._stopped_at = -math.inf
        self._retry_at = now
        self._alive_at = self._since = now
        self._refused_at = math.inf
        self._suspect_until = -math.inf
        self._unknown_since: float | None = None
        self._starting, self._starting_at = "", -math.inf
        self._cancelled_at: float | None = None

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled_at is not None

    def server(self, ready: bool) -> None:
        """Take whether the graph shows an action server."""
        self._ready = ready

    def heartbeat(self, now: float) -> None:
        """Take a heartbeat of the server."""
        if now - self._alive_at > GAP_S:
            self._suspect_until, self._asked_at = now + SUSPECT_S, -math.inf
        self._alive_at = now

    def starting(self, what: str, now: float) -> None:
        """Take a report on the server's node: in a sentence what it starts with, empty where it does not start.

        A goal waits, and is not sent, for as long as the reports say that the node starts.
        """
        self._starting, self._starting_at = what, now if what else self._starting_at

    def answered(self, attempt: int, accepted: bool, now: float) -> None:
        """Take the answer to a sending."""
        if attempt != self._attempt or self.end is not None:
            # A server that was slow took a goal that nobody waits for any more.
            self._strays += [attempt] if accepted else []
            return
        self._unanswered = False
        if accepted:
            self._accepted = attempt
            self._alive_at, self._asked_at, self._suspect_until = now, -math.inf, -math.inf
        elif self.cancelled:
            self.end = GoalEnd(Outcome.CANCELLED, "", "cancelled before it was taken")
        elif not self._again(now):
            self.end = GoalEnd(Outcome.REFUSED, "", "the action server refused the goal")

    def feedback(self, attempt: int, progress: Progress, now: float) -> None:
        """Take a feedback message."""
        if attempt == self._attempt and self.end is None:
            self.progress, self._unknown_since = progress, None
            self.heartbeat(now)

    def unknown(self, attempt: int, now: float) -> None:
        """Take a server's answer that it has no such goal: it was restarted."""
        if attempt == self._accepted and self._unknown_since is None:
            self._unknown_since = now

    def result(self, attempt: int, end: GoalEnd, now: float) -> None:
        """Take the goal's result."""
        if attempt != self._accepted or self.end is not None:
            return
        if end.code == "NOT_ACTIVE" and not self.cancelled and self._again(now):
            return
        self.end = end

    def cancel(self, now: float) -> None:
        """End the goal. It is not sent any more; `end` comes with its result, or when nobody can go on with it."""
        if self._cancelled_at is None:
            self._cancelled_at = now

    def step(self, now: float) -> list[Order]:
        """Return what is to be done now. Call it some ten times a second, until `end` is set, and once more then."""
        strays, self._strays = self._strays, []
        orders = [Order(Do.CANCEL, attempt) for attempt in strays]
        if self.end is not None:
            return orders
        if self.cancelled:
            return orders + self._stop(now)
        if self._accepted is None:
            return orders + self._send(now)
        return orders + self._watch(now)

    def _again(self, now: float) -> bool:
        """Have the goal sent again in a moment; False where a server had it, or has refused it for a while."""
        self._refused_at = min(self._refused_at, now)
        if self.progress.state or now - max(self._refused_at, self._starting_at) > STARTING_S:
            return False
        self._accepted, self._since, self._retry_at = None, now, now + RETRY_S
        return True

    def _send(self, now: float) -> list[Order]:
        starts = self._starting and now - self._starting_at <= STARTING_S
        waited = now - max(self._since, self._starting_at)
        self.note = f"waits for the nodes to start: {self._starting}" if starts else "waits for the action server"
        if waited > SERVER_S:
            words = f"no active action server for {waited:.0f} s"
            words += f"; its last report was that {self._starting}" if self._starting else ""
            self.end = GoalEnd(Outcome.REFUSED, "", words)
        elif (
            self._ready
            and not starts
            and now >= self._retry_at
            and not (self._unanswered and now - self._sent_at < ANSWER_S)
        ):
            self._attempt += 1
            self._unanswered, self._sent_at = True, now
            return [Order(Do.SEND, self._attempt)]
        return []

    def _watch(self, now: float) -> list[Order]:
        assert self._accepted is not None
        silent = now - self._alive_at
        self.note = ""
        if self._is_lost(now):
            words = "the action server was restarted and knows nothing of the goal: see its log"
            self.end = GoalEnd(Outcome.FAILED, "", words, stopped=False)
            return []
        if silent > GONE_S:
            self.end = GoalEnd(Outcome.REFUSED, "", f"the action server was silent for {silent:.0f} s", stopped=False)
            return [Order(Do.CANCEL, self._accepted)]
        if silent > PROBE_S:
            self.note = "the action server is silent; it goes on with the goal if it was restarted and is soon back"
        doubtful = silent > PROBE_S or now < self._suspect_until or self._unknown_since is not None
        if self._asked_at == -math.inf or (doubtful and now - self._asked_at >= PROBE_S):
            self._asked_at = now
            return [Order(Do.ASK, self._accepted)]
        return []

    def _stop(self, now: float) -> list[Order]:
        assert self._cancelled_at is not None
        self.note = "stopping"
        if self._accepted is None and not self._unanswered:
            self.end = GoalEnd(Outcome.CANCELLED, "", "cancelled before it was taken")
            return []
        if self._accepted is not None and self._is_lost(now):
            words = "cancelled; the action server was restarted and does not go on with it"
            self.end = GoalEnd(Outcome.CANCELLED, "", words, stopped=False)
            return []
        until = self._cancelled_at + STOP_S
        if self._accepted is not None and now - self._alive_at > PROBE_S:
            # When it is back it would go on with the goal: it has to hear of the cancel.
            self.note = "stopping: the action server is silent, and is told when it is back"
            until = max(until, self._alive_at + RESUME_MOST_S + STOP_S)
        if now > until:
            words = f"cancelled, but the stop was not confirmed within {now - self._cancelled_at:.0f} s"
            self.end = GoalEnd(Outcome.CANCELLED, "", words, stopped=False)
            return []
        if self._accepted is None or now - self._stopped_at < RETRY_S:
            return []
        self._stopped_at = now
        return [Order(Do.CANCEL, self._accepted), Order(Do.ASK, self._accepted)]

    def _is_lost(self, now: float) -> bool:
        """Return whether a restarted server has had the time to go on with the goal."""
        return self._unknown_since is not None and now - self._unknown_since > LOST_S
