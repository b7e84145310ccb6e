"""vlm_nav as a process, in mode edge: its transitions, what it refuses at the door and at its start, its feedback."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import sys
from array import array
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builtin_interfaces.msg import Duration
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from geometry_msgs.msg import PoseWithCovarianceStamped
from lifecycle_msgs.msg import Transition
from nav_msgs.msg import Odometry
from PIL import Image
from rclpy.action import ActionClient
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage
from spec_vlm_nav_interfaces.action import NavigateByInstruction
from spec_vlm_nav_interfaces.msg import NavigationAction
from std_msgs.msg import String

from spec_vlm_nav.goal_file import path_of
from spec_vlm_nav.graph import PROJECT, VERIFIER_GRAPH
from spec_vlm_nav.runner import Runner, free_address
from tests.forked import Forked
from tests.system.conftest import LIMIT_S, Lines, until
from tests.system.parrot import NOT_HERE, parrot
from tests.system.spinning import Client
from vlm_nav_simulation.dataset import encode_jpeg
from vlm_nav_simulation.episode import oracle_policy, run_episode
from vlm_nav_simulation.geometry import Pose
from vlm_nav_simulation.scene import scene_of
from vlm_nav_simulation.world import World

CODES = NavigateByInstruction.Result
FIND = "find the silver bottle"
CLOCK_OFF_S = 5
UP = (Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE)


def command(model: Path, *options: str) -> list[str]:
    given = [word for option in (f"draft_model:={model}", "threads:=1", *options) for word in ("-p", option)]
    return [sys.executable, "-m", "spec_vlm_nav.nodes.vlm_nav", "--ros-args", *given]


@contextmanager
def node_of(model: Path, log: Path, *options: str) -> Iterator[Forked]:
    """Run vlm_nav, whose output goes to a file, and end it with status 0."""
    with log.open("w") as out:
        process = Forked(command(model, *options), stdout=out, stderr=out, cwd=PROJECT)
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(LIMIT_S) == 0
        print(log.read_text())


class Robot(Client):
    """Camera, odometry and a client of the action."""

    def __init__(self) -> None:
        super().__init__()
        self.decisions: list[NavigationAction] = []
        self.feedback: list[Any] = []
        self._images = self.node.create_publisher(CompressedImage, "camera/image/compressed", qos_profile_sensor_data)
        self._odometry = self.node.create_publisher(Odometry, "odom", qos_profile_sensor_data)
        self.node.create_subscription(NavigationAction, "vlm_nav/decision", self.decisions.append, 10)
        self.reported: dict[str, DiagnosticStatus] = {}
        self.node.create_subscription(DiagnosticArray, "/diagnostics", self._report, 10)
        self._goals = ActionClient(self.node, NavigateByInstruction, "navigate_by_instruction")
        jpeg = io.BytesIO()
        Image.new("RGB", (64, 64), "grey").save(jpeg, "JPEG")
        self.jpeg = array("B", jpeg.getvalue())
        self.place = Pose(0.0, 0.0, 0.0)
        self.node.create_timer(0.1, self._show)

    def turns(self) -> list[NavigationAction]:
        """Return the decisions that are no HOLD."""
        return [decision for decision in list(self.decisions) if decision.kind != NavigationAction.HOLD]

    def ready(self) -> bool:
        return bool(self._goals.server_is_ready())

    def goes(self, *transitions: int) -> bool:
        """Have vlm_nav make transitions and return whether it made all of them."""
        return all(self.change("vlm_nav", each) for each in transitions)

    def send(self, instruction: str = FIND, **options: Any) -> Any:
        """Return the goal's handle."""
        goal = NavigateByInstruction.Goal(instruction=instruction, **options)
        return self.answer(
            lambda: self._goals.send_goal_async(goal, lambda message: self.feedback.append(message.feedback))
        )

    def result(self, handle: Any) -> Any:
        return self.answer(handle.get_result_async).result

    def _report(self, report: DiagnosticArray) -> None:
        self.reported |= {line.name: line for line in report.status}

    def _show(self) -> None:
        stamp = self.node.get_clock().now().to_msg()
        odometry = Odometry()
        odometry.header.stamp, odometry.header.frame_id = stamp, "odom"
        pose, half = odometry.pose.pose, self.place.yaw / 2.0
        pose.position.x, pose.position.y = self.place.x, self.place.y
        pose.orientation.z, pose.orientation.w = math.sin(half), math.cos(half)
        self._odometry.publish(odometry)
        image = CompressedImage(format="jpeg", data=self.jpeg)
        image.header.stamp = stamp
        # A camera whose clock is behind: by its stamps all its frames are stale.
        image.header.stamp.sec -= CLOCK_OFF_S
        self._images.publish(image)


