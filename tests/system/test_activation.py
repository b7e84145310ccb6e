"""What vlm_nav must have before it is active, and so before the robot stands up: a camera frame that is new."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spec_vlm_nav.navigator import NavigatorConfig
from spec_vlm_nav.nodes import vlm_nav
from spec_vlm_nav.nodes.managed import ManagedNode
from spec_vlm_nav.nodes.vlm_nav import FIRST_FRAME_S, VlmNav


class Blind:
    """What `VlmNav.activate` needs of its node; a frame comes after so many seconds, or never."""

    def __init__(self, frame_after_s: float = float("inf"), ends_after_s: float = float("inf")) -> None:
        self.now, self._frame_after_s, self._ends_after_s = 0.0, frame_after_s, ends_after_s
        self.config, self.noted = NavigatorConfig(), list[str]()
        self.inputs = SimpleNamespace(missing=lambda _: "" if self.now >= frame_after_s else "no camera frame has come")
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


class Unlucky(ManagedNode):
    """Fails in its first transition in a way that nobody foresaw."""

    def __init__(self) -> None:
        super().__init__("unlucky")
        self.errors: list[Exception] = [KeyError("unforeseen")]

    def configure(self) -> None:
        """See `ManagedNode`."""
        while self.errors:
            raise self.errors.pop()


@pytest.mark.usefixtures("ros")
def test_an_unforeseen_error_of_a_transition_is_logged_and_the_node_can_be_configured_again(
    capfd: pytest.CaptureFixture[str],
) -> None:
    node = Unlucky()
    node.trigger_configure()
    assert "cannot configure" in (log := capfd.readouterr().err) and "KeyError: 'unforeseen'" in log
    assert not node.ending
    node.trigger_configure()
    assert node.problem == "configured, not active"
    node.destroy_node()
