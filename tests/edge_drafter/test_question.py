"""A question: its text grows in whole characters, and a cancel ends its step wherever that stands."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_drafter import DraftingConfig, Interruption, Mode, StepInterrupted
from edge_drafter.question import Question
from speculation.language.growing_text import HALF, GrowingText
from speculation.language.thinking import CLOSES, OPENS, reader
from speculation.wire import AnyMessage, BeginStep, Draft, EndStep
from tests.edge_drafter.fakes import (
    DRAFT_S,
    EOS,
    Bench,
    FakeLink,
    FakeModel,
    Weather,
    alone,
    hashed_draft,
    hashed_target,
    request,
)
from tests.models import tiny_tokenizer

TOKENIZER: Any = tiny_tokenizer()
THINKS: Any = tiny_tokenizer(thinks=True)


def read(tokens: Sequence[int]) -> str:
    return str(TOKENIZER.decode(list(tokens), skip_special_tokens=True))


def cut(tokens: list[int], places: list[int]) -> list[list[int]]:
    """Return the tokens in pieces that end at these places; some may be empty."""
    ends = sorted(min(place, len(tokens)) for place in places)
    return [tokens[a:b] for a, b in pairwise([0, *ends, len(tokens)])]


PLACES = st.lists(st.integers(0, 40), max_size=20)


@settings(max_examples=200, deadline=None)
@given(tokens=st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=40), places=PLACES)
def test_text_only_grows_towards_that_of_all_tokens(tokens: list[int], places: list[int]) -> None:
    """Whatever the tokens, also bytes that are no text."""
    text, whole = GrowingText(read), read(tokens)
    for piece in cut(tokens, places):
        before = text.text
        text.add(piece)
        assert text.text.startswith(before) and whole.startswith(text.text)
        assert not text.text.endswith(HALF)
    assert len(whole.rstrip(HALF)) <= len(text.text) or whole.endswith(HALF)


@settings(max_examples=200, deadline=None)
@given(written=st.text(st.characters(exclude_categories=["Cs"]), max_size=30), places=PLACES, last=st.integers(0, 40))
def test_text_is_complete_where_its_characters_are_and_goes_on_in_the_guess(
    written: str, places: list[int], last: int
) -> None:
    tokens = TOKENIZER.encode(written, add_special_tokens=False)
    written = read(tokens)
    if written.endswith(HALF):
        return
    text, known = GrowingText(read), tokens[:last]
    for piece in cut(known, places):
        text.add(piece)
    assert text.text + text.behind(tokens[last:]) == written
    text.add(tokens[last:])
    assert text.text == written and text.behind([]) == ""


MARKS = st.lists(st.sampled_from([OPENS, CLOSES, *"</think>", "</th", "ink>", "<th", "Action: stop", "é"]), max_size=16)


@settings(max_examples=200, deadline=None)
@given(pieces=MARKS, places=PLACES, tokenizer=st.sampled_from([TOKENIZER, THINKS]), constrained=st.booleans())
def test_marks_of_thinking_are_read_alike_while_an_answer_grows_and_at_its_end(
    pieces: list[str], places: list[int], tokenizer: Any, constrained: bool
) -> None:
    """Whether they are tokens or spelled, and wherever the answer is cut meanwhile."""
    reads = reader(tokenizer, constrained)
    tokens = [token for piece in pieces for token in tokenizer(piece, add_special_tokens=False)["input_ids"]]
    text, whole = GrowingText(reads), reads(tokens)
    for piece in cut(tokens, places):
        text.add(piece)
        assert whole.startswith(text.text)
    assert text.text == whole


class CancellingLink(FakeLink):
    """Cancels a question at the `at`th look at the link, counted from 0, between two layers too."""

    question: Question | None = None
    at = -1

    def receive(self, timeout: float) -> AnyMessage | None:
        if self.question is not None and self.at == 0:
            self.question.cancel()
        self.at -= 1
        return super().receive(timeout)


def letters(tokens: Sequence[int]) -> str:
    """Return a text for the fakes' tokens: a letter a token, none for the end."""
    return "".join("abcdefg"[token] for token in tokens if token != EOS)


