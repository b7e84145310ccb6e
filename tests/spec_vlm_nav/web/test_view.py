"""What the page shows, on given time."""

from __future__ import annotations

from spec_vlm_nav.answer_stats import GAIN
from spec_vlm_nav.client import Progress
from spec_vlm_nav.diagnostics import Level, Status
from spec_vlm_nav.web.view import DECISIONS, HEALTH_S, SILENT_S, STALE_S, View


def test_what_fell_silent_is_shown_as_silent() -> None:
    view = View(("vlm_nav", "go2_bridge"))
    assert view.snapshot(0.0)["nodes"] == {"vlm_nav": False, "go2_bridge": False}
    view.beat("vlm_nav", 1.0)
    view.frame(1.0)
    view.health(Status("go2_bridge: robot", Level.ERROR, "damped by the remote"), 1.0)
    view.health(Status("go2_bridge: cmd_vel", Level.OK, "20 Hz"), 1.0)
    state = view.snapshot(1.0 + SILENT_S)
    assert state["nodes"] == {"vlm_nav": True, "go2_bridge": False} and state["camera"]
    assert [line["message"] for line in state["health"]] == ["damped by the remote", "20 Hz"], "the worst comes first"
    late = view.snapshot(1.1 + max(STALE_S, HEALTH_S))
    assert not late["nodes"]["vlm_nav"] and not late["camera"] and not late["health"]


def test_decisions_are_the_newest_and_a_step_has_one() -> None:
    view = View(())
    for step in range(DECISIONS + 3):
        view.decide(1, step, "forward small", "verified", "")
        view.decide(1, step, "forward large", "verified", "the way is free")
    state = view.snapshot(0.0)
    assert [each["step"] for each in state["decisions"]] == list(range(DECISIONS + 2, 2, -1))
    assert {each["action"] for each in state["decisions"]} == {"forward large"}
    view.decide(2, DECISIONS + 2, "stop", "verified", "")
    assert [each["goal"] for each in view.snapshot(0.0)["decisions"]][:2] == [2, 1], "another goal counts anew"


def test_mode_gain_link_and_battery_are_what_diagnostics_say_while_they_say_it() -> None:
    view = View(())
    names = ("mode", "gain", "link", "rtt_s", "battery", "is_battery_low")
    assert [view.snapshot(0.0)[name] for name in names] == ["", "", "", "", "", False]
    view.health(Status("dog1/vlm_nav: decoding", Level.OK, "last in 0.11 s", {"mode": "full", GAIN: "1.83"}), 1.0)
    view.health(Status("dog1/vlm_nav: link", Level.WARN, "silent", {"mode": "degraded", "rtt s": "0.041"}), 1.0)
    view.health(Status("dog1/go2_bridge: battery", Level.WARN, "12 %, charge it"), 1.0)
    shown = ["full", "1.83", "degraded", "0.041", "12 %, charge it", True]
    assert [view.snapshot(1.0)[name] for name in names] == shown
    view.progress, view.active_goals = Progress(link="nominal"), 1
    assert view.snapshot(1.0)["link"] == "nominal", "a goal looks more often"
    assert view.snapshot(1.1 + HEALTH_S)["battery"] == ""
