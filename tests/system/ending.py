"""Runs vlm_nav, or web until it is there, and names the threads of the middleware that still run once it has ended."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from spec_vlm_nav.nodes.managed import run_managed
from spec_vlm_nav.nodes.process import run
from spec_vlm_nav.nodes.vlm_nav import VlmNav
from spec_vlm_nav.nodes.web import Web


def web() -> Web:
    node = Web()
    os.kill(os.getpid(), signal.SIGTERM)
    return node


OF_THE_LIBRARY = {"dds.shm.wdog", "dds.log"}
"""Threads of Fast DDS, not of a node: its shared memory's watchdog, and its log once it had something to say."""

if __name__ == "__main__":
    status = run(web, Web.close) if "port:=0" in sys.argv else run_managed(VlmNav, threads=5)
    names = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
    left = sorted(name for name in names if name.startswith("dds.") and name not in OF_THE_LIBRARY)
    print(f"threads that are left: {left}", file=sys.stderr, flush=True)
    sys.exit(status)