@pytest.fixture(scope="module", autouse=True)
def waiting(turning_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Forked, Path]]:
    """A node without a verifier, and its log: it starts and waits while the others are tested."""
    log = tmp_path_factory.mktemp("waiting") / "log"
    given = (f"verifier:={free_address()}", "welcome_s:=3600.0", "autostart:=true")
    with log.open("w") as out:
        words = [*command(turning_model, *given), "-r", "__ns:=/waiting"]
        process = Forked(words, stdout=out, stderr=out, cwd=PROJECT)
    yield process, log
    process.kill()


@pytest.fixture
def client() -> Iterator[Robot]:
    with closing(Robot()) as made:
        yield made


def test_goals_are_taken_while_it_is_active_and_only_then(turning_model: Path, client: Robot, tmp_path: Path) -> None:
    log, kept = tmp_path / "log", path_of("", "/vlm_nav")
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("#!/bin/sh\n")
    with node_of(turning_model, log, "mode:=edge"):
        until(client.ready, "vlm_nav is there")
        early = client.result(client.send())
        assert early.error_code == CODES.NOT_ACTIVE
        assert "not active (not configured yet); see ros2 lifecycle get /vlm_nav" in early.error_msg
        assert client.goes(*UP)

        unknown = client.result(client.send("find the golden unicorn", dry_run=True))
        assert unknown.error_code == CODES.INVALID_INPUT and "known objects" in unknown.error_msg
        wrong = client.result(client.send(dry_run=True, done=["turn around"]))
        assert wrong.error_code == CODES.INVALID_INPUT and "done[0] is 'turn around'" in wrong.error_msg

        past = client.result(client.send(dry_run=True, time_allowance=Duration(sec=-5)))
        assert past.error_code == CODES.INVALID_INPUT and "time_allowance is -5 s" in past.error_msg
        searching = client.send(dry_run=True)
        assert client.result(client.send("stop", dry_run=True)).error_msg == "told to stop: the robot stands"
        assert client.result(searching).error_code == CODES.PREEMPTED
        client.decisions.clear()

        running = client.send(dry_run=True, done=["forward large"])
        until(lambda: len(client.turns()) >= 2, "decisions of a dry run, with the clock of the camera off")
        assert {decision.source for decision in client.turns()} == {NavigationAction.EDGE_ONLY}

        def written() -> bool:
            return any(each.answer and each.done == ["forward large"] for each in client.feedback)

        until(written, "feedback with the answer as it is written")
        assert client.feedback[-1].link_state == "nominal"

        lines = {f"vlm_nav: {line}" for line in ("lifecycle", "camera", "link", "decoding", "goal")}
        until(lambda: lines <= client.reported.keys(), "the lines of /diagnostics")
        skew = next(pair.value for pair in client.reported["vlm_nav: camera"].values if pair.key == "clock skew s")
        assert float(skew) == pytest.approx(CLOCK_OFF_S, abs=0.9)

        assert client.goes(Transition.TRANSITION_DEACTIVATE)
        assert client.result(running).error_code == CODES.SHUTDOWN
        until(lambda: client.decisions[-1].kind == NavigationAction.HOLD, "a HOLD as the last decision")
        assert client.result(client.send()).error_code == CODES.NOT_ACTIVE
        assert client.goes(Transition.TRANSITION_CLEANUP, *UP), "a second time"
        again = client.send(dry_run=True)
        decided = len(client.turns())
        until(lambda: len(client.turns()) > decided, "decisions again")
        until(kept.exists, "the goal is kept")
        client.answer(again.cancel_goal_async)
        assert client.result(again).error_code == CODES.CANCELLED
    text = log.read_text()
    assert "no goal is taken up again: " in text, "what lay in the place of a kept goal is a warning"
    assert "[vlm_nav]: edge_drafter.decoder: " in text, "libraries log through the node's logger"
    assert text.count("the camera's clock is 5.") == 1
    assert "Traceback" not in text and "Loading weights" not in text


