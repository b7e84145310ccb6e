"""How old camera frames are where the camera's clock is another one. No ROS; time is given."""

from __future__ import annotations

OFF_S = 1.0
"""A camera's clock that is behind by less is taken to be right, so that a steady delay counts as age."""
DRIFT = 2e-4
"""Seconds a second by which two clocks may drift apart."""
SURE_FRAMES = 10
"""Frames until the estimate is worth a line in a log."""


class CameraClock:
    """Estimates a camera's constant skew: the least time from stamp to arrival.

    Frames come in order of their arrival. A queue that grows makes frames old and is no skew: the estimate rises by
    `DRIFT` only, or anew after stamps that jumped back, which no queue does. A stamp of 0 is none.
    """

    def __init__(self) -> None:
        self._least: float | None = None
        self._last = (0.0, 0.0)
        self._frames = 0

    def age(self, stamp: float, arrived: float) -> float:
        """Return a frame's age when it arrived, at least 0.

        `stamp` is by the camera's clock, `arrived` by this machine's clock of the same kind, in seconds.
        """
        if stamp <= 0.0:
            return 0.0
        apart = arrived - stamp
        stamp_before, arrived_before = self._last
        if self._least is None or stamp < stamp_before:
            self._least, self._frames = apart, 0
        else:
            self._least = min(apart, self._least + DRIFT * max(arrived - arrived_before, 0.0))
        self._last = (stamp, arrived)
        self._frames += 1
        return max(0.0, apart - self.skew)

    @property
    def skew(self) -> float:
        """Seconds that the camera's clock is behind (negative: ahead); 0 where it counts as right."""
        least = self._least or 0.0
        return least if least < 0.0 or least > OFF_S else 0.0

    @property
    def is_off(self) -> bool:
        """Whether the skew is known well, and more than `OFF_S`."""
        return self._frames >= SURE_FRAMES and abs(self.skew) > OFF_S
