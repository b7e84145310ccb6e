"""Texts of schemes, and prefixes by their tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.sampling import GREEDY, Coupled, Point, Prefix, SamplingScheme, Sparse, Split
from speculation.wire import Hello, extend_digest

SETTINGS = st.builds(Coupled, st.floats(0.01, 100.0), st.integers(0, 8), st.floats(0.0, 1.0, exclude_min=True))


@given(SETTINGS)
def test_texts_are_read_as_they_are_written(settings: SamplingScheme) -> None:
    assert SamplingScheme.parse(settings.text) == settings
    assert len(settings.text) <= 200 and Hello("t", 9, sampling=settings.text)


def test_texts() -> None:
    full = Coupled(0.7, 50, 0.9)
    assert full.text == "coupled(temperature=0.7,top_k=50,top_p=0.9)"
    assert SamplingScheme.parse(" coupled(top_p=0.9, temperature=.70, top_k=50) ") == full
    assert Coupled(1.0).text == "coupled(temperature=1.0)"
    assert SamplingScheme.parse("greedy") == GREEDY == SamplingScheme.parse(GREEDY.text)
    assert SamplingScheme.parse("coupled(temperature=0,top_k=3)").text == "greedy"
    assert Split(0.5).text == "split(temperature=0.5)"
    assert SamplingScheme.parse("sparse(temperature=1,keep=8)") == Sparse(1.0, keep=8)
    assert SamplingScheme.parse("point(temperature=1.0)") == Point(1.0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nucleus", "'nucleus' is unknown; give greedy, .*coupled"),
        ("coupled()", "'' is no field"),
        ("coupled(top_k=3)", "names no temperature"),
        ("coupled(temperature=0.001)", "temperature is 0.001; give 0 .greedy. or 0.01 to 100"),
        ("coupled(temperature=nan)", "temperature is nan"),
        ("coupled(temperature=-1)", "temperature is -1"),
        ("coupled(temperature=warm)", "temperature is 'warm', no number"),
        ("coupled(temperature=1,top_k=-1)", "top_k is -1; give 0 .all tokens. to 1048576"),
        ("coupled(temperature=1,top_k=2.5)", "top_k is '2.5', no number"),
        ("coupled(temperature=1,top_p=0)", "top_p is 0; give more than 0, up to 1"),
        ("coupled(temperature=1,top_p=1.5)", "top_p is 1.5"),
        ("coupled(temperature=1,heat=2)", "'heat=2' is no field; known are temperature, top_k, top_p"),
        ("coupled(temperature=1,temperature=2)", "temperature is given twice"),
        ("split(temperature=0)", "split draws at random; give a temperature above 0"),
        ("split(temperature=1,keep=8)", "'keep=8' is no field"),
        ("sparse(temperature=1,keep=0)", "keep is 0; give 1 to 4096"),
    ],
)
def test_texts_that_mean_nothing_are_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SamplingScheme.parse(text)


@given(st.lists(st.integers(0, 9), max_size=12), st.data())
def test_a_prefix_is_named_as_its_tokens_are(tokens: list[int], data: st.DataObject) -> None:
    """Whenever, and of whichever of its own prefixes, the digest was asked for before."""
    prefix = Prefix(2, bytes(8))
    for place, token in enumerate(tokens):
        prefix = prefix.after(token)
        if data.draw(st.booleans()):
            assert prefix.digest == extend_digest(bytes(8), tokens[: place + 1])
    assert prefix.digest == extend_digest(bytes(8), tokens) and prefix.position == 2 + len(tokens)
