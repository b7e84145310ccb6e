"""`ros2 run spec_vlm_nav doctor [go2|sim] [NAME:=VALUE ...]`: what is wrong, and what to do, a line each.

It takes the arguments of the launch file of that name and moves nothing. Where no launch runs it loads the draft model,
asks the verifier and opens the camera by itself; beside one it leaves that to the nodes and repeats their reports.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import cv2
import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Odometry
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from rclpy.signals import SignalHandlerOptions

from spec_vlm_nav import doctor
from spec_vlm_nav.diagnostics import RATE_WINDOW_S, Level, Status
from spec_vlm_nav.goal_file import ros_home
from spec_vlm_nav.graph import GRAPHS, PROJECT
from spec_vlm_nav.nodes.conversions import sample_of, seconds_of
from spec_vlm_nav.nodes.diagnostics import status_of
from spec_vlm_nav.nodes.inputs import CAMERA, Inputs
from spec_vlm_nav.nodes.subscriptions import subscribe
from spec_vlm_nav.parameters import NAVIGATOR
from spec_vlm_nav.preflight import parameters_of
from spec_vlm_nav.process_graph import Graph
from spec_vlm_nav.robots import ROBOTS
from spec_vlm_nav.runner import arguments_of

MARKS = {Level.OK: "ok  ", Level.WARN: "WARN", Level.ERROR: "FAIL"}
FIND_S = 3.0
"""How long others get to be found."""
SETTLE_S, OPEN_S = 0.5, 8.0
"""How long a camera gets to show its first frame, the second."""


class Doctor(Node):
    """Listens as vlm_nav would, with the names that the launch file gives its topics."""

    def __init__(self, graph: Graph, values: Mapping[str, str]) -> None:
        spec = graph.node("vlm_nav")
        names = [word for name, topic in graph.remaps(spec, values) for word in ("-r", f"{name}:={topic}")]
        super().__init__("doctor", namespace=values["namespace"], cli_args=["--ros-args", *names])
        self.inputs, self.odometry = Inputs(self), doctor.OdometryWatch()
        self.reports: dict[str, Status] = {}
        """What the graph's nodes said last, by node and line."""
        self._ours = {f"{self.get_namespace()}/".lstrip("/") + each.name for each in graph.processes}
        subscribe(self, Odometry, "odom", self._on_odometry, qos_profile_sensor_data)
        subscribe(self, DiagnosticArray, "/diagnostics", self._on_report, 100)

    def missing(self, name: str) -> str:
        """Return in a sentence why nothing comes on a topic; empty where somebody publishes it."""
        topic = self.resolve_topic_name(name)
        if self.get_publishers_info_by_topic(topic):
            return ""
        seen = len(self.get_node_names()) - 1
        others = f"{seen} other nodes are seen" if seen else "no other node is seen: network, RMW, ROS_DOMAIN_ID"
        return f"nobody publishes {topic}; {others}"

    def _on_odometry(self, message: Odometry) -> None:
        sample = sample_of(message)
        lag = self.get_clock().now().nanoseconds * 1e-9 - seconds_of(message.header.stamp)
        self.odometry.take(sample, lag, (message.header.frame_id, message.child_frame_id))

    def _on_report(self, report: DiagnosticArray) -> None:
        for line in report.status:
            if line.name.partition(":")[0] in self._ours:
                self.reports[line.name] = status_of(line)


def lines_of(graph: Graph, given: Mapping[str, str]) -> Iterator[Status]:
    """Give all lines."""
    try:
        values = graph.values(given)
    except ValueError as error:
        yield Status("settings", Level.ERROR, str(error))
        return
    yield from doctor.settings(graph, values)
    yield doctor.clock()
    yield from doctor.space(ros_home())
    yield from doctor.network(os.environ, values)
    try:
        doctor.check_domain(os.environ)
        if not rclpy.ok():
            # ROS would take camera:=X of the command line for a remapping.
            rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
        node = Doctor(graph, values)
    except Exception as error:
        # Also whatever a middleware raises for settings of its own that it cannot use.
        words = " ".join(str(error).split())[:300]
        yield Status("ROS", Level.ERROR, f"{words}: correct ROS_DOMAIN_ID, RMW_IMPLEMENTATION or its settings")
        yield from doctor.verifiers(graph, values)
        return
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    try:
        yield from _on_ros(graph, given, values, node, executor)
    finally:
        node.inputs.close()
        node.destroy_node()


