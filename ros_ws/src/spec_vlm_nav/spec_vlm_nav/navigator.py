"""One goal from its instruction to its end: frame, answer, action, next frame. No ROS, no sockets; time is given.

STOP (the model's answer: the task is done) and HOLD (the robot stands because something is wrong, and the goal goes on)
are different things throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import msgspec
from msgspec import Meta

from edge_drafter.question import AnswerLate, Cancelled, Reply, VerifierLost, VerifierRefused
from spec_vlm_nav.body import Body, Decision, Decoder, Execution, Frame, Question, State
from spec_vlm_nav.link_monitor import UP, LinkLimits, LinkMode, LinkMonitor
from spec_vlm_nav.motion import Outcome, wrap
from speculation.language.instructions import sentence_for, understand
from speculation.language.memory import SearchMemory
from speculation.language.prompts import (
    NOT_HERE,
    PROMPT_FORMS,
    SEARCH_FORM,
    STOP,
    ActionKind,
    ActionSize,
    Blocked,
    Guidance,
    NavigationAction,
    Past,
    ResponseOrder,
    Vocabulary,
    asked_form,
    committed_action,
    compose,
    nearest_action,
    parse_answer,
)
from speculation.settings import check
from speculation.wire import Jpegs, jpeg_of

SETTLE_S = 0.15
"""After an action the robot comes to rest before the next frame counts."""
RETRY_S = 0.5
"""Pause before the next attempt where the verifier is lost or an action failed."""
PROBLEM_S = 1.0
"""What is wrong with the camera is looked at so often while it gives no frame."""
EXECUTOR_LIMIT_S = 0.5
"""Longer silence of the executor is reported."""
INVALID_LIMIT, BLOCKED_LIMIT = 5, 5
"""A goal ends after so many answers without an action, or blocked actions, in a row."""
STUCK_LIMIT = 10
"""And after so many blocked actions without one that led ahead."""
POLL_S = 0.02
HOLD_S = 1.0
"""The end of a goal waits so long for the executor to take the HOLD."""
EDGE = "edge"
"""The mode in which the draft model answers alone."""
DEGRADED_SPEED, DEGRADED_SIZE = 0.5, ActionSize.SMALL
"""How the robot moves while the draft model decides alone because the link is lost."""
ANSWER_WEIGHT = 0.3
"""Of the newest answer in the running mean of answer times."""
LOST = "verifier lost: "


class End(Enum):
    """How a goal ended."""

    STOPPED = "the model says that the task is done"
    NOT_FOUND = "the model says that the object is not here"
    CANCELLED = "cancelled"
    PREEMPTED = "a newer goal took over"
    SHUTDOWN = "the node was deactivated or ends"
    TIMEOUT = "the time allowance is used up"
    OUT_OF_ACTIONS = "the allowed number of actions is used up"
    STALE_CAMERA = "the time allowance ran out without a fresh camera frame"
    LINK_LOST = "no verifier"
    BAD_INSTRUCTION = "the instruction cannot be followed"
    NO_VALID_ACTION = "the model's answers were no actions"
    OBSTACLE = "something keeps blocking the robot"
    ROBOT_FAULT = "the robot does not execute actions"


class NavigatorConfig(msgspec.Struct, frozen=True):
    """How a goal is prompted for, and its limits. Raises ValueError, naming the setting, for a value out of range."""

    order: Annotated[ResponseOrder, Meta(description="what answers begin with")] = ResponseOrder.REASON_FIRST
    guide: Annotated[
        Guidance, Meta(description="whether prompts explain the robot; auto: to models that have no objects.json")
    ] = Guidance.AUTO
    """Decided for each prompt: the model that answers is known only once the verifier is connected, and it may be
    replaced."""
    time_allowance_s: Annotated[float, Meta(ge=1.0, le=3600.0, description="default time of a goal, s")] = 300.0
    step_limit_s: Annotated[float, Meta(ge=0.5, le=600.0, description="longest time for one answer, s")] = 30.0
    action_limit_s: Annotated[float, Meta(ge=1.0, le=60.0, description="longest time for one action, s")] = 15.0
    stale_s: Annotated[float, Meta(ge=0.1, le=5.0, description="older camera frames are not used, s")] = 1.0
    act_early: Annotated[bool, Meta(description="begin an action once its kind is committed, not the whole answer")] = (
        True
    )
    look_ahead: Annotated[
        bool, Meta(description="ask the next question while the robot still moves, about a frame taken in motion")
    ] = True
    look_ahead_m: Annotated[
        float, Meta(ge=0.0, le=1.0, description="a decision is dropped if the robot moved further since its frame, m")
    ] = 0.15
    look_ahead_deg: Annotated[
        float, Meta(ge=0.0, le=90.0, description="... or turned further since its frame, degrees")
    ] = 8.0
    link: LinkLimits = LinkLimits()

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class GoalResult:
    """The end of a goal."""

    end: End
    message: str
    """A sentence."""
    actions: int
    """Motions that were begun."""
    elapsed_s: float
    held: bool = True
    """False where the robot was to stand and the executor did not confirm it; `message` ends with that."""


HOLD_UNCONFIRMED = "; action_executor did not confirm the HOLD"
"""What a goal's last sentence ends with where nobody knows whether the robot stands."""


