"""Runs vlm_nav and names, once it has ended, the threads of the middleware that still run."""

from __future__ import annotations

import sys
from pathlib import Path

from spec_vlm_nav.nodes.managed import run_managed
from spec_vlm_nav.nodes.vlm_nav import VlmNav

if __name__ == "__main__":
    status = run_managed(VlmNav, threads=5)
    names = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
    # The watchdog of Fast DDS's shared memory is the library's, not a node's.
    left = sorted(name for name in names if name.startswith("dds.") and name != "dds.shm.wdog")
    print(f"threads that are left: {left}", file=sys.stderr, flush=True)
    sys.exit(status)
