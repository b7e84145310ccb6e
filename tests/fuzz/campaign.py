"""A campaign: lives of a verifier or a robot, each of which is sent messages until their number is reached.

Everything in a life is drawn from its seed and happens on virtual time in one thread, so a life can be lived again.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import threading
import time
from collections import Counter, deque
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
    """One verifier, or one robot, from its start to its end; `live` raises whatever goes wrong."""

    def live(self, choose: Choose) -> None:
        """Send what `choose` returns until it returns None."""

    @property
    def counts(self) -> dict[str, int]:
        """What happened, by name."""


@dataclass(frozen=True)
class Side:
    """What is attacked, and how."""

    name: str
    life: Callable[[str], Life]
    """Returns a new life; its argument names what in it is chosen at random."""
    act: Callable[[Any, random.Random], Act]
    """Returns the next act against a life; its first argument is what its attackers know by now."""


@dataclass
class Report:
    """What a campaign came to."""

    side: str
    messages: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    memory_mb: tuple[float, float] = (0.0, 0.0)
    """Resident memory after the first tenth of the first life, and the most since."""

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


def campaign(
    side: Side, messages: int, seed: int, life: int = LIFE, progress: Callable[[int], object] = lambda count: None
) -> Report:
    """Send so many messages. Raises Failed for the first life that fails."""
    report, started = Report(side.name), time.perf_counter()
    for number in itertools.count():
        if report.messages >= messages:
            break
        _live(side, f"{seed}/{side.name}/{number}", min(life, messages - report.messages), report, progress)
    report.seconds = time.perf_counter() - started
    return report


def _live(side: Side, name: str, count: int, report: Report, progress: Callable[[int], object]) -> None:
    """Send so many messages to one life, and add what happened. Raises Failed."""
    rng, life = random.Random(name), side.life(name)
    done, memory = 0, list[float]()
    last: deque[Act] = deque(maxlen=SHOWN)

    def choose(knows: Any) -> Act | None:
        nonlocal done
        if done == count:
            return None
        done += 1
        if done in (max(1, count // 10), count):
            memory.append(memory_mb("self"))
        if done % SHOW_EACH == 0:
            alive()
            progress(SHOW_EACH)
        last.append(side.act(knows, rng))
        return last[-1]

    try:
        with watchdog() as alive:
            life.live(choose)
        if memory[-1] - memory[0] > GROWTH_MB:
            raise Broken(f"memory grew from {memory[0]:.0f} to {memory[-1]:.0f} MB")
    except Exception as error:
        raise Failed(side.name, name, done, last, error) from error
    report.messages += count
    report.counts.update(life.counts)
    report.memory_mb = (report.memory_mb[0] or memory[0], max(report.memory_mb[1], *memory))
