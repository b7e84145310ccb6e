"""What a node reports, in its log and on `/diagnostics`, and rates of what arrives. No ROS; time is given."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

RATE_WINDOW_S = 5.0


class Level(IntEnum):
    """Severity, numbered as diagnostic_msgs/DiagnosticStatus has it."""

    OK = 0
    WARN = 1
    ERROR = 2


class Log(Protocol):
    """A logger as rclpy has it; `throttle_duration_sec` limits how often a line is logged."""

    def info(self, message: str, **options: Any) -> Any:
        """Log a normal event."""

    def warning(self, message: str, **options: Any) -> Any:
        """Log what a person should look at."""

    def error(self, message: str, **options: Any) -> Any:
        """Log what went wrong."""


@dataclass(frozen=True)
class Status:
    """One line of `/diagnostics`."""

    name: str
    """What it is about, e.g. camera; the node's name is put before it."""
    level: Level
    message: str
    values: Mapping[str, str | float | int] = field(default_factory=dict)
    """Shown below the line; numbers are printed with four digits."""


class Arrivals:
    """How often something arrived lately, and when last. Time: steady clock, seconds."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def note(self, now: float) -> None:
        """Note an arrival."""
        self._times.append(now)
        self._forget(now)

    def rate(self, now: float) -> float:
        """Return arrivals a second over the last `RATE_WINDOW_S` seconds."""
        self._forget(now)
        return len(self._times) / RATE_WINDOW_S

    def age(self, now: float) -> float | None:
        """Return the seconds since the last arrival within the window, None without one."""
        self._forget(now)
        return now - self._times[-1] if self._times else None

    def _forget(self, now: float) -> None:
        while self._times and now - self._times[0] > RATE_WINDOW_S:
            self._times.popleft()


def text(value: str | float | int) -> str:
    """Return a value as `/diagnostics` shows it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
