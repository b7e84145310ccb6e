"""A process that ends half a second after it is asked to: python -m tests.spec_vlm_nav.slow_end ..."""

import signal
import sys
import time
from typing import Any


def end(*_: Any) -> None:
    """End late."""
    time.sleep(0.5)
    print("bye", flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, end)
print("up", flush=True)
while True:
    time.sleep(0.05)
