"""Wordings to train on and wordings held out."""

from __future__ import annotations

import pytest

from speculation.language.names import Language
from speculation.language.wordings import DEVELOPED, HELD_OUT, Spelling, Wording
from vlm_nav_simulation.objects import CLASSES, COLOURS


def test_what_is_held_out_is_in_no_training_wording() -> None:
    # One sentence may hold another ('{target}, please' and 'look for {target}, please'), but none is the other.
    for colour, object_class in (("red", "ball"), ("silver", "bottle")):
        texts = [
            {wording.text(colour, object_class).casefold() for wording in listed} for listed in (DEVELOPED, HELD_OUT)
        ]
        assert not texts[0] & texts[1]
    assert (
        len(
            {(each.template, each.language) for each in HELD_OUT}
            & {(each.template, each.language) for each in DEVELOPED}
        )
        == 0
    )


@pytest.mark.parametrize(
    ("wording", "text"),
    [
        (Wording("find {target}, not {other}"), "find the red ball, not the orange plant"),
        (Wording("where is {bare}", spelling=Spelling.CAPITALS), "WHERE IS RED BALL"),
        (Wording("find {target}", spelling=Spelling.DROPPED), "find the red bll"),
        (Wording("find {target}", spelling=Spelling.DOUBLED), "find the red baall"),
        (Wording("find {target}", spelling=Spelling.SWAPPED), "find the red blal"),
        (Wording("Geh zu {dative}", Language.GERMAN), "Geh zu dem roten Ball"),
    ],
)
def test_a_wording_is_written_for_an_object(wording: Wording, text: str) -> None:
    assert wording.text("red", "ball") == text


def test_every_wording_can_be_written_for_every_object_of_the_simulator() -> None:
    for wording in (*DEVELOPED, *HELD_OUT):
        for colour in ("", *COLOURS):
            for object_class in ("", *CLASSES):
                if colour or object_class:
                    assert "{" not in wording.text(colour, object_class)
