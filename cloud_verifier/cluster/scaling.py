"""Decides how many replicas are to run, by predicted work and broken promises, with hysteresis."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
from msgspec import Meta

from speculation.settings import check

LATE_SHARE = 0.05
"""Share of answers slower than their class from which one replica more runs."""
LOW_UTILISATION = 0.5
"""One replica fewer runs where those left would be utilised less than this."""


class Scaling(msgspec.Struct, frozen=True):
    """These settings are what the number of replicas follows. Raises ValueError, naming the setting and its limit."""

    min: Annotated[int, Meta(ge=1, le=1024, description="replicas that always run")] = 1
    max: Annotated[int, Meta(ge=1, le=1024, description="replicas at most")] = 1
    target_utilisation: Annotated[
        float, Meta(ge=0.05, le=1, description="predicted utilisation of a replica that is aimed at")
    ] = 0.7
    up_s: Annotated[float, Meta(ge=0, le=3600, description="seconds that a reason for more replicas must last")] = 5.0
    down_s: Annotated[float, Meta(ge=0, le=86400, description="seconds that a reason for fewer replicas must last")] = (
        120.0
    )

    def __post_init__(self) -> None:
        check(self)
        if self.max < self.min:
            raise ValueError(f"max {self.max} is below min {self.min}")


class Scaler:
    """Follows demand: up after `up_s`, by as many as it takes; down after `down_s`, one at a time."""

    def __init__(self, settings: Scaling, running: int = 0) -> None:
        """`running` replicas run already."""
        self._settings = settings
        self._wanted = min(max(settings.min, running), settings.max)
        self._up_since = self._down_since = math.inf

    def wanted(self, running: int, work: float, late: float, now: float) -> int:
        """Return how many replicas are to run, where so many do that can take robots.

        work: the sum of their utilisations; late: the largest of their shares of late answers. While not as many run as
        were wanted, which takes a model's loading time, nothing is decided.
        """
        settings = self._settings
        if running != self._wanted:
            self._up_since = self._down_since = math.inf
            return self._wanted
        needed = math.ceil(work / settings.target_utilisation - 1e-9)
        if late > LATE_SHARE:
            needed = max(needed, running + 1)
        needed = min(max(needed, settings.min), settings.max)
        fewer = running - 1
        low = min(LOW_UTILISATION, settings.target_utilisation)  # above it replicas would come and go for ever
        calm = fewer >= settings.min and needed <= fewer and work < low * fewer
        self._up_since = min(self._up_since, now) if needed > running else math.inf
        self._down_since = min(self._down_since, now) if calm else math.inf
        if now - self._up_since >= settings.up_s:
            self._change(needed)
        elif now - self._down_since >= settings.down_s:
            self._change(fewer)
        return self._wanted

    def _change(self, wanted: int) -> None:
        self._wanted = wanted
        self._up_since = self._down_since = math.inf
