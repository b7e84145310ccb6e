"""Emulates links: delay, jitter, loss, rate and blackouts, declared by name, without root privileges.

Data: `LinkConditions` declare what each way does, `EmulatedWay` holds messages until they would have arrived. It has no
clock of its own, so sockets on real time and an engine on virtual time share it.

The model is one TCP connection, as the real link is. A lost packet costs the time of a retransmission, not the message,
and holds up what was sent behind it; in a blackout messages wait. What vanishes for good, and what overtakes, is for
tests of a protocol that must survive both: `retransmit_s=0` and `reorder=True`.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from speculation.profiles import MAX_SECONDS, check_number, declared, read_declarations

LINKS_FILE = Path(__file__).resolve().parent / "config" / "links.json"
MAX_LOSS = 0.9
MIN_RATE_BPS, MAX_RATE_BPS = 1.0, 1e12
MIN_BLACKOUT_S, MAX_BLACKOUT_S = 1e-3, 3600.0
MAX_DARK = 0.95
MOST_LOSSES = 6
"""A message is lost at most so often in a row, so that a retransmission takes at most 63 times the first one's time."""

T = TypeVar("T")


@dataclass(frozen=True)
class Blackout:
    """Nothing passes for `seconds` from `start_s`, and again every `every_s` seconds.

    Times count from the link's start. Raises ValueError for a time outside its limits.
    """

    start_s: float
    seconds: float
    every_s: float = 0.0
    """0: only once."""

    def __post_init__(self) -> None:
        check_number("blackout start_s", self.start_s, 0.0, MAX_BLACKOUT_S, " s")
        check_number("blackout seconds", self.seconds, MIN_BLACKOUT_S, MAX_BLACKOUT_S, " s")
        check_number("blackout every_s", self.every_s, 0.0, MAX_BLACKOUT_S, " s")
        if self.every_s and self.share > MAX_DARK:
            raise ValueError(
                f"blackout of {self.seconds:g} s every {self.every_s:g} s leaves no link; at most {MAX_DARK:.0%} of "
                "the time may be dark"
            )

    @property
    def share(self) -> float:
        """Share of all time that is dark; 0 where it comes once."""
        return self.seconds / self.every_s if self.every_s else 0.0

    def ends(self, at: float) -> float:
        """Return when the blackout that holds `at` ends; `at` itself where none does."""
        begin = self._begin(self._turn(at))
        return begin + self.seconds if begin <= at < begin + self.seconds else at

    def begins(self, at: float) -> float:
        """Return when the next blackout after `at` begins; infinite for none."""
        if at < self.start_s:
            return self.start_s
        return self._begin(self._turn(at) + 1) if self.every_s else math.inf

    def _begin(self, turn: int) -> float:
        return self.start_s + turn * self.every_s

    def _turn(self, at: float) -> int:
        """Return the number of the latest blackout that began by `at`, 0 before the first."""
        if not self.every_s:
            return 0
        turn = max(0, math.floor((at - self.start_s) / self.every_s))
        # The quotient rounds; what decides is the very sum that a begin is.
        while turn > 0 and self._begin(turn) > at:
            turn -= 1
        while self._begin(turn + 1) <= at:
            turn += 1
        return turn


@dataclass(frozen=True)
class WayConditions:
    """What one way of a link does to a message. Raises ValueError, naming field and limit."""

    delay_s: float = 0.0
    """Least time on the way."""
    jitter_s: float = 0.0
    """Up to so much more, uniformly."""
    rate_bps: float = 0.0
    """Bits per second: a message takes size x 8 / rate to leave, others queue behind it; 0 is no limit."""
    loss: float = 0.0
    """Share of messages of which a packet is lost."""
    retransmit_s: float = 0.0
    """What the first loss costs, each further one twice the one before (RFC 6298, 5.5); at 0 a lost message is gone."""
    reorder: bool = False
    """Whether a message may overtake another; TCP never lets it."""
    blackouts: tuple[Blackout, ...] = ()
    """When nothing passes."""

    def __post_init__(self) -> None:
        for name in ("delay_s", "jitter_s", "retransmit_s"):
            check_number(name, getattr(self, name), 0.0, MAX_SECONDS, " s")
        check_number("loss", self.loss, 0.0, MAX_LOSS, "")
        if self.rate_bps != 0:
            check_number("rate_bps", self.rate_bps, MIN_RATE_BPS, MAX_RATE_BPS, " bit/s (0: no limit)")
        if sum(blackout.share for blackout in self.blackouts) > MAX_DARK:
            raise ValueError(f"blackouts leave no link; together at most {MAX_DARK:.0%} of the time may be dark")

    def sending_s(self, size: int) -> float:
        """Return how long a message of `size` bytes takes to leave."""
        return size * 8.0 / self.rate_bps if self.rate_bps else 0.0


