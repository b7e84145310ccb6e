"""How a node's process ends: its stop has its time, callbacks end first, and nothing of the middleware runs on."""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import Any

import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node

from spec_vlm_nav.graph import PROJECT
from spec_vlm_nav.nodes import process
from spec_vlm_nav.nodes.managed import ManagedNode
from tests.forked import run

InvalidHandle = rclpy_implementation.InvalidHandle


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["draft_model:=/no/such", "autostart:=true"], 2, "cannot configure: model folder /no/such does not exist"),
        (["response_order:=backwards"], 2, "error: parameter response_order is 'backwards'; choose reason_first, "),
        (["port:=0", "host:=127.0.0.1"], 0, ""),
    ],
)
def test_a_node_ends_with_its_reason_and_nothing_of_it_runs_on(options: list[str], status: int, words: str) -> None:
    """The status was now and then that of a crash: threads of the middleware ran while its memory was taken down."""
    given = [word for option in options for word in ("-p", option)]
    code, errors = run([sys.executable, "-m", "tests.system.ending", "--ros-args", *given], PROJECT)
    assert code == status and "threads that are left: []" in errors, errors
    assert words in errors and "Traceback" not in errors


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """The signal handlers that `run` sets, which are not those of this process."""
    found = dict[int, Any]()
    monkeypatch.setattr(signal, "signal", found.__setitem__)
    return found


def test_a_callback_that_runs_is_waited_for_before_its_node_is_destroyed(handlers: dict[int, Any]) -> None:
    order = []

    class Slow(Node):
        def __init__(self) -> None:
            super().__init__("slow", enable_rosout=False)
            self.begun = threading.Event()
            self.create_timer(0.01, self._work)

        def _work(self) -> None:
            if not self.begun.is_set():
                self.begun.set()
                handlers[signal.SIGTERM](signal.SIGTERM, None)
                time.sleep(0.5)
                order.append("callback")

        def destroy_node(self) -> None:
            order.append("destroyed")
            super().destroy_node()

    assert process.run(Slow, threads=2) == 0
    assert order == ["callback", "destroyed"]


def test_what_a_transition_destroyed_under_the_executor_ends_no_node(
    handlers: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a camera that is closed while the executor collects what to wait for: its process died with a traceback."""
    turns = []
    spin_once = SingleThreadedExecutor.spin_once

    def spin(self: SingleThreadedExecutor, timeout_sec: float | None = None) -> None:
        turns.append(timeout_sec)
        if len(turns) == 1:
            raise InvalidHandle("cannot use Destroyable because destruction was requested")
        handlers[signal.SIGTERM](signal.SIGTERM, None)
        spin_once(self, 0.0)

    monkeypatch.setattr(SingleThreadedExecutor, "spin_once", spin)
    assert process.run(lambda: Node("closing", enable_rosout=False)) == 0
    assert len(turns) > 1


def test_a_callback_that_does_not_end_is_named_and_keeps_no_process(
    handlers: dict[int, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "END_S", 0.05)
    released = threading.Event()

    class Stuck(Node):
        def __init__(self) -> None:
            super().__init__("stuck", enable_rosout=False)
            self.create_timer(0.01, self._work)

        def _work(self) -> None:
            handlers[signal.SIGTERM](signal.SIGTERM, None)
            released.wait(20.0)

    try:
        assert process.run(Stuck, threads=2) == 0
        assert not released.is_set()
    finally:
        released.set()
    assert "stuck: a callback still runs 0.05 s after the node's end" in capfd.readouterr().err


class Failing(Node):
    """Its callbacks fail, again and again, as on a message that they cannot read."""

    def __init__(self) -> None:
        super().__init__("failing")
        process.steady_timer(self, 0.01, lambda: {}["nobody expected this"])


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("threads", [1, 3])
def test_a_node_whose_callbacks_fail_still_stops_the_robot_before_its_process_ends(threads: int) -> None:
    stopped: list[bool] = []

    def close(node: Node) -> None:
        time.sleep(0.3)
        stopped.append(rclpy.ok())

    with pytest.raises(KeyError):
        process.run(Failing, close, threads)
    assert stopped == [True]


class Crippled(Node):
    """One of its threads fails while the executor runs on."""

    def __init__(self) -> None:
        super().__init__("crippled")
        process.start_thread(self, "work", lambda: [].pop())


@pytest.mark.usefixtures("handlers")
def test_a_node_that_lost_a_thread_ends_with_status_1_to_be_started_again(capfd: pytest.CaptureFixture[str]) -> None:
    assert process.run(Crippled) == 1
    assert "the thread work failed" in capfd.readouterr().err


class Unlucky(ManagedNode):
    """Fails in its first transition in a way that nobody foresaw."""

    def __init__(self) -> None:
        super().__init__("unlucky")
        self.errors: list[Exception] = [KeyError("unforeseen")]

    def configure(self) -> None:
        """See `ManagedNode`."""
        while self.errors:
            raise self.errors.pop()


@pytest.mark.usefixtures("ros")
def test_an_unforeseen_error_of_a_transition_is_logged_and_the_node_can_be_configured_again(
    capfd: pytest.CaptureFixture[str],
) -> None:
    node = Unlucky()
    node.trigger_configure()
    assert "cannot configure" in (log := capfd.readouterr().err) and "KeyError: 'unforeseen'" in log
    assert not node.ending
    node.trigger_configure()
    assert node.problem == "configured, not active"
    node.destroy_node()
