"""The faults, their rows in the table, and what counts as standing. No ROS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

DELAY_S = 2.0
LIMIT_S = 0.25
"""Commanded speed is zero so soon after a fault that an input of executor or bridge goes silent with."""
STANDS = 1e-3
GAP_S = 0.25
"""A sender that commands nothing for longer has fallen silent."""


class Kind(str, Enum):
    """What is done to a part."""

    KILL = "kill"
    """SIGKILL; what was started again is left alone."""
    FREEZE = "freeze"
    """SIGSTOP, later SIGCONT."""
    CUT = "cut"
    """Nothing that it sends arrives."""
    DELAY = "delay"
    """All that it sends arrives two seconds late."""
    GARBAGE = "garbage"
    """All that it sends is replaced: NaN, no image, no action, changed bytes."""


class Phase(str, Enum):
    """When the fault comes."""

    THINKING = "thinking"
    """A question is being answered, and the robot stands."""
    MOVING = "moving"
    """Two tenths of a second into a motion of at least half a metre or 30 degrees."""


def process_of(part: str) -> str:
    """Return the process that a part lives in: the simulator is robot and camera in one."""
    return "sim_go2" if part in ("robot", "camera") else part


class Fault(NamedTuple):
    """One row's cause."""

    part: str
    kind: Kind


PARTS = ("verifier", "action_executor", "go2_bridge", "vlm_nav", "camera", "robot")
FAULTS = tuple(
    Fault(part, kind)
    for part in PARTS
    for kind in Kind
    # The simulator's process is the robot's; a bridge that sends garbage is a robot that nobody controls.
    if not (part == "camera" and kind in (Kind.KILL, Kind.FREEZE)) and (part, kind) != ("go2_bridge", Kind.GARBAGE)
)


def due(part: str, kind: str) -> tuple[str, ...]:
    """Return the outputs that must be zero within `LIMIT_S`, of cmd_vel and request.

    Those whose node loses an input of its own. Without verifier or camera, and where an action cannot be read, the
    action that was committed goes on to its end, which is bounded. An executor whose commands are lost on their way
    commands on.
    """
    if part in ("verifier", "camera") or (part, kind) == ("vlm_nav", "garbage"):
        return ()
    if part == "action_executor" and kind not in ("kill", "freeze"):
        return ("request",)
    return ("cmd_vel", "request")


@dataclass(frozen=True)
class Row:
    """What happened."""

    part: str
    kind: str
    phase: str
    cmd_vel_s: float | None
    """From the fault to the first zero at the executor's own output; None: it moved on until the fault's end."""
    request_s: float | None
    """The same at the requests, of the bridge or of the watchdog beside it; a robot obeys the last one for a second."""
    resumed_s: float | None
    """From the fault's end to the next motion of the same goal; None: it did not go on."""
    note: str = ""


def attempts(measure: Callable[[], Row], tries: int) -> list[Row]:
    """Return the rows of one cell: measured again, `tries` times at most, until nothing is wrong with the last."""
    rows: list[Row] = []
    while len(rows) < tries and (not rows or problems(rows[-1:])):
        rows.append(measure())
    return rows


def to_zero(commands: Sequence[tuple[float, float]], began: float, end: float, obeyed_s: float = 0.0) -> float | None:
    """Return the seconds from `began` until the commanded speed is zero, or until no motion is commanded any more.

    commands: (time, speed), in order; a sender that fell silent commanded motion until its last message, and for
    `obeyed_s` more where its receiver goes on with that. None: motion was commanded until `end`.
    """
    before = [speed for time, speed in commands if time < began]
    last, until = began, began + (obeyed_s if before and before[-1] > STANDS else 0.0)
    for time, speed in commands:
        if not began <= time <= end:
            continue
        if speed <= STANDS:
            return (time if time - last < GAP_S else min(time, until)) - began
        last, until = time, time + obeyed_s
    return until - began if (last == began or end - last >= GAP_S) and until <= end else None


def problems(rows: Sequence[Row]) -> list[str]:
    """Return what breaks the promise, a sentence each."""
    found = []
    for row in rows:
        name = f"{row.part} {row.kind}, {row.phase}"
        if row.resumed_s is None:
            found.append(f"{name}: the goal did not go on")
        seconds_of = {"cmd_vel": row.cmd_vel_s, "request": row.request_s}
        for what in due(row.part, row.kind):
            seconds = seconds_of[what]
            if seconds is None or seconds > LIMIT_S:
                found.append(f"{name}: {what} was not zero within {LIMIT_S:g} s")
    return found