@settings(max_examples=60, deadline=None)
@given(
    mode=st.sampled_from([mode for mode in Mode if mode.needs_link and mode is not Mode.SERVER_SD]),
    seed=st.integers(0, 10_000),
    at=st.integers(0, 60),
    exits=st.integers(0, 3),
)
def test_a_cancel_at_any_look_ends_the_step_and_the_next_one_is_exact(
    mode: Mode, seed: int, at: int, exits: int
) -> None:
    target, question = hashed_target(seed, 0.02), Question(letters)
    weather = Weather(exits=exits, jitter_s=0.05, duplicates=0.1, seed=seed)
    bench = Bench(target, hashed_draft(target, seed, 0.7), weather, DraftingConfig.of(mode), link=CancellingLink)
    link, truth = bench.link, alone(target, 24)
    link.question, link.at = question, at
    try:
        result = bench.run(request(), question)
    except StepInterrupted as stop:
        assert stop.cause is Interruption.CANCELLED and question.cancelled
        assert truth[: len(stop.committed)] == stop.committed
        sent = [type(message) for _, message in link.sent]
        first = sent.index(EndStep)
        assert sent[first:].count(Draft) <= 1 and sent[-1] is EndStep
        assert letters(truth).startswith(question.committed)
    else:
        assert result.tokens == truth
    after, link.at = Question(letters), -1
    assert bench.run(request(2), after).tokens == truth
    counts = [count for _, count in after.times]
    assert counts == sorted(set(counts)) and counts[-1] == len(truth) and after.committed == letters(truth)


class CancellingModel(FakeModel):
    """Cancels a question at the `at`th time that it asks whether to stop, counted from 0; the first is a prefill's."""

    question: Question | None = None
    at = -1

    def _asked(self, stop: Any) -> Any:
        def asked() -> bool:
            if self.at == 0:
                assert self.question is not None
                self.question.cancel()
            self.at -= 1
            return bool(stop())

        return None if stop is None else asked

    def begin(self, prompt: str, image: bytes, committed: Sequence[int] = (), stop: Any = None) -> None:
        super().begin(prompt, image, committed, self._asked(stop))

    def _pass_time(self, stop: Any) -> None:
        super()._pass_time(self._asked(stop))


@pytest.mark.parametrize("mode", ["edge", "sd", "fsd", "full"])
@pytest.mark.parametrize("at", [0, 1, 2, 6])
def test_a_cancel_between_two_layers_ends_the_prefill_or_the_forward_there(mode: str, at: int) -> None:
    """Also where commits are not taken between layers."""
    target, question = hashed_target(3, 0.0), Question(letters)
    draft = hashed_draft(target, 3, 0.7)
    bench = Bench(target, draft, Weather(one_way_s=5.0), DraftingConfig.of(mode), CancellingModel)
    model = bench.model
    model.question, model.at = question, at
    with pytest.raises(StepInterrupted) as caught:
        bench.run(request(), question)
    assert caught.value.cause is Interruption.CANCELLED and question.cancelled
    assert model.at == -1, "the model is asked no more"
    assert bench.clock.now == pytest.approx(DRAFT_S / 4 * at), "four layers a forward, none after the cancel"
    assert [type(message) for _, message in bench.link.sent[-1:]] == ([] if mode == "edge" else [EndStep])
    model.at = -1
    assert bench.run(request(2), Question(letters)).tokens == alone(draft if mode == "edge" else target, 24)


@pytest.mark.parametrize("mode", ["cloud", "sd", "full"])
def test_a_cancel_while_the_step_begins_ends_it_at_the_verifier_too(mode: str) -> None:
    """The EndStep of the cancelling thread comes before the BeginStep; the decoding thread sends another."""

    class Overtaken(FakeLink):
        def send(self, message: AnyMessage) -> None:
            if isinstance(message, BeginStep):
                question.cancel()
            super().send(message)

    question = Question(letters)
    bench = Bench(hashed_target(1), hashed_target(1), Weather(), DraftingConfig.of(mode), link=Overtaken)
    with pytest.raises(StepInterrupted):
        bench.run(request(), question)
    assert [type(message) for _, message in bench.link.sent] == [EndStep, BeginStep, EndStep]
    assert bench.model.begun == 0 and bench.clock.now == 0.0
