"""The chat API of a real verifier, asked by the openai package: answers are a robot's, and errors the API's own."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import numpy as np
import openai
import pytest
from openai import OpenAI
from PIL import Image
from pydantic import BaseModel, Field

from cloud_verifier.openai_api.keys import add_key
from speculation.images import view_jpeg
from speculation.language.prompts import conversation, parse_answer
from speculation.language.thinking import reader
from speculation.sampling import Coupled
from speculation.vlm.inputs import as_sent
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession
from tests.cloud_verifier.openai_api.serving import LIMIT_S, as_robot, client, data_uri, image_part, serving
from tests.cloud_verifier.process import ANSWER, Target, Verifier, figure
from tests.cloud_verifier.test_engine import CAPACITY, PROMPTS, greedy, jpeg
from tests.edge_drafter.waiting import wait_for

SCHEMA = {
    "type": "object",
    "properties": {"seen": {"type": "boolean"}, "where": {"enum": ["left", "right"]}, "steps": {"type": "integer"}},
    "required": ["seen", "where"],
    "additionalProperties": False,
}


class Way(Enum):
    LEFT = "left"
    RIGHT = "right"


class Place(BaseModel):
    way: Way
    steps: int = Field(description="how far")


class View(BaseModel):
    seen: bool
    best: Place
    other: Place | None


@dataclass
class Api:
    verifier: Verifier
    url: str
    key: str
    client: OpenAI
    vlm: Vlm

    def ask(self, messages: list[Any], **how: Any) -> Any:
        given: dict[str, Any] = {"model": "target", "temperature": 0, "max_tokens": ANSWER} | how
        return self.client.chat.completions.create(messages=messages, **given)

    def text(self, messages: list[Any], **how: Any) -> str:
        text = self.ask(messages, **how).choices[0].message.content
        assert isinstance(text, str)
        return text

    def truth(self, prompt: str, image: bytes, count: int = ANSWER) -> str:
        """Return the text that the target alone answers."""
        tokens = greedy(self.vlm, prompt, image, count)
        end = next((place for place, token in enumerate(tokens) if token in self.vlm.eos), count)
        return reader(self.vlm.processor.tokenizer)(tokens[: end + 1])

    def figure(self, name: str) -> float:
        return figure(self.url.removesuffix("/v1"), name)

    def is_idle(self) -> bool:
        return self.figure("num_requests_running") == self.figure("kv_cache_usage_perc") == 0.0

    def page(self, name: str) -> Any:
        with urlopen(self.url.replace("/v1", name), timeout=LIMIT_S) as reply:
            return json.loads(reply.read())


@pytest.fixture(scope="module")
def api(served: Target, target: Vlm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One verifier for all tests: nothing that a client does may end it."""
    file = tmp_path_factory.mktemp("keys") / "api_keys"
    key = add_key(file, "alice")
    flags = ("--max-sessions", "11", "--api-sessions", "3", "--capacity", "512",
             "--frames", "2")  # fmt: skip
    with serving(served.folder, file, *flags) as (verifier, url):
        yield Api(verifier, url, key, client(url, key), target)


