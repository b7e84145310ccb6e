"""A bag written and read without ROS, the report drawn from it, and the figures as text."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

from spec_vlm_nav.bag import BagWriter, read, typestore
from spec_vlm_nav.messages import figures, to_numbers
from spec_vlm_nav.report import load_run, write_report
from spec_vlm_nav.simulated_go2 import scene_of
from spec_vlm_nav.summary import decoding_table, step_lines
from speculation.drafting.stats import DecodingStats
from speculation.prompts import STOP, ActionKind, ActionSize, NavigationAction

NAV = "spec_vlm_nav_interfaces/msg/"
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


def stats_message(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"profile": "", "link_rtt_s": 0.002, **figures(FIGURES), **changes})


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    """A recorded run of two decisions and a HOLD."""
    types = typestore()
    made = types.types
    writer = BagWriter(tmp_path / "run" / "bag")
    stamps = [made["builtin_interfaces/msg/Time"](sec=5, nanosec=n) for n in range(3)]
    headers = [made["std_msgs/msg/Header"](stamp=stamp, frame_id="front") for stamp in stamps]
    jpeg = np.frombuffer(cv2.imencode(".jpg", np.full((64, 64, 3), 90, np.uint8))[1].tobytes(), np.uint8)

    def write(topic: str, kind: str, message: Any, at: int) -> None:
        writer.write(topic, kind, at, types.serialize_cdr(message, kind))

    write(
        "/camera/image/compressed",
        "sensor_msgs/msg/CompressedImage",
        made["sensor_msgs/msg/CompressedImage"](header=headers[0], format="jpeg", data=jpeg),
        10,
    )
    for step, action in enumerate((NavigationAction(ActionKind.FORWARD, ActionSize.LARGE), None, STOP)):
        kind, size, value = to_numbers(action)
        message = made[NAV + "NavigationAction"](
            header=headers[step],
            goal=7,
            step=step,
            kind=kind,
            size=size,
            value=value,
            source=0,
            reasoning="I see a wall.",
            HOLD=0,
            FORWARD=1,
            TURN_LEFT=2,
            TURN_RIGHT=3,
            STOP=4,
            NONE=0,
            SMALL=1,
            MEDIUM=2,
            LARGE=3,
            CLOUD_VERIFIED=0,
            EDGE_ONLY=1,
            FALLBACK=2,
        )
        write("/navigation_action", NAV + "NavigationAction", message, 20 + step)
        write("/navigation_action", NAV + "NavigationAction", message, 30 + step)
    write(
        "/decoding_stats",
        NAV + "DecodingStats",
        made[NAV + "DecodingStats"](
            **{**figures(FIGURES), "early_layers": np.array([2], np.uint16), "early_hits": np.array([3], np.uint32)},
            header=headers[0],
            goal=7,
            step=0,
            profile="",
            answer="x",
            frame_age_s=0.0,
            link_rtt_s=0.0,
            link="",
        ),
        25,
    )
    point, turn = made["geometry_msgs/msg/Point"], made["geometry_msgs/msg/Quaternion"](x=0.0, y=0.0, z=0.0, w=1.0)
    for tick in range(4):
        pose = made["geometry_msgs/msg/Pose"](position=point(x=0.5 * tick, y=0.0, z=0.0), orientation=turn)
        zero = made["geometry_msgs/msg/Vector3"](x=0.0, y=0.0, z=0.0)
        write(
            "/odom",
            "nav_msgs/msg/Odometry",
            made["nav_msgs/msg/Odometry"](
                header=headers[0],
                child_frame_id="base_link",
                pose=made["geometry_msgs/msg/PoseWithCovariance"](pose=pose, covariance=np.zeros(36)),
                twist=made["geometry_msgs/msg/TwistWithCovariance"](
                    twist=made["geometry_msgs/msg/Twist"](linear=zero, angular=zero), covariance=np.zeros(36)
                ),
            ),
            40 + tick,
        )
    writer.close()
    writer.write("/odom", "nav_msgs/msg/Odometry", 99, b"dropped after close")
    return tmp_path / "run" / "bag"


def test_a_run_is_read_back_with_its_decisions_frames_figures_and_path(bag: Path) -> None:
    run = load_run(bag)
    assert [decision.action for decision in run.decisions] == ["forward large", "HOLD", "stop"]
    assert run.decisions[0].frame is not None and run.decisions[1].frame is None
    assert run.decisions[0].stats.tokens == 24 and run.decisions[2].stats is None
    assert run.length == pytest.approx(1.5)
    assert {topic for topic, _, _ in read(bag)} == {
        "/camera/image/compressed",
        "/navigation_action",
        "/decoding_stats",
        "/odom",
    }


def test_the_report_is_a_page_with_pictures(bag: Path) -> None:
    page = write_report(bag.parent, bag, scene_of(1, "easy", ""), "FOUND <it>", decoding_table([stats_message()]))
    text = page.read_text()
    assert "FOUND &lt;it&gt;" in text and "tau" in text
    for name in ("top.png", "steps.png", "latency.png"):
        assert name in text
        picture = cv2.imread(str(bag.parent / name))
        assert picture is not None and picture.std() > 5.0


def test_a_folder_without_a_bag_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no bag: it has no metadata\.yaml"):
        load_run(tmp_path)


def test_figures_as_text_say_what_was_measured() -> None:
    first, second = step_lines(stats_message())
    assert first == "24 tokens, tau 3.00, 8 cloud passes, hits 3/7, early exit layer 2 x3"
    assert "140 ms" in second and "rtt 2" in second
    table = decoding_table([stats_message(), stats_message(total_s=0.5, early_layers=[2, 4], early_hits=[1, 1])])
    rows = dict(line.split("  ", 1) for line in table.splitlines())
    values = {name.strip(): value.strip() for name, value in rows.items()}
    assert values["tokens per commit (tau)"] == "3.00"
    assert values["early tokens; hits by exit layer"] == "18; layer 2 x4, layer 4 x1"
    assert values["answer, median and longest"] == "320 ms, 500 ms"
    assert decoding_table([]) == "no answer was decoded"
