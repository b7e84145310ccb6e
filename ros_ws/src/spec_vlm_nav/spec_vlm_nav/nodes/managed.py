"""A lifecycle node whose transitions log why they fail, and whose end leaves a robot that stands.

What a node needs is checked in `configure`, before any node is active; nothing moves before all of them are configured.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.lifecycle import LifecycleNodeMixin, LifecycleState, TransitionCallbackReturn
from rclpy.node import Node

from spec_vlm_nav.diagnostics import Level, Status
from spec_vlm_nav.nodes.diagnostics import DIAGNOSTICS_S, LIFECYCLE, report_of
from spec_vlm_nav.nodes.heartbeat import Heartbeat
from spec_vlm_nav.nodes.parameters import settings
from spec_vlm_nav.nodes.process import run, start_thread, steady_timer
from spec_vlm_nav.nodes.subscriptions import Reader
from spec_vlm_nav.parameters import MANAGED
from speculation.text import first_line

REFUSALS = (ValueError, OSError, RuntimeError)
"""What `configure` and `activate` raise for a reason of the user's, in a sentence."""


class ManagedNode(LifecycleNodeMixin, Node):
    """Override `configure`, `activate`, `deactivate` and `cleanup`; the default of each does nothing.

    Parameters are declared, and their values checked, in the constructor; models, keys and connections in `configure`.
    """

    def __init__(self, name: str, **options: Any) -> None:
        Node.__init__(self, name, **options)
        # A transition may take a minute. In a group of its own, which LifecycleNode cannot be given, it holds up no
        # other callback.
        LifecycleNodeMixin.__init__(self, callback_group=MutuallyExclusiveCallbackGroup())
        self.active = False
        """Whether the node may act."""
        self.problem = "not configured yet"
        """Why it is not active, in a sentence; empty while it is."""
        self.exit_status = 0
        """Exit status of the process."""
        self.ending = False
        """Whether the process ends; a transition under way then gives up."""
        self.heartbeat: Heartbeat | None = None
        """What shows others that the node lives and is ready; None where nobody watches it."""
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        steady_timer(self, DIAGNOSTICS_S, self._report, MutuallyExclusiveCallbackGroup())
        if settings(self, MANAGED).autostart:
            self._start = steady_timer(self, 0.0, self._autostart, MutuallyExclusiveCallbackGroup())

    def configure(self) -> None:
        """Load and check everything. Raises ValueError, OSError or RuntimeError, in a sentence, for what is wrong."""

    def activate(self) -> None:
        """Begin to act. Raises as `configure`."""

    def deactivate(self) -> None:
        """Stop acting; the robot stands afterwards. Safe to call at any time after `configure`."""

    def cleanup(self) -> None:
        """Free what `configure` loaded, also where it failed half-way."""

    def health(self) -> Iterable[Status]:
        """Return what the node reports on `/diagnostics`, once a second, while it is active."""
        return ()

    def end(self) -> None:
        """Deactivate and clean up, when the process ends."""
        self.ending = True
        self._stop_acting("the node ends")
        self.cleanup()

    def destroy_node(self) -> None:
        """Destroy the node, with the state machine that rclpy leaves behind.

        While that is there the middleware's threads run on into the end of the process, where what they use is gone.
        """
        if self.heartbeat is not None:
            self.heartbeat.close()
        self._state_machine.destroy_when_not_in_use()
        super().destroy_node()

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        if not self._try("configure", self.configure):
            self.cleanup()
            return TransitionCallbackReturn.FAILURE
        self.problem = "configured, not active"
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        if not self._try("activate", self.activate):
            self.deactivate()
            return TransitionCallbackReturn.FAILURE
        self.active, self.problem = True, ""
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._stop_acting("deactivated")
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        self.cleanup()
        self.problem = "not configured"
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        self.end()
        return TransitionCallbackReturn.SUCCESS

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stand and clean up, so that the node can be configured again."""
        self._stop_acting("a transition failed")
        self.cleanup()
        return TransitionCallbackReturn.SUCCESS

    def _LifecycleNodeMixin__on_change_state(self, request: Any, response: Any) -> Any:
        """Refuse a transition that the state does not have; rclpy's own would end the process with a traceback."""
        try:
            return super()._LifecycleNodeMixin__on_change_state(request, response)
        except RuntimeError as error:
            self.get_logger().error(f"refused: {first_line(error)}")
            response.success = False
            return response

    def end_process(self, status: int) -> None:
        """End the process with this exit status, in the way in which any node ends: the robot stands afterwards."""
        self.exit_status = status
        os.kill(os.getpid(), signal.SIGTERM)

    def _autostart(self) -> None:
        self._start.cancel()
        success = TransitionCallbackReturn.SUCCESS
        if self.trigger_configure() != success or self.trigger_activate() != success:
            self.end_process(2)

    def _report(self) -> None:
        level = Level.OK if self.active else Level.WARN
        lines = [Status(LIFECYCLE, level, self.problem or "active"), *(self.health() if self.active else ())]
        self._diagnostics.publish(report_of(self, lines))

    def _stop_acting(self, why: str) -> None:
        was, self.active = self.active, False
        self.problem = why
        if was:
            self.deactivate()

    def _try(self, what: str, action: Callable[[], None]) -> bool:
        try:
            action()
        except REFUSALS as error:
            self.problem = str(error)
            if not self.ending:
                self.get_logger().error(f"cannot {what}: {error}")
            return False
        except Exception:
            # rclpy goes on to `on_error` without a word.
            self.get_logger().error(f"cannot {what}: {traceback.format_exc()}")
            raise
        return True


class Ticks:
    """Calls `tick` in a thread of its own until `stop`: neither callbacks nor ROS time hold up a stop that is due.

    `wait` returns the seconds until the next tick; until then the thread takes the messages of `reader`. A tick that
    raises ends the process, to be started again, rather than leave a node alive that watches nobody.
    """

    def __init__(self, node: ManagedNode, tick: Callable[[], None], wait: Callable[[], float], reader: Reader) -> None:
        self._tick, self._wait, self._reader = tick, wait, reader
        self._end = threading.Event()
        self._thread = start_thread(node, "ticks", self._run)

    def stop(self) -> None:
        """End the thread, after the tick under way; safe to repeat."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.is_set():
            due = time.monotonic() + self._wait()
            while not self._end.is_set() and (left := due - time.monotonic()) > 0.0:
                self._reader.take(left)
            # What arrived before the tick is known to it.
            self._reader.take(0.0)
            self._tick()


def run_managed(make: Callable[[], ManagedNode], threads: int = 2) -> int:
    """Run a managed node until SIGINT or SIGTERM, then end it, and return the process's exit status; see `run`."""
    return run(make, lambda node: node.end(), threads, lambda node: node.exit_status)
