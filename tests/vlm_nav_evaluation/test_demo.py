"""What the demo prints while the robot walks."""

from __future__ import annotations

import pytest

from speculation.language.prompts import Vocabulary
from vlm_nav_evaluation.demo import target_of


def test_the_room_holds_what_a_sentence_names() -> None:
    known = Vocabulary(("red", "green"), ("chair",))
    assert target_of("could you look for a green chair?", known, 0) == "green chair"
    assert target_of("银色的瓶子", None, 0) == "silver bottle", "models without a list find what the simulator has"
    for sentence in ("do not go to the green chair", "find the dragon"):
        with pytest.raises(ValueError, match="say for example"):
            target_of(sentence, known, 0)
