"""Whether odometry can be moved on: finite, of a living source, and no further on than a robot can have come.

Some sources send it in bursts: go2_ros2_sdk over WebRTC 2 to 4 messages at once, then none for 0.2 s and more. So the
silence after which it is not moved on any more is learned from how it comes.

Time is given. Whether odometry fits what was commanded is for `motion`, which knows that.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass

from spec_vlm_nav.motion import PlanarPose, wrap, yaw_of

TOP_SPEED, TOP_TURN = 3.8, 4.0
"""What a Go2, the fastest robot, does at most, m/s and rad/s; its remote control may drive it faster than we do."""
JUMP_M, JUMP_RAD = 0.1, 0.1
"""What an estimate may be corrected by on top of that, between two messages."""
STAMP_AHEAD_S = 0.2
"""How far two stamps may be apart beyond the messages' arrivals: later ones of a burst were on their way longer."""
FROZEN_S = 0.15
"""A stamp that stands still for so long is a source that repeats itself; less than a watchdog's timeout."""
RECOVERY_S = 0.5
"""How long a source must be sound again before it is moved on."""
RECOVERY_STEP_S = 0.1
"""What the time between two messages counts at most towards that: silence proves nothing."""
NORM_TOLERANCE = 0.1
LONGEST_S = 0.4
"""The longest silence that is ever allowed. The robot is then half as fast as with the 0.2 s of the other watchdogs, so
it goes no further before it stops; it also stops long before the firmware's own hold of 1 s would end."""
GAP_SLACK = 1.5
"""A source may be silent for this many times its usual longest gap."""
GAPS_S, USUAL = 5.0, 3
"""A gap is usual when the last so many seconds have so many that are as long, and gaps fill half of that time: a source
that is prompt, but held up now and then by a full machine, gets no longer silence."""
LEAST_HZ = 4
"""What evenly spaced odometry needs within `LONGEST_S` with `GAP_SLACK`, messages a second."""


@dataclass(frozen=True)
class OdometrySample:
    """One message."""

    position: tuple[float, float, float]
    """Position in metres."""
    orientation: tuple[float, float, float, float]
    """Quaternion, ROS order (x, y, z, w)."""
    stamp: float
    """Time by the source's clock, seconds; 0 where it sets none."""
    arrived: float
    """Time of its arrival by this machine's steady clock, seconds."""
    twist: tuple[float, float, float] | None = None
    """Speed forward and left in m/s, and counter-clockwise in rad/s; None where it is not used."""


class Rhythm:
    """How odometry comes. timeout: the least silence, seconds, after which it is not moved on any more."""

    def __init__(self, timeout: float) -> None:
        self.limit = timeout
        """The silence after which it is not moved on, seconds: `timeout` to `LONGEST_S`."""
        self.gap = 0.0
        """The longest usual gap, seconds; 0 where it is too short to matter."""
        self._timeout = timeout
        self._first: float | None = None
        self._last = math.inf
        self._gaps: deque[tuple[float, float]] = deque()
        """When they ended, and how long they were."""

    @property
    def problem(self) -> str:
        """Why nobody can move on odometry that comes like this, in a sentence; empty if one can."""
        if self.gap <= self.limit:
            return ""
        return f"odometry comes every {self.gap:.2g} s: at least {LEAST_HZ} messages a second are needed, evenly spaced"

    def note(self, arrived: float) -> None:
        """Take the time at which a message arrived."""
        gap, self._last = arrived - self._last, arrived
        self._first = arrived if self._first is None else self._first
        if gap > self._timeout / GAP_SLACK:
            self._gaps.append((arrived, gap))
        while self._gaps and arrived - self._gaps[0][0] > GAPS_S:
            self._gaps.popleft()
        lengths = [each for _, each in self._gaps]
        are_the_rule = len(lengths) >= USUAL and sum(lengths) >= 0.5 * min(GAPS_S, arrived - self._first)
        self.gap = heapq.nlargest(USUAL, lengths)[-1] if are_the_rule else 0.0
        self.limit = max(self._timeout, min(GAP_SLACK * self.gap, LONGEST_S))


