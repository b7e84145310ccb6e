"""The web page in a real browser, with an action server of the tests behind it."""

from __future__ import annotations

import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.conftest import LIMIT_S, until
from tests.system.test_find import SERVER, Process, find, started

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("aiohttp", reason="the web page needs aiohttp")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WEB = [sys.executable, "-m", "spec_vlm_nav.nodes.web", "--ros-args", "-p", "port:=0"]
PHONE, LOW, DESKTOP = {"width": 390, "height": 844}, {"width": 700, "height": 320}, {"width": 1280, "height": 800}

FIGURES = {
    "mode": "mode full",
    "gain": "about 1.8 x the cloud alone (estimated)",
    "link": "link nominal · 41 ms",
    "battery": "battery 17 %, charge it",
}

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    with started(*SERVER) as process:
        until(lambda: process.has("up"), "the server is up")
        yield process


@pytest.fixture(scope="module")
def node() -> Iterator[Process]:
    """The node that serves the page, until the last test ends it."""
    with started(*WEB) as process:
        until(lambda: process.has("page: "), "the page is served")
        yield process


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def page(node: Process, browser: Any) -> Iterator[Any]:
    address = next(found[1] for line in node.lines if (found := re.search(r"page: (\S+)", line)))
    page = browser.new_page(viewport=PHONE)
    page.set_default_timeout(1e3 * LIMIT_S)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    # What the page's content security policy refuses is an error on the console, as is a node that has ended.
    page.on("console", lambda message: errors.append(message.text) if "Policy" in message.text else None)
    page.goto(address)
    page.wait_for_function("() => document.getElementById('page').textContent == 'connected'")
    yield page
    page.close()
    assert not errors


def wait_for(page: Any, part: str, words: str) -> None:
    page.wait_for_function(
        "([part, words]) => document.getElementById(part).textContent.includes(words)", arg=[part, words]
    )


def test_an_instruction_is_typed_its_answer_is_read_and_stop_cancels_it(
    server: Process, node: Process, page: Any, tmp_path: Path
) -> None:
    stopped = server.lines.count('"cancelled"')
    wait_for(page, "nodes", "vlm_nav")
    page.fill("#instruction", "the wall")
    page.click("#start")
    wait_for(page, "committed", "The ball is to the left.")
    page.wait_for_function("() => document.getElementById('guess').textContent.length > 0")
    wait_for(page, "decisions", "turn left large")
    wait_for(page, "link", "nominal")
    page.wait_for_function("() => document.getElementById('frames').naturalWidth == 320")
    until(lambda: server.goals()[-1]["instruction"] == "find the wall", "the goal that the server took")
    assert page.is_disabled("#start") and page.is_enabled("#stop")
    for part, words in FIGURES.items():
        wait_for(page, part, words)
    for size in (LOW, DESKTOP, PHONE):
        page.set_viewport_size(size)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), f"it fits {size}"
        for stop in ("#stop", "#e_stop"):
            below = page.locator(stop).bounding_box()
            assert below["y"] + below["height"] <= size["height"], f"{stop} is on the screen, {size}"
        page.screenshot(path=tmp_path / f"page_{size['width']}.png")
    page.click("#stop")
    wait_for(page, "note", "cancelled: the robot stands")
    until(lambda: server.lines.count('"cancelled"') == stopped + 1, "the action server has cancelled the goal")
    assert not server.has("e_stop"), "Stop is no emergency stop"
    page.wait_for_function("() => !document.getElementById('start').disabled")


def test_a_refused_goal_says_why(server: Process, page: Any) -> None:
    page.fill("#instruction", "the door")
    page.click("#start")
    wait_for(page, "note", "names no known object")
    page.fill("#instruction", "")
    page.click("#start")
    wait_for(page, "problem", "the instruction is empty")


def test_stop_ends_the_goal_of_another_client_too(server: Process, page: Any) -> None:
    run = find("the wall")
    wait_for(page, "state", "thinking")
    page.click("#stop")
    assert run.end() == 130 and run.has("cancelled: the robot stands")
    wait_for(page, "state", "no goal")


@pytest.mark.parametrize(("key", "focus"), [("Space", ""), ("Escape", "#instruction"), ("Space", "#instruction")])
def test_a_key_stops_the_goal_whatever_has_the_focus(server: Process, page: Any, key: str, focus: str) -> None:
    """Space is typed where nothing runs, and the field that Start was pressed in has the focus no more."""
    page.click("#instruction")
    page.keyboard.type("the wall")
    assert page.input_value("#instruction") == "the wall"
    page.keyboard.press("Enter")
    wait_for(page, "state", "thinking")
    if focus:
        page.click(focus)
    page.keyboard.press(key)
    wait_for(page, "note", "cancelled: the robot stands")
    wait_for(page, "state", "no goal")
    assert page.input_value("#instruction") == "the wall" and page.text_content("#alarm") == ""


def test_a_stop_that_does_not_get_through_is_said_and_sent_once_it_can_be(server: Process, page: Any) -> None:
    """The connection stays open and carries nothing any more, as over a Wi-Fi that is gone."""
    page.fill("#instruction", "the wall")
    page.click("#start")
    wait_for(page, "state", "thinking")
    page.evaluate("socket.send = () => {}; socket.onmessage = () => {}")
    page.focus("#start")
    page.keyboard.press("Space")
    wait_for(page, "alarm", "STOP NOT SENT")
    wait_for(page, "note", "cancelled: the robot stands")
    wait_for(page, "state", "no goal")
    page.wait_for_function("() => document.getElementById('alarm').textContent == ''")


def test_emergency_stop_and_reset(server: Process, page: Any) -> None:
    page.click("#e_stop")
    until(lambda: server.has("e_stop True"), "the emergency stop arrives")
    wait_for(page, "outcome", "emergency stop sent")
    page.click("#reset")
    until(lambda: server.has("reset") and server.has("e_stop False"), "the reset arrives")
    wait_for(page, "outcome", "stands up again")


def test_the_end_of_the_node_cancels_its_goal(server: Process, node: Process, page: Any) -> None:
    stopped = server.lines.count('"cancelled"')
    page.fill("#instruction", "the wall")
    page.click("#start")
    wait_for(page, "state", "thinking")
    node.process.send_signal(signal.SIGTERM)
    assert node.end() == 0
    until(lambda: server.lines.count('"cancelled"') == stopped + 1, "the action server has cancelled the goal")
    wait_for(page, "page", "not connected")
