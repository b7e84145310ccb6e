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
    EOS,
    Bench,
    FakeLink,
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


@settings(max_examples=60, deadline=None)
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


MARKS = st.sampled_from([OPENS, CLOSES, *"</think>", "</th", "ink>", "<th", "Action: stop", "é"])
ANY = st.one_of(MARKS, st.integers(0, len(TOKENIZER) - 1))


@settings(max_examples=100, deadline=None)
@given(pieces=st.lists(ANY, max_size=24), places=PLACES, thinks=st.booleans(), constrained=st.booleans())
def test_text_only_grows_towards_that_of_all_tokens(
    pieces: list[str | int], places: list[int], thinks: bool, constrained: bool
) -> None:
    """Whatever the tokens, also bytes that are no text, and marks of thinking that are tokens or spelled."""
    tokenizer = THINKS if thinks else TOKENIZER
    reads, tokens = reader(tokenizer, constrained), list[int]()
    for piece in pieces:
        tokens += [piece] if isinstance(piece, int) else tokenizer(piece, add_special_tokens=False)["input_ids"]
    text, whole = GrowingText(reads), reads(tokens)
    for part in cut(tokens, places):
        before = text.text
        text.add(part)
        assert text.text.startswith(before) and whole.startswith(text.text)
        assert not text.text.endswith(HALF)
    assert text.text == whole or HALF in whole[len(text.text) :]


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


@settings(max_examples=40, deadline=None)
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