@dataclass(frozen=True)
class _Moved:
    """What an action came to."""

    part: NavigationAction | None
    """The action that comes nearest to what was moved, by odometry; None: less than half of the smallest."""
    blocked: NavigationAction | None = None
    """The whole action, where something blocked it."""

    def listed(self, form: int) -> Past | None:
        """Return how prompts of this form list it, None where they do not."""
        return Blocked(self.blocked) if self.blocked is not None and form >= SEARCH_FORM else self.part


@dataclass
class _Asked:
    """A question under way."""

    question: Question
    frame: Frame
    at: float
    alone: bool
    """Whether the draft model answers alone because the link is lost."""
    in_motion: bool
    done: tuple[Past, ...]
    """What the prompt lists as carried out."""
    objects: Vocabulary | None
    """Of the model that answers."""
    memory: SearchMemory | None
    """What was searched, this frame included; None where the prompt has none of it."""
    known_s: float | None = None
    """Seconds until the answer's action was committed; None while it is not."""


@dataclass
class _Motion:
    """The motion that was published last."""

    step: int
    action: NavigationAction
    alone: bool
    sized: bool
    """Whether the size is the answer's; otherwise it is the least."""


class _Over(Exception):
    def __init__(self, end: End, detail: str = "") -> None:
        super().__init__(detail)
        self.end, self.detail = end, detail


