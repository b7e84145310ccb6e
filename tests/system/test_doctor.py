"""The doctor among real nodes: a robot that is well, and robots that are not."""

from __future__ import annotations

import io
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nav_msgs.msg import Odometry
from PIL import Image
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage
from unitree_api.msg import Response
from unitree_go.msg import SportModeState

from spec_vlm_nav.diagnostics import Level, Status
from spec_vlm_nav.graph import GRAPHS
from spec_vlm_nav.nodes import doctor
from tests.system.spinning import Spinning


class Go2(Spinning):
    """The topics of a Go2 and of a camera."""

    def __init__(self) -> None:
        super().__init__(Node("robot"))
        picture = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
        jpeg = io.BytesIO()
        Image.fromarray(picture).save(jpeg, "JPEG")
        self._jpeg = array("B", jpeg.getvalue())
        make: Callable[..., Any] = self.node.create_publisher
        self._images = make(CompressedImage, "/camera/image/compressed", qos_profile_sensor_data)
        self._odometry = make(Odometry, "/utlidar/robot_odom", qos_profile_sensor_data)
        self._more = [make(SportModeState, "/sportmodestate", 1), make(Response, "/api/sport/response", 1)]
        self.node.create_timer(0.02, self._move)
        self.node.create_timer(0.1, self._look)

    def _move(self) -> None:
        message = Odometry(child_frame_id="base_link")
        message.header.stamp, message.header.frame_id = self.node.get_clock().now().to_msg(), "odom"
        message.pose.pose.orientation.w = 1.0
        self._odometry.publish(message)

    def _look(self) -> None:
        message = CompressedImage(format="jpeg", data=self._jpeg)
        message.header.stamp = self.node.get_clock().now().to_msg()
        self._images.publish(message)


ABSENT = {
    "camera": "nobody publishes /camera/image/compressed; no other node is seen: network, RMW",
    "odometry": "nobody publishes /utlidar/robot_odom",
    "robot": "nobody publishes /sportmodestate, /api/sport/response",
}


@pytest.mark.usefixtures("ros")
@pytest.mark.parametrize("failing", [{}, ABSENT], ids=["well", "absent"])
def test_a_line_says_what_is_wrong_with_a_robot(
    failing: dict[str, str], turning_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for limit in ("FIND_S", "OPEN_S", "RATE_WINDOW_S") if failing else ():
        # Nobody is there: no time makes a difference.
        monkeypatch.setattr(doctor, limit, 0.1)
    given = {"mode": "edge", "camera": "none", "draft_model": str(turning_model)}
    lines: dict[str, Status] = {}

    def noted() -> Iterator[Status]:
        for line in doctor.lines_of(GRAPHS["go2"], given):
            lines[line.name] = line
            yield line

    with nullcontext() if failing else closing(Go2()):
        assert doctor.report(noted()) == int(bool(failing))
    said = capsys.readouterr().out
    assert {name for name, line in lines.items() if line.level is Level.ERROR} == set(failing), said
    for name, words in failing.items():
        assert words in lines[name].message, said
    assert said.splitlines()[-1] == (f"{len(failing)} to put right" if failing else "nothing is in the way")
    assert {"settings", "clock", "memory", "network", "RMW", "draft model", "verifier", "nodes"} <= set(lines)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["go3"], 2, "usage: doctor [sim|go2]"),
        (["sim", "verifiers:=x"], 1, "FAIL settings: unknown argument 'verifiers'"),
        (["mode:=fast"], 1, "argument mode:=fast is none of"),
    ],
)
def test_arguments_that_no_launch_file_takes_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], status: int, said: str
) -> None:
    monkeypatch.setattr("sys.argv", ["doctor", *words])
    with pytest.raises(SystemExit) as ended:
        doctor.main()
    output = capsys.readouterr()
    assert ended.value.code == status and said in output.out + output.err
