"""When an action is known: places in answers, arrivals in traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from edge_drafter import DecodingStats
from speculation.trace import Kind, Lane, Span
from vlm_nav_evaluation.action_time import action_place, action_s, arrivals, known_s, words_of
from vlm_nav_evaluation.experiment.run import Answer, Arm
from vlm_nav_evaluation.virtual_time import Synthetic, VirtualTime, load_timings

WORDS = ["Action:", " turn left", " large", "\n", "I see it", ".", "<end>", " stop"]


def words(tokens: Sequence[int]) -> str:
    return "".join(WORDS[token] for token in tokens if WORDS[token] != "<end>")


@pytest.mark.parametrize(
    ("answer", "place"),
    [
        ([0, 1, 2, 3, 4, 5, 6], 3),
        ([4, 5, 3, 0, 1, 2, 6], 6),
        ([4, 5, 3, 0, 7], 5),
        ([4, 5, 6], None),
        ([0, 1, 6], None),
    ],
    ids=["acts first", "reasons first", "cut after the action", "no action", "no size"],
)
def test_an_action_is_known_with_its_last_token(answer: list[int], place: int | None) -> None:
    assert action_place(answer, words) == place


def test_tokens_come_with_their_commit() -> None:
    spans = [
        Span(Kind.DRAFT.value, Lane.EDGE, 10.1, 10.2),
        Span(Kind.COMMIT.value, Lane.EDGE, 10.9, 10.9, {"tokens": 4}, True),
        Span(Kind.COMMIT.value, Lane.EDGE, 10.5, 10.5, {"tokens": 2}, True),
    ]
    came = arrivals(spans, 10.0)
    assert [count for _, count in came] == [2, 4] and came[0][0] == pytest.approx(0.5)
    assert [known_s(came, place) for place in (1, 2, 3, 6, 7)] == pytest.approx([0.5, 0.5, 0.9, 0.9, None])
    assert [count for _, count in arrivals(spans[:1], 10.0)] == [1]


def test_only_answers_with_an_action_count() -> None:
    early = Answer((0, 1, 2, 3, 4), DecodingStats(), {"arrivals": ((1.0, 3), (2.0, 2))})
    none = Answer((4, 5), DecodingStats(), {"arrivals": ((0.1, 2),)})
    assert action_s([early, none], words) == {"min": 1.0, "median": 1.0, "max": 1.0}
    assert action_s([none], words) is None


@pytest.mark.parametrize("mode", ["cloud", "full", "edge", "layer_split"])
def test_on_virtual_time_the_last_token_comes_with_the_answer(mode: str) -> None:
    recording = Synthetic(tokens=20).draw(2)
    backend = VirtualTime(recording, load_timings("go2"), with_arrivals=True)
    for result in backend.run([Arm(mode, mode)]).answers[mode]:
        came = result.more["arrivals"]
        assert sum(count for _, count in came) == len(result.tokens)
        assert known_s(came, len(result.tokens)) == pytest.approx(result.stats.total_s)
        assert known_s(came, 1) == pytest.approx(result.stats.first_commit_s)


def test_a_recording_with_numbers_of_its_own_cannot_be_read(tiny_target: Path) -> None:
    size = len(words_of(tiny_target)(range(40)))
    assert size and len(words_of(tiny_target, 10_000)(range(40))) == 0
