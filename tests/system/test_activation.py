"""What vlm_nav must have before it is active, and so before the robot stands up: a camera frame that is new."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import rclpy
from rclpy.node import Node

from spec_vlm_nav.body import Frame
from spec_vlm_nav.navigator import NavigatorConfig
from spec_vlm_nav.nodes import senses, vlm_nav
from spec_vlm_nav.nodes.senses import Senses
from spec_vlm_nav.nodes.vlm_nav import FIRST_FRAME_S, VlmNav


class Blind:
    """What `VlmNav.activate` needs of its node; a frame comes after so many seconds, or never."""

    def __init__(self, frame_after_s: float = float("inf"), ends_after_s: float = float("inf")) -> None:
        self.now, self._frame_after_s, self._ends_after_s = 0.0, frame_after_s, ends_after_s
        self.config, self.noted = NavigatorConfig(), list[str]()
        self.senses = SimpleNamespace(missing=lambda _: "" if self.now >= frame_after_s else "no camera frame has come")
        self._wait = self.noted.append

    @property
    def ending(self) -> bool:
        return self.now >= self._ends_after_s

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def activate(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vlm_nav, "time", SimpleNamespace(monotonic=lambda: node.now, sleep=node.sleep))
    VlmNav.activate(node)


def test_it_is_not_active_without_a_camera_frame_and_says_so_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Blind()
    with pytest.raises(
        RuntimeError, match=r"no camera frame has come, 30 s after the start: is the launch argument cam"
    ):
        activate(node, monkeypatch)
    assert node.now == pytest.approx(FIRST_FRAME_S, abs=0.2)
    assert set(node.noted) == {"waiting for the camera: no camera frame has come"} and len(node.noted) > 3
    late = Blind(frame_after_s=4.0)
    activate(late, monkeypatch)
    assert late.now == pytest.approx(4.0, abs=0.1) and not late.noted
    ended = Blind(ends_after_s=1.0)
    with pytest.raises(RuntimeError):
        activate(ended, monkeypatch)
    assert ended.now == pytest.approx(1.0, abs=0.1), "Ctrl-C is not waited for"


@pytest.fixture
def sight() -> Iterator[Senses]:
    rclpy.init()
    node = Node("vlm_nav", cli_args=["--ros-args", "-r", "camera/image/compressed:=/front/compressed"])
    made = Senses(node)
    yield made
    made.close()
    node.destroy_node()
    rclpy.shutdown()


def test_a_frame_that_is_missing_or_old_is_named_with_its_topic_or_limit(
    sight: Senses, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sight.missing(1.0) == "no camera frame has come on /front/compressed"
    monkeypatch.setattr(senses, "time", SimpleNamespace(monotonic=lambda: 12.0))
    sight.frame = Frame(b"", 11.5, 0.25, None)
    assert sight.missing(1.0) == ""
    assert sight.missing(0.5) == "the newest camera frame is 0.8 s old, stale_frame_s is 0.5"