def _on_ros(
    graph: Graph, given: Mapping[str, str], values: Mapping[str, str], node: Doctor, executor: Any
) -> Iterator[Status]:
    """Give what the graph of nodes shows, the verifier where no node of ours has it, and what the robot sends."""
    _spin(executor, FIND_S)
    yield _middleware(values)
    runs = ("vlm_nav", node.get_namespace()) in node.get_node_names_and_namespaces()
    if runs:
        yield Status("verifier", Level.OK, "vlm_nav runs and has it: see its own reports below")
    else:
        yield from doctor.verifiers(graph, values)
    names = [process.name for process in graph.started(values)]
    if "sim_go2" in names and node.missing("odom"):
        yield Status("robot", Level.WARN, "the simulator does not run: start its launch file to have it looked at")
        return
    with _camera(graph, given, node, "go2_camera" in names):
        _spin(executor, SETTLE_S)
        _spin(executor, OPEN_S, until=lambda: not node.inputs.missing(RATE_WINDOW_S))
        # What waited while the model was loaded is old.
        node.odometry = doctor.OdometryWatch()
        _spin(executor, RATE_WINDOW_S)
        yield from _sensors(graph, values, node)
    yield from _robot(graph, values, node)
    # A camera that was opened here has its line already.
    bad = [
        each for each in node.reports.values() if each.level is not Level.OK and (runs or "go2_camera" not in each.name)
    ]
    yield from bad or [Status("nodes", Level.OK, "all report that they are well" if runs else "none of ours runs yet")]


def _middleware(values: Mapping[str, str]) -> Status:
    name, domain = rclpy.get_rmw_implementation_identifier(), os.environ.get("ROS_DOMAIN_ID") or "0"
    if "odom_topic" in values and name != "rmw_cyclonedds_cpp":
        words = "a Go2 speaks CycloneDDS: export RMW_IMPLEMENTATION=rmw_cyclonedds_cpp"
        return Status("RMW", Level.WARN, f"{name} in domain {domain}; {words}")
    return Status("RMW", Level.OK, f"{name} in domain {domain}")


def _sensors(graph: Graph, values: Mapping[str, str], node: Doctor) -> Iterator[Status]:
    try:
        stale_s = NAVIGATOR.settings(parameters_of(graph, graph.node("vlm_nav"), values)).stale_s
    except ValueError:
        stale_s = 1.0
    frame = node.inputs.frame_after(0.0, stale_s)
    pixels = None if frame is None else cv2.imdecode(np.frombuffer(frame.jpeg, np.uint8), cv2.IMREAD_COLOR)
    silent = node.missing(CAMERA)
    yield Status("camera", Level.ERROR, silent) if silent else doctor.camera(node.inputs.health(stale_s), pixels)
    silent = node.missing("odom")
    yield Status("odometry", Level.ERROR, silent) if silent else node.odometry.status(time.monotonic())


def _robot(graph: Graph, values: Mapping[str, str], node: Doctor) -> Iterator[Status]:
    """Give whether the robot's own topics are there."""
    robot = ROBOTS.get(next((name for name, each in GRAPHS.items() if each is graph), ""))
    if robot is None:
        return
    answers = [service.answers for service in robot.services[:1]]
    wanted = [topic for topic in (robot.states, *answers) if topic is not None]
    absent = [topic for each in wanted if (topic := values[each.argument]) and node.missing(topic)]
    if absent:
        words = f"nobody publishes {', '.join(absent)}: is it on, and is this its network (ping 192.168.123.161)?"
        yield Status("robot", Level.ERROR, words)
    else:
        yield Status("robot", Level.OK, "its services are there")


@contextmanager
def _camera(graph: Graph, given: Mapping[str, str], node: Doctor, ours: bool) -> Iterator[None]:
    """Run the graph's own camera meanwhile, unless somebody publishes its topic."""
    if not ours or not node.missing(CAMERA):
        yield
        return
    command = [*arguments_of(graph, graph.node("go2_camera"), given), "--ros-args", "-p", "autostart:=true"]
    process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _spin(executor: Any, seconds: float, until: Any = lambda: False) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not until():
        executor.spin_once(timeout_sec=0.1)


def report(lines: Iterable[Status]) -> int:
    """Print the lines as they come and return the exit status: 1 where anything fails."""
    failed = 0
    for line in lines:
        failed += line.level is Level.ERROR
        print(f"{MARKS[line.level]} {line.name}: {line.message}", flush=True)
    print(f"{failed} to put right" if failed else "nothing is in the way", flush=True)
    return int(failed > 0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    known = ("sim", *ROBOTS)
    name = words.pop(0) if words and ":=" not in words[0] else next(iter(ROBOTS))
    if name not in known or not all(":=" in word for word in words):
        print(f"usage: doctor [{'|'.join(known)}] [NAME:=VALUE ...], as for NAME.launch.py", file=sys.stderr)
        sys.exit(2)
    try:
        sys.exit(report(lines_of(GRAPHS[name], dict(word.split(":=", 1) for word in words))))
    finally:
        rclpy.try_shutdown()


if __name__ == "__main__":
    main()
