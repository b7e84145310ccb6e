"""The page's server: who is let in, what a browser gets, and what a wrong command gives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="the web page needs aiohttp")

import aiohttp

from spec_vlm_nav.web.server import MOST_BROWSERS, MOST_BYTES, Command, PageServer, WebConfig, is_loopback

JPEG = b"\xff\xd8 a frame \xff\xd9"


class Robot:
    def __init__(self) -> None:
        self.state: dict[str, Any] = {"answer": ""}
        self.commands: list[Command] = []
        self.problem = ""

    def snapshot(self) -> dict[str, Any]:
        return dict(self.state)

    def take(self, command: Command) -> None:
        if self.problem:
            raise RuntimeError(self.problem)
        self.commands.append(command)


@contextmanager
def served(robot: Robot, **config: Any) -> Iterator[PageServer]:
    server = PageServer(WebConfig(port=0, **config), robot.snapshot, robot.take)
    try:
        yield server
    finally:
        server.close()


def get(server: PageServer, path: str = "/", **headers: str) -> tuple[int, str]:
    async def ask() -> tuple[int, str]:
        address = f"http://127.0.0.1:{server.port}{path}"
        async with aiohttp.ClientSession() as session, session.get(address, headers=headers) as answer:
            return answer.status, await answer.text()

    return asyncio.run(ask())


def talk(server: PageServer, *texts: str) -> list[dict[str, Any]]:
    """Send texts over one connection and return the state that came first, then the problems that each text gave."""

    async def run() -> list[dict[str, Any]]:
        address = f"ws://127.0.0.1:{server.port}/socket"
        async with aiohttp.ClientSession() as session, session.ws_connect(address) as socket:
            got = [await socket.receive_json(timeout=60.0)]
            for text in texts:
                await socket.send_str(text)
                got.append(await socket.receive_json(timeout=60.0))
            return got

    return asyncio.run(run())


def test_the_page_loads_nothing_from_elsewhere_and_its_port_is_its_own() -> None:
    with served(Robot()) as server:
        status, page = get(server)
        with pytest.raises(OSError, match="address already in use"):
            PageServer(WebConfig(port=server.port), dict, print)
    assert status == 200 and "<title>" in page
    assert "http://" not in page and "https://" not in page and "innerHTML" not in page


def test_state_is_sent_and_commands_are_taken() -> None:
    robot = Robot()
    robot.state = {"answer": "The ball"}
    with served(robot) as server:
        robot.problem = "a goal is under way"
        state, problem = talk(server, json.dumps({"do": "start", "instruction": "the red ball"}))
        assert state == {"answer": "The ball"} and problem == {"problem": "a goal is under way"}
        robot.problem = ""
        assert talk(server, '{"do": "stop"}')[1:] == [{"taken": "stop"}] and robot.commands.pop().do == "stop"
        wrong = ["{", "[]", '{"do": "jump"}', '{"do": "stop", "speed": 9}', '{"do": "start", "instruction": 3}']
        answers = talk(server, *wrong)[1:]
    assert len(answers) == len(wrong) and all(answer["problem"] for answer in answers) and not robot.commands


def test_a_connection_on_which_nothing_changes_is_not_silent() -> None:
    with served(Robot()) as server:

        async def listen() -> list[dict[str, Any]]:
            address = f"ws://127.0.0.1:{server.port}/socket"
            async with aiohttp.ClientSession() as session, session.ws_connect(address) as socket:
                return [await socket.receive_json(timeout=60.0) for _ in range(2)]

        assert asyncio.run(listen()) == [{"answer": ""}, {}]


def test_the_newest_frame_is_sent() -> None:
    async def first(server: PageServer) -> bytes:
        address = f"http://127.0.0.1:{server.port}/camera.mjpeg"
        async with aiohttp.ClientSession() as session, session.get(address) as answer:
            assert answer.content_type == "multipart/x-mixed-replace"
            return await answer.content.readuntil(b"\xff\xd9")

    with served(Robot()) as server:
        server.show(b"old")
        server.show(JPEG)
        part = asyncio.run(first(server))
    assert part.endswith(JPEG) and b"old" not in part and f"Content-Length: {len(JPEG)}".encode() in part


@pytest.mark.parametrize("path", ["/", "/socket", "/camera.mjpeg"])
def test_strangers_are_kept_out(path: str) -> None:
    with served(Robot(), token="s3cret") as server:
        assert get(server, path)[0] == 403
        assert get(server, f"{path}?token=wrong")[0] == 403
        assert get(server, f"{path}?token=%C3%A9")[0] == 403
        assert get(server, "/?token=s3cret")[0] == 200
    with served(Robot()) as server:
        assert get(server, path, Origin="http://evil.example")[0] == 403, "another site's page"
        assert get(server, path, Host="evil.example")[0] == 403, "a name of another site for this machine"
        assert get(server, "/", Origin=f"http://127.0.0.1:{server.port}")[0] == 200


def test_no_more_browsers_than_the_limit() -> None:
    async def crowd(server: PageServer) -> list[int]:
        address = f"http://127.0.0.1:{server.port}/camera.mjpeg"
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            answers = [await session.get(address) for _ in range(2 * MOST_BROWSERS + 1)]
            return [answer.status for answer in answers]

    with served(Robot()) as server:
        statuses = asyncio.run(crowd(server))
        assert statuses == [200] * (2 * MOST_BROWSERS) + [503]


def test_a_command_that_is_too_long_ends_its_connection_only() -> None:
    async def flood(server: PageServer) -> int | None:
        address = f"ws://127.0.0.1:{server.port}/socket"
        async with aiohttp.ClientSession() as session, session.ws_connect(address) as socket:
            await socket.send_str("x" * (MOST_BYTES + 1))
            async for _ in socket:
                pass
            return socket.close_code

    with served(Robot()) as server:
        assert asyncio.run(flood(server)) == 1009
        assert talk(server) == [{"answer": ""}]


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("dog", False)]
)
def test_which_addresses_are_this_machine(host: str, local: bool) -> None:
    assert is_loopback(host) is local and WebConfig(host).local is local
