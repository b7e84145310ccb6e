"""HTTP of the chat API: who asks, what, and the answer whole or as server-sent events. It decides nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TypeVar

import msgspec
from aiohttp import web

from cloud_verifier.openai_api.keys import ApiKeys
from cloud_verifier.openai_api.messages import Answers, ApiError, ChatRequest, read_request, refused
from cloud_verifier.openai_api.questions import Questions
from cloud_verifier.openai_api.verifier_sessions import ANSWER_S, Question, VerifierSessions, unavailable
from cloud_verifier.start_error import StartError
from speculation.wire import MAX_MESSAGE_BYTES

_log = logging.getLogger("cloud_verifier")

MOST_BODY_BYTES = 2 * MAX_MESSAGE_BYTES
"""Images are a third longer in base64, and one that is no JPEG may be larger than what is sent on."""
MOST_CONNECTIONS = 512
SLOW_S = 30.0
"""A connection may take so long to send a request, or to begin with the next one, or to take a piece of an answer."""
IMAGE_THREADS = 2
WATCH_S = 1.0
"""How often the file of keys and slow connections are looked at."""
_JSON = "application/json"

Result = TypeVar("Result")


class ChatServer:
    """Answers requests on connections that others have accepted."""

    def __init__(self, model: str, keys: ApiKeys, questions: Questions, sessions: VerifierSessions) -> None:
        """`model` is what requests call the model."""
        self._model, self._keys, self._questions, self._sessions = model, keys, questions, sessions
        self._since = int(time.time())
        self._decoding = ThreadPoolExecutor(IMAGE_THREADS, "image")
        self._due: dict[asyncio.BaseTransport, float] = {}
        """A connection without a request under way is ended at this time, seconds on the event loop's clock."""
        self._tasks: dict[asyncio.Task[object], str] = {}
        """Each task answers a request of the client of this name."""
        app = web.Application(middlewares=[self._guarded], client_max_size=MOST_BODY_BYTES)
        app.add_routes([
            web.get("/v1/models", self._models), web.get("/v1/models/{name:.+}", self._models),
            web.post("/v1/chat/completions", self._chat),
        ])  # fmt: skip
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)

    async def run(self, connections: AsyncIterator[socket.socket]) -> None:
        """Answer on connections as they come, until there are no more."""
        await self._runner.setup()
        watch = asyncio.create_task(self._watch())
        try:
            async for connection in connections:
                await self._serve(connection)
        finally:
            watch.cancel()
            await self._runner.cleanup()
            self._sessions.close()
            self._decoding.shutdown(wait=False, cancel_futures=True)

    async def _serve(self, connection: socket.socket) -> None:
        if len(self._due) >= MOST_CONNECTIONS or self._runner.server is None:
            connection.close()
            return
        with contextlib.suppress(OSError):  # it is gone already
            loop = asyncio.get_running_loop()
            transport, _ = await loop.connect_accepted_socket(self._runner.server, connection)
            self._due.setdefault(transport, loop.time() + SLOW_S)  # its first request may be under way already

    async def _watch(self) -> None:
        """Take up changes of the keys, end requests whose keys are gone, and connections that are slow."""
        while True:
            await asyncio.sleep(WATCH_S)
            gone = self._keys.refresh()
            for task in [task for task, name in self._tasks.items() if name in gone]:
                task.cancel()
            now = asyncio.get_running_loop().time()
            for transport, due in list(self._due.items()):
                if transport.is_closing() or now > due:
                    del self._due[transport]
                    transport.close()

    @web.middleware
    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Let in who has a key, and write errors as the API does."""
        transport, task = request.transport, asyncio.current_task()
        assert task is not None, "a handler runs in a task"
        try:
            if not f"{request.path}/".startswith("/v1/"):  # a proxy uses one connection for several clients
                text = "this connection is the chat API's, whose paths begin with /v1; ask for pages on another one"
                raise ApiError(HTTPStatus.MISDIRECTED_REQUEST, text, "misdirected_request")
            client = self._tasks[task] = self._client(request)
            request["client"] = client
            if transport is not None:
                self._due[transport] = math.inf
            return await within(ANSWER_S, handler(request))
        except ApiError as error:
            return _failed(error)
        except TimeoutError:
            return _failed(unavailable(f"no answer within {ANSWER_S:g} s"))
        except web.HTTPException as error:
            status = HTTPStatus(error.status)
            there = "there are GET /v1/models and POST /v1/chat/completions"
            text = f"{request.method} {request.path[:100]}: {status.phrase}; {there}"
            return _failed(ApiError(status, text, status.name.lower()))
        except ConnectionError:  # the client is gone; aiohttp knows
            raise
        except StartError as error:
            return _failed(unavailable(str(error)))
        except Exception:
            _log.exception("a chat request failed")
            return _failed(ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "the request failed; see the log"))
        finally:
            self._tasks.pop(task, None)
            if transport is not None and transport in self._due:
                self._due[transport] = asyncio.get_running_loop().time() + SLOW_S

    def _client(self, request: web.Request) -> str:
        """Return whose request it is. Raises ApiError for a key that is nobody's."""
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        name = self._keys.name(key.strip()) if scheme.lower() == "bearer" else ""
        if not name:
            text = "no such API key; send the header Authorization: Bearer KEY with one of the server's --api-keys"
            raise ApiError(HTTPStatus.UNAUTHORIZED, text, "invalid_api_key")
        return name

    async def _models(self, request: web.Request) -> web.Response:
        about = {"id": self._model, "object": "model", "created": self._since, "owned_by": "spec-vlm-nav"}
        name = request.match_info.get("name")
        if name is not None:
            self._check_model(name)
        listed = about if name is not None else {"object": "list", "data": [about]}
        return web.Response(body=msgspec.json.encode(listed), content_type=_JSON)

    def _check_model(self, name: str) -> None:
        if name != self._model:
            text = f"the model {name[:200]!r} is not served here; this server has {self._model!r}"
            raise ApiError(HTTPStatus.NOT_FOUND, text, "model_not_found", "model")

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        asked = read_request(await _body(request))
        self._check_model(asked.model)
        loop = asyncio.get_running_loop()
        question, size = await loop.run_in_executor(self._decoding, self._questions.read, asked)
        answers = Answers(f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), self._model)
        answer = Answer(self._questions, question, asked.stops)
        async with contextlib.aclosing(answer.pieces(self._sessions.answer(request["client"], question))) as pieces:
            if asked.stream:
                return await self._stream(request, asked, answers, answer, pieces, size)
            text = "".join([piece async for piece in pieces])
        body = answers.whole(text, answer.reason, size, answer.tokens)
        return web.Response(body=body, content_type=_JSON)

    async def _stream(
        self, request: web.Request, asked: ChatRequest, answers: Answers, answer: Answer,
        pieces: AsyncGenerator[str, None], size: int,
    ) -> web.StreamResponse:  # fmt: skip
        """Send pieces as they come. What fails before the first one is an answer of its own, else the stream's end."""
        first = await anext(pieces, "")
        headers = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await _write(response, answers.piece("", first=True))
        try:
            if first:
                await _write(response, answers.piece(first))
            async for piece in pieces:
                await _write(response, answers.piece(piece))
            await _write(response, answers.piece(None, answer.reason))
            if asked.includes_usage:
                await _write(response, answers.usage(size, answer.tokens))
        except ApiError as error:
            await _write(response, error.body)
        await _write(response, b"[DONE]")
        await response.write_eof()
        return response


