"""The memory of a search: what its lines say after what was looked at."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.language.prompts import compose
from speculation.language.search_memory import (
    GO2_CAMERA,
    SEARCHED_FRAMES,
    SECTORS,
    SIDE_PHRASES,
    SearchMemory,
    all_seen,
    mirrored,
    searched_long,
)

FLOATS = st.floats(-6.0, 6.0)
VIEWS = st.lists(st.tuples(FLOATS, FLOATS, st.floats(-math.pi, math.pi)), min_size=1, max_size=12)


def circle(memory: SearchMemory, x: float, y: float) -> None:
    for turn in range(SECTORS):
        memory.look(x, y, turn * math.tau / SECTORS)


def test_places_and_doors_are_given_as_seen_from_here() -> None:
    memory = SearchMemory()
    circle(memory, 0.0, 0.0)
    memory.look(0.0, 0.0, 0.0)
    memory.read("I do not see the red ball. There is a doorway on the left, about 2 m away. I walk on.", "red", "ball")
    memory.look(3.0, 0.0, math.pi / 2)
    seen, doors = memory.lines()
    assert seen == "Seen: here 1/8, left 3 m 8/8"
    assert doors == "Doors: ahead left 1 m"


def test_a_doorway_is_passed_when_the_way_led_through_it() -> None:
    memory = SearchMemory()
    memory.look(0.0, 0.0, 0.0)
    memory.read("There is a doorway straight ahead, about 2 m away.")
    memory.look(1.2, 0.0, 0.0)
    assert memory.lines()[1] == "Doors: ahead 1 m", "not yet"
    memory.look(2.5, 0.0, 0.0)
    assert memory.lines()[1] == "Doors: behind 0 m passed"


@pytest.mark.parametrize("side", SIDE_PHRASES)
def test_every_phrase_of_a_side_is_read(side: str) -> None:
    for phrase in SIDE_PHRASES[side]:
        memory = SearchMemory()
        memory.look(0.0, 0.0, 0.0)
        memory.read(f"The silver bottle is {phrase}, about 1.5 m away. I turn to it.", "silver", "bottle")
        assert memory.last is not None
        assert math.dist(memory.last, (GO2_CAMERA, 0.0)) == pytest.approx(1.5)
        assert math.copysign(1.0, memory.last[1]) == (1.0 if "left" in side else -1.0) or abs(memory.last[1]) < 1e-9


def test_a_place_that_is_looked_at_again_in_vain_is_forgotten() -> None:
    memory = SearchMemory()
    memory.look(0.0, 0.0, 0.0)
    memory.found(0.0, 2.0)
    memory.look(0.0, 0.0, math.pi)
    memory.missed()
    assert memory.lines()[-1] == "Last seen: behind 2 m", "out of view, it may still be there"
    memory.look(0.0, 0.0, 0.0)
    memory.missed()
    assert memory.lines() == ("Seen: here 2/8",)


def test_nothing_is_written_before_the_first_look() -> None:
    with pytest.raises(ValueError, match="nothing was looked at yet"):
        SearchMemory().lines()


@given(VIEWS, st.lists(st.tuples(st.floats(-0.7, 0.7), st.floats(0.3, 5.0)), max_size=4))
def test_a_mirrored_walk_gives_mirrored_lines(
    views: list[tuple[float, float, float]], doors: list[tuple[float, float]]
) -> None:
    plain, other = SearchMemory(), SearchMemory()
    for x, y, yaw in views:
        # Headings off the sectors' limits: rounding may not decide.
        yaw = round(yaw, 2) + 0.005
        plain.look(x, y, yaw)
        other.look(x, -y, -yaw)
    for bearing, metres in doors:
        plain.door(bearing, metres)
        other.door(-bearing, metres)
    for line, mirror in zip(plain.lines(), other.lines(), strict=True):
        assert sorted(mirrored(line).split(": ")[1].split(", ")) == sorted(mirror.split(": ")[1].split(", "))


@given(st.text(max_size=200))
def test_any_answer_can_be_read(text: str) -> None:
    memory = SearchMemory()
    memory.look(0.0, 0.0, 0.0)
    memory.read(text, "red", "ball")
    assert len(memory.lines()) >= 1


def test_what_a_memory_lists_says_whether_all_was_seen() -> None:
    def seen() -> bool:
        return all_seen(compose("find it", memory=memory.lines()))

    memory = SearchMemory()
    for turn in range(SECTORS):
        memory.look(0.0, 0.0, turn * math.tau / SECTORS)
        assert seen() == (turn == SECTORS - 1)
    memory.look(0.0, 0.0, 0.0)
    memory.door(0.0, 1.0)
    assert not seen()
    circle(memory, 2.5, 0.0)
    assert seen()
    memory.found(0.0, 2.0)
    assert not seen() and not all_seen(compose("find it"))


def test_a_walk_that_shows_nothing_new_for_long_says_so() -> None:
    def line() -> str:
        assert searched_long(compose("find it", memory=memory.lines())) == memory.lines()[-1].startswith("Searched: ")
        return memory.lines()[-1]

    def walk(frames: int) -> None:
        for _ in range(frames):
            memory.look(0.0, 0.0, 0.0)

    memory = SearchMemory()
    walk(SEARCHED_FRAMES)
    assert line() == "Seen: here 1/8", "the first frame was new"
    walk(1)
    assert line() == memory.copy().lines()[-1] == f"Searched: nothing new in {SEARCHED_FRAMES} frames"
    walk(1)
    assert line() == f"Searched: nothing new in {SEARCHED_FRAMES + 1} frames"
    for news in (
        lambda: memory.look(0.0, 0.0, math.pi / 2),
        lambda: memory.look(3.0, 0.0, 0.0),
        lambda: memory.door(0.0, 2.0),
        lambda: memory.found(0.0, 2.0),
    ):
        news()
        assert not searched_long(compose("find it", memory=memory.lines()))
        walk(SEARCHED_FRAMES - 1)
        assert not searched_long(compose("find it", memory=memory.lines()))
        walk(2)
        assert searched_long(compose("find it", memory=memory.lines()))
    memory.door(0.0, 2.0)
    assert searched_long(compose("find it", memory=memory.lines())), "a doorway that it knew"
    assert not searched_long("Searched: nothing new in 30 frames"), "the wish itself is no memory"
