"""Runs vlm_nav, or web until it is there, and names the threads of the middleware that still run once it has ended."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from spec_vlm_nav.nodes.common import run
from spec_vlm_nav.nodes.managed import run_managed
from spec_vlm_nav.nodes.vlm_nav import VlmNav
from spec_vlm_nav.nodes.web import Web


def web() -> Web:
    node = Web()
    os.kill(os.getpid(), signal.SIGTERM)
    return node


if __name__ == "__main__":
    status = run(web, Web.close) if "port:=0" in sys.argv else run_managed(VlmNav, threads=5)
    names = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
    # The watchdog of Fast DDS's shared memory is the library's, not a node's.
    left = sorted(name for name in names if name.startswith("dds.") and name != "dds.shm.wdog")
    print(f"threads that are left: {left}", file=sys.stderr, flush=True)
    sys.exit(status)
