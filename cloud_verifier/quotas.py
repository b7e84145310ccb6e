"""Holds clients to what they may use a second. Who uses more is asked to come back when it is paid off."""

from __future__ import annotations

from cloud_verifier.config import Quotas as Settings
from cloud_verifier.kv_admission import LEAST_WAIT_S, MOST_WAIT_S, NoRoom
from cloud_verifier.limits import Rate

BURST_S = 4.0
"""A client may use so many seconds' worth at once."""


class Quotas:
    """Counts by user: a client or, without keys, a session. Times are seconds on any clock."""

    def __init__(self, settings: Settings) -> None:
        rates = {"steps": settings.steps_per_s, "bytes": settings.bytes_per_s}
        rates["draft tokens"] = settings.draft_tokens_per_s
        self._rates = {what: Rate(rate, BURST_S) for what, rate in rates.items() if rate}

    def use(self, what: str, user: object, amount: float, now: float) -> None:
        """Enter a use of `steps`, `bytes` or `draft tokens`, whether or not the quota allows it."""
        if what in self._rates:
            self._rates[what].use(user, amount, now)

    def check(self, user: object, now: float, *kinds: str) -> None:
        """Raise NoRoom, with the quota's flag and a time to come back, where one of these kinds is used up."""
        for what in kinds:
            rate = self._rates.get(what)
            if rate is not None and (wait := rate.wait(user, now)) > 0.0:
                flag = f"--{what.replace(' ', '-')}-per-s"
                text = f"this robot's quota of {rate.rate:g} {what} a second is used up ({flag})"
                raise NoRoom(text, min(MOST_WAIT_S, max(LEAST_WAIT_S, wait)))
