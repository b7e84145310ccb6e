"""Makes of a chat request what the verifier is asked, and reads the tokens of its answer."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path

import msgspec

from cloud_verifier.openai_api.messages import ApiError, ChatMessage, ChatRequest, ImagePart, refused, too_long
from cloud_verifier.openai_api.verifier_sessions import Question
from speculation.frames import jpeg_size
from speculation.images import view_jpeg
from speculation.language.growing_text import GrowingText
from speculation.language.json_schema import expression
from speculation.language.prompts import IMAGE_MARK, conversation
from speculation.language.thinking import reader
from speculation.sampling import MAX_KEY, SamplingScheme
from speculation.service_classes import BATCH, service_class
from speculation.vlm.folder import end_tokens, find_model, read_config, tokenizer_fingerprint
from speculation.vlm.frame_size import reduced
from speculation.vlm.processing import load_processor
from speculation.wire import MAX_ANSWER_TOKENS, MAX_FRAMES, MAX_IMAGE_BYTES, MAX_PROMPT_CHARS, Grammar, jpeg_of

_DATA = "data:"
_ROLES = {"developer": "system"}


class Questions:
    """Asks one model: its chat template, its tokenizer, how it sees images, and what fits its cache."""

    def __init__(self, folder: Path, capacity: int, max_draft: int) -> None:
        """Raises ValueError, in one sentence, for a folder whose files do not load."""
        folder = find_model(folder)
        self._processor = load_processor(folder, read_config(folder))
        self._room = capacity - max_draft
        tokenizer = self._processor.tokenizer
        self.tokenizer, self.vocabulary = tokenizer_fingerprint(tokenizer), len(tokenizer)
        self.ends = frozenset(end_tokens(folder, tokenizer))
        """Tokens that end an answer."""

    def read(self, request: ChatRequest) -> tuple[Question, int]:
        """Return what is asked, and its tokens, those of images among them.

        It decodes images, so not where others wait. Raises ApiError.
        """
        frames: list[bytes] = []
        turns = [
            (_ROLES.get(message.role, message.role), self._text(place, message, frames))
            for place, message in enumerate(request.messages)
        ]
        if turns[-1][0] == "assistant":
            raise refused("the last message is the assistant's; end with the user's", "messages")
        if sum(map(len, frames)) > MAX_IMAGE_BYTES:
            text = f"images of {sum(map(len, frames))} bytes exceed the limit of {MAX_IMAGE_BYTES} for all of them"
            raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text, "request_too_large", "messages")
        try:
            prompt = conversation(turns)
            size = self._size(prompt, frames)
        except ValueError as error:
            raise refused(str(error), "messages") from None
        key = secrets.randbits(63) if request.seed is None else request.seed & MAX_KEY
        question = Question(
            prompt, jpeg_of(frames or [b""]), self._max_tokens(request, size), _sampling(request), key,
            _grammar(request), _schema(request), _class(request),
        )  # fmt: skip
        return question, size

    def text(self, question: Question) -> GrowingText:
        """Return what reads the tokens of an answer as they come."""
        is_constrained = question.grammar is not Grammar.FREE or bool(question.schema)
        return GrowingText(reader(self._processor.tokenizer, is_constrained))

    def _text(self, place: int, message: ChatMessage, frames: list[bytes]) -> str:
        """Return a message's text, with a mark in the place of each image, and append its images to `frames`."""
        if isinstance(message.content, str) or message.content is None:
            return _checked(message.content or "", place)
        parts = []
        for number, part in enumerate(message.content):
            where = f"messages[{place}].content[{number}]"
            if isinstance(part, ImagePart):
                if message.role != "user":
                    raise refused(f"{where}: only a user's message has images", where)
                if len(frames) == MAX_FRAMES:
                    raise refused(f"{where}: a conversation has at most {MAX_FRAMES} images", where)
                frames.append(self._jpeg(part.image_url.url, f"{where}.image_url.url"))
                parts.append(IMAGE_MARK)
            else:
                parts.append(_checked(part.text, place))
        return "".join(parts)

    def _jpeg(self, url: str, where: str) -> bytes:
        """Return the JPEG of an image as a robot would send it to this model. Raises ApiError for what is no image."""
        sees = self._processor.frames
        if sees is None:
            raise refused(f"{where}: this model is a language model alone and sees no images", where)
        head, comma, data = url.partition(",")
        head = head.lower()
        if not (head.startswith(_DATA) and comma and head.endswith(";base64")):
            text = (
                f"{where}: give the image itself, data:image/jpeg;base64,...; this server fetches none from elsewhere"
            )
            raise refused(text, where, "invalid_image_url")
        try:
            encoded = "".join(data.split())  # base64 programs break lines
            image = view_jpeg(base64.b64decode(encoded, validate=True), head[len(_DATA) :].partition(";")[0])
            jpeg = reduced(image, *sees.resize_rule)
        except binascii.Error as error:
            raise refused(f"{where}: no base64: {error}", where, "invalid_image") from None
        except ValueError as error:
            raise refused(f"{where}: {error}", where, "invalid_image") from None
        assert isinstance(jpeg, bytes), "one frame stays one"
        return jpeg

    def _size(self, prompt: str, frames: Sequence[bytes]) -> int:
        """Return the tokens of a prompt with its images. Raises ValueError as `Processor.encode_text`."""
        sees = self._processor.frames
        images = [] if sees is None else [sees.placeholder(sees.grid(*jpeg_size(frame))) for frame in frames]
        if len(prompt) > MAX_PROMPT_CHARS:
            raise too_long(f"a conversation of {len(prompt)} characters exceeds the limit of {MAX_PROMPT_CHARS}")
        return len(self._processor.encode_text(prompt, images))

    def _max_tokens(self, request: ChatRequest, size: int) -> int:
        """Return how many tokens the answer may have: what is asked for, or all that fit. Raises ApiError."""
        most = min(MAX_ANSWER_TOKENS, self._room - size)
        asked = request.max_completion_tokens or request.max_tokens or max(1, most)
        if asked > MAX_ANSWER_TOKENS:
            text = f"max_completion_tokens {asked} exceeds the limit of {MAX_ANSWER_TOKENS}"
            raise refused(text, "max_completion_tokens")
        if asked > most:
            raise too_long(
                f"messages of {size} tokens and an answer of {asked} exceed the {self._room} that this server has for "
                "both; shorten them, send smaller images, or start the verifier with a larger --capacity"
            )
        return asked


