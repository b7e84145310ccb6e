"""A small bag as the product records it, made without ROS, and figures to go with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from edge_drafter.stats import DecodingStats
from spec_vlm_nav.messages import AskedPrompt, figures, to_numbers
from speculation.language.prompts import STOP, ActionKind, ActionSize, NavigationAction
from tests import bags
from tests.bags import SECOND_NS
from vlm_nav_evaluation.bags.files import BagWriter

NAV = "spec_vlm_nav_interfaces/msg/"
FORWARD, LEFT = (
    NavigationAction(ActionKind.FORWARD, ActionSize.LARGE),
    NavigationAction(ActionKind.TURN_LEFT, ActionSize.SMALL),
)
DECISIONS = (FORWARD, LEFT, None, STOP)
FIGURES = DecodingStats(
    mode="fsd",
    tokens=24,
    rounds=8,
    drafted=30,
    accepted=16,
    hits=3,
    misses=4,
    early_received=9,
    early_hits={2: 3},
    draft_forwards=40,
    wasted_forwards=11,
    wasted_s=0.011,
    cloud_passes=8,
    bytes_up=9000,
    bytes_down=700,
    prefill_s=0.02,
    draft_s=0.05,
    predraft_s=0.03,
    wait_s=0.04,
    first_commit_s=0.09,
    total_s=0.14,
    server_compute_s=0.06,
)


class Recorder:
    """Writes messages into a bag as the product does; `second` is when they are recorded."""

    def __init__(self, folder: Path) -> None:
        self._writer = BagWriter(folder)

    def put(self, topic: str, kind: str, second: float, /, **fields: Any) -> None:
        """Write a message; what is not given is zero."""
        self._writer.put(topic, round(second * SECOND_NS), bags.make(kind, **fields))

    def header(self, second: float, frame: str = "front") -> Any:
        """Return a header."""
        return bags.header(round(second * SECOND_NS), frame)

    def odometry(self, second: float, x: float, y: float, yaw: float, topic: str = "/odom") -> None:
        """Write where the base is."""
        stamp_ns = round(second * SECOND_NS)
        self._writer.put(topic, stamp_ns, bags.odometry(stamp_ns, x, y, yaw))

    def close(self) -> None:
        """Close the bag."""
        self._writer.close()
        self._writer.write("/odom", "nav_msgs/msg/Odometry", 99 * SECOND_NS, b"dropped after close")


def jpeg(brightness: int, size: int = 64) -> Any:
    """Return a grey frame as the array of bytes that a message holds."""
    frame = np.full((size, size, 3), brightness, np.uint8)
    return np.frombuffer(cv2.imencode(".jpg", frame)[1].tobytes(), np.uint8)


def record(folder: Path, room: dict[str, Any] | None = None, *, with_odometry: bool = True) -> Path:
    """Record a run of 4 decisions, one of them a HOLD: 1 m ahead from 1 s to 2 s, a turn from 3 s to 3.4 s.

    Frames come at 0, 1, 2, ... 5 s and become brighter; `room` makes it a simulated run that ends at its target.
    """
    recorder = Recorder(folder)
    if room is not None:
        recorder.put("/instruction", "std_msgs/msg/String", 0.1, data="the SILVER bottle, please")
        asked = AskedPrompt(0, "find the silver bottle\nDone: forward large")
        recorder.put("/vlm_nav/prompt", "std_msgs/msg/String", 0.2, data=asked.to_json())
    for second in range(6):
        recorder.put(
            "/front/jpeg",
            "sensor_msgs/msg/CompressedImage",
            second,
            header=recorder.header(second),
            format="jpeg",
            data=jpeg(40 * second),
        )
        if room is not None:
            truth = {"x": 1.0, "y": 0.0, "yaw": 0.0, "target": "silver bottle", "distance": 0.5, "visible": True}
            truth |= {"collisions": 2, "path_length": 1.0, "posture": "standing", "room": room}
            recorder.put("/ground_truth", "std_msgs/msg/String", second + 0.01, data=json.dumps(truth))
    for second, state in ((0.2, "thinking"), (2.95, "holding: no camera frame"), (5.5, "holding: much later")):
        recorder.put("/navigation_state", "std_msgs/msg/String", second, data=state)
    for tick in range(300 if with_odometry else 0):
        second = tick / 50
        recorder.odometry(second, min(1.0, max(0.0, second - 1.0)), 0.0, min(0.4, max(0.0, second - 3.0)))
    for step, action in enumerate(DECISIONS):
        kind, size, value = to_numbers(action)
        moves = action is not None and action.size is not None
        # A motion begins small, before its answer is complete; everything is sent twice.
        for again, complete in ((0.0, not moves), (0.05, True), (0.06, True)):
            recorder.put(
                "/navigation_action",
                NAV + "NavigationAction",
                step + 0.9 + again,
                header=recorder.header(step if action is not None else 0.5),
                goal=7,
                step=step,
                kind=kind,
                size=size if complete else min(size, 1),
                complete=complete,
                value=value,
                source=0 if action is not None else 2,
                reasoning="I see a wall.\nI go on." if action is not None and complete else "",
            )
        if action is not None and action is not STOP:
            recorder.put(
                "/decoding_stats",
                NAV + "DecodingStats",
                step + 0.92,
                **{
                    **figures(FIGURES),
                    "early_layers": np.array([2], np.uint16),
                    "early_hits": np.array([3], np.uint32),
                },
                header=recorder.header(step),
                goal=7,
                step=step,
                answer="x",
            )
    recorder.close()
    return folder
