"""What requests may be, and what answers look like: no HTTP, no model."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncGenerator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.openai_api.messages import Answers, ApiError, ChatRequest, read_request
from cloud_verifier.openai_api.server import Answer, within
from speculation.language.growing_text import GrowingText

SAID = [{"role": "user", "content": "hello"}]


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": SAID} | fields).encode()


def test_what_people_send() -> None:
    request = read_request(body(stop="a", stream=True, stream_options={"include_usage": True}, user="x", seed=-5))
    assert request.stops == ("a",) and request.includes_usage and request.seed == -5
    assert read_request(body(stop=["", "b"])).stops == ("b",)
    assert read_request(body(seed=None, n=None, verbosity=None)).seed is None, "null is left out, whatever its name"
    returned: dict[str, Any] = {"role": "assistant", "content": "so", "refusal": None, "annotations": [], "audio": None}
    assert read_request(body(messages=[returned | {"function_call": None, "tool_calls": None}, *SAID])).messages[1:]
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,", "detail": "low"}}]
    assert len(read_request(body(messages=[{"role": "user", "content": parts}])).messages[0].content or "") == 2


@pytest.mark.parametrize(
    ("sent", "param", "says"),
    [
        (b"", "", "no JSON"), (b"\xff", "", "no JSON"), (b'{"user": ' + b"[" * 100_000, "", "no JSON"),
        (b"[]", "", "object"),
        (b'{"model": "m"}', "", "messages"), (body(messages=[]), "messages", "length"),
        (body(best_of=2), "best_of", "unknown"), (body(max_tokens="5"), "max_tokens", "int"),
        (body(messages=[{"role": "user", "content": [{"type": "file"}]}]), "messages[0].content[0].type", "image_url"),
        (body(messages=[{"role": "tool"}]), "messages[0].role", "'tool'; give one of system, developer"),
        (body(response_format={"type": "json_object"}), "response_format.type", "give one of text, json_schema"),
        (body(messages=[{"role": "assistant", "audio": {"id": 1}}]), "messages[0].audio", "not supported"),
        (body(messages=[{"role": "user", "content": "x", "cache": 1}]), "messages[0].cache", "unknown"),
        (body(messages=[{"role": "assistant", "tool_calls": [1]}, *SAID]), "messages[0].tool_calls", "not supported"),
        (body(tool_choice="required"), "tool_choice", "not supported"), (body(temperature=-1), "temperature", ">= 0"),
        (body(logprobs=True), "logprobs", "not supported"), (body(presence_penalty=1), "presence_penalty", "not su"),
        (body(tools=[{"type": "function"}]), "tools", "not supported"), (body(top_p=0), "top_p", "> 0"),
        (body(stream_options={}), "stream_options", "goes with stream"), (body(stop=["a"] * 5), "stop", "length"),
        (body(max_tokens=5, max_completion_tokens=5), "max_tokens", "one of the two"),
        (body(messages=[{"role": "user"}]), "messages[0].content", "missing"),
        (body(messages=[{"role": "system", "content": []}, *SAID]), "messages[0].content", "missing"),
        (body(response_format={"type": "text", "json_schema": {"schema": {}}}), "response_format.json_schema", "type"),
        (body(response_format={"type": "json_schema", "grammar": "x"}), "response_format.grammar", "is json_schema"),
    ],
)  # fmt: skip
def test_what_is_refused_has_its_field_and_one_sentence(sent: bytes, param: str, says: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_request(sent)
    error = json.loads(caught.value.body)["error"]
    assert error["param"] == (param or None) and says in error["message"] and "`" not in error["message"]
    assert caught.value.status == 400 and error["code"]


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.sampled_from(ChatRequest.__struct_fields__), x),
    )
)
def test_any_json_is_a_request_or_an_error_of_the_api(held: Any) -> None:
    given_fields = held if isinstance(held, dict) else {"stop": held}
    try:
        read_request(msgspec.json.encode({"model": "m", "messages": SAID} | given_fields))
    except ApiError as error:
        assert json.loads(error.body)["error"]["message"]


def test_answers_are_written_as_the_api_does() -> None:
    answers = Answers("chatcmpl-1", 7, "m")
    whole = json.loads(answers.whole("hi", "stop", 3, 2))
    assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "hi"}
    piece = json.loads(answers.piece("x"))
    assert piece["object"] == "chat.completion.chunk" and piece["choices"][0]["delta"] == {"content": "x"}
    assert "usage" not in piece and json.loads(answers.usage(3, 0))["choices"] == []
    assert json.loads(answers.piece(None, "length"))["choices"][0] | {"delta": {}} == {
        "index": 0, "finish_reason": "length", "delta": {}, "logprobs": None,
    }  # fmt: skip


def answered(letters: Sequence[str], cuts: Sequence[int], stops: tuple[str, ...]) -> tuple[list[str], Answer]:
    """Return the pieces of an answer whose tokens are letters, committed in parts that end at these places."""

    async def commits() -> AsyncGenerator[list[int], None]:
        begin = 0
        for cut in [*sorted(cuts), len(letters)]:
            if letters[begin:cut]:
                yield [ord(letter) for letter in letters[begin:cut]]
            begin = max(begin, cut)

    def read(tokens: list[int]) -> str:
        return "".join(map(chr, tokens))

    questions = SimpleNamespace(text=lambda _: GrowingText(read), ends=frozenset({ord("!")}))
    answer = Answer(cast("Any", questions), cast("Any", None), stops)

    async def collect() -> list[str]:
        return [piece async for piece in answer.pieces(commits())]

    return asyncio.run(collect()), answer


@settings(max_examples=50)
@given(
    st.text("abc", max_size=30), st.lists(st.integers(0, 30)),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3).map(tuple),
)  # fmt: skip
def test_an_answer_is_its_text_before_the_first_stop_however_it_comes(
    text: str, cuts: list[int], stops: tuple[str, ...]
) -> None:
    pieces, answer = answered(text, [min(cut, len(text)) for cut in cuts], stops)
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    end = min(ends, default=len(text))  # the token with which the first one is complete
    places = [text[:end].find(stop) for stop in stops if stop in text[:end]]
    assert "".join(pieces) == text[: min(places, default=len(text))]
    assert answer.tokens == end and answer.reason == ("stop" if places else "length")


def test_work_that_fails_as_it_is_cancelled_is_no_lost_error() -> None:
    async def read() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ConnectionResetError from None

    async def run() -> list[object]:
        lost: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
        request = asyncio.create_task(within(60, read()))
        await asyncio.sleep(0.01)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        del request
        gc.collect()
        return lost

    assert not asyncio.run(run())


def test_work_that_takes_too_long_is_ended() -> None:
    with pytest.raises(TimeoutError):
        asyncio.run(within(0.01, asyncio.sleep(60)))
