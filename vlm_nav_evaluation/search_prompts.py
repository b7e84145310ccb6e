"""What a robot asks at each frame of a search, in either form of prompts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple

from speculation.language.prompts import (
    SEARCH_FORM,
    Blocked,
    Guidance,
    Past,
    ResponseOrder,
    Target,
    Vocabulary,
    asked_form,
    compose,
)
from speculation.language.search_memory import SIDE_PHRASES, SearchMemory, describe_distance
from vlm_nav_simulation.geometry import Pose
from vlm_nav_simulation.ground_truth import Sighting
from vlm_nav_simulation.queries import Query


class Asking(NamedTuple):
    """How a model is asked: `order` and `guide` as in `speculation.language.prompts.compose`, and one of
    `PROMPT_FORMS`."""

    order: ResponseOrder = ResponseOrder.REASON_FIRST
    guide: bool = False
    form: int = 1

    @classmethod
    def of(cls, options: argparse.Namespace, words: Vocabulary | None) -> Asking:
        """Return what a command's options name; a target's vocabulary decides for `auto`, and the form."""
        return cls(ResponseOrder(options.response_order), Guidance(options.guide).applies(words), asked_form(words))


PLAIN = Asking()
"""Asks for reasons first, without a guide, in prompts of form 1."""


class SearchPrompts:
    """The prompts of one search for what a query or a target names. Takes its frames in order."""

    def __init__(self, wanted: Query | Target, how: Asking = PLAIN) -> None:
        query = Query(wanted.colour, wanted.object_class)
        self.instruction, self._named = query.text, (query.colour, query.object_class)
        self._order, self._guide = how.order, how.guide
        self._memory = SearchMemory() if how.form >= SEARCH_FORM else None

    def ask(self, pose: Pose, past: Sequence[Past]) -> str:
        """Return the prompt about a frame that was taken at a pose.

        `past`: the actions that were over by then, those that were blocked as such, which form 1 does not tell.
        """
        if self._memory is None:
            done = [one.action if isinstance(one, Blocked) else one for one in past]
            return compose(self.instruction, done, self._order, self._guide)
        self._memory.look(*pose)
        return compose(self.instruction, past, self._order, self._guide, self._memory.lines())

    def read(self, answer: str) -> None:
        """Note what an answer about the frame says of the room and of what is searched for."""
        if self._memory is not None:
            self._memory.read(answer, *self._named)

    def see(self, seen: Sighting) -> None:
        """Note what a faultless answer about the frame would say."""
        if seen.visible:
            side = SIDE_PHRASES[seen.side.value][0]
            self.read(f"The {' '.join(self._named)} is {side}, about {describe_distance(seen.distance)} away.")
        else:
            self.read("")
