"""The web server: one page, its state over a websocket, the camera as MJPEG, and commands back."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import math
import threading
import time
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from speculation.settings import CheckedSettings

try:
    from aiohttp import WSMsgType, web
except ImportError as error:
    raise ImportError("the web page needs aiohttp: pip install aiohttp") from error

PERIOD_S = 0.1
"""How often a browser gets what changed, and a new frame."""
ALIVE_S = 1.0
"""How often it gets something at least, so that it notices a connection that carries nothing any more."""
MOST_BROWSERS = 16
MOST_BYTES = 8192
"""Largest size of a command."""
BOUNDARY = "frame"
HEADERS = {
    "Cache-Control": "no-store",
    # The token is in the page's address.
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; img-src 'self' data:; connect-src 'self'; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
}


class WebConfig(CheckedSettings, frozen=True):
    """Where the page is served, and to whom."""

    host: Annotated[str, Meta(description="address to serve on; 127.0.0.1: this machine only")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="port to serve on; 0: a free one")] = 8080
    token: Annotated[str, Meta(description="word that the page's address must carry (?token=...); empty: none")] = ""

    @property
    def local(self) -> bool:
        """Whether only this machine reaches the page."""
        return is_loopback(self.host)


class Command(msgspec.Struct, forbid_unknown_fields=True):
    """What a browser asks for."""

    do: Literal["start", "stop", "e_stop", "reset"]
    instruction: str = ""
    dry_run: bool = False


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine's own."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class PageServer:
    """Serves the page in a thread of its own. Raises OSError where the port cannot be taken.

    `snapshot` and `command` are called in that thread. What `command` raises as ValueError or RuntimeError is shown to
    the person who gave it.
    """

    def __init__(
        self, config: WebConfig, snapshot: Callable[[], dict[str, Any]], command: Callable[[Command], None]
    ) -> None:
        self.config = config
        self._snapshot, self._command = snapshot, command
        self._page = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
        self._frame, self._frames = b"", 0
        self._browsers = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="web", daemon=True)
        self._thread.start()
        try:
            self.port = self._call(self._start())
        except BaseException:
            self._end()
            raise

    @property
    def url(self) -> str:
        """Where the page is, without its token."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"http://{host}:{self.port}/"

    def show(self, jpeg: bytes) -> None:
        """Take a camera frame, from any thread."""
        self._frame, self._frames = jpeg, self._frames + 1

    def close(self) -> None:
        """End all connections and the thread."""
        self._call(self._runner.cleanup())
        self._end()

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20.0)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)

    async def _start(self) -> int:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/", self._index)
        app.router.add_get("/camera.mjpeg", self._camera)
        app.router.add_get("/socket", self._socket)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.config.host, self.config.port).start()
        return int(self._runner.addresses[0][1])

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        given = request.query.get("token", "")
        if not hmac.compare_digest(given.encode(), self.config.token.encode()) and self.config.token:
            raise web.HTTPForbidden(text="the address of this page needs ?token=..., see the parameter token\n")
        if self.config.local and not is_loopback(urlsplit(f"//{request.host}").hostname or ""):
            # Another site's name that resolves to this machine (DNS rebinding).
            raise web.HTTPForbidden(text="this page is for this machine only\n")
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != request.host:
            raise web.HTTPForbidden(text="another site's page may not drive this robot\n")
        return await handler(request)

    async def _index(self, _: web.Request) -> web.Response:
        return web.Response(text=self._page, content_type="text/html", headers=HEADERS)

    async def _camera(self, request: web.Request) -> web.StreamResponse:
        self._admit()
        kind = f"multipart/x-mixed-replace; boundary={BOUNDARY}"
        response = web.StreamResponse(headers={"Content-Type": kind, "Cache-Control": "no-store"})
        try:
            await response.prepare(request)
            seen = 0
            while True:
                if self._frames != seen:
                    frame, seen = self._frame, self._frames
                    head = f"--{BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(frame)}\r\n\r\n"
                    await response.write(head.encode() + frame + b"\r\n")
                await asyncio.sleep(PERIOD_S)
        except ConnectionError:
            return response
        finally:
            self._browsers -= 1

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        self._admit()
        socket = web.WebSocketResponse(heartbeat=10.0, max_msg_size=MOST_BYTES)
        try:
            await socket.prepare(request)
            sending = asyncio.ensure_future(self._send(socket))
            try:
                async for message in socket:
                    if message.type is WSMsgType.TEXT:
                        await socket.send_json(self._obey(message.data))
            finally:
                sending.cancel()
            return socket
        finally:
            self._browsers -= 1

    async def _send(self, socket: web.WebSocketResponse) -> None:
        sent: dict[str, Any] = {}
        sent_at = -math.inf
        while not socket.closed:
            state, now = self._snapshot(), time.monotonic()
            if state != sent or now - sent_at >= ALIVE_S:
                # A slow browser misses states in between; none wait for it.
                await socket.send_json({} if state == sent else state)
                sent, sent_at = state, now
            await asyncio.sleep(PERIOD_S)

    def _obey(self, text: str) -> dict[str, str]:
        """Carry out a command; return the answer: what was taken, or the problem."""
        try:
            command = msgspec.json.decode(text, type=Command)
            self._command(command)
        except (msgspec.DecodeError, ValueError, RuntimeError) as error:
            return {"problem": str(error)}
        return {"taken": command.do}

    def _admit(self) -> None:
        # Each browser has two connections: state and camera.
        if self._browsers >= 2 * MOST_BROWSERS:
            raise web.HTTPServiceUnavailable(text=f"{MOST_BROWSERS} browsers look at this page already\n")
        self._browsers += 1
