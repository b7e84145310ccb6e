"""What a robot would be asked at each frame of an oracle's walk, in either form of prompts."""

from __future__ import annotations

from collections.abc import Sequence

from speculation.language.memory import SIDE_PHRASES, SearchMemory, describe_distance
from speculation.language.prompts import SEARCH_FORM, Blocked, Past, ResponseOrder, Target, compose
from vlm_nav_simulation.geometry import Pose
from vlm_nav_simulation.ground_truth import Sighting


class WalkPrompts:
    """The prompts of one walk, in one of `PROMPT_FORMS`. Takes its frames in order."""

    def __init__(self, target: Target, order: ResponseOrder, guide: bool = False, form: int = 1) -> None:
        self.instruction = f"find the {target.text}"
        self._target, self._order, self._guide = target, order, guide
        self._memory = SearchMemory() if form >= SEARCH_FORM else None

    def ask(self, pose: Pose, seen: Sighting, past: Sequence[Past]) -> str:
        """Return the prompt about a frame, and note what an answer about it would name of the target.

        `past`: the actions of the walk that were over by then, those that were blocked as such, which form 1 does not
        tell.
        """
        memory = self._memory
        if memory is None:
            done = [one.action if isinstance(one, Blocked) else one for one in past]
            return compose(self.instruction, done, self._order, self._guide)
        memory.look(*pose)
        prompt = compose(self.instruction, past, self._order, self._guide, memory.lines())
        memory.read(self._answer(seen), self._target.colour, self._target.object_class)
        return prompt

    def _answer(self, seen: Sighting) -> str:
        if not seen.visible:
            return ""
        side = SIDE_PHRASES[seen.side.value][0]
        return f"The {self._target.text} is {side}, about {describe_distance(seen.distance)} away."
