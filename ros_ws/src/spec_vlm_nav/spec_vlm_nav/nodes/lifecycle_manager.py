"""Brings the managed nodes up and down together: `spec_vlm_nav.lifecycle` on their services and heartbeats.

No call waits: a node that hangs holds up neither this one nor the others.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.msg import State as StateMessage
from lifecycle_msgs.msg import Transition as TransitionMessage
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.node import Node
from std_srvs.srv import Trigger

from spec_vlm_nav.diagnostics import Level, Status
from spec_vlm_nav.lifecycle import MANAGER_PARAMETERS, Lifecycle, Phase, State, Transition
from spec_vlm_nav.nodes.diagnostics import DIAGNOSTICS_S, LIFECYCLE, on_lines, report_of
from spec_vlm_nav.nodes.heartbeat import on_heartbeat
from spec_vlm_nav.nodes.parameters import settings
from spec_vlm_nav.nodes.process import run, steady_timer
from spec_vlm_nav.nodes.subscriptions import subscribe

TICK_S = 0.1
REASON_S = 2.5
"""How long the reason of a refusal is waited for; nodes report it once a second on `/diagnostics`."""
STATES = {
    StateMessage.PRIMARY_STATE_UNCONFIGURED: State.UNCONFIGURED,
    StateMessage.PRIMARY_STATE_INACTIVE: State.INACTIVE,
    StateMessage.PRIMARY_STATE_ACTIVE: State.ACTIVE,
    StateMessage.PRIMARY_STATE_FINALIZED: State.FINALIZED,
}
TRANSITIONS = {
    Transition.CONFIGURE: TransitionMessage.TRANSITION_CONFIGURE,
    Transition.ACTIVATE: TransitionMessage.TRANSITION_ACTIVATE,
    Transition.DEACTIVATE: TransitionMessage.TRANSITION_DEACTIVATE,
    Transition.CLEANUP: TransitionMessage.TRANSITION_CLEANUP,
}


class Peer:
    """One managed node's services, and what it reported last."""

    def __init__(self, node: Node, name: str) -> None:
        self.name = name
        self.get = node.create_client(GetState, f"{name}/get_state")
        self.change = node.create_client(ChangeState, f"{name}/change_state")
        self.problem, self.problem_at = "", 0.0
        self.refused: tuple[Transition, float] | None = None
        """What it would not do, and since when the reason is waited for."""
        self.poll: tuple[Any, float] | None = None
        """The question after its state that is under way, and since when."""

    def on_line(self, line: DiagnosticStatus) -> None:
        """Take the node's report on its lifecycle."""
        self.problem, self.problem_at = line.message, time.monotonic()


class LifecycleManager(Node):
    """Gives a `Lifecycle` its nodes' answers and its time. Raises ValueError for node names that cannot be managed."""

    def __init__(self) -> None:
        super().__init__("lifecycle_manager")
        chosen = settings(self, MANAGER_PARAMETERS)
        # A launch file writes an empty list as one empty name.
        names = [name for name in chosen.node_names if name]
        beating = [name for name in chosen.heartbeats if name]
        self.lifecycle = Lifecycle(names, beating, chosen, self.get_logger())
        self._peers = {name: Peer(self, name) for name in names}
        self._poll_s = chosen.bond_s / 3.0
        for name in names:
            on_heartbeat(partial(subscribe, self), name, partial(self.lifecycle.beat, name))
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        on_lines(
            partial(subscribe, self), self, {f"{peer.name}: {LIFECYCLE}": peer.on_line for peer in self._peers.values()}
        )
        self.create_service(Trigger, "~/startup", self._on_startup)
        self.create_service(Trigger, "~/shutdown", self._on_shutdown)
        self.create_service(Trigger, "~/is_active", self._on_is_active)
        self.lifecycle.startup(time.monotonic())
        steady_timer(self, TICK_S, self._tick)
        steady_timer(self, DIAGNOSTICS_S, self._report)

    def _tick(self) -> None:
        now = time.monotonic()
        for peer in self._peers.values():
            if peer.refused is None:
                self._ask_state(peer, now)
                continue
            transition, since = peer.refused
            if peer.problem_at > since or now - since > REASON_S:
                peer.refused = None
                self.lifecycle.answered(peer.name, transition, False, peer.problem, now)
        for name, transition in self.lifecycle.tick(now):
            peer = self._peers[name]
            message = ChangeState.Request()
            message.transition.id = TRANSITIONS[transition]
            future = peer.change.call_async(message)
            future.add_done_callback(partial(self._on_changed, peer, transition))
        if self.lifecycle.exit_status and self.lifecycle.phase is Phase.DOWN:
            # The way in which any node ends.
            os.kill(os.getpid(), signal.SIGTERM)

    def _ask_state(self, peer: Peer, now: float) -> None:
        if peer.poll is not None and now - peer.poll[1] < (self._poll_s if peer.poll[0].done() else 2 * self._poll_s):
            return
        if peer.poll is not None and not peer.poll[0].done():
            peer.get.remove_pending_request(peer.poll[0])
        if not peer.get.service_is_ready():
            return
        future = peer.get.call_async(GetState.Request())
        peer.poll = (future, now)
        future.add_done_callback(partial(self._on_state, peer, now))

    def _on_state(self, peer: Peer, asked_at: float, future: Any) -> None:
        if peer.refused is None and not future.cancelled():
            state = STATES.get(future.result().current_state.id, State.BUSY)
            self.lifecycle.seen(peer.name, state, asked_at, time.monotonic())

    def _on_changed(self, peer: Peer, transition: Transition, future: Any) -> None:
        if future.result().success:
            self.lifecycle.answered(peer.name, transition, True, "", time.monotonic())
        else:
            peer.refused = (transition, time.monotonic())

    def _on_startup(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self.lifecycle.startup(time.monotonic())
        response.success, response.message = True, "starting; see ~/is_active"
        return response

    def _on_shutdown(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self.lifecycle.shutdown(time.monotonic())
        response.success, response.message = True, "stopping"
        return response

    def _on_is_active(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.success, response.message = self.lifecycle.is_active(time.monotonic())
        return response

    def _report(self) -> None:
        active, message = self.lifecycle.is_active(time.monotonic())
        line = Status(LIFECYCLE, Level.OK if active else Level.WARN, message, self.lifecycle.states())
        self._diagnostics.publish(report_of(self, [line]))


def main() -> None:
    """Run the node. The status is 3 where a node could not be brought up, 4 where one did not come back."""
    sys.exit(run(LifecycleManager, status=lambda node: node.lifecycle.exit_status))


if __name__ == "__main__":
    main()