def text_of(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_greedy_answers_are_a_robots(api: Api, served: Target) -> None:
    read = reader(api.vlm.processor.tokenizer)
    for number, truth in enumerate(served.truths):
        answer = api.ask(as_robot(number))
        (choice,) = answer.choices
        assert choice.message.content == read(truth) and choice.message.role == "assistant"
        assert answer.usage.completion_tokens == len(truth) and answer.usage.prompt_tokens > 0
        assert choice.finish_reason == ("stop" if truth[-1] in api.vlm.eos else "length")
        assert answer.model == "target" and answer.object == "chat.completion"


def test_a_stream_is_the_same_answer_in_pieces(api: Api, served: Target) -> None:
    chunks = list(api.ask(as_robot(0), stream=True, stream_options={"include_usage": True}))
    *pieces, last = chunks
    text = "".join(chunk.choices[0].delta.content or "" for chunk in pieces)
    assert text == reader(api.vlm.processor.tokenizer)(served.truths[0])
    assert pieces[0].choices[0].delta.role == "assistant" and pieces[-1].choices[0].finish_reason == "length"
    assert last.choices == [] and last.usage is not None and last.usage.completion_tokens == ANSWER
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_a_client_that_goes_in_the_middle_of_a_stream_frees_its_row(api: Api) -> None:
    cancelled = 'request_success_total{finished_reason="cancelled"}'
    before = api.figure(cancelled)
    stream = api.ask(as_robot(0), stream=True, max_tokens=400)
    next(stream), next(stream)
    stream.close()
    wait_for(lambda: api.figure(cancelled) == before + 1)
    wait_for(api.is_idle)


@pytest.mark.parametrize("stop", ["s", ["zzz", "at", "ee"]])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_ends_before_a_stop_text(api: Api, stop: Any, stream: bool) -> None:
    stops = [stop] if isinstance(stop, str) else stop
    for number, prompt in enumerate(PROMPTS):
        whole = api.truth(prompt, jpeg(number))
        wanted = whole[: min((whole.find(each) for each in stops if each in whole), default=len(whole))]
        if stream:
            chunks = list(api.ask(as_robot(number), stop=stop, stream=True))
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            reason = chunks[-1].choices[0].finish_reason
        else:
            (choice,) = api.ask(as_robot(number), stop=stop).choices
            text, reason = choice.message.content, choice.finish_reason
        assert text == wanted and (reason == "stop" or wanted == whole)


def test_sampled_answers_are_a_robots_with_the_seed_as_key(api: Api) -> None:
    how = {"temperature": 1.5, "top_p": 0.9}
    drawn = VlmSession(api.vlm, CAPACITY).sampled(PROMPTS[0], jpeg(0), ANSWER, Coupled(1.5, 0, 0.9), 7)
    truth = reader(api.vlm.processor.tokenizer)([token for token, _ in drawn])
    assert [api.text(as_robot(0), seed=7, **how) for _ in range(2)] == [truth] * 2
    assert len({api.text(as_robot(0), seed=seed, **how) for seed in (1, 2, -3)}) > 1
    assert api.text(as_robot(0), temperature=1) != api.text(as_robot(0), temperature=1), "without a seed each its own"


def test_conversations_are_the_models_own_chat(api: Api) -> None:
    words = [("system", "You see."), ("user", "find it"), ("assistant", "Where?"), ("user", "left"), ("user", "!")]
    messages = [{"role": role, "content": text} for role, text in words]
    assert api.text(messages) == api.truth(conversation(words), b"")
    messages[0]["role"] = "developer"
    assert api.text(messages) == api.truth(conversation(words), b"")
    between = [text_of("This: "), image_part(jpeg(0)), text_of(" and this: "), image_part(jpeg(1)), text_of(" ?")]
    prompt = conversation([("user", "This: \x1a and this: \x1a ?")])
    tokens = greedy(api.vlm, prompt, (jpeg(0), jpeg(1)), ANSWER)  # type: ignore[arg-type]
    assert api.text([{"role": "user", "content": between}]) == reader(api.vlm.processor.tokenizer)(tokens)


def picture(mode: str = "RGB", size: tuple[int, int] = (61, 47)) -> Image.Image:
    pixels = np.random.default_rng(5).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def saved(image: Image.Image, kind: str, **how: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


def rotated_jpeg() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved(picture(), "JPEG", exif=exif)


PICTURES = {
    "JPEG with EXIF": rotated_jpeg(), "grey JPEG": saved(picture("L"), "JPEG"), "CMYK": saved(picture("CMYK"), "JPEG"),
    "progressive": saved(picture(), "JPEG", progressive=True), "PNG with alpha": saved(picture("RGBA"), "PNG"),
    "grey PNG": saved(picture("L"), "PNG"), "palette": saved(picture("P"), "PNG"), "1 bit": saved(picture("1"), "PNG"),
    "16 bit": saved(Image.fromarray(np.arange(61 * 47, dtype=np.uint16).reshape(47, 61) * 22), "PNG"),
    "WebP": saved(picture(), "WEBP"), "large": saved(picture(size=(800, 600)), "JPEG"),
    "cut marker": saved(picture(), "JPEG")[:-2],
}  # fmt: skip


@pytest.mark.parametrize("kind", PICTURES)
def test_pictures_are_seen_as_a_robots(api: Api, kind: str) -> None:
    image = PICTURES[kind]
    frame = as_sent(api.vlm, view_jpeg(image))
    assert isinstance(frame, bytes)
    messages = [{"role": "user", "content": [image_part(image, "image/png"), text_of(PROMPTS[0])]}]
    assert api.text(messages) == api.truth(PROMPTS[0], frame)


def content(url: str) -> list[Any]:
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, text_of("what is it?")]}]


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        (content("http://127.0.0.1:9/a.jpg"), "fetches none"),
        (content("file:///etc/passwd"), "fetches none"),
        (content("data:image/png;base64,!!!"), "no base64"),
        (content(data_uri(b"junk")), "no known format"),
        (content(data_uri(b"")), "is empty"),
        (content(data_uri(saved(picture(), "PNG")[:400])), "does not decode"),
        (content(data_uri(saved(Image.new("1", (9000, 9000)), "PNG"))), "pixels"),
        (content(data_uri(saved(picture(size=(3, 3)), "PNG"))), "no view of a camera"),
        ([{"role": "user", "content": [image_part(jpeg(0))] * 5}], "at most 4 images"),
        ([{"role": "user", "content": [image_part(jpeg(0))] * 3}], "3 frames"),
        ([{"role": "assistant", "content": [image_part(jpeg(0))]}, {"role": "user", "content": "x"}], "only a user's"),
        ([{"role": "user", "content": "a <|im_end|> b"}], "special token"),
        ([{"role": "user", "content": "a \x1a b"}], "U+001A"),
        ([{"role": "assistant", "content": "so"}], "end with the user's"),
        ([{"role": "user", "content": "word " * 3000}], "12000"),
        ([{"role": "user", "content": "word " * 800}], "--capacity"),
    ],
)  # fmt: skip
def test_messages_that_cannot_be_answered_are_refused_in_one_sentence(api: Api, messages: list[Any], says: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        api.ask(messages)
    error = caught.value.body
    assert isinstance(error, dict) and error.keys() == {"message", "type", "param", "code"}
    assert says in error["message"] and error["type"] == "invalid_request_error" and error["code"]


@pytest.mark.parametrize(
    ("how", "param"),
    [
        ({"n": 2}, "n"), ({"temperature": 0.001}, "temperature"), ({"max_tokens": 5000}, "max_completion_tokens"),
        ({"extra_body": {"service_class": "fast"}}, "service_class"),
        ({"response_format": {"type": "grammar", "grammar": "x"}}, "response_format.grammar"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"pattern": "a"}}}},
         "response_format.json_schema.schema"),
    ],
)  # fmt: skip
def test_what_would_change_an_answer_and_is_not_done_is_refused_by_name(api: Api, how: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        api.ask([{"role": "user", "content": "hello"}], **how)
    assert caught.value.param == param


def test_other_errors_have_the_apis_form_and_status(api: Api) -> None:
    ask = {"messages": as_robot(0), "temperature": 0, "max_tokens": 4}
    with pytest.raises(openai.AuthenticationError) as unknown:
        client(api.url, "sk-nobody").chat.completions.create(model="target", **ask)  # type: ignore[call-overload]
    assert unknown.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError) as absent:
        api.client.chat.completions.create(model="gpt-4o", **ask)  # type: ignore[call-overload]
    assert absent.value.code == "model_not_found" and "target" in absent.value.message
    with pytest.raises(openai.NotFoundError, match="there are GET /v1/models and POST /v1/chat/completions"):
        api.client.embeddings.create(model="target", input="x")
    with pytest.raises(openai.APIStatusError) as large:
        api.ask([{"role": "user", "content": "x" * (10 << 20)}])
    assert large.value.status_code == 413 and large.value.code == "request_too_large"
    with pytest.raises(openai.APIStatusError, match="begin with /v1"):
        client(api.url.removesuffix("/v1"), api.key).chat.completions.create(model="target", **ask)  # type: ignore[call-overload]
    assert api.page("/version")["model"] == "target", "pages are at the same port"


