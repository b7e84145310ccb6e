"""Which transition each managed node is due for: all are configured before any is activated. No ROS; time is given.

A node that dies is known by its silence, or by its state after a restart; it is configured and activated again while
the others stay active, each of them holding the robot by its own watchdogs. One that does not come back, or that cannot
be configured, brings all of them down.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, TypeAlias

from msgspec import Meta

from spec_vlm_nav.diagnostics import Log
from spec_vlm_nav.parameters import Parameters
from speculation.settings import CheckedSettings

NOT_CONFIGURED, NOT_BACK = 3, 4
"""Exit status of the manager: a node could not be brought up; a node that was up did not come back."""
PATIENCE_S = 10.0
"""How often it is logged who is waited for."""
IN_VAIN_S = 1.0
"""A node that answers, as long after a request, that it is where it was, has lost the request: it was restarted."""
RETRY_S = 2.0
"""How soon a node that came back and refused a transition is asked again."""
PHASE = "phase"
"""Name of the manager's own state among those that it reports."""
BY_HAND = "left inactive by hand"
STEP_S, STOP_S = 2.0, 10.0
"""How long a deactivation, and all of the way down, is waited for; a node may hang."""


class State(Enum):
    """Where a managed node is, as it answered last."""

    SILENT = "silent"
    UNCONFIGURED = "unconfigured"
    INACTIVE = "inactive"
    ACTIVE = "active"
    FINALIZED = "finalized"
    BUSY = "in a transition"


class Transition(Enum):
    """What a node can be asked for: its name in `ros2 lifecycle`, where it starts and where success leads."""

    CONFIGURE = ("configure", State.UNCONFIGURED, State.INACTIVE)
    ACTIVATE = ("activate", State.INACTIVE, State.ACTIVE)
    DEACTIVATE = ("deactivate", State.ACTIVE, State.INACTIVE)
    CLEANUP = ("cleanup", State.INACTIVE, State.UNCONFIGURED)

    def __init__(self, verb: str, source: State, target: State) -> None:
        self.verb, self.source, self.target = verb, source, target


class Phase(Enum):
    """What the manager is at."""

    DOWN = "down"
    STARTING = "starting"
    ACTIVE = "active"
    STOPPING = "stopping"


class ManagerSettings(CheckedSettings, frozen=True):
    """Which nodes are managed, and how long they are waited for. Raises ValueError for a value beyond its limits."""

    node_names: Annotated[
        tuple[str, ...], Meta(description="managed nodes, in the order in which they are activated")
    ] = ()
    heartbeats: Annotated[
        tuple[str, ...], Meta(description="those whose heartbeat must be there before ~/is_active holds")
    ] = ()
    bond_s: Annotated[
        float,
        Meta(ge=0.5, le=30.0, description="silence, of heartbeat and state, after which a node counts as dead, s"),
    ] = 1.5
    startup_s: Annotated[
        float, Meta(ge=1.0, le=3600.0, description="all nodes must be active within this time: models load, s")
    ] = 300.0
    recovery_s: Annotated[
        float, Meta(ge=1.0, le=3600.0, description="a node that died must be active again within this time, s")
    ] = 120.0


MANAGER_PARAMETERS = Parameters(ManagerSettings)


TransitionRequest: TypeAlias = tuple[str, Transition]
"""The name of a node, and the transition to ask it for."""


@dataclass
class _Node:
    name: str
    state: State = State.SILENT
    alive_at: float = -math.inf
    """It answered, or its heartbeat came."""
    beat_at: float = -math.inf
    changed_at: float = -math.inf
    """Answers to questions from before this are stale."""
    pending: Transition | None = None
    asked_at: float = -math.inf
    """When the pending transition was requested."""
    retry_at: float = -math.inf
    lost_at: float | None = None
    """Since when it has not been active although it should be."""
    by_hand: bool = False
    """Somebody else deactivated it; it is left to them."""

    @property
    def configured(self) -> bool:
        return self.state in (State.INACTIVE, State.ACTIVE)


