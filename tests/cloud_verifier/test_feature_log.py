"""The features of one step: what was entered comes out by answer position, as far as nothing is missing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.feature_log import FeatureLog
from cloud_verifier.interfaces import RowFeatures
from speculation import wire
from speculation.wire import Features

SIZE = 5


def packed(position: int) -> bytes:
    return bytes([position % 256] * SIZE)


def entries(first: int, tokens: tuple[int, ...]) -> RowFeatures:
    return RowFeatures(tokens, b"".join(packed(first + place) for place in range(len(tokens))))


@given(
    st.integers(0, 6),
    st.lists(st.integers(0, 99), max_size=8),
    st.lists(st.tuples(st.integers(-8, 9), st.integers(1, 5)), max_size=6),
    st.data(),
)
def test_it_is_a_table_by_position(
    most: int, answer: list[int], spans: list[tuple[int, int]], data: st.DataObject
) -> None:
    """The twin is a dictionary of what there is."""
    log, known = FeatureLog(most), set[int]()

    def token(position: int) -> int:
        return answer[position] if 0 <= position < len(answer) else 1000 + position

    for first, count in spans:
        log.add(first, entries(first, tuple(token(first + place) for place in range(count))))
        known |= {place for place in range(first, first + count) if place >= -most}
    start = data.draw(st.integers(0, 9))
    end = data.draw(st.integers(start, 10))
    whole = all(place in known for place in range(start, end))
    assert log.of(start, end) == (b"".join(packed(place) for place in range(start, end)) if whole else b"")
    message = log.message(7, answer)
    first = len(answer)
    while first - 1 in known:
        first -= 1
    if first == len(answer):
        assert message is None
        return
    assert message == Features(7, len(answer), [token(place) for place in range(first, len(answer))],
                               b"".join(packed(place) for place in range(first, len(answer))))  # fmt: skip
    assert wire.decode(wire.encode(message)) == message