def _checked(text: str, place: int) -> str:
    if IMAGE_MARK in text:
        raise refused(f"messages[{place}] holds the control character U+001A; leave it out", f"messages[{place}]")
    return text


def _sampling(request: ChatRequest) -> str:
    """Return the sampling: temperature and top_p are 1 where the request has none, as the API says."""
    temperature, top_p = (1.0 if each is None else each for each in (request.temperature, request.top_p))
    try:
        return SamplingScheme.parse(f"coupled(temperature={temperature},top_p={top_p})").text
    except ValueError as error:
        raise refused(str(error), "temperature" if "temperature" in str(error) else "top_p") from None


def _grammar(request: ChatRequest) -> Grammar:
    wanted = request.response_format
    if wanted is None or wanted.type != "grammar":
        return Grammar.FREE
    names = [each.name.lower() for each in Grammar if each is not Grammar.FREE]
    if wanted.grammar is None or wanted.grammar.lower() not in names:
        raise refused(f"response_format.grammar is none of {', '.join(names)}", "response_format.grammar")
    return Grammar[wanted.grammar.upper()]


def _schema(request: ChatRequest) -> str:
    """Return the JSON schema of the answer; empty where there is none. Raises ApiError for one that is not taken."""
    wanted = request.response_format
    if wanted is None or wanted.type != "json_schema":
        return ""
    where = "response_format.json_schema"
    if wanted.json_schema is None:
        raise refused(f"{where} is missing", where)
    schema = msgspec.json.encode(wanted.json_schema.schema).decode()
    try:
        expression(schema)
    except ValueError as error:
        raise refused(f"{where}.schema: {error}", f"{where}.schema") from None
    return schema


def _class(request: ChatRequest) -> str:
    try:
        return service_class(request.service_class or BATCH.name).name
    except ValueError as error:
        raise refused(str(error), "service_class") from None