class Lifecycle:
    """Brings nodes up and down together; what to ask them for comes from `tick`.

    `names` in the order of activation; deactivation is in the reverse one. `beating`: those with a heartbeat, without
    which `is_active` does not hold. Raises ValueError for a beating node that is not managed, or none at all.
    """

    def __init__(self, names: Sequence[str], beating: Sequence[str], settings: ManagerSettings, log: Log) -> None:
        if not names or len(set(names)) < len(names):
            raise ValueError(f"node_names is {list(names)}: name each managed node once")
        if unknown := [name for name in beating if name not in names]:
            raise ValueError(f"heartbeats has {', '.join(unknown)}, which node_names lacks")
        self.phase = Phase.DOWN
        self.exit_status = 0
        """Exit status of the process; where it is not 0 the process ends as soon as `phase` is DOWN."""
        self.problem = ""
        """Why all were brought down, in a sentence."""
        self._nodes = {name: _Node(name) for name in names}
        self._beating, self._settings, self._log = tuple(beating), settings, log
        self._began_at = self._stopped_at = self._logged_at = -math.inf

    def startup(self, now: float) -> None:
        """Bring all nodes up, also those that were deactivated by hand."""
        for node in self._nodes.values():
            node.by_hand, node.lost_at = False, None
        self.phase, self._began_at, self._logged_at = Phase.STARTING, now, now
        self.exit_status, self.problem = 0, ""

    def shutdown(self, now: float) -> None:
        """Bring all nodes down."""
        if self._is_up:
            self.phase, self._stopped_at = Phase.STOPPING, now

    def beat(self, name: str, now: float) -> None:
        """Take a node's heartbeat."""
        node = self._nodes[name]
        node.alive_at = node.beat_at = now

    def seen(self, name: str, state: State, asked_at: float, now: float) -> None:
        """Take a node's answer to the question, asked at `asked_at`, which state it is in."""
        node = self._nodes[name]
        node.alive_at = now
        pending = node.pending
        if state is State.BUSY or asked_at < max(node.changed_at, node.asked_at if pending else -math.inf):
            return
        if pending is not None:
            if state is pending.target:
                self.answered(name, pending, True, "", now)
                return
            if asked_at <= node.asked_at + IN_VAIN_S:
                return
        before, node.state, node.pending = node.state, state, None
        if not self._is_up or (state is before and pending is None):
            return
        if state is State.ACTIVE:
            self._came_back(node, now)
        elif before is State.ACTIVE and state is State.INACTIVE:
            node.by_hand = True
            self._log.warning(f"{name} was deactivated by somebody else and stays so; ~/startup activates it again")
        elif before is not State.SILENT and not node.by_hand:
            self._lose(node, f"{name} was restarted", now)

    def answered(self, name: str, transition: Transition, success: bool, reason: str, now: float) -> None:
        """Take a node's answer to a request; `reason`: why it refused, in a sentence."""
        node = self._nodes[name]
        if node.pending is not transition:
            return
        node.pending, node.alive_at, node.changed_at = None, now, now
        if success:
            node.state = transition.target
            if transition is Transition.ACTIVATE:
                self._came_back(node, now)
            return
        node.retry_at = now + RETRY_S
        problem = f"{name} cannot {transition.verb}: {reason or 'see its log'}"
        if self.phase is Phase.STARTING:
            self._give_up(NOT_CONFIGURED, problem, now)
        else:
            self._log.error(problem)

    def tick(self, now: float) -> list[TransitionRequest]:
        """Return what to ask which node for now."""
        for node in self._nodes.values():
            if node.state is not State.SILENT and node.pending is None and now - node.alive_at > self._settings.bond_s:
                node.state = State.SILENT
                if self._is_up and not node.by_hand:
                    self._lose(node, f"{node.name} has been silent for {self._settings.bond_s:g} s", now)
        if self._is_up:
            self._check_times(now)
        if self._is_up:
            due = self._rise(now)
        elif self.phase is Phase.STOPPING:
            due = self._fall(now)
        else:
            due = []
        for name, transition in due:
            node = self._nodes[name]
            node.pending, node.asked_at = transition, now
        return due

    def is_active(self, now: float) -> tuple[bool, str]:
        """Return whether all nodes are active and beat, and in a sentence what is missing."""
        if not self._is_up:
            return False, self.problem or f"the nodes are {self.phase.value}"
        waiting = [
            f"{node.name} is {self._doing(node)}"
            for node in self._nodes.values()
            if node.state is not State.ACTIVE or node.pending
        ]
        if not waiting:
            waiting = [
                f"{name} is active but not ready, see its /diagnostics"
                for name in self._beating
                if now - self._nodes[name].beat_at > self._settings.bond_s
            ]
        return not waiting, "; ".join(waiting) or "all nodes are active"

    def states(self) -> dict[str, str]:
        """Return what the manager and each node are at, for `/diagnostics`."""
        return {PHASE: self.phase.value, **{name: self._doing(node) for name, node in self._nodes.items()}}

    @property
    def _is_up(self) -> bool:
        """Whether the nodes are to be active."""
        return self.phase in (Phase.STARTING, Phase.ACTIVE)

    def _rise(self, now: float) -> list[TransitionRequest]:
        nodes = list(self._nodes.values())
        due = [
            (node.name, Transition.CONFIGURE)
            for node in nodes
            if node.state is State.UNCONFIGURED and not node.pending and not node.by_hand and now >= node.retry_at
        ]
        if due or any(node.pending for node in nodes):
            return due
        # A node that is left to somebody else holds up none of the others.
        if not all(node.configured or node.by_hand for node in nodes):
            return []
        waiting = [node for node in nodes if node.state is State.INACTIVE and not node.by_hand]
        if waiting and now >= waiting[0].retry_at:
            return [(waiting[0].name, Transition.ACTIVATE)]
        if not waiting and self.phase is Phase.STARTING:
            self.phase = Phase.ACTIVE
            self._log.info("all nodes are active")
        return []

    def _fall(self, now: float) -> list[TransitionRequest]:
        for node in reversed(self._nodes.values()):
            if node.pending is Transition.DEACTIVATE and now - node.asked_at < STEP_S:
                return []
            if node.state is State.ACTIVE and node.pending is None and now >= node.retry_at:
                return [(node.name, Transition.DEACTIVATE)]
        due = [
            (node.name, Transition.CLEANUP)
            for node in self._nodes.values()
            if node.state is State.INACTIVE and node.pending is None and now >= node.retry_at
        ]
        left = any(node.pending or node.configured for node in self._nodes.values())
        if not left or now - self._stopped_at > STOP_S:
            for node in self._nodes.values():
                node.pending = None
            self.phase = Phase.DOWN
            self._log.info("all nodes are down" if not left else "nodes that hang are left alone; the others are down")
            return []
        return due

    def _check_times(self, now: float) -> None:
        missing = [node for node in self._nodes.values() if not self._up(node)]
        if not missing:
            return
        # Those that are configured wait for the others.
        late = [node for node in missing if not node.configured] or missing
        names = ", ".join(f"{node.name} ({self._doing(node)})" for node in late)
        if self.phase is Phase.STARTING and now - self._began_at > self._settings.startup_s:
            self._give_up(NOT_CONFIGURED, f"not active within {self._settings.startup_s:g} s: {names}", now)
            return
        for node in missing:
            if node.lost_at is not None and now - node.lost_at > self._settings.recovery_s:
                limit = f"{self._settings.recovery_s:g} s"
                self._give_up(NOT_BACK, f"{node.name} did not come back within {limit}", now)
                return
        if now - self._logged_at > PATIENCE_S:
            self._logged_at = now
            self._log.info(f"waiting for {names}")

    def _give_up(self, status: int, problem: str, now: float) -> None:
        self.exit_status, self.problem = status, problem
        self._log.error(f"{problem}: all nodes are brought down")
        self.shutdown(now)

    def _lose(self, node: _Node, what: str, now: float) -> None:
        if self.phase is Phase.ACTIVE and node.lost_at is None:
            node.lost_at = self._logged_at = now
            self._log.warning(f"{what}; it has {self._settings.recovery_s:g} s to come back")

    def _came_back(self, node: _Node, now: float) -> None:
        node.by_hand = False
        if node.lost_at is not None:
            self._log.info(f"{node.name} is active again after {now - node.lost_at:.1f} s")
            node.lost_at = None

    def _up(self, node: _Node) -> bool:
        return node.by_hand or (node.state is State.ACTIVE and node.pending is None)

    def _doing(self, node: _Node) -> str:
        if node.pending is not None:
            return f"asked to {node.pending.verb}"
        if node.state is State.SILENT and self.phase is Phase.STARTING:
            return "not up yet"
        return BY_HAND if node.by_hand else node.state.value


def startup_of(name: str, states: Mapping[str, str], doing: str) -> str:
    """Return in a sentence what a goal for the node called `name` has to wait for; empty where it does not start.

    At the start of all it waits for all, since the others are what moves the robot; later for that node alone.
    `states` are the manager's, as it reports them on `/diagnostics`; `doing` is what the node itself reported.
    """
    phase, own = states.get(PHASE), states.get(name, BY_HAND)
    if phase not in (Phase.STARTING.value, Phase.ACTIVE.value) or own == BY_HAND:
        return ""
    if own == State.ACTIVE.value and phase == Phase.ACTIVE.value:
        return ""
    waiting = [
        f"{node} is {state}" + (f" ({doing})" if node == name and doing else "")
        for node, state in states.items()
        if node != PHASE and state not in (State.ACTIVE.value, BY_HAND)
    ]
    return "; ".join(waiting)
