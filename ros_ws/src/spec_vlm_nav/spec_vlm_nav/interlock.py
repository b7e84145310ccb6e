"""What takes the robot from the bridge until a person gives it back: e-stop, remote control, limp joints. No ROS."""

from __future__ import annotations

import math

REMOTE_RELEASED_S = 1.0
"""A remote control that showed no activity for so long has been put down."""
LATCHES = "taken by a person"
"""Name of `Interlock.count` on `/diagnostics`."""
_E_STOP, _REMOTE, _DAMPED = "e-stop", "taken by the remote control", "damped by the remote"


class Interlock:
    """Latches each cause until `reset`, which is refused while the cause goes on. Time: steady clock, seconds."""

    def __init__(self) -> None:
        self.count = 0
        """Causes that were latched since the start."""
        self._latched: list[str] = []
        self._pressed = False
        self._remote_at = -math.inf

    @property
    def problem(self) -> str:
        """Why the bridge may not drive the robot, in a sentence; empty where it may."""
        return f"{' and '.join(self._latched)}; reset with ~/reset" if self._latched else ""

    def stops(self, now: float) -> bool:
        """Return whether the robot is to be stopped until it stands: an e-stop, unless a person drives it away."""
        return _E_STOP in self._latched and not self._remote_used(now)

    def e_stop(self, pressed: bool) -> bool:
        """Take a message of the e-stop; return whether the robot must be stopped now."""
        self._pressed = pressed
        if not pressed or _E_STOP in self._latched:
            return False
        self._latch(_E_STOP)
        return True

    def remote(self, now: float) -> bool:
        """Take notice of sticks or keys in use; return whether the robot must be stopped now."""
        self._remote_at = now
        return self._latch(_REMOTE)

    def damped(self) -> bool:
        """Take notice of joints that became limp; return whether the robot must be stopped now."""
        return self._latch(_DAMPED)

    def reset(self, now: float) -> str:
        """Clear everything, or return why not, in a sentence."""
        if self._pressed:
            return "the e-stop is still pressed: publish false on e_stop first"
        if self._remote_used(now):
            return "the remote control is in use: let go of its sticks and keys first"
        self._latched.clear()
        return ""

    def _remote_used(self, now: float) -> bool:
        return now - self._remote_at < REMOTE_RELEASED_S

    def _latch(self, cause: str) -> bool:
        """Latch a cause; return whether it is the first: a robot that was stopped before is left to the person."""
        first = not self._latched
        if cause not in self._latched:
            self._latched.append(cause)
            self.count += 1
        return first
