"""The questions of one goal to the model that decides, one at a time. No ROS; time is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edge_drafter.question import Reply, VerifierLost
from spec_vlm_nav.navigation_goal import NavigationGoal, Prompt
from spec_vlm_nav.navigator_interfaces import Decision, Decoder, Frame, Question, RobotInterface
from speculation.language.prompts import Guidance, NavigationAction, ResponseOrder, Vocabulary

EDGE = "edge"
"""The mode in which the draft model answers alone."""
DEGRADED_SPEED = 0.5
"""Share of the speeds while the draft model decides alone because the link is lost."""
ANSWER_WEIGHT = 0.3
"""Weight of the newest answer in the running mean of answer times."""
LEAST_S = 0.05
"""An answer gets at least so long, however little time the goal has left."""


@dataclass
class Asked:
    """A question under way."""

    question: Question
    prompt: Prompt
    frame: Frame
    at: float
    alone: bool
    """Whether the draft model answers alone because the link is lost."""
    verified: bool
    """Whether a verifier answers."""
    in_motion: bool
    known_s: float | None = None
    """Seconds until the answer's action was committed; None while it is not."""

    def decision(self, step: int, action: NavigationAction | None, reply: Reply | None) -> Decision:
        """Return a decision of the answer; `reply` is the whole of it, None before its end."""
        speed = DEGRADED_SPEED if self.alone else 1.0
        return Decision(
            step, action, reply is not None, self.frame, reply, not self.verified, speed, self.in_motion, self.known_s
        )


class QuestionAsker:
    """Asks the decoder about frames; the body shows what is asked."""

    def __init__(
        self,
        goal: NavigationGoal,
        decoder: Decoder,
        body: RobotInterface,
        clock: Callable[[], float],
        order: ResponseOrder,
        guide: Guidance,
        limit_s: float,
    ) -> None:
        """`limit_s`: the longest time for one answer."""
        self.answer_s: float | None = None
        """Running mean of the time from a question to its action."""
        self._goal, self._decoder, self._body, self._clock = goal, decoder, body, clock
        self._order, self._guide, self._limit_s = order, guide, limit_s
        self._understood = ""
        """What the body shows of the instruction."""
        self._question: Question | None = None

    def understand(self, vocabulary: Vocabulary | None) -> None:
        """Show what a model with this list is asked. Raises ValueError, in a sentence, where it cannot be."""
        understood = self._goal.understood(vocabulary)
        if understood != self._understood:
            self._understood = understood
            self._body.understood(understood)

    def ask(
        self,
        frame: Frame,
        vocabulary: Vocabulary | None,
        left_s: float,
        alone: bool = False,
        under_way: NavigationAction | None = None,
    ) -> Asked:
        """Ask about a frame; `under_way` is the motion during which it was taken, `left_s` the goal's time."""
        prompt = self._goal.prompt(frame, vocabulary, self._order, self._guide, under_way)
        self._body.asked(prompt.text, frame)
        at = self._clock()
        limit_s = max(LEAST_S, min(self._limit_s, left_s))
        question = self._decoder.ask(prompt.text, prompt.jpegs, limit_s, EDGE if alone else None)
        self._question = question
        verified = not alone and self._decoder.link is not None
        return Asked(question, prompt, frame, at, alone, verified, under_way is not None)

    def ask_ahead(self, under_way: NavigationAction, since: float, left_s: float) -> Asked | None:
        """Ask about a frame taken in motion, after `since`; None where there is none yet, or nobody can be asked."""
        frame = self._body.frame_after(since)
        if frame is None or frame.place is None:
            return None
        try:
            vocabulary = self._decoder.objects(0.0)
            self.understand(vocabulary)
        except (VerifierLost, ValueError):
            return None
        return self.ask(frame, vocabulary, left_s, under_way=under_way)

    def note_time(self, seconds: float) -> None:
        """Note the time from a question to its action."""
        before = seconds if self.answer_s is None else self.answer_s
        self.answer_s = before + ANSWER_WEIGHT * (seconds - before)

    def drop(self) -> None:
        """Cancel the question under way, if there is one; returns at once. One that has ended stays as it is."""
        question, self._question = self._question, None
        if question is not None:
            question.cancel()
