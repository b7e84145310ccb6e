"""A campaign: lives of a verifier or a robot, each of which is sent messages until their number is reached.

Everything in a life is drawn from its seed and happens on virtual time in one thread, so a life can be lived again.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from speculation import wire
from tests.hostile import memory_mb

LIFE = 100_000
"""Messages to one verifier or robot before the next one is made."""
HANG_S = 60.0
"""A life that gets no further for so long hangs: a thousand messages take less than a second."""
GROWTH_MB = 64.0
"""What memory may grow by from the first tenth of a life to its end."""
SHOW_EACH = 250
SHOWN = 12
"""The last acts of a life that failed, which are shown."""


class Broken(AssertionError):
    """What must hold did not."""


@dataclass(frozen=True)
class Act:
    """What is sent at one moment: `frames` to or from `peer`, `gap_s` seconds after the act before.

    No frames: the peer is gone.
    """

    peer: bytes
    frames: tuple[bytes, ...]
    gap_s: float = 0.0

    def __str__(self) -> str:
        shown = "; ".join(_shown(frame) for frame in self.frames)
        return f"{self.peer.decode()} +{self.gap_s:.3f} s {shown or 'is gone'}"


def _shown(frame: bytes) -> str:
    try:
        text = repr(wire.decode(frame))
    except wire.WireError:
        text = repr(frame)
    return text if len(text) <= 300 else f"{text[:300]}... ({len(frame)} bytes)"


Choose = Callable[[Any], "Act | None"]
"""Returns the next act, given what the sender knows; None at the end."""


class Life(Protocol):
    """One verifier, or one robot, from its start to its end."""

    def live(self, choose: Choose) -> None:
        """Send what `choose` returns until it returns None. Raises whatever goes wrong."""

    @property
    def counts(self) -> dict[str, int]:
        """What happened, by name."""


class Side(Protocol):
    """What is attacked."""

    name: str

    def life(self, seed: str) -> Life:
        """Return a new life; `seed` names what in it is chosen at random."""

    def act(self, knows: Any, rng: random.Random) -> Act:
        """Return the next act against a life; `knows` is what its attackers know by now."""


@dataclass
class Report:
    """What a campaign came to."""

    side: str
    messages: int = 0
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    memory_mb: tuple[float, float] = (0.0, 0.0)
    """Resident memory after the first tenth of the first life, and the most since."""

    def add(self, messages: int, counts: dict[str, int], memory: tuple[float, float]) -> None:
        """Add a life."""
        self.messages += messages
        self.memory_mb = (self.memory_mb[0] or memory[0], max(self.memory_mb[1], *memory))
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count

    def __str__(self) -> str:
        rate = self.messages / self.seconds if self.seconds else 0.0
        found = ", ".join(f"{name} {count:,}" for name, count in sorted(self.counts.items()))
        first, most = self.memory_mb
        return (
            f"{self.side}: {self.messages:,} messages in {self.seconds:.1f} s ({rate:,.0f} a second), "
            f"memory {first:.0f} to {most:.0f} MB; {found}"
        )


class Failed(Exception):
    """A life failed behind these last acts."""

    def __init__(self, side: str, seed: str, count: int, acts: Iterable[Act], error: BaseException) -> None:
        lines = "\n".join(f"  {act}" for act in acts)
        super().__init__(
            f"{side}, life {seed!r}, failed at message {count}: {type(error).__name__}: {error}\n"
            f"what was sent last:\n{lines}"
        )


class Hung(Broken):
    """A life got no further."""


@contextlib.contextmanager
def watchdog() -> Iterator[Callable[[], None]]:
    """Raise Hung where what it yields is not called for so long. Only in the main thread, where signals come."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def ring(*_: object) -> None:
        raise Hung(f"no message was taken for {HANG_S:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, HANG_S)
        yield lambda: signal.setitimer(signal.ITIMER_REAL, HANG_S) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class _Lived:
    """How far a life has come."""

    count: int
    done: int = 0
    last: deque[Act] = field(default_factory=lambda: deque(maxlen=SHOWN))
    """What was sent last."""
    memory_mb: tuple[float, float] = (0.0, 0.0)
    """After its first tenth, and at its end."""

    def goes_on(self) -> bool:
        """Count one more message; False where it has had them all."""
        if self.done == self.count:
            return False
        self.done += 1
        if self.done == max(1, self.count // 10):
            self.memory_mb = (memory_mb("self"), 0.0)
        if self.done == self.count:
            self.memory_mb = (self.memory_mb[0], memory_mb("self"))
        return True


def campaign(
    side: Side, messages: int, seed: int, life: int = LIFE, progress: Callable[[int], object] = lambda count: None
) -> Report:
    """Send so many messages. Raises Failed for the first life that fails."""
    report, number, started = Report(side.name), 0, time.perf_counter()
    while report.messages < messages:
        name = f"{seed}/{side.name}/{number}"
        lived = _Lived(min(life, messages - report.messages))
        try:
            counts = _live(side, name, lived, progress)
        except Exception as error:
            raise Failed(side.name, name, lived.done, lived.last, error) from error
        report.add(lived.count, counts, lived.memory_mb)
        number += 1
    report.seconds = time.perf_counter() - started
    return report


def _live(side: Side, name: str, lived: _Lived, progress: Callable[[int], object]) -> dict[str, int]:
    rng, life = random.Random(name), side.life(name)
    with watchdog() as alive:

        def choose(knows: Any) -> Act | None:
            if not lived.goes_on():
                return None
            if lived.done % SHOW_EACH == 0:
                alive()
                progress(SHOW_EACH)
            act = side.act(knows, rng)
            lived.last.append(act)
            return act

        life.live(choose)
    first, last = lived.memory_mb
    if last - first > GROWTH_MB:
        raise Broken(f"memory grew from {first:.0f} to {last:.0f} MB")
    return life.counts
