"""Route: where the verifier is looked for next. The robot's own list of addresses, and where a verifier has sent it.

It opens nothing. A `Redirect` is followed under the same rule as any address: with keys to an encrypted verifier only,
without them to this machine, or wherever plain text is allowed.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from speculation.address import addresses_of, check_address, host_of
from speculation.text import printable
from speculation.wire import Redirect

REMEDIES = ("keys, a folder", "allow_plain")
"""The settings that make a verifier on another machine trusted."""
KEY_CHARS = 40
"""Of a CURVE key (z85)."""
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9._-]{1,15})?\]")
MOST_HOPS, HOPS_S = 8, 2.0
"""Redirects that are followed at once in so many seconds; more would be sending the robot round in circles."""


@dataclass(frozen=True)
class Place:
    """A place is where a verifier is. `server_key` is its public key (z85), empty for plain text."""

    address: str
    server_key: bytes = b""
    ticket: bytes = b""
    """Admits this robot there."""


class RedirectRefused(ValueError):
    """A redirect that is not followed, and why."""


def check_verifier(address: str, encrypted: bool, allow_plain: bool) -> None:
    """Raise ValueError for what is no verifier's address, or list of them, or must not be trusted without keys."""
    try:
        for each in addresses_of(address):
            check_address(each, encrypted, allow_plain, REMEDIES)
    except ValueError as error:
        raise ValueError(f"verifier {error}") from None


class Route:
    """The places, one of which is the one to be. `now` is in seconds."""

    def __init__(self, addresses: Sequence[str], server_key: bytes = b"", allow_plain: bool = False) -> None:
        """`addresses` are the robot's own list, in the order in which they are tried; `server_key` is theirs."""
        self._own = [Place(address, server_key) for address in addresses]
        self._allow_plain = allow_plain
        self._at = 0
        self._elsewhere: Place | None = None
        """Where a verifier has sent the robot and it is now."""
        self._served_by: Place | None = None
        """Where a verifier has sent the robot and it was welcome."""
        self._unanswered = 0
        """Places of the list that did not answer since a verifier did."""
        self._full: dict[int, float] = {}
        """When places of the list are no longer full, by their number."""
        self._hops: deque[float] = deque(maxlen=MOST_HOPS)
        self.ticket = b""
        """The last ticket, by which a gateway knows where the robot was; empty before the first."""
        self._was_sent = False

    @property
    def place(self) -> Place:
        """Where the robot is to be now."""
        return self._elsewhere or self._own[self._at]

    @property
    def is_sent(self) -> bool:
        """Whether a verifier has sent the robot to where it is."""
        return self._elsewhere is not None

    @property
    def has_others(self) -> bool:
        """Whether there is any other place to try."""
        return self.is_sent or len(self._own) > 1 or self._served_by is not None

    @property
    def is_one_of_many(self) -> bool:
        """Whether this robot's verifiers are several, as far as is known: by its list, or since one has sent it on."""
        return len(self._own) > 1 or self._was_sent

    def follow(self, redirect: Redirect, now: float) -> float:
        """Go where a verifier sends the robot; return when to be there, `now` unless there were too many redirects.

        Raises RedirectRefused for an address that must not be trusted; the place is then the next one of the list.
        """
        due = now if len(self._hops) < MOST_HOPS else max(now, self._hops[0] + HOPS_S)
        self._hops.append(due)
        if not redirect.address:
            self.ticket = redirect.ticket
            self._back()
            return due
        key = redirect.server_key.encode("ascii", "replace")
        try:
            self._check(redirect.address, key)
        except ValueError as error:
            self._back()
            raise RedirectRefused(f"does not follow a redirect: {printable(str(error), 300)}") from None
        self.ticket, self._was_sent = redirect.ticket, True
        self._elsewhere = Place(redirect.address, key, redirect.ticket)
        return due

    def full(self, until: float, now: float) -> float:
        """Note that this place is full until then, and be at the one that may be asked first; return when."""
        self._full[self._at] = until
        turns = [(self._at + more) % len(self._own) for more in range(1, len(self._own) + 1)]
        self._at = min(turns, key=lambda number: max(now, self._full.get(number, now)))
        return max(now, self.full_until)

    @property
    def full_until(self) -> float:
        """When this place may be asked again."""
        return -math.inf if self._elsewhere is not None else self._full.get(self._at, -math.inf)

    def arrived(self) -> None:
        """Note that the robot is served here."""
        self._unanswered = 0
        self._full.clear()
        if self._elsewhere is not None:
            self._served_by = self._elsewhere

    def leave(self) -> None:
        """Go on to the next place, since nobody answers here.

        From elsewhere that is the gateway that sent the robot there; from the last of the list, where it was served
        before: gateways may be gone while their verifiers are not.
        """
        if self._elsewhere is not None:
            self._back()
            return
        self._unanswered += 1
        if self._unanswered >= len(self._own) and self._served_by is not None:
            self._elsewhere, self._unanswered = self._served_by, 0
            self._at = (self._at + 1) % len(self._own)
        else:
            self._at = (self._at + 1) % len(self._own)

    def _back(self) -> None:
        """Go back to the list: to the same place of it, or from there to the next one."""
        if self._elsewhere is None:
            self._at = (self._at + 1) % len(self._own)
        self._elsewhere = None

    def _check(self, address: str, key: bytes) -> None:
        if not _HOST.fullmatch(host_of(address)):
            raise ValueError(f"{address!r} is no tcp://HOST:PORT")
        encrypted = bool(self._own[0].server_key)
        if encrypted and len(key) != KEY_CHARS:
            raise ValueError(f"{address} would be plain text (a key of {len(key)} characters), this robot has keys")
        if key and not encrypted:
            raise ValueError(f"{address} is encrypted and this robot has no keys")
        check_address(address, encrypted, self._allow_plain, REMEDIES)