@dataclass(frozen=True)
class LinkConditions:
    """Both ways of a link."""

    name: str = ""
    up: WayConditions = field(default_factory=WayConditions)
    down: WayConditions = field(default_factory=WayConditions)
    seed: int = 0
    """The seed of the random draws."""
    scale: str = ""
    """Source of the figures."""

    def delayed(self, seconds: float) -> LinkConditions:
        """Return the same link with so many seconds more each way: a device profile's T_c. Raises ValueError."""
        up, down = (replace(way, delay_s=way.delay_s + seconds) for way in (self.up, self.down))
        return replace(self, up=up, down=down)

    @property
    def longest_trip_s(self) -> float:
        """Longest round trip of a small message that is neither lost nor queued nor in a blackout."""
        return sum(way.delay_s + way.jitter_s for way in (self.up, self.down))

    def ways(self, start: float) -> tuple[EmulatedWay[Any], EmulatedWay[Any]]:
        """Return the ways up and down of one link that starts now, at `start` on the caller's clock."""
        return EmulatedWay(self.up, f"{self.seed}/up", start), EmulatedWay(self.down, f"{self.seed}/down", start)


IDEAL = LinkConditions()


class EmulatedWay(Generic[T]):
    """One way of a link: what is put in comes out when it would have arrived. Times are on the caller's clock.

    Draws come from a stream that `seed` names: the nth message has the nth draws, whatever its time, size and
    conditions, so that a run can be repeated.
    """

    def __init__(self, conditions: WayConditions, seed: str = "", start: float = 0.0) -> None:
        self.conditions = conditions
        self.vanished = 0
        self._start = start
        self._random = random.Random(seed)
        self._count = 0
        # Times since `start`, so that they compare exactly with those of blackouts.
        self._held: list[tuple[float, int, T]] = []
        self._idle_at = self._latest = -math.inf

    def put(self, item: T, size: int, now: float) -> float:
        """Send an item of `size` bytes at `now`, behind what is still leaving; return its `due`, infinite for never."""
        jitter, luck = self._random.random(), self._random.random()
        way = self.conditions
        self._count += 1
        self._idle_at = self._sent(max(now - self._start, self._idle_at), way.sending_s(size))
        losses = _losses(luck, way.loss)
        if losses and not way.retransmit_s:
            self.vanished += 1
            return math.inf
        due = self._idle_at + way.delay_s + jitter * way.jitter_s + way.retransmit_s * (2.0**losses - 1.0)
        due = self._lit(due if way.reorder else max(due, self._latest))
        self._latest = max(due, self._latest)
        heapq.heappush(self._held, (due, self._count, item))
        return self._start + due

    def take(self, now: float) -> T | None:
        """Return the next item that has arrived by `now`, None where none has."""
        return heapq.heappop(self._held)[2] if self._held and self.due <= now else None

    @property
    def due(self) -> float:
        """When the next item arrives; infinite where none is under way."""
        return self._start + self._held[0][0] if self._held else math.inf

    def __len__(self) -> int:
        """How many items are under way."""
        return len(self._held)

    def clear(self) -> None:
        """The connection was closed: what is under way is lost with it. Draws and blackouts go on."""
        self._held.clear()
        self._idle_at = self._latest = -math.inf

    def _sent(self, at: float, seconds: float) -> float:
        """Return when `seconds` of sending that may begin at `at` are over; a blackout interrupts them."""
        at = self._lit(at)
        while True:
            dark = min((each.begins(at) for each in self.conditions.blackouts), default=math.inf)
            if at + seconds <= dark:
                return at + seconds
            seconds -= dark - at
            at = self._lit(dark)

    def _lit(self, at: float) -> float:
        """Return the first moment from `at` on that lies in no blackout."""
        while (end := max((each.ends(at) for each in self.conditions.blackouts), default=at)) > at:
            at = end
        return at


def _losses(luck: float, loss: float) -> int:
    """Return how often a message is lost in a row: k times with probability loss^k (1 - loss), from a uniform draw."""
    if luck >= loss:
        return 0
    return MOST_LOSSES if luck <= 0.0 else min(MOST_LOSSES, int(math.log(luck) / math.log(loss)))


def load_links(path: Path = LINKS_FILE) -> dict[str, LinkConditions]:
    """Return all links of a JSON file by name. Raises ValueError as `read_declarations`."""
    return read_declarations(path, "link", _link)


def load_link(name: str) -> LinkConditions:
    """Return one link, an ideal one for an empty name. Raises ValueError, with the known names, for an unknown one."""
    return declared(name, load_links(), "link", LINKS_FILE) if name else IDEAL


def declared_name(profile: str, link: str) -> str:
    """Return what a result calls the declared conditions it was measured under, e.g. 'raw over lte'."""
    return f"{profile} over {link}" if link else profile


def _link(name: str, entry: dict[str, Any]) -> LinkConditions:
    up, down = (_way({**entry.get("both", {}), **entry.get(side, {})}) for side in ("up", "down"))
    return LinkConditions(name, up, down, entry.get("seed", 0), entry.get("scale", ""))


def _way(given: dict[str, Any]) -> WayConditions:
    blackouts = tuple(Blackout(**each) for each in given.pop("blackouts", ()))
    return WayConditions(**given, blackouts=blackouts)
