"""The lifecycle manager's decisions, against nodes that fail, die, hang and come back at any time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spec_vlm_nav.lifecycle import (
    NOT_BACK,
    NOT_CONFIGURED,
    STOP_S,
    Lifecycle,
    ManagerSettings,
    Phase,
    State,
    Transition,
    TransitionRequest,
    startup_of,
)
from tests.spec_vlm_nav.test_camera import Log

NAMES = ("go2_bridge", "action_executor", "vlm_nav")
TICK_S = 0.1
SETTINGS = ManagerSettings(bond_s=1.5, startup_s=20.0, recovery_s=10.0)


@dataclass
class Body:
    """A managed node as the manager sees it from outside."""

    state: State = State.UNCONFIGURED
    alive: bool = True
    frozen: bool = False
    refuses: set[Transition] = field(default_factory=set)
    takes_s: float = 0.0
    """How long a transition takes."""
    work: list[tuple[float, Transition]] = field(default_factory=list)

    def restart(self) -> None:
        self.state, self.alive, self.frozen, self.work = State.UNCONFIGURED, True, False, []

    def die(self) -> None:
        self.alive, self.work = False, []


class World:
    """The nodes, the manager, and a clock; answers take up to a tick."""

    def __init__(self, names: tuple[str, ...] = NAMES, settings: ManagerSettings = SETTINGS) -> None:
        self.now = 100.0
        self.log = Log()
        self.nodes = {name: Body() for name in names}
        self.manager = Lifecycle(names, (), settings, self.log)
        self.requests: list[TransitionRequest] = []
        self.known = dict.fromkeys(names, State.SILENT)
        """What each node answered last."""

    def tick(self) -> None:
        self.now += TICK_S
        for name, body in self.nodes.items():
            if not body.alive or body.frozen:
                continue
            for due, transition in tuple(body.work):
                if due <= self.now:
                    body.work.remove((due, transition))
                    ok = body.state is transition.source and transition not in body.refuses
                    body.state = transition.target if ok else body.state
                    self.known[name] = body.state
                    self.manager.answered(name, transition, ok, "no reason" if not ok else "", self.now)
            if not body.work:
                self.known[name] = body.state
                self.manager.seen(name, body.state, self.now - TICK_S, self.now)
        for name, transition in self.manager.tick(self.now):
            self.requests.append((name, transition))
            if transition is Transition.ACTIVATE:
                assert all(state in (State.INACTIVE, State.ACTIVE) for state in self.known.values()), self.known
            body = self.nodes[name]
            if body.alive:
                body.work.append((self.now + body.takes_s, transition))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.tick()

    def verbs(self) -> list[str]:
        return [f"{transition.verb} {name}" for name, transition in self.requests]

    def states(self) -> set[State]:
        return {body.state for body in self.nodes.values() if body.alive and not body.frozen}


def up() -> World:
    world = World()
    world.manager.startup(world.now)
    world.run(5.0)
    assert world.manager.is_active(world.now) == (True, "all nodes are active")
    world.requests.clear()
    return world


def test_a_node_that_never_comes_up_ends_the_start() -> None:
    world = World()
    world.nodes["action_executor"].alive = False
    world.manager.startup(world.now)
    world.run(19.0)
    assert world.manager.phase is Phase.STARTING
    world.run(5.0)
    assert (world.manager.phase, world.manager.exit_status) == (Phase.DOWN, NOT_CONFIGURED)
    assert "not active within 20 s: action_executor (not up yet)" in world.manager.problem


@pytest.mark.parametrize("hangs", [False, True])
def test_a_node_that_does_not_come_back_brings_all_down(hangs: bool) -> None:
    world = up()
    body = world.nodes["go2_bridge"]
    body.frozen, body.alive = hangs, hangs
    world.run(10.0)
    assert world.states() == {State.ACTIVE}, "the others hold by their own watchdogs"
    world.run(10.0 + STOP_S)
    assert (world.manager.phase, world.manager.exit_status) == (Phase.DOWN, NOT_BACK)
    assert "go2_bridge did not come back within 10 s" in world.manager.problem
    assert world.states() == {State.UNCONFIGURED}
    assert world.verbs()[:2] == ["deactivate vlm_nav", "deactivate action_executor"]


def test_a_node_that_dies_in_the_middle_of_a_transition_is_asked_again() -> None:
    world = World()
    world.nodes["vlm_nav"].takes_s = 3.0
    world.manager.startup(world.now)
    world.run(1.0)
    world.nodes["vlm_nav"].restart()
    world.run(10.0)
    assert world.verbs().count("configure vlm_nav") == 2
    assert world.manager.is_active(world.now)[0]


def test_who_deactivates_a_node_by_hand_keeps_it_so() -> None:
    world = up()
    world.nodes["go2_bridge"].state = State.INACTIVE
    world.run(20.0)
    assert not world.requests and world.manager.phase is Phase.ACTIVE
    assert world.manager.is_active(world.now) == (False, "go2_bridge is left inactive by hand")
    world.manager.startup(world.now)
    world.run(2.0)
    assert world.verbs() == ["activate go2_bridge"] and world.manager.is_active(world.now)[0]


def test_one_that_hangs_on_the_way_down_does_not_hold_up_the_others() -> None:
    world = up()
    world.nodes["vlm_nav"].takes_s = 1000.0
    world.manager.shutdown(world.now)
    world.run(4.0)
    assert world.nodes["go2_bridge"].state is not State.ACTIVE
    world.run(STOP_S)
    assert world.manager.phase is Phase.DOWN


def test_an_active_node_whose_heartbeat_is_missing_is_not_ready() -> None:
    world = World()
    world.manager = Lifecycle(NAMES, ("go2_bridge",), SETTINGS, world.log)
    world.manager.startup(world.now)
    world.run(5.0)
    assert world.manager.is_active(world.now) == (False, "go2_bridge is active but not ready, see its /diagnostics")
    world.manager.beat("go2_bridge", world.now)
    assert world.manager.is_active(world.now)[0]


@pytest.mark.parametrize("names", [(), ("a", "a")])
def test_names_that_cannot_be_managed_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="name each managed node once"):
        Lifecycle(names, (), SETTINGS, Log())
    with pytest.raises(ValueError, match="heartbeats has b, which node_names lacks"):
        Lifecycle(("a",), ("b",), SETTINGS, Log())


WHAT = ["die", "restart", "freeze", "thaw", "refuse", "relent", "slow", "quick", "shutdown", "startup", "wait"]
EVENTS = st.lists(st.tuples(st.sampled_from(WHAT), st.sampled_from(NAMES), st.floats(0.0, 6.0)), max_size=25)


@settings(max_examples=50)
@given(EVENTS, st.integers(0, 2**16))
@example(
    [("wait", "vlm_nav", 5.0), ("refuse", "vlm_nav", 0.0), ("die", "vlm_nav", 3.0), ("restart", "vlm_nav", 3.0)], 0
)
def test_no_order_of_events_activates_too_early_and_the_end_is_all_active_or_all_down(
    events: list[tuple[str, str, float]], seed: int
) -> None:
    rng = random.Random(seed)
    world = World()
    world.manager.startup(world.now)
    for what, name, wait in events:
        body = world.nodes[name]
        if what == "die":
            body.die()
        elif what == "restart":
            body.restart()
        elif what in ("freeze", "thaw"):
            body.frozen = what == "freeze"
        elif what == "refuse":
            body.refuses = {rng.choice((Transition.CONFIGURE, Transition.ACTIVATE))}
        elif what == "relent":
            body.refuses = set()
        elif what in ("slow", "quick"):
            body.takes_s = 3.0 if what == "slow" else 0.0
        elif what in ("shutdown", "startup") and not world.manager.exit_status:
            getattr(world.manager, what)(world.now)
        world.run(wait)
    world.run(SETTINGS.startup_s + SETTINGS.recovery_s + 3 * STOP_S)
    active, _ = world.manager.is_active(world.now)
    if active:
        assert {body.state for body in world.nodes.values()} == {State.ACTIVE}
    else:
        assert world.manager.phase is Phase.DOWN
        # One that was out of reach while all went down is ended by the launch, as the status asks for.
        thawed = "thaw" in {what for what, *_ in events}
        assert State.ACTIVE not in world.states() or world.manager.exit_status or thawed


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (
            {"phase": "starting", "go2_bridge": "inactive", "vlm_nav": "asked to configure"},
            "go2_bridge is inactive; vlm_nav is asked to configure (it loads the draft model)",
        ),
        ({"phase": "starting", "go2_bridge": "left inactive by hand", "vlm_nav": "active"}, ""),
        ({"phase": "active", "go2_bridge": "silent", "vlm_nav": "active"}, ""),
        ({"phase": "active", "vlm_nav": "left inactive by hand"}, ""),
        ({"phase": "down", "vlm_nav": "unconfigured"}, ""),
        ({}, ""),
    ],
)
def test_what_a_node_starts_with_is_said_only_while_it_starts(states: dict[str, str], words: str) -> None:
    assert startup_of("vlm_nav", states, "it loads the draft model") == words
