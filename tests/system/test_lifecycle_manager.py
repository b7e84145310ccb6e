"""The lifecycle manager and managed nodes as real processes, killed and frozen at will."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import GetState
from std_msgs.msg import String
from std_srvs.srv import Trigger

from spec_vlm_nav.process_graph import CommandSpec, Graph
from spec_vlm_nav.runner import Runner, StartError
from tests.system.conftest import LIMIT_S, Lines, until
from tests.system.puppet import KEPT
from tests.system.spinning import Client

NAMES = ("bridge", "executor", "navigator")


def puppet(name: str, **parameters: str) -> CommandSpec:
    words = [word for key, value in parameters.items() for word in ("-p", f"{key}:={value}")]
    remaps = ("-r", f"__node:={name}")
    return CommandSpec(name, ("python3", "-m", "tests.system.puppet", "--ros-args", *remaps, *words))


def manager(name: str = "lifecycle_manager", **parameters: str) -> CommandSpec:
    given = {"node_names": f"[{', '.join(NAMES)}]", "heartbeats": "[bridge, navigator]", **parameters}
    words = [word for key, value in given.items() for word in ("-p", f"{key}:={value}")]
    start = ("python3", "-m", "spec_vlm_nav.nodes.lifecycle_manager", "--ros-args", "-r", f"__node:={name}")
    return CommandSpec(name, (*start, *words), respawns=0)


class Witness(Client):
    """Collects transitions."""

    def __init__(self) -> None:
        super().__init__()
        self._noted: list[tuple[float, str]] = []
        self._from = 0.0
        self.node.create_subscription(String, "transitions", self._note, KEPT)

    def _note(self, text: String) -> None:
        at, _, transition = text.data.partition(" ")
        self._noted.append((float(at), transition))

    @property
    def transitions(self) -> list[str]:
        """Those since `forget`, in their order; they arrive in any."""
        return [transition for at, transition in sorted(self._noted) if at > self._from]

    def forget(self) -> None:
        self._from = time.monotonic()

    def active(self) -> bool:
        return self.missing() == ""

    def missing(self, manager: str = "lifecycle_manager") -> str:
        """Return why not all nodes are active, as their manager has it."""
        answer = self.service(Trigger, f"{manager}/is_active")
        return "" if answer.success else str(answer.message)


@contextmanager
def managed(lines: Lines, *specs: CommandSpec, later: tuple[CommandSpec, ...] = ()) -> Iterator[tuple[Runner, Witness]]:
    """Start processes; those that come `later` are started by the test."""
    with closing(Witness()) as client, Runner(Graph((), (*specs, *later)), {}, lines) as runner:
        runner.start(*(spec.name for spec in specs))
        yield runner, client


def ends(runner: Runner, name: str, status: int) -> None:
    """Wait for a manager to end with a status."""
    with pytest.raises(StartError, match=f"{name} ended with status {status}"):
        runner.wait_until(lambda: False, "the manager ends", LIMIT_S)


def test_all_come_up_together_one_that_died_comes_back_and_one_that_hangs_blocks_nobody(lines: Lines) -> None:
    specs = [puppet(name, takes_s="1.0" if name == "navigator" else "0.0") for name in NAMES]
    with managed(lines, *specs, manager(), later=(manager("impatient", recovery_s="6.0"),)) as (runner, client):
        runner.wait_until(client.active, "all active", LIMIT_S)
        until(lambda: len(client.transitions) == 6, "all transitions")
        seen = client.transitions
        assert seen[3:] == [f"activate {name}" for name in NAMES]
        assert sorted(seen[:3]) == sorted(f"configure {name}" for name in NAMES)

        assert not client.change("bridge", Transition.TRANSITION_ACTIVATE), "the state does not have it"
        assert client.service(GetState, "bridge/get_state").current_state.label == "active" and runner.alive("bridge")

        client.forget()
        os.kill(runner.pid("bridge"), signal.SIGKILL)
        back = ["configure bridge", "activate bridge"]
        runner.wait_until(lambda: client.transitions[:2] == back, "back", LIMIT_S)
        runner.wait_until(client.active, "all active again", LIMIT_S)

        client.forget()
        assert client.service(Trigger, "lifecycle_manager/shutdown").success
        until(lambda: len(client.transitions) == 6, "all down")
        assert client.transitions[:3] == [f"deactivate {name}" for name in reversed(NAMES)]
        assert not client.active()
        assert client.service(Trigger, "lifecycle_manager/startup").success
        runner.wait_until(client.active, "up again", LIMIT_S)

        runner.stop("lifecycle_manager")
        runner.start("impatient")
        runner.wait_until(lambda: client.missing("impatient") == "", "all active for another manager", LIMIT_S)
        client.forget()
        os.kill(runner.pid("executor"), signal.SIGSTOP)
        try:
            until(lambda: "executor is silent" in client.missing("impatient"), "missed")
            ends(runner, "impatient", 4)
            until(lambda: "executor did not come back within 6 s" in lines.text("impatient"), "its line")
            until(lambda: client.transitions[:2] == ["deactivate navigator", "deactivate bridge"], "others are down")
        finally:
            os.kill(runner.pid("executor"), signal.SIGCONT)


def test_a_node_that_cannot_be_configured_is_named_with_its_reason_and_nothing_was_active(lines: Lines) -> None:
    specs = (puppet("bridge"), puppet("executor"), puppet("navigator", refuses="configure"), manager())
    with managed(lines, *specs) as (runner, client):
        ends(runner, "lifecycle_manager", 3)
        reason = "navigator cannot configure: the folder that navigator needs is not there"
        until(lambda: reason in lines.text("lifecycle_manager"), "the reason")
        assert not [each for each in client.transitions if each.startswith("activate")]

        def cleaned_up() -> bool:
            # One whose turn had not come when the navigator refused has nothing to clean up.
            seen = set(client.transitions)
            others = {name for name in ("bridge", "executor") if f"configure {name}" in seen}
            return {f"cleanup {name}" for name in others} <= seen

        until(cleaned_up, "cleaned up")
