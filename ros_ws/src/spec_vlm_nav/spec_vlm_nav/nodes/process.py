"""How a node's process runs and ends: threads, timers, logging, and an end that leaves time for a last message."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import rclpy
from rclpy.callback_groups import CallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.executors import Executor, MultiThreadedExecutor, SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rclpy.timer import Timer

NICENESS = -10
"""Priority of the nodes that stop the robot, where the system grants it."""
SWITCH_S = 0.0005
"""How long a thread keeps the interpreter while others wait for it. With Python's 5 ms a callback that takes and
publishes waits so long several times, behind the executor's own loop, and heartbeats come late."""
END_S = 2.0
"""How long callbacks that still run are waited for where a node ends."""
_ended, _failed = threading.Event(), threading.Event()
"""Whether the process is to end, and whether it ends with status 1."""

N = TypeVar("N", bound=Node)


def steady_timer(
    node: Node, period_s: float, callback: Callable[[], None], group: CallbackGroup | None = None
) -> Timer:
    """Call `callback` every `period_s` seconds of the steady clock, whatever use_sim_time and ROS time do."""
    return node.create_timer(period_s, callback, callback_group=group, clock=Clock(clock_type=ClockType.STEADY_TIME))


def run_first() -> None:
    """Let this process run before others where the system lets it: a stop must not wait for a model."""
    with suppress(OSError):
        os.nice(NICENESS)


def start_thread(node: Node, name: str, work: Callable[[], None]) -> threading.Thread:
    """Run `work` in a thread; where it raises, end the process with status 1, to be started again.

    Without the thread the node would seem to live, and do half of its work.
    """

    def watched() -> None:
        try:
            work()
        except Exception:
            node.get_logger().fatal(f"the thread {name} failed: {traceback.format_exc()}")
            _failed.set()
            _ended.set()

    thread = threading.Thread(target=watched, name=name, daemon=True)
    thread.start()
    return thread


class _RosLog(logging.Handler):
    """Passes what libraries log on to a node's logger."""

    def __init__(self, logger: Any) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record. A ROS logger keeps one level a line of code, so each level has its own."""
        text = f"{record.name}: {self.format(record)}"
        if record.levelno >= logging.ERROR:
            self._logger.error(text)
        elif record.levelno >= logging.WARNING:
            self._logger.warning(text)
        else:
            self._logger.info(text)


def route_logging(node: Node) -> None:
    """Let everything in this process log through the node's logger: our packages from INFO on, others from WARNING."""
    root = logging.getLogger()
    root.handlers = [_RosLog(node.get_logger())]
    root.setLevel(logging.WARNING)
    for name in ("edge_drafter", "speculation"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.captureWarnings(True)
    # rclpy's own, where a client of a service ended while it waited.
    warnings.filterwarnings("ignore", message="failed to send response")


def keep_loaded() -> None:
    """Take what was loaded so far out of Python's search for garbage.

    To look through torch and a model takes 0.2 s of a core, and no thread runs meanwhile: longer than the watchdogs of
    other nodes wait.
    """
    gc.collect()
    gc.freeze()


class Pool(MultiThreadedExecutor):
    """Runs callbacks in threads, and waits for them at its end, which rclpy's own does not."""

    def shutdown(self, timeout_sec: float | None = None) -> bool:
        """Let the callbacks that were begun, or are in the queue, end within `timeout_sec` seconds, None for ever.

        Returns whether they did. Where one did not, what it uses may be gone before it ends.
        """
        ending = threading.Thread(target=self._executor.shutdown, daemon=True)
        ending.start()
        ending.join(timeout_sec)
        return bool(super().shutdown(timeout_sec)) and not ending.is_alive()


def run(
    make: Callable[[], N],
    close: Callable[[N], None] = lambda _: None,
    threads: int = 1,
    status: Callable[[N], int] = lambda _: 0,
) -> int:
    """Run a node until SIGINT or SIGTERM and return the process's exit status.

    That is what `status` returns at the end, or 1 where a thread of `start_thread` failed.

    ROS's own signal handlers would end the context at once; here `close` may still publish. A node that cannot be
    built for a reason of its user's (ValueError, OSError, a wrong parameter) is reported in one line, with status 2. A
    callback that outlasts END_S is logged, and its node destroyed all the same: the process is to end.
    """
    for event in (_ended, _failed):
        event.clear()
    sys.setswitchinterval(SWITCH_S)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: _ended.set())
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    problem = ""
    try:
        try:
            node = make()
        except (ValueError, OSError, rclpy.exceptions.ParameterException) as error:
            problem = str(error) or type(error).__name__
        if problem:
            print(f"error: {problem}", file=sys.stderr, flush=True)
            # The error's traceback held the half-built node, whose cycles would keep the middleware's threads running
            # while the process ends.
            gc.collect()
            return 2
        keep_loaded()
        executor: Executor = Pool(threads) if threads > 1 else SingleThreadedExecutor()
        executor.add_node(node)
        try:
            while not _ended.is_set():
                # A transition has just destroyed what the executor looked at, as a camera that is closed.
                with suppress(rclpy_implementation.InvalidHandle):
                    executor.spin_once(timeout_sec=0.1)
        finally:
            # Callbacks that still run may need the executor to finish, so it spins until the node is closed.
            closing = threading.Thread(target=close, args=(node,), daemon=True)
            closing.start()
            while closing.is_alive():
                try:
                    executor.spin_once(timeout_sec=0.02)
                except Exception as error:
                    # One callback's failure must not take the others, nor `close`, their time: a stop may be under way.
                    node.get_logger().error(f"while the node ends: {error!r}", throttle_duration_sec=1.0)
            executor.remove_node(node)
            if not executor.shutdown(timeout_sec=END_S):
                node.get_logger().error(f"{node.get_name()}: a callback still runs {END_S:g} s after the node's end")
            node.destroy_node()
        return 1 if _failed.is_set() else status(node)
    finally:
        rclpy.try_shutdown()
