"""What of an answer is thought, by its tokens and by its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.language.prompts import STOP, ActionKind, committed_action, parse_answer
from speculation.language.thinking import (
    CLOSES,
    MAX_SHOWN_CHARS,
    OPENS,
    SHORTENED,
    begun,
    goes_on,
    reader,
    shortened,
    split_thinking,
    thinking_of,
)
from speculation.vlm.processing import CHAT_TEMPLATE, Processor
from speculation.wire import Thinking
from tests.models import HYBRID_TEMPLATE, THINKING_TEMPLATE, tiny_tokenizer

THINKS: Any = tiny_tokenizer(thinks=True)
SPECIAL: Any = tiny_tokenizer(thinks=True, special=True)
PLAIN: Any = tiny_tokenizer()


def spelled(tokenizer: Any, pieces: Sequence[str]) -> list[int]:
    """Return the tokens of texts one after the other, in which only a whole text may be a mark's token."""
    return [token for piece in pieces for token in tokenizer(piece, add_special_tokens=False)["input_ids"]]


def of(tokenizer: Any, template: str) -> Thinking | None:
    return Processor(tokenizer, None, template).thinking


@pytest.mark.parametrize("tokenizer", [THINKS, SPECIAL])
def test_template_and_tokens_say_how_a_model_thinks(tokenizer: Any) -> None:
    opens, closes = tokenizer.convert_tokens_to_ids([OPENS, CLOSES])
    assert of(tokenizer, THINKING_TEMPLATE) == Thinking(opens, closes, opened=True)
    assert of(tokenizer, HYBRID_TEMPLATE) == Thinking(opens, closes, opened=False)
    parted = "{% if '</think>' in 'x' %}{% endif %}" + CHAT_TEMPLATE
    assert of(tokenizer, parted) == Thinking(opens, closes, opened=False), "a chat may know the mark that closes alone"
    assert of(tokenizer, CHAT_TEMPLATE) is None, "an instruct model's tokenizer may have the marks, too"
    assert of(tokenizer, HYBRID_TEMPLATE.replace("enable_thinking is false", "true")) is None, "the chat ends it itself"


def test_a_chat_that_begins_to_think_without_tokens_for_it_is_refused() -> None:
    with pytest.raises(ValueError, match="<think> and </think> are not tokens of the tokenizer; add them"):
        of(PLAIN, THINKING_TEMPLATE)
    assert of(PLAIN, HYBRID_TEMPLATE) is None and of(PLAIN, CHAT_TEMPLATE) is None
    assert thinking_of(THINKS, "", "") is None


@pytest.mark.parametrize("tokenizer", [THINKS, SPECIAL])
def test_marks_are_read_whatever_the_tokenizer_calls_them(tokenizer: Any) -> None:
    read, end = reader(tokenizer), tokenizer.convert_tokens_to_ids("<|im_end|>")
    text = "<think>\na bottle, é</think>\n\nAction: stop"
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert read([*tokens, end]) == text and read([]) == ""
    assert (
        begun(of(tokenizer, THINKING_TEMPLATE)) == OPENS and begun(of(tokenizer, HYBRID_TEMPLATE)) == begun(None) == ""
    )


@given(st.lists(st.sampled_from([OPENS, CLOSES, *"</think>", "Action: stop", "é", " "]), max_size=12))
def test_only_tokens_mark_thinking(pieces: list[str]) -> None:
    """Text that spells a mark does not, nor does it in a constrained answer of a model without such tokens."""
    for mark in (OPENS, CLOSES):
        tokens = spelled(THINKS, pieces)
        assert reader(THINKS)(tokens).count(mark) == tokens.count(THINKS.convert_tokens_to_ids(mark))
        assert mark not in reader(PLAIN, constrained=True)(spelled(PLAIN, pieces))
        assert reader(PLAIN)(spelled(PLAIN, pieces)) == "".join(pieces)


@pytest.mark.parametrize(
    "text",
    [
        "It said <think> so.\nAction: stop",
        "x</think>y\nAction: stop",
        "<think>\nAction: stop",
        "Action: stop\nThe sign says </think> here.",
        "Action: stop\nThe sign says <think> here.",
    ],
)
@pytest.mark.parametrize("tokenizer", [THINKS, SPECIAL, PLAIN])
def test_a_constrained_answer_that_quotes_marks_is_readable(text: str, tokenizer: Any) -> None:
    read = reader(tokenizer, constrained=True)(spelled(tokenizer, text))
    parsed = parse_answer(read)
    assert parsed.action == STOP and not parsed.thinking and committed_action(read) == (ActionKind.STOP, None)


@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        ("Action: stop", "", "Action: stop"),
        ("", "", ""),
        ("<think>\nLook.", "Look.", ""),
        ("  <think>Look", "Look", "  "),
        ("<think>\nLook.\n</think>\n\nA ball.", "Look.", "\n\nA ball."),
        ("Look.</think>A ball.", "Look.", "A ball."),
        ("<think>a</think>b<think>c</think>d", "abc", "d"),
        ("<think>a</think>\n<think>c", "a\nc", "\n"),
        ("<think>a</think>b<think>c", "a", "b<think>c"),
        ("It said <think> so.\nAction: stop", "", "It said <think> so.\nAction: stop"),
        ("</think>", "", ""),
        ("<think></think>", "", ""),
    ],
)
def test_what_is_thought_and_what_is_said(text: str, thought: str, said: str) -> None:
    assert split_thinking(text) == (thought, said)


pieces = st.lists(st.sampled_from([OPENS, CLOSES, "x", "Action: forward large", "\n"]), max_size=10).map("".join)


@given(pieces)
def test_nothing_is_said_while_thinking_lasts(text: str) -> None:
    thought, said = split_thinking(text)
    assert OPENS not in thought and CLOSES not in thought + said and not said.lstrip().startswith(OPENS)
    assert split_thinking(OPENS + text.replace(CLOSES, ""))[1] == ""
    assert split_thinking(f"{text}{CLOSES}")[1] == ""
    assert said in text


@given(pieces, st.integers(0, 3000))
def test_what_is_shown_of_thinking_is_bounded_and_goes_on(end: str, length: int) -> None:
    whole = OPENS + "reasoning " * (length // 10) + CLOSES + end
    before = ""
    for cut in sorted({*range(1, len(whole), 97), len(whole)}):
        shown = shortened(whole[:cut])
        assert len(shown) <= len(SHORTENED) + MAX_SHOWN_CHARS + len(CLOSES) + len(end)
        assert shown.endswith(whole[:cut][-20:]) and goes_on(before, shown)
        before = shown
    assert length < MAX_SHOWN_CHARS + 20 or before.startswith(SHORTENED)
