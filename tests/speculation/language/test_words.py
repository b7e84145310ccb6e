"""The table of words that instructions are read by."""

from __future__ import annotations

from speculation.language.instructions import understand
from speculation.language.prompts import Vocabulary
from speculation.language.words import CLASSES, COLOURS
from vlm_nav_simulation.objects import CLASSES as SHAPES
from vlm_nav_simulation.objects import COLOURS as PAINTS


def test_all_that_the_simulator_has_is_named_and_no_name_means_two_things() -> None:
    assert list(CLASSES) == list(SHAPES) and list(COLOURS) == list(PAINTS)
    known = Vocabulary(tuple(PAINTS), tuple(SHAPES), form=2)
    for names, is_class in ((CLASSES, True), (COLOURS, False)):
        for name, entries in names.items():
            for word in entries.split():
                understood = understand(word.rstrip("~").replace("_", " "), known)
                assert (understood.object_class if is_class else understood.colour) == name
