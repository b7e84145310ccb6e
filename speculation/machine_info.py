"""Describes this machine: for results, in words; for two processes, to find out that they share its processors.

An address does not show that: behind 127.0.0.1 may be a tunnel to another machine, behind any other address this one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Random, and new whenever the kernel starts: all containers on it read the same one, a virtual machine has its own."""
TIMES = Path("/proc/stat")
"""Seconds that all processors together have spent since the start, by what they did."""


def machine_id() -> str:
    """Return what names the running kernel, 16 characters; empty where the system does not name it.

    It is a hash, since the boot id itself is not to leave the machine.
    """
    try:
        boot = BOOT_ID.read_text().strip()
    except OSError:
        return ""
    return hashlib.sha256(f"spec-vlm-nav {boot}".encode()).hexdigest()[:16] if boot else ""


def host() -> str:
    """Return the processor, its cores and the load of the last minute, in words."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.processor() or platform.machine()
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "?"
    return f"{processor}, {os.cpu_count()} cores, load {load}"


def busy_share(seconds: float) -> float:
    """Return which share of all processors was at work for so many seconds, 0 to 1; 0 where the system does not say."""
    before = _spent()
    time.sleep(seconds)
    spent = [after - earlier for earlier, after in zip(before, _spent(), strict=False)]
    # Idle, and waiting for a disk.
    return 1.0 - (spent[3] + spent[4]) / sum(spent) if sum(spent) > 0 else 0.0


def _spent() -> list[int]:
    try:
        return [int(each) for each in TIMES.read_text(encoding="utf-8").splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return []