def test_a_search_in_vain_ends_as_not_found_and_its_prompts_have_what_was_searched(
    client: Robot, tmp_path: Path
) -> None:
    prompts: list[str] = []
    client.node.create_subscription(String, "vlm_nav/prompt", lambda text: prompts.append(text.data), 10)
    with node_of(parrot(tmp_path / "gone", NOT_HERE, form=2), tmp_path / "log", "mode:=edge"):
        until(client.ready, "vlm_nav is there")
        assert client.goes(*UP)
        ended = client.result(client.send(done=["forward large blocked"]))
        assert (ended.error_code, ended.actions_executed) == (CODES.NOT_FOUND, 0)
        assert ended.error_msg.partition(":")[0] == "the model says that the object is not here"
        until(lambda: bool(client.decisions and prompts), "the decision and its prompt")
        assert [decision.kind for decision in client.turns()] == [NavigationAction.NOT_HERE]
        asked = json.loads(prompts[0])["prompt"].split("\n")
        assert asked[:3] == [FIND, "Done: forward large blocked", "Seen: here 1/8"]
        until(lambda: bool(client.feedback), "feedback")
        assert client.feedback[-1].done == ["forward large blocked"]


def test_a_verified_answer_places_the_object_in_odometrys_frame_and_a_verifier_that_hangs_ends_the_goal(
    client: Robot, lines: Lines, tmp_path: Path
) -> None:
    scene = scene_of(20000, "middle", "")
    client.place = run_episode(scene, oracle_policy(scene)).poses[-1]
    with World(scene) as world:
        world.set_pose(*client.place)
        client.jpeg = array("B", encode_jpeg(world.render()))
    places: list[PoseWithCovarianceStamped] = []
    client.node.create_subscription(PoseWithCovarianceStamped, "vlm_nav/sighting", places.append, 10)
    models, address = PROJECT / "models", free_address()
    options = ("mode:=cloud", "sightings:=true", "degraded_s:=0.0", "link_lost_s:=8.0", f"verifier:={address}")
    given = {"target_model": str(models / "target"), "verifier": address}
    with Runner(VERIFIER_GRAPH, given, lines) as verifier, node_of(models / "draft", tmp_path / "log", *options):
        verifier.start()
        until(client.ready, "vlm_nav is there")
        assert client.goes(*UP)
        client.send(f"find the {scene.target.text}", dry_run=True)
        until(lambda: bool(client.turns() and places), "a decision and its place")
        os.kill(verifier.pid("verifier"), signal.SIGSTOP)
        try:
            lost = client.result(client.send(dry_run=True))
        finally:
            os.kill(verifier.pid("verifier"), signal.SIGCONT)
    assert lost.error_code == CODES.LINK_LOST
    assert "the robot waited 8 s for it" in lost.error_msg and address in lost.error_msg, lost.error_msg
    assert places[0].header.frame_id == "odom"
    assert places[0].header.stamp in [decision.header.stamp for decision in client.turns()], "the frame's"
    hidden = scene.objects[scene.target_index]
    at, covariance = places[0].pose.pose.position, np.reshape(places[0].pose.covariance, (6, 6))
    assert math.dist((at.x, at.y), (hidden.x, hidden.y)) < 1.0
    assert np.array_equal(covariance, covariance.T) and (np.linalg.eigvalsh(covariance) > 0.0).all()


def test_it_can_be_ended_while_it_waits_for_its_verifier(waiting: tuple[Forked, Path]) -> None:
    process, log = waiting
    until(lambda: "waiting for the verifier: " in log.read_text(), "the reason in the log")
    process.terminate()
    # Less than it would wait for.
    process.wait(LIMIT_S)
    assert "Traceback" not in log.read_text()
