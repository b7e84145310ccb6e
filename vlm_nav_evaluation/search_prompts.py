"""What a robot asks at each frame of a search, in either form of prompts."""

from __future__ import annotations

from collections.abc import Sequence

from speculation.language.prompts import SEARCH_FORM, Blocked, Past, ResponseOrder, Target, compose
from speculation.language.search_memory import SIDE_PHRASES, SearchMemory, describe_distance
from vlm_nav_simulation.geometry import Pose
from vlm_nav_simulation.ground_truth import Sighting


class SearchPrompts:
    """The prompts of one search, in one of `PROMPT_FORMS`. Takes its frames in order.

    colour, object_class: what is searched for, as far as the instruction names it.
    """

    def __init__(
        self,
        instruction: str,
        colour: str,
        object_class: str,
        order: ResponseOrder = ResponseOrder.REASON_FIRST,
        guide: bool = False,
        form: int = 1,
    ) -> None:
        self.instruction = instruction
        self._named, self._order, self._guide = (colour, object_class), order, guide
        self._memory = SearchMemory() if form >= SEARCH_FORM else None

    @classmethod
    def of_target(
        cls, target: Target, order: ResponseOrder = ResponseOrder.REASON_FIRST, guide: bool = False, form: int = 1
    ) -> SearchPrompts:
        """Return the prompts of a search for one object."""
        return cls(f"find the {target.text}", target.colour, target.object_class, order, guide, form)

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