class OdometryCheck:
    """Takes every message of one source. `problem` is why it cannot be moved on now, in a sentence; empty if it can.

    After a bad sample the source must be sound for `RECOVERY_S`; until then the problem stands.
    """

    def __init__(self) -> None:
        self.problem = ""
        self._last: tuple[PlanarPose, OdometrySample] | None = None
        self._stamped_at = 0.0
        self._sound_s = 0.0

    def take(self, sample: OdometrySample) -> PlanarPose | None:
        """Return where the base is, None while the source cannot be moved on."""
        fault = _malformed(sample)
        if fault:
            self._fail(fault)
            return None
        x, y, _ = sample.position
        pose = PlanarPose(x, y, yaw_of(*sample.orientation))
        last, self._last = self._last, (pose, sample)
        if last is None:
            self._stamped_at = sample.arrived
            fault, waited = "", 0.0
        else:
            fault, waited = self._compare(*last, pose, sample), sample.arrived - last[1].arrived
        if fault:
            self._fail(fault)
        elif self.problem:
            self._sound_s += min(max(waited, 0.0), RECOVERY_STEP_S)
            if self._sound_s >= RECOVERY_S:
                self.problem = ""
        return None if self.problem else pose

    def _fail(self, fault: str) -> None:
        self.problem, self._sound_s = fault, 0.0

    def _compare(self, before: PlanarPose, earlier: OdometrySample, pose: PlanarPose, sample: OdometrySample) -> str:
        """Return what is wrong between two samples that are sound by themselves; empty if nothing is."""
        stamped = sample.stamp - earlier.stamp
        if stamped or not sample.stamp:
            self._stamped_at = sample.arrived
        if stamped < 0.0:
            return f"odometry's stamp went back {-stamped:.3g} s: does more than one source publish it?"
        still = sample.arrived - self._stamped_at
        if still >= FROZEN_S:
            return f"odometry's stamp stands still for {still:.2f} s: its source is frozen"
        arrived = max(sample.arrived - earlier.arrived, 0.0)
        seconds = max(arrived, min(stamped, STAMP_AHEAD_S))
        moved, turned = math.hypot(pose.x - before.x, pose.y - before.y), abs(wrap(pose.yaw - before.yaw))
        if not moved <= TOP_SPEED * seconds + JUMP_M:
            return f"odometry jumped {moved:.3g} m in {seconds:.3g} s"
        if not turned <= TOP_TURN * seconds + JUMP_RAD:
            return f"odometry jumped {math.degrees(turned):.3g} degrees in {seconds:.3g} s"
        return ""


def _malformed(sample: OdometrySample) -> str:
    """Return what is wrong with a sample by itself; empty if nothing is."""
    fields = dict(zip(("x", "y", "z"), sample.position, strict=True))
    fields |= dict(zip(("qx", "qy", "qz", "qw"), sample.orientation, strict=True))
    fields |= dict(zip(("vx", "vy", "wz"), sample.twist or (0.0, 0.0, 0.0), strict=True))
    fields["stamp"] = sample.stamp
    for name, value in fields.items():
        if not math.isfinite(value):
            return f"odometry is not finite ({name} = {value})"
    norm = math.hypot(*sample.orientation)
    if abs(norm - 1.0) > NORM_TOLERANCE:
        return f"odometry's orientation is no rotation: its quaternion has norm {norm:.3g}, not 1"
    return ""


def frames_problem(fixed: str, body: str) -> str:
    """Return what is wrong with header.frame_id and child_frame_id of odometry, in a sentence; empty if nothing is.

    Names differ between robots, so only those are wrong that cannot be a fixed frame and a base that moves in it.
    """
    wrong = not fixed or not body or fixed == body or fixed.endswith("base_link") or body.endswith(("odom", "map"))
    if not wrong and not any(word in name for name in (fixed, body) for word in ("camera", "optical")):
        return ""
    return (
        f"odometry is of child_frame_id {body!r} in header.frame_id {fixed!r}, expected 'base_link' in 'odom': "
        "is it the place of the robot's base, x ahead and z up?"
    )