class Navigator:
    """Runs one goal. Everything that it depends on is given, so tests run it on a clock of their own.

    The model remembers nothing, so each prompt lists what was done for this goal so far, by odometry: of an action
    that something cut short the part that was moved. What a dry run decides is not listed. A model of prompt form 2
    (`Vocabulary.form`) gets a blocked action as such, and what this goal has searched (`SearchMemory`). A model without
    a list of objects is asked as with form 1: nobody trained it on those lines.

    A motion is published on committed tokens only: its kind (as the least size), then its size, then the whole answer.
    """

    def __init__(
        self,
        decoder: Decoder,
        body: Body,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        over: Callable[[], End | None],
        config: NavigatorConfig,
        monitor: LinkMonitor | None = None,
        frames: int = 1,
    ) -> None:
        """`over` returns why the goal is to end, None while it goes on. `monitor`: one that outlives the goal.

        `frames` that a question may hold: the newest, and before it those of the last views.
        """
        self._decoder, self._body, self._config = decoder, body, config
        self._clock, self._sleep, self._over = clock, sleep, over
        self._monitor = monitor or LinkMonitor(config.link)
        self._step = self._actions = self._most = self._invalid = self._blocked = self._stuck = 0
        self._done: list[_Moved] = []
        self._form = PROMPT_FORMS[-1]
        """Of the prompts of the model that was asked last."""
        self._memory = SearchMemory()
        """Of the frames whose answers were taken."""
        self._frames = frames
        self._views: list[tuple[int, bytes]] = []
        """The frames of the last views, the oldest first, each with the number of actions done before it."""
        self._instruction = self._holding = ""
        self._sentence = ""
        """What the model is asked, see `speculation.language.instructions.sentence_for`."""
        self._understood = ""
        """What the body shows of that; empty for a model without a list."""
        self._dry = False
        self._why: End = End.TIMEOUT
        self._end_at = 0.0
        self._question: Question | None = None
        self._motion: _Motion | None = None
        self._stopped = True
        """Whether the executor took the STOP or NOT_HERE that ended the goal, where the robot was moving."""
        self._answer_s: float | None = None
        """Running mean of the time from a question to its action."""

    @property
    def done(self) -> tuple[Past, ...]:
        """What was carried out for this goal so far, by odometry, as the model that was asked last gets it."""
        listed = (moved.listed(self._form) for moved in self._done)
        return tuple(entry for entry in listed if entry is not None)

    def run(
        self,
        instruction: str,
        time_allowance_s: float = 0.0,
        max_actions: int = 0,
        dry: bool = False,
        done: Sequence[Past] = (),
    ) -> GoalResult:
        """Follow `instruction` until the model ends it, or a limit or the caller does; the robot stands afterwards.

        `done`: what was carried out for it before.
        """
        began = self._clock()
        self._end_at = began + (time_allowance_s or self._config.time_allowance_s)
        self._instruction, self._dry, self._most = instruction, dry, max_actions
        self._done = [_Moved(None, entry.action) if isinstance(entry, Blocked) else _Moved(entry) for entry in done]
        self._form, self._memory = PROMPT_FORMS[-1], SearchMemory()
        self._views = []
        ahead: _Asked | None = None
        try:
            while True:
                self._check()
                asked = ahead or self._ask()
                motion = self._decide(asked) if asked is not None else None
                ahead = self._follow(motion) if motion is not None else None
                if max_actions and self._actions >= max_actions:
                    raise _Over(End.OUT_OF_ACTIONS, f"{self._actions} actions")
        except _Over as over:
            ended = over.end in (End.STOPPED, End.NOT_FOUND)
            held = self._stopped if ended else self.stand(over.end.value)
            self._count_motion()
            message = over.end.value + (f": {over.detail}" if over.detail else "")
            message += "" if held else HOLD_UNCONFIRMED
            return GoalResult(over.end, message, self._actions, self._clock() - began, held)
        finally:
            self._drop_question()

    def stand(self, reason: str) -> bool:
        """Publish a HOLD and return whether the executor took it, at the latest after `HOLD_S`; a dry run has none.

        It waits although the goal was cancelled: a cancelled goal must leave a robot that stands.
        """
        step = self._next_step()
        self._body.act(Decision(step, None))
        self._drop_question()
        self._report(State.HOLDING, reason)
        return self._is_taken(step)

    def _is_taken(self, step: int) -> bool:
        """Return whether the executor took what makes it stand, at the latest after `HOLD_S`; a dry run has none."""
        until = self._clock() + HOLD_S
        while not self._dry and not self._has_ended(self._body.execution(step)):
            if self._clock() >= until:
                return False
            self._sleep(POLL_S)
        return True

    # -- the question

    def _ask(self) -> _Asked | None:
        """Ask about a frame taken at rest; None where nobody can be asked now, and the robot holds."""
        mode = self._link_mode()
        link = self._decoder.link
        if mode is LinkMode.HOLD:
            self._hold_for_link()
            self._wait(POLL_S)
            return None
        if mode is LinkMode.NOMINAL and link is not None and self._holding.startswith(LOST):
            self._holding, self._why = "", End.TIMEOUT
        alone = mode is LinkMode.DEGRADED
        try:
            # Without waiting, so that a goal can be cancelled meanwhile.
            objects = self._decoder.objects(0.0, mode=EDGE if alone else None)
        except VerifierRefused as problem:
            raise _Over(End.LINK_LOST, str(problem)) from None
        except VerifierLost as problem:
            if link is None or link.state == UP:
                self._lost(str(problem))
            else:
                # Not lost yet: it greets the verifier again. If that lasts, the mode changes.
                self._wait(POLL_S)
            return None
        try:
            self._understand(objects)
        except ValueError as problem:
            if not alone:
                raise _Over(End.BAD_INSTRUCTION, str(problem)) from None
            self._monitor.give_up()
            return None
        frame = self._look()
        self._count_motion()
        if not self._holding:
            self._report(State.THINKING)
        return self._put(frame, objects, alone)

    def _understand(self, objects: Vocabulary | None) -> None:
        """Note what a model with this list is asked. Raises ValueError, in a sentence, where it cannot be."""
        self._sentence = sentence_for(self._instruction, objects)
        understood = "" if objects is None else self._sentence
        if understood != self._understood:
            self._understood = understood
            self._body.understood(understood)

    def _put(
        self, frame: Frame, objects: Vocabulary | None, alone: bool, ahead: NavigationAction | None = None
    ) -> _Asked:
        """Ask; `ahead` is the motion under way where the frame was taken in motion."""
        config = self._config
        self._form = asked_form(objects)
        done = self.done if ahead is None else (*self.done, ahead)
        memory = self._look_from(frame) if self._form >= SEARCH_FORM else None
        lines = memory.lines() if memory is not None else ()
        prompt = compose(self._sentence, done, config.order, config.guide.applies(objects), lines)
        self._body.asked(prompt, frame)
        at = self._clock()
        question = self._decoder.ask(
            prompt, self._seen(frame, done), self._limit(config.step_limit_s), EDGE if alone else None
        )
        self._question = question
        return _Asked(question, frame, at, alone, ahead is not None, done, objects, memory)

    def _look_from(self, frame: Frame) -> SearchMemory | None:
        """Return what was searched with this frame, None where nobody knows where it was taken.

        A copy: a question may be dropped, and the frame that takes its place must find the memory as it was.
        """
        place = frame.place
        if place is None or not place.finite:
            return None
        memory = self._memory.copy()
        memory.look(place.x, place.y, place.yaw)
        return memory

    def _remember(self, asked: _Asked, reply: Reply) -> None:
        """Note the frame and what the answer says of it."""
        if asked.memory is None or asked.objects is None:
            return
        wanted = understand(self._instruction, asked.objects)
        asked.memory.read(reply.text, wanted.colour, wanted.object_class)
        self._memory = asked.memory

    def _seen(self, frame: Frame, done: Sequence[Past]) -> Jpegs:
        """Return the frames of a question: its own, and before it those of the views that actions changed since.

        A frame of the same view takes the place of the one before. What a dry run decides counts as done here.
        """
        view = self._actions if self._dry else len(done)
        before = [each for each in self._views if each[0] < view]
        self._views = [*before, (view, frame.jpeg)][-self._frames :]
        return jpeg_of([jpeg for _, jpeg in self._views])

    def _look(self) -> Frame:
        """Return a frame taken after the robot came to rest; hold while the camera gives none."""
        since, stale_s = self._clock() + SETTLE_S, self._config.stale_s
        due = since + stale_s
        while True:
            frame = self._body.frame_after(since)
            if frame is not None:
                if self._why is End.STALE_CAMERA:
                    self._holding, self._why = "", End.TIMEOUT
                return frame
            if self._clock() > due:
                # Each frame may have another problem; nobody reads more than one a second.
                due = self._clock() + max(stale_s, PROBLEM_S)
                problem = self._body.camera_problem()
                self._hold(f"no camera frame for {stale_s:g} s" + f": {problem}" * bool(problem), End.STALE_CAMERA)
            self._wait(POLL_S)

    # -- the answer

    def _decide(self, asked: _Asked) -> _Motion | None:
        """Take the answer as it is committed; return the motion that it ends in, None where the robot stands."""
        question, motion, doubted = asked.question, None, self._dry or not self._config.act_early
        while not question.done:
            if not self._may_go_on(asked):
                return None
            self._watch(asked)
            if question.committed and self._holding:
                self._holding = ""
                self._report(State.THINKING)
            if not doubted:
                if motion is None and not self._is_same_view(asked):
                    self._drop_question()
                    return None
                motion, doubted = self._act_early(asked, motion)
            self._wait(POLL_S)
        self._check()
        reply = self._reply(asked)
        if reply is None:
            return None
        self._body.writing(reply.text, "")
        return self._act(asked, reply, None if doubted else motion)

    def _watch(self, asked: _Asked) -> None:
        """Show what is committed of a running answer, and note when it settles its action."""
        question = asked.question
        self._body.writing(question.committed, question.guess)
        if asked.known_s is None and committed_action(question.committed) is not None:
            asked.known_s = self._clock() - asked.at

    def _act_early(self, asked: _Asked, motion: _Motion | None) -> tuple[_Motion | None, bool]:
        """Begin or extend a motion as far as it is committed; return it, and whether the answer took it back."""
        settled = committed_action(asked.question.committed)
        if motion is None:
            if settled is None or not settled[0].moves:
                return None, False
            return self._begin(asked, settled[0], settled[1]), False
        if settled is None or settled[0] is not motion.action.kind:
            self._hold("the answer goes on and takes its action back")
            return None, True
        size = settled[1]
        if size is None or asked.alone:
            return motion, False
        if motion.sized and size is not motion.action.size:
            self._hold("the answer goes on and takes its action back")
            return None, True
        if size is not motion.action.size:
            motion.action = NavigationAction(motion.action.kind, size)
            self._publish(asked, motion)
        motion.sized = True
        return motion, False

    def _reply(self, asked: _Asked) -> Reply | None:
        """Return the whole answer; None where there is none, and the robot holds."""
        self._question = None
        try:
            return asked.question.result()
        except VerifierRefused as problem:
            raise _Over(End.LINK_LOST, str(problem)) from None
        except VerifierLost as problem:
            self._lost(str(problem))
        except Cancelled as problem:
            self._hold(f"no answer: {problem}")
        except (AnswerLate, ValueError) as problem:
            self._hold(f"no answer: {problem}")
            self._count_invalid(asked, str(problem))
        return None

    def _act(self, asked: _Asked, reply: Reply, motion: _Motion | None) -> _Motion | None:
        """Publish what the whole answer decides. `motion` is what was begun on its beginning."""
        parsed = parse_answer(reply.text)
        action, problem = parsed.action, parsed.problem
        if action == NOT_HERE and asked.objects is not None and asked.objects.form < SEARCH_FORM:
            action, problem = None, f"{NOT_HERE.text!r} of a model that never learned to search everywhere"
        if action is None:
            self._hold(f"unreadable answer: {problem}", End.NO_VALID_ACTION, asked, reply)
            self._count_invalid(asked, problem)
            return None
        if motion is None and not self._is_same_view(asked):
            return None
        self._remember(asked, reply)
        if not action.kind.moves:
            self._finish(asked, reply, action, parsed.reasoning)
            return None
        self._invalid = 0
        size = DEGRADED_SIZE if asked.alone else action.size
        if motion is not None and (
            motion.action.kind is not action.kind or (motion.sized and motion.action.size is not size)
        ):
            self._hold("the answer ends otherwise than it began")
            motion = None
        if motion is None:
            return self._begin(asked, action.kind, size, reply)
        motion.action, motion.sized = NavigationAction(action.kind, size), True
        self._publish(asked, motion, reply)
        return motion

    def _finish(self, asked: _Asked, reply: Reply, action: NavigationAction, reasoning: str) -> None:
        """End the goal with a STOP or NOT_HERE."""
        stops = action == STOP
        if asked.alone:
            # The verifier decides that the task is over; going on without it could lead past the object.
            would = "stop" if stops else "end the search"
            self._hold(LOST + f"the draft model alone would {would} here", End.LINK_LOST, asked, reply)
            self._monitor.give_up()
            return
        step = self._next_step()
        self._body.act(self._decision(asked, step, action, reply))
        # A robot that was not moving needs no STOP to stand.
        self._stopped = self._motion is None or self._is_taken(step)
        raise _Over(End.STOPPED if stops else End.NOT_FOUND, reasoning)

    # -- the motion

    def _begin(self, asked: _Asked, kind: ActionKind, size: ActionSize | None, reply: Reply | None = None) -> _Motion:
        """Publish a motion's first decision."""
        self._count_motion()
        size = ActionSize.SMALL if asked.alone else size
        if not asked.in_motion:
            self._note_time(self._clock() - asked.at)
        elif asked.known_s is not None and self._config.act_early:
            self._note_time(asked.known_s)
        action = NavigationAction(kind, size or ActionSize.SMALL)
        motion = _Motion(self._next_step(), action, asked.alone, size is not None)
        self._holding, self._why = "", End.TIMEOUT
        self._publish(asked, motion, reply)
        if self._dry:
            self._actions += 1
        else:
            self._motion = motion
        self._report(State.MOVING)
        return motion

    def _publish(self, asked: _Asked, motion: _Motion, reply: Reply | None = None) -> None:
        self._body.act(self._decision(asked, motion.step, motion.action, reply))

    def _follow(self, motion: _Motion) -> _Asked | None:
        """Wait for the end of the motion; return the next question where it was asked meanwhile and still holds."""
        if self._dry:
            return None
        limit_s = self._config.action_limit_s
        looked = self._clock()
        until = looked + limit_s
        ahead: _Asked | None = None
        looked_from: float | None = None
        while not self._has_ended(execution := self._body.execution(motion.step)):
            mode, before, looked = self._link_mode(), looked, self._clock()
            held = execution.message if execution is not None else ""
            if self._body.executor_silence() > EXECUTOR_LIMIT_S:
                held = "action_executor is silent"
            if held or execution is not None:
                self._report(State.HOLDING if held else State.MOVING, held)
            self._holding, self._why = held, End.ROBOT_FAULT if held else End.TIMEOUT
            if held:
                # A node that died gets the time to come back; the goal's own time bounds that.
                until += looked - before
            if looked > until:
                raise _Over(End.ROBOT_FAULT, f"an action did not end within {limit_s:g} s")
            if motion.alone and mode is LinkMode.HOLD:
                return None
            if ahead is not None:
                self._watch(ahead)
                if mode is not LinkMode.NOMINAL:
                    self._drop_question()
                    ahead = None
            elif execution is not None and mode is LinkMode.NOMINAL and self._is_nearly_done(motion, execution):
                looked_from = self._clock() if looked_from is None else looked_from
                ahead = self._look_ahead(motion, looked_from)
            self._wait(POLL_S)
        assert execution is not None
        self._holding, self._why = "", End.TIMEOUT
        self._count_motion()
        outcome = execution.outcome
        if outcome is Outcome.NO_ODOMETRY:
            # It may count from another place when it is back.
            self._memory = SearchMemory()
        if outcome in (None, Outcome.NO_ODOMETRY):
            self._drop_question()
            self._hold(execution.message)
            self._wait(RETRY_S)
        elif outcome is Outcome.BLOCKED:
            self._blocked += 1
            self._stuck += 1
            self._report(State.THINKING, f"blocked: {execution.message}")
            if self._blocked >= BLOCKED_LIMIT:
                raise _Over(End.OBSTACLE, f"{self._blocked} actions in a row were blocked")
            if self._stuck >= STUCK_LIMIT:
                raise _Over(End.OBSTACLE, f"{self._stuck} actions were blocked and none led ahead")
        else:
            self._blocked = 0
            if motion.action.metres:
                self._stuck = 0
        if ahead is None:
            return None
        if outcome is not Outcome.DONE or self.done != ahead.done or not self._is_same_view(ahead):
            self._drop_question()
            return None
        self._report(State.THINKING)
        return ahead

    def _is_nearly_done(self, motion: _Motion, execution: Execution) -> bool:
        """Whether the rest of the motion takes about as long as an answer, and changes the view by less than the limit.

        The pace is the motion's own so far; the margin is what a question at rest would wait for.
        """
        config = self._config
        turning = motion.action.kind is not ActionKind.FORWARD
        within = math.radians(config.look_ahead_deg) if turning else config.look_ahead_m
        last = self._most and self._actions + 1 >= self._most
        if not config.look_ahead or motion.alone or last or self._answer_s is None or execution.message:
            return False
        if not (0.0 <= execution.remaining <= within and execution.moved > 0.0 and execution.elapsed > 0.0):
            return False
        return execution.remaining * execution.elapsed <= (self._answer_s + SETTLE_S) * execution.moved

    def _look_ahead(self, motion: _Motion, since: float) -> _Asked | None:
        frame = self._body.frame_after(since)
        if frame is None or frame.place is None:
            return None
        try:
            objects = self._decoder.objects(0.0)
            self._understand(objects)
        except (VerifierLost, ValueError):
            return None
        return self._put(frame, objects, False, motion.action)

    def _is_same_view(self, asked: _Asked) -> bool:
        """Whether the robot still sees about what it saw when the question's frame came; at rest it does."""
        if not asked.in_motion:
            return True
        was, now, config = asked.frame.place, self._body.place(), self._config
        if was is None or now is None:
            return False
        turned = abs(wrap(now.yaw - was.yaw))
        moved = math.hypot(now.x - was.x, now.y - was.y)
        return moved <= config.look_ahead_m and turned <= math.radians(config.look_ahead_deg)

    def _count_motion(self) -> None:
        """Note what the last motion came to, by odometry."""
        motion, self._motion = self._motion, None
        if motion is None:
            return
        self._actions += 1
        execution = self._body.execution(motion.step)
        if execution is not None:
            part = nearest_action(motion.action.kind, execution.moved)
            self._done.append(_Moved(part, motion.action if execution.outcome is Outcome.BLOCKED else None))

    # -- the link

    def _link_mode(self) -> LinkMode:
        """Return who decides now. Raises the goal's end where the verifier refuses this robot."""
        link = self._decoder.link
        if link is None:
            return LinkMode.NOMINAL
        if link.state == "refused":
            raise _Over(End.LINK_LOST, link.why)
        return self._monitor.update(link.state, self._clock())

    def _may_go_on(self, asked: _Asked) -> bool:
        """Whether the answer still counts; otherwise the question is cancelled, and what it began is held."""
        mode = self._link_mode()
        if mode is LinkMode.NOMINAL or (asked.alone and mode is LinkMode.DEGRADED):
            return True
        if self._motion is not None or mode is LinkMode.HOLD:
            self._hold_for_link()
        self._drop_question()
        return False

    def _hold_for_link(self) -> None:
        """Hold until the verifier is back: once, for one reason, however the link's sentence changes meanwhile."""
        link = self._decoder.link
        if not self._holding.startswith(LOST):
            self._hold(LOST + (link.why if link is not None else ""), End.LINK_LOST)

    def _lost(self, why: str) -> None:
        self._hold(LOST + why, End.LINK_LOST)
        self._wait(RETRY_S)

    def _drop_question(self) -> None:
        question, self._question = self._question, None
        if question is not None:
            question.cancel()

    # -- what is published

    def _decision(
        self, asked: _Asked | None, step: int, action: NavigationAction | None, reply: Reply | None
    ) -> Decision:
        if asked is None:
            return Decision(step, action)
        return Decision(
            step,
            action,
            reply is not None,
            asked.frame,
            reply,
            asked.alone or self._decoder.link is None,
            DEGRADED_SPEED if asked.alone else 1.0,
            asked.in_motion,
            asked.known_s,
        )

    def _hold(
        self, reason: str, end: End = End.TIMEOUT, asked: _Asked | None = None, reply: Reply | None = None
    ) -> None:
        """Stand, publish why (once a reason), and remember what the goal ends with if that lasts."""
        if reason != self._holding:
            self._body.act(self._decision(asked, self._next_step(), None, reply))
        self._holding, self._why = reason, end
        self._report(State.HOLDING, reason)

    def _next_step(self) -> int:
        step, self._step = self._step, self._step + 1
        return step

    def _count_invalid(self, asked: _Asked, problem: str) -> None:
        if asked.alone:
            self._monitor.give_up()
            return
        self._invalid += 1
        if self._invalid >= INVALID_LIMIT:
            raise _Over(End.NO_VALID_ACTION, f"{self._invalid} in a row; the last: {problem}")

    def _note_time(self, seconds: float) -> None:
        before = seconds if self._answer_s is None else self._answer_s
        self._answer_s = before + ANSWER_WEIGHT * (seconds - before)

    @staticmethod
    def _has_ended(execution: Execution | None) -> bool:
        return execution is not None and execution.outcome is not Outcome.RUNNING

    def _report(self, state: State, reason: str = "") -> None:
        self._body.report(state, reason)

    def _limit(self, wanted: float) -> float:
        return max(0.05, min(wanted, self._end_at - self._clock()))

    def _wait(self, seconds: float) -> None:
        self._check()
        self._sleep(seconds)
        self._check()

    def _check(self) -> None:
        over = self._over()
        if over is not None:
            raise _Over(over)
        if self._clock() >= self._end_at:
            raise _Over(self._why, self._holding)
