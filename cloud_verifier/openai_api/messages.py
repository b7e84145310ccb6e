"""Requests and answers of the OpenAI chat API, typed; no HTTP, no models.

What would change an answer and is not done here is refused by its name; what changes none is ignored.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

MAX_MESSAGES = 256
MAX_STOPS, MAX_STOP_CHARS = 4, 200
_FIELD = re.compile(r" - at `\$\.?(?P<field>[^`]*)`")
_UNKNOWN = re.compile(r"unknown field `(?P<field>[^`]*)`")


class ApiError(Exception):
    """A request is refused; `message` is for people, `code` for programs, `param` names the field."""

    def __init__(
        self, status: HTTPStatus, message: str, code: str = "", param: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.retry_after_s = status, code, param, retry_after_s

    @property
    def body(self) -> bytes:
        """Return the error as the API writes it, in JSON."""
        kind = {HTTPStatus.UNAUTHORIZED: "authentication_error", HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error"}.get(
            self.status, "server_error" if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
        )
        about = {"message": str(self), "type": kind, "param": self.param or None, "code": self.code or None}
        return msgspec.json.encode({"error": about})


def refused(message: str, param: str = "", code: str = "invalid_value") -> ApiError:
    """Return the error of a request that cannot be answered as it is."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, code, param)


def too_long(message: str) -> ApiError:
    """Return the error of a conversation that does not fit, with its answer."""
    return refused(message, "messages", "context_length_exceeded")


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of what a request is made of."""


class ImageUrl(_Part, frozen=True):
    """Where an image is: a data URI. `detail` is ignored, as a model has one resolution."""

    url: str
    detail: Any = None


class TextPart(_Part, frozen=True, tag_field="type", tag="text"):
    """Words of a message."""

    text: str


class ImagePart(_Part, frozen=True, tag_field="type", tag="image_url"):
    """An image of a message."""

    image_url: ImageUrl


Content: TypeAlias = str | list[TextPart | ImagePart] | None
Role: TypeAlias = Literal["system", "developer", "user", "assistant"]
Format: TypeAlias = Literal["text", "json_schema", "grammar"]


class ChatMessage(_Part, frozen=True):
    """One turn of the conversation."""

    role: Role
    content: Content = None


class StreamOptions(_Part, frozen=True):
    """These options are what a stream is asked to have besides its text."""

    include_usage: bool = False
    include_obfuscation: Any = None


class JsonSchema(_Part, frozen=True):
    """The schema of an answer."""

    name: str = ""
    schema: dict[str, Any] = {}
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(_Part, frozen=True):
    """What an answer must look like: anything, JSON of a schema, or by a grammar of robots' answers, by its name."""

    type: Format
    json_schema: JsonSchema | None = None
    grammar: str | None = None


class ChatRequest(_Part, frozen=True, kw_only=True):
    """The body of POST /v1/chat/completions. `service_class` and the grammars are this verifier's own."""

    model: str
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: (
        Annotated[str, Meta(max_length=MAX_STOP_CHARS)]
        | Annotated[list[Annotated[str, Meta(max_length=MAX_STOP_CHARS)]], Meta(max_length=MAX_STOPS)]
        | None
    ) = None
    response_format: ResponseFormat | None = None
    service_class: str | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts before which the answer ends."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(stop for stop in given if stop)

    @property
    def includes_usage(self) -> bool:
        """It is true where the stream ends with the number of tokens that it took."""
        return self.stream_options is not None and self.stream_options.include_usage


_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,), "frequency_penalty": (0,), "presence_penalty": (0,), "logit_bias": ({},), "logprobs": (False,),
    "top_logprobs": (0,), "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],),
    "function_call": ("none", "auto"), "modalities": (["text"],),
}  # fmt: skip
"""What a request may have with a value that changes nothing only."""
_IGNORED = (
    "user", "metadata", "store", "parallel_tool_calls", "service_tier", "prediction", "safety_identifier",
    "prompt_cache_key",
)  # fmt: skip
"""What changes no answer."""
_EMPTY = ("audio", "function_call", "tool_calls")
"""What a message of an answer has, empty where it is of this server."""
_IGNORED_OF_MESSAGE = ("name", "refusal", "annotations")


