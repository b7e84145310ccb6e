"""What every evaluation shares: a verifier process of its own, the machine in a line, aligned tables."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from spec_vlm_nav.graph import PROJECT

START_LIMIT_S = 120.0


@contextmanager
def verifier(model: Path, *flags: str) -> Iterator[str]:
    """Run a verifier process and yield its address once it serves. Raises RuntimeError, with its words, if it ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", "cloud_verifier", "serve", "--model", str(model), "--bind", address, *flags]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "verifier.log"
        with log.open("w") as sink:
            process = subprocess.Popen(
                command, cwd=PROJECT, env={**os.environ, "PYTHONPATH": str(PROJECT)}, stderr=sink
            )
        try:
            _wait_until_serving(process, log)
            yield address
            if process.poll() is not None:
                raise RuntimeError(f"the verifier ended by itself: {log.read_text()[-1000:].strip()}")
        finally:
            process.terminate()
            process.wait(timeout=30)


def _wait_until_serving(process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_LIMIT_S
    while " serving " not in log.read_text():
        if process.poll() is not None:
            raise RuntimeError(f"the verifier did not start: {log.read_text()[-1000:].strip()}")
        if time.monotonic() > end:
            raise RuntimeError(f"the verifier did not start within {START_LIMIT_S:g} s")
        time.sleep(0.05)


def machine() -> str:
    """Return what the figures were measured on."""
    import torch

    name = platform.processor() or platform.machine()
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.exists():
        names = [line.partition(":")[2].strip() for line in cpu_info.read_text().splitlines() if "model name" in line]
        name = names[0] if names else name
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "?"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{name}, {os.cpu_count()} cores, load {load} at the end; {versions}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return aligned text, the first column left, the others right."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