def connected(api: Api) -> socket.socket:
    address = urlsplit(api.url)
    assert address.port is not None
    return socket.create_connection((str(address.hostname), address.port), LIMIT_S)


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("FOO /v1/models HTTP/1.1", ""), ("POST /v1/chat/completions HTTP/1.1\r\nno header", ""),
        ("POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked", "zz\r\n"),
        ("POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 4\r\nContent-Encoding: gzip", "junk"),
    ],
)  # fmt: skip
def test_what_is_no_http_is_refused_and_leaves_no_traceback(api: Api, head: str, body: str) -> None:
    with connected(api) as connection:
        connection.sendall(f"{head}\r\nAuthorization: Bearer {api.key}\r\n\r\n{body}".encode())
        assert b" 400 " in connection.recv(1 << 16)
    assert api.client.models.list().data and not any("Traceback" in line for line in api.verifier.log)


def test_clients_that_go_at_any_place_of_a_request_leave_no_traceback(api: Api) -> None:
    body = json.dumps({"model": "target", "messages": as_robot(0), "stream": True, "max_tokens": 200}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer {api.key}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    sent = head.encode() + body
    for size in (20, len(head), len(sent) - 1, len(sent), len(sent), len(sent)):
        with connected(api) as connection:
            connection.sendall(sent[:size])
            connection.shutdown(socket.SHUT_WR)
    wait_for(api.is_idle)
    assert api.text(as_robot(0)) == api.truth(PROMPTS[0], jpeg(0))
    assert not any("Traceback" in line for line in api.verifier.log)


def test_a_page_on_a_connection_of_the_chat_api_is_asked_for_again(api: Api) -> None:
    """A proxy asks for pages on whatever connection it has open, and takes what is no key for no health."""
    with connected(api) as connection:
        for path, status in (("/v1/models", b" 200 "), ("/health", b" 421 ")):
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n\r\n".encode())
            assert status in connection.recv(1 << 16)
        assert not connection.recv(1), "it is closed"


def test_json_of_a_schema_and_a_robots_answer(api: Api) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "view", "schema": SCHEMA, "strict": True}}
    for how in ({}, {"temperature": 1.5, "seed": 3}, {"temperature": 2, "seed": 4}):
        found = json.loads(api.text(as_robot(0), response_format=wanted, max_tokens=120, **how))
        assert isinstance(found["seen"], bool) and found["where"] in ("left", "right")
        assert found.keys() <= SCHEMA["properties"].keys()  # type: ignore[attr-defined]
    view = api.client.chat.completions.parse(
        model="target", messages=as_robot(0), response_format=View, temperature=0, max_tokens=120
    )
    assert isinstance(view.choices[0].message.parsed, View), "as the openai package asks for a class"
    for name in ("reason_first", "action_first"):
        text = api.text(as_robot(0), response_format={"type": "grammar", "grammar": name}, max_tokens=60)
        assert parse_answer(text).action is not None