def read_request(body: bytes) -> ChatRequest:
    """Return the request in a body. Raises ApiError, naming the field, for anything else."""
    try:
        held = msgspec.json.decode(body)
        request = msgspec.convert(_taken(held) if isinstance(held, dict) else held, ChatRequest)
    except msgspec.ValidationError as error:
        raise _explained(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refused(f"the body is no JSON: {error}", code="invalid_json") from None
    if request.stream_options is not None and not request.stream:
        raise refused("stream_options goes with stream: true", "stream_options")
    if None not in (request.max_tokens, request.max_completion_tokens):
        raise refused("max_tokens is the old name of max_completion_tokens; give one of the two", "max_tokens")
    for place, message in enumerate(request.messages):
        if message.role != "assistant" and message.content in (None, []):
            raise refused(f"messages[{place}].content is missing; give text or parts", f"messages[{place}].content")
    if request.response_format is not None:
        _check_format(request.response_format)
    return request


def _check_format(wanted: ResponseFormat) -> None:
    """Raise ApiError for a schema or grammar that the type leaves out of use."""
    for name, given in (("json_schema", wanted.json_schema), ("grammar", wanted.grammar)):
        if given is not None and wanted.type != name:
            field = f"response_format.{name}"
            raise refused(f"{field} goes with type {name}, and the type is {wanted.type}", field)


def _taken(held: dict[str, Any]) -> dict[str, Any]:
    """Return a request without what is ignored. Raises ApiError for what is not done here."""
    for name, neutral in _NEUTRAL.items():
        if (value := held.get(name)) is not None and value not in neutral:
            raise _unsupported(name)
    ignored = (*_IGNORED, *_NEUTRAL)
    held = {name: value for name, value in held.items() if value is not None and name not in ignored}
    messages = held.get("messages")
    for place, message in enumerate(messages if isinstance(messages, list) else ()):
        for name in (*_EMPTY, *_IGNORED_OF_MESSAGE) if isinstance(message, dict) else ():
            if message.pop(name, None) and name in _EMPTY:
                raise _unsupported(f"messages[{place}].{name}")
    return held


def _unsupported(field: str) -> ApiError:
    return refused(f"{field} is not supported by this server; leave it out", field, "unsupported_parameter")


def _explained(text: str) -> ApiError:
    place, unknown = _FIELD.search(text), _UNKNOWN.search(text)
    field = place["field"] if place is not None else ""
    sentence = text[: place.start()] if place is not None else text
    if unknown is not None:
        field = f"{field}.{unknown['field']}" if field else unknown["field"]
        sentence = f"{field} is unknown to this server; leave it out"
        return refused(sentence, field, "unknown_parameter")
    sentence = sentence.replace("`", "")
    if sentence.startswith(("Invalid enum value", "Invalid value")):
        known = Role if field.endswith("role") else Format if field.startswith("response_format") else None
        sentence += f"; give one of {', '.join(get_args(known) or ('text', 'image_url'))}"
    return refused(f"{field}: {sentence}" if field else sentence, field)


class Answers:
    """Writes the answers to one request, whole or piece by piece, in JSON. `created` is in seconds since 1970."""

    def __init__(self, name: str, created: int, model: str) -> None:
        self._about = (name, created, model)

    def whole(self, text: str, reason: str, prompt: int, tokens: int) -> bytes:
        """Return the whole answer, why it ends, `stop` or `length`, and how many tokens prompt and answer have."""
        message = {"role": "assistant", "content": text}
        return self._encoded("chat.completion", [_choice(reason, message=message)], (prompt, tokens))

    def piece(self, text: str | None, reason: str | None = None, first: bool = False) -> bytes:
        """Return a piece of text; None for none, as beside the `reason` why the answer ends."""
        delta = {**({"role": "assistant"} if first else {}), **({} if text is None else {"content": text})}
        return self._encoded("chat.completion.chunk", [_choice(reason, delta=delta)])

    def usage(self, prompt: int, tokens: int) -> bytes:
        """Return the last piece of a stream, which has no text, but the tokens of prompt and answer."""
        return self._encoded("chat.completion.chunk", [], (prompt, tokens))

    def _encoded(self, kind: str, choices: list[dict[str, Any]], used: tuple[int, int] | None = None) -> bytes:
        name, created, model = self._about
        about = {"id": name, "object": kind, "created": created, "model": model, "choices": choices}
        if used is not None:
            about["usage"] = {"prompt_tokens": used[0], "completion_tokens": used[1], "total_tokens": sum(used)}
        return msgspec.json.encode(about)


def _choice(reason: str | None, **text: dict[str, str]) -> dict[str, Any]:
    return {"index": 0, "finish_reason": reason, **text, "logprobs": None}
