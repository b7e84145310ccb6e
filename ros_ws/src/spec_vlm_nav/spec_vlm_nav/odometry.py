"""Whether odometry can be moved on: finite, of a living source, and no further on than a robot can have come.

Time is given. Whether odometry fits what was commanded is for `motion`, which knows that.
"""

from __future__ import annotations

import math
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


@dataclass(frozen=True)
class OdometrySample:
    """One message."""

    position: tuple[float, float, float]
    """Metres."""
    orientation: tuple[float, float, float, float]
    """Quaternion, ROS order (x, y, z, w)."""
    stamp: float
    """By the source's clock, seconds; 0 where it sets none."""
    arrived: float
    """By this machine's steady clock, seconds."""
    twist: tuple[float, float, float] | None = None
    """Forward and left in m/s, counter-clockwise in rad/s; None where it is not used."""


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
