"""The running goal in a small file, from which a vlm_nav that died takes it up again. No ROS.

Its age counts from the last sign of life by a clock that nobody sets and that begins anew with the kernel: what was
kept before a reboot is never taken up, whatever the time of day says.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from spec_vlm_nav.navigation_goal import GoalRecord
from speculation.machine_info import machine_id
from speculation.settings import expanded

RESUME_MOST_S = 120.0
"""No goal is taken up that was given up for longer: clients that cancel one wait so long for a server that died."""
VERSION = 1
MOST_BYTES = 4_000_000
"""A goal of an hour has less."""
Id = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Positive = Annotated[float, Meta(ge=0.0)]


class KeptGoal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A goal as it was at `at`."""

    id: Id
    """The id under which its client knows it, in hexadecimal."""
    instruction: Annotated[str, Meta(min_length=1, max_length=10_000)]
    left_s: float
    """Seconds of its time that were left."""
    max_actions: Annotated[int, Meta(ge=0, le=65535)] = 0
    dry_run: bool = False
    elapsed_s: Positive = 0.0
    distance_m: Positive = 0.0
    place: tuple[float, float] | None = None
    """Where the robot was by odometry, metres; None where that was not known."""
    latches: int | None = None
    """How often a person had taken the robot from the bridge when the goal began; None where the bridge did not say."""
    record: GoalRecord = GoalRecord()
    kernel: str = ""
    at: float = 0.0
    version: Literal[1] = 1

    def age(self) -> float:
        """Return the seconds since its last sign of life; infinite where that was before the machine's last start."""
        return now() - self.at if self.kernel and self.kernel == machine_id() and self.at <= now() else float("inf")


def now() -> float:
    """Return seconds since the kernel's start, those of a suspended machine too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def ros_home() -> Path:
    """Return ROS's own folder, where its logs and the running goal are kept.

    Raises ValueError for a home folder that is not there.
    """
    return expanded(os.environ.get("ROS_HOME") or "~/.ros")


def path_of(folder: str, node: str) -> Path:
    """Return where the goal of a node of this name, with its namespace, is kept: one file a robot and ROS domain.

    An empty `folder` is spec_vlm_nav in ROS's own. Raises ValueError for a home folder that is not there.
    """
    home = expanded(folder) if folder else ros_home() / "spec_vlm_nav"
    domain = os.environ.get("ROS_DOMAIN_ID") or "0"
    return home / f"goal{node.replace('/', '.')}.{domain}.json"


class GoalFile:
    """The file of one node, which it has to itself while it lives. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        """Raise OSError, with a reason, where the folder cannot be written in or another process has the file."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise OSError(f"{path} belongs to another vlm_nav of this name, which runs") from None

    def close(self) -> None:
        """Let go of the file; safe to repeat."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def write(self, goal: KeptGoal) -> None:
        """Keep a goal as it is now. Raises OSError. The file is the old one or the new one, never a part."""
        data = msgspec.json.encode(msgspec.structs.replace(goal, kernel=machine_id(), at=now()))
        part = self._path.with_suffix(".part")
        # Not forced onto the disk: what a power cut loses is of before a reboot.
        part.write_bytes(data)
        part.replace(self._path)

    def read(self) -> KeptGoal | None:
        """Return the goal that is kept, None where there is none.

        Raises ValueError, in a sentence, for a file that is damaged or of another program, OSError for one that cannot
        be read.
        """
        try:
            with self._path.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        if len(data) > MOST_BYTES:
            raise ValueError(f"{self._path} is no kept goal: it has more than {MOST_BYTES} bytes")
        try:
            return msgspec.json.decode(data, type=KeptGoal)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ValueError(f"{self._path} is no kept goal of version {VERSION}: {error}") from None

    def forget(self) -> None:
        """Keep nothing any more. Raises OSError."""
        self._path.unlink(missing_ok=True)
