"""Who may decide: the verifier, for a while the draft model alone, or nobody. No ROS; time is given."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any

from msgspec import Meta

from edge_drafter.question import VerifierLost, VerifierRefused
from spec_vlm_nav.diagnostics import Level, Status
from speculation.settings import CheckedSettings

MEET_LOG_S = 5.0
GRACE_S = 1.0
"""A link that is neither up nor silent, such as one that greets the verifier again, is lost after so long."""
UP, LOST = "nominal", ("silent", "refused")
"""States of `edge_drafter.link.LinkState`."""


class LinkMode(Enum):
    """Who decides."""

    NOMINAL = "nominal"
    """The verifier."""
    DEGRADED = "degraded"
    """The draft model alone: small actions, at reduced speed, for a limited time."""
    HOLD = "hold"
    """Nobody: the robot stands."""


class LinkLimits(CheckedSettings, frozen=True):
    """When the draft model may decide alone, and when a goal ends.

    Raises ValueError, naming the setting, for a value out of range.
    """

    degraded_s: Annotated[
        float,
        Meta(ge=0.0, le=600.0, description="seconds that the draft model may decide alone in a lost link; 0: never"),
    ] = 20.0
    """It counts all such seconds; a second of a nominal link gives back one."""
    link_lost_s: Annotated[
        float, Meta(ge=1.0, le=3600.0, description="seconds that a goal stands without a verifier before it ends")
    ] = 60.0
    recover_s: Annotated[
        float, Meta(ge=0.0, le=60.0, description="seconds that a link must be back before the verifier decides again")
    ] = 1.0


class LinkMonitor:
    """Takes the link's state as often as somebody looks, and keeps the mode with hysteresis.

    It outlives a goal, so that goals sent again do not add up to a robot that its draft model drives for ever.
    """

    def __init__(self, limits: LinkLimits, blind: Callable[[], bool] = lambda: False) -> None:
        """`blind` returns whether the draft model was found not to see, so that it must not decide alone."""
        self.mode = LinkMode.NOMINAL
        self._limits, self._blind = limits, blind
        self._spent = 0.0
        self._looked: float | None = None
        self._up_since: float | None = None
        self._down_since: float | None = None

    def update(self, state: str, now: float) -> LinkMode:
        """Return who decides from `now` on (steady clock, seconds); `state` is the link's."""
        passed = 0.0 if self._looked is None else max(now - self._looked, 0.0)
        self._looked = now if self._looked is None else max(now, self._looked)
        if self.mode is LinkMode.DEGRADED:
            self._spent = min(self._spent + passed, self._limits.degraded_s)
        elif self.mode is LinkMode.NOMINAL:
            self._spent = max(0.0, self._spent - passed)
        if state == UP:
            self._down_since = None
            self._up_since = now if self._up_since is None else self._up_since
            if self.mode is not LinkMode.NOMINAL and now - self._up_since >= self._limits.recover_s:
                self.mode = LinkMode.NOMINAL
        else:
            self._up_since = None
            self._down_since = now if self._down_since is None else self._down_since
            if self.mode is LinkMode.NOMINAL and (state in LOST or now - self._down_since >= GRACE_S):
                self.mode = LinkMode.DEGRADED
        if self._spent >= self._limits.degraded_s or self._blind():
            self.give_up()
        return self.mode

    def give_up(self) -> None:
        """Let the draft model decide no longer, until the verifier is back."""
        if self.mode is LinkMode.DEGRADED:
            self.mode = LinkMode.HOLD


def link_status(why: str, state: str, rtt_s: float, mode: LinkMode) -> Status:
    """Return the line of `/diagnostics` about the link; an empty `state`: there is none, as configured."""
    level = Level.OK if state in ("", UP) and mode is LinkMode.NOMINAL else Level.WARN
    values: dict[str, str | float | int] = {"state": state or "none", "mode": mode.value}
    return Status("link", level, why, values | ({"rtt s": rtt_s} if rtt_s >= 0.0 else {}))


def meet(
    connect: Callable[[float, Callable[[], bool]], Any],
    limit_s: float,
    given_up: Callable[[], bool],
    log: Callable[[str], Any],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait for the verifier's Welcome and log every `MEET_LOG_S` seconds why it does not come.

    `connect` waits so many seconds, as `EdgeDecoder.connect`. Raises VerifierLost after `limit_s` seconds, or
    VerifierRefused at once, with the reason.
    """
    until = clock() + limit_s
    while True:
        left = until - clock()
        try:
            connect(max(0.0, min(MEET_LOG_S, left)), given_up)
            return
        except VerifierRefused:
            raise
        except VerifierLost as problem:
            if left <= MEET_LOG_S or given_up():
                raise
            log(f"waiting for the verifier: {problem}")