class Answer:
    """One answer as it grows: its text before one that stops it, its tokens, and why it ends."""

    def __init__(self, questions: Questions, question: Question, stops: tuple[str, ...]) -> None:
        self._grown, self._stops, self._ends = questions.text(question), stops, questions.ends
        self._shown = 0
        self.tokens = 0
        """How many tokens it took, one that ends it included."""
        self.reason = "length"

    async def pieces(self, commits: AsyncGenerator[list[int], None]) -> AsyncGenerator[str, None]:
        """Yield its text as it is settled. What may be the beginning of a stop text waits."""
        async with contextlib.aclosing(commits) as given:
            async for tokens in given:
                for token in tokens:
                    self.tokens += 1
                    self._grown.add([token])
                    text = self._grown.text
                    places = [place for stop in self._stops if (place := text.find(stop, self._shown)) >= 0]
                    if places:
                        self.reason = "stop"
                        yield text[self._shown : min(places)]
                        return
                    self.reason = "stop" if token in self._ends else "length"
                end = len(text) - self._held(text)
                if end > self._shown:
                    piece, self._shown = text[self._shown : end], end
                    yield piece
        if rest := self._grown.end()[self._shown :]:
            yield rest

    def _held(self, text: str) -> int:
        """Return how many of the last characters may begin a text that stops it."""
        sizes = (size for stop in self._stops for size in range(1, len(stop)) if text.endswith(stop[:size]))
        return max(sizes, default=0)


async def within(seconds: float, work: Awaitable[Result]) -> Result:
    """Return the result of `work`. Raises TimeoutError where there is none in time.

    A client that goes cancels its request and fails its reads at once: asyncio would log what fails then as lost.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        return await asyncio.wait_for(task, seconds)
    except asyncio.TimeoutError:  # another class before Python 3.11
        raise TimeoutError from None


async def _body(request: web.Request) -> bytes:
    """Return the body. Raises ApiError for one that is too large, comes too slowly or is not encoded as it says."""
    try:
        return await within(SLOW_S, request.read())
    except web.HTTPRequestEntityTooLarge:
        text = f"the body exceeds the limit of {MOST_BODY_BYTES} bytes; send smaller images"
        raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text, "request_too_large") from None
    except web.RequestPayloadError:
        raise refused("the body is not encoded as its Content-Encoding says", code="invalid_body") from None
    except TimeoutError:
        text = f"the body did not come within {SLOW_S:g} s"
        raise ApiError(HTTPStatus.REQUEST_TIMEOUT, text, "request_timeout") from None


async def _write(response: web.StreamResponse, event: bytes) -> None:
    """Send one event. Raises ConnectionError where the client is gone, or does not take it."""
    try:
        await within(SLOW_S, response.write(b"data: " + event + b"\n\n"))
    except TimeoutError:
        raise ConnectionResetError(f"the client has taken nothing for {SLOW_S:g} s") from None


def _failed(error: ApiError) -> web.Response:
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    if error.status is HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    response = web.Response(status=error.status, body=error.body, content_type=_JSON, headers=headers)
    if error.status is HTTPStatus.MISDIRECTED_REQUEST:
        response.force_close()
    return response
