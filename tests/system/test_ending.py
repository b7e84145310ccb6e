"""How a node's process ends: callbacks first, then what they use, and nothing of the middleware is left running."""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from rclpy.node import Node

from spec_vlm_nav.graph import PROJECT
from spec_vlm_nav.nodes import common
from tests.forked import run


def test_nothing_of_a_node_that_could_not_start_runs_when_its_process_ends(tmp_path: Path) -> None:
    """Its status was now and then that of a crash: threads of the middleware ran while its memory was taken down."""
    options = ["--ros-args", "-p", f"draft_model:={tmp_path / 'nothing'}", "-p", "autostart:=true"]
    code, errors = run([sys.executable, "-m", "tests.system.ending", *options], PROJECT)
    assert code == 2 and "threads that are left: []" in errors


def test_a_callback_that_runs_is_waited_for_before_its_node_is_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = dict[int, object]()
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    order = []

    class Slow(Node):
        def __init__(self) -> None:
            super().__init__("slow", enable_rosout=False)
            self.begun = threading.Event()
            self.create_timer(0.01, self._work)

        def _work(self) -> None:
            if not self.begun.is_set():
                self.begun.set()
                handlers[signal.SIGTERM](signal.SIGTERM, None)  # type: ignore[operator]
                time.sleep(0.5)
                order.append("callback")

        def destroy_node(self) -> None:
            order.append("destroyed")
            super().destroy_node()

    assert common.run(Slow, threads=2) == 0
    assert order == ["callback", "destroyed"]
