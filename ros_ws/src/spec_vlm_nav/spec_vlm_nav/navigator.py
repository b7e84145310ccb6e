"""Leads one goal to its end: frame, answer, action, next frame. No ROS, no sockets; time is given.

STOP (the model's answer: the task is done) and HOLD (the robot stands because something is wrong, and the goal goes on)
are different things throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

from msgspec import Meta

from edge_drafter.question import AnswerLate, Cancelled, Reply, VerifierLost, VerifierRefused
from spec_vlm_nav.action_publisher import (
    DEGRADED_SIZE,
    POLL_S,
    ActionPublisher,
    StartedMotion,
    has_ended,
)
from spec_vlm_nav.link_monitor import UP, LinkLimits, LinkMode, LinkMonitor
from spec_vlm_nav.motion import Outcome, PlanarPose, wrap
from spec_vlm_nav.navigation_goal import HOLD_UNCONFIRMED, End, GoalEnded, GoalResult, NavigationGoal
from spec_vlm_nav.navigator_interfaces import Decoder, Execution, Frame, RobotInterface, State
from spec_vlm_nav.question_asker import EDGE, Asked, QuestionAsker
from speculation.language.prompts import (
    NOT_HERE,
    SEARCH_FORM,
    STOP,
    ActionKind,
    ActionSize,
    Guidance,
    NavigationAction,
    ResponseOrder,
    committed_action,
    parse_answer,
)
from speculation.language.thinking import shortened
from speculation.settings import CheckedSettings

SETTLE_S = 0.15
"""After an action the robot comes to rest before the next frame counts."""
RETRY_S = 0.5
"""Pause before the next attempt where the verifier is lost or an action failed."""
PROBLEM_S = 1.0
"""What is wrong with the camera is looked at so often while it gives no frame."""
INVALID_LIMIT = 5
"""A goal ends after so many answers without an action in a row."""
TAKEN_BACK = "the answer goes on and takes its action back"


class NavigatorConfig(CheckedSettings, frozen=True):
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

    def is_same_view(self, was: PlanarPose | None, now: PlanarPose | None) -> bool:
        """Return whether a robot sees about the same from two places, as far as they are known."""
        if was is None or now is None:
            return False
        turned = abs(wrap(now.yaw - was.yaw))
        moved = math.hypot(now.x - was.x, now.y - was.y)
        return moved <= self.look_ahead_m and turned <= math.radians(self.look_ahead_deg)

    def is_nearly_done(self, kind: ActionKind, execution: Execution, answer_s: float) -> bool:
        """Return whether the rest of a motion takes about `answer_s`, and changes the view by less than the limit.

        The pace is the motion's own so far; the margin is what a question at rest would wait for.
        """
        within = self.look_ahead_m if kind is ActionKind.FORWARD else math.radians(self.look_ahead_deg)
        if not (0.0 <= execution.remaining <= within and execution.moved > 0.0 and execution.elapsed > 0.0):
            return False
        return execution.remaining * execution.elapsed <= (answer_s + SETTLE_S) * execution.moved


class Navigator:
    """Leads one goal to its end, at the latest at `end_at`. Everything that it depends on is given, the clock too."""

    def __init__(
        self,
        goal: NavigationGoal,
        decoder: Decoder,
        body: RobotInterface,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        over: Callable[[], End | None],
        config: NavigatorConfig,
        monitor: LinkMonitor | None = None,
    ) -> None:
        """`over` returns why the goal is to end, None while it goes on. `monitor`: one that outlives the goal."""
        self._goal, self._decoder, self._body, self._config = goal, decoder, body, config
        self._clock, self._sleep, self._over = clock, sleep, over
        self._monitor = monitor or LinkMonitor(config.link)
        self._asker = QuestionAsker(goal, decoder, body, clock, config.order, config.guide, config.step_limit_s)
        self.publisher = self._publisher = ActionPublisher(goal, body, clock, sleep)
        self.end_at = clock() + config.time_allowance_s
        self._max_actions = self._invalid = 0
        self._stopped = True
        """Whether the executor took the STOP or NOT_HERE that ended the goal, where the robot was moving."""

    def run(self, time_allowance_s: float = 0.0, max_actions: int = 0) -> GoalResult:
        """Follow the instruction until the model ends it, or a limit or the caller does; the robot stands afterwards.

        0 stands for the configured time, and for any number of actions.
        """
        began = self._clock()
        self.end_at = began + (time_allowance_s or self._config.time_allowance_s)
        self._max_actions = max_actions
        ahead: Asked | None = None
        try:
            while True:
                self._check()
                asked = ahead or self._ask()
                motion = self._decide(asked) if asked is not None else None
                ahead = self._follow(motion) if motion is not None else None
                if max_actions and self._goal.actions >= max_actions:
                    raise GoalEnded(End.OUT_OF_ACTIONS, f"{self._goal.actions} actions")
        except GoalEnded as over:
            ended = over.end in (End.STOPPED, End.NOT_FOUND)
            held = self._stopped if ended else self.stand(over.end.value)
            self._publisher.account()
            message = over.end.value + (f": {over}" if str(over) else "") + ("" if held else HOLD_UNCONFIRMED)
            return GoalResult(over.end, message, self._goal.actions, self._clock() - began, held)
        finally:
            self._asker.drop()

    def stand(self, reason: str) -> bool:
        """Publish a HOLD that ends the goal, end the question under way, and return whether the executor took it."""
        step = self._publisher.stand(reason)
        self._asker.drop()  # behind the HOLD, which must not wait for the link
        return self._publisher.is_taken(step)

    # -- the question

    def _ask(self) -> Asked | None:
        """Ask about a frame taken at rest; None where nobody can be asked now, and the robot holds."""
        mode, link = self._link_mode(), self._decoder.link
        if mode is LinkMode.HOLD:
            self._hold_for_link()
            self._wait(POLL_S)
            return None
        if mode is LinkMode.NOMINAL and link is not None:
            self._publisher.release(End.LINK_LOST)
        alone = mode is LinkMode.DEGRADED
        try:
            # Without waiting, so that a goal can be cancelled meanwhile.
            vocabulary = self._decoder.objects(0.0, mode=EDGE if alone else None)
        except VerifierRefused as problem:
            raise GoalEnded(End.LINK_LOST, str(problem)) from None
        except VerifierLost as problem:
            if link is None or link.state == UP:
                self._lost(str(problem))
            else:
                # Not lost yet: it greets the verifier again. If that lasts, the mode changes.
                self._wait(POLL_S)
            return None
        try:
            self._asker.understand(vocabulary)
        except ValueError as problem:
            if not alone:
                raise GoalEnded(End.BAD_INSTRUCTION, str(problem)) from None
            self._monitor.give_up()
            return None
        frame = self._look()
        self._publisher.account()
        if self._publisher.held is None:
            self._body.report(State.THINKING)
        return self._asker.ask(frame, vocabulary, self._left_s, alone)

    def _look(self) -> Frame:
        """Return a frame taken after the robot came to rest; hold while the camera gives none."""
        since, stale_s = self._clock() + SETTLE_S, self._config.stale_s
        due = since + stale_s
        while True:
            frame = self._body.frame_after(since)
            if frame is not None:
                self._publisher.release(End.STALE_CAMERA)
                return frame
            if self._clock() > due:
                # Each frame may have another problem; nobody reads more than one a second.
                due = self._clock() + max(stale_s, PROBLEM_S)
                problem = self._body.camera_problem()
                why = f"no camera frame for {stale_s:g} s" + (f": {problem}" if problem else "")
                self._publisher.hold(why, End.STALE_CAMERA)
            self._wait(POLL_S)

    # -- the answer

    def _decide(self, asked: Asked) -> StartedMotion | None:
        """Take the answer as it is committed; return the motion that it ends in, None where the robot stands."""
        question, motion, doubted = asked.question, None, self._goal.is_dry or not self._config.act_early
        while not question.done:
            if not self._may_go_on(asked):
                return None
            self._watch(asked)
            if question.committed:
                self._publisher.answered()
            if not doubted:
                if motion is None and not self._is_same_view(asked):
                    self._asker.drop()
                    return None
                motion, doubted = self._act_early(asked, motion)
            self._wait(POLL_S)
        self._check()
        reply = self._reply(asked)
        if reply is None:
            return None
        self._publisher.answered()
        self._body.writing(shortened(reply.text), "")
        return self._act(asked, reply, None if doubted else motion)

    def _watch(self, asked: Asked) -> None:
        """Show what is committed of a running answer, and note when it settles its action."""
        question = asked.question
        self._body.writing(shortened(question.committed), question.guess)
        if asked.known_s is None and committed_action(question.committed) is not None:
            asked.known_s = self._clock() - asked.at

    def _act_early(self, asked: Asked, motion: StartedMotion | None) -> tuple[StartedMotion | None, bool]:
        """Begin or extend a motion as far as it is committed; return it, and whether the answer took it back."""
        settled = committed_action(asked.question.committed)
        if motion is None:
            if settled is None or not settled[0].moves:
                return None, False
            return self._begin(asked, settled[0], settled[1]), False
        if settled is None or settled[0] is not motion.action.kind:
            self._publisher.hold(TAKEN_BACK)
            return None, True
        size = settled[1]
        if size is None or asked.alone:
            return motion, False
        if size is not motion.action.size:
            if motion.sized:
                self._publisher.hold(TAKEN_BACK)
                return None, True
            motion.action = NavigationAction(motion.action.kind, size)
            self._publisher.publish(asked, motion)
        motion.sized = True
        return motion, False

    def _reply(self, asked: Asked) -> Reply | None:
        """Return the whole answer; None where there is none, and the robot holds."""
        try:
            return asked.question.result()
        except VerifierRefused as problem:
            raise GoalEnded(End.LINK_LOST, str(problem)) from None
        except VerifierLost as problem:
            self._lost(str(problem))
        except Cancelled as problem:
            self._publisher.hold(f"no answer: {problem}")
        except (AnswerLate, ValueError) as problem:
            self._publisher.hold(f"no answer: {problem}")
            self._count_invalid(asked, str(problem))
        return None

    def _act(self, asked: Asked, reply: Reply, motion: StartedMotion | None) -> StartedMotion | None:
        """Publish what the whole answer decides. `motion` is what was begun on its beginning."""
        parsed, vocabulary = parse_answer(reply.text), asked.prompt.vocabulary
        action, problem = parsed.action, parsed.problem
        if action == NOT_HERE and vocabulary is not None and vocabulary.form < SEARCH_FORM:
            action, problem = None, f"{NOT_HERE.text!r} of a model that never learned to search everywhere"
        if action is None:
            self._publisher.hold(f"unreadable answer: {problem}", End.NO_VALID_ACTION, asked, reply)
            self._count_invalid(asked, problem)
            return None
        if motion is None and not self._is_same_view(asked):
            return None
        contradiction = self._goal.answered(asked.prompt, reply.text, asked.verified, action == STOP)
        if contradiction:
            raise GoalEnded(End.CONTRADICTED, contradiction)
        if not action.kind.moves:
            self._finish(asked, reply, action, parsed.reasoning)
            return None
        self._invalid = 0
        size = DEGRADED_SIZE if asked.alone else action.size
        if motion is not None and (
            motion.action.kind is not action.kind or (motion.sized and motion.action.size is not size)
        ):
            self._publisher.hold("the answer ends otherwise than it began")
            motion = None
        if motion is None:
            return self._begin(asked, action.kind, size, reply)
        motion.action, motion.sized = NavigationAction(action.kind, size), True
        self._publisher.publish(asked, motion, reply)
        return motion

    def _begin(
        self, asked: Asked, kind: ActionKind, size: ActionSize | None, reply: Reply | None = None
    ) -> StartedMotion:
        """Publish a motion's first decision, and note how long it took."""
        if not asked.in_motion:
            self._asker.note_time(self._clock() - asked.at)
        elif asked.known_s is not None and self._config.act_early:
            self._asker.note_time(asked.known_s)
        return self._publisher.begin(asked, kind, size, reply)

    def _finish(self, asked: Asked, reply: Reply, action: NavigationAction, reasoning: str) -> None:
        """End the goal with a STOP or NOT_HERE."""
        stops = action == STOP
        if asked.alone:
            # The verifier decides that the task is over; going on without it could lead past the object.
            would = "stop" if stops else "end the search"
            why = f"verifier lost: the draft model alone would {would} here"
            self._publisher.hold(why, End.LINK_LOST, asked, reply)
            self._monitor.give_up()
            return
        self._stopped = self._publisher.end(asked, action, reply)
        raise GoalEnded(End.STOPPED if stops else End.NOT_FOUND, reasoning)

    def _count_invalid(self, asked: Asked, problem: str) -> None:
        if asked.alone:
            self._monitor.give_up()
            return
        self._invalid += 1
        if self._invalid >= INVALID_LIMIT:
            raise GoalEnded(End.NO_VALID_ACTION, f"{self._invalid} in a row; the last: {problem}")

    # -- the motion

    def _follow(self, motion: StartedMotion) -> Asked | None:
        """Wait for the end of the motion; return the next question where it was asked meanwhile and still holds."""
        if self._goal.is_dry:
            return None
        limit_s = self._config.action_limit_s
        looked = self._clock()
        until = looked + limit_s
        ahead: Asked | None = None
        looked_from: float | None = None
        while not has_ended(execution := self._body.execution(motion.step)):
            mode, before, looked = self._link_mode(), looked, self._clock()
            if self._publisher.is_held(execution):
                # A node that died gets the time to come back; the goal's own time bounds that.
                until += looked - before
            if looked > until:
                raise GoalEnded(End.ROBOT_FAULT, f"an action did not end within {limit_s:g} s")
            if motion.alone and mode is LinkMode.HOLD:
                return None
            if ahead is not None:
                self._watch(ahead)
                if mode is not LinkMode.NOMINAL:
                    self._asker.drop()
                    ahead = None
            elif execution is not None and mode is LinkMode.NOMINAL and self._may_look_ahead(motion, execution):
                looked_from = self._clock() if looked_from is None else looked_from
                ahead = self._asker.ask_ahead(motion.action, looked_from, self._left_s)
            self._wait(POLL_S)
        assert execution is not None
        self._publisher.held = None
        self._publisher.account()
        outcome = execution.outcome
        if outcome is Outcome.NO_ODOMETRY:
            self._goal.forget_search()
        self._publisher.count_failed(motion, execution)
        if outcome in (None, Outcome.NO_ODOMETRY, Outcome.FAULT):
            self._asker.drop()
            self._publisher.hold(execution.message, End.ROBOT_FAULT if outcome is Outcome.FAULT else End.TIMEOUT)
            self._wait(RETRY_S)
        if ahead is None:
            return None
        if outcome is not Outcome.DONE or self._goal.done != ahead.prompt.done or not self._is_same_view(ahead):
            self._asker.drop()
            return None
        self._body.report(State.THINKING)
        return ahead

    def _may_look_ahead(self, motion: StartedMotion, execution: Execution) -> bool:
        """Return whether the motion is nearly done, and another one may follow it."""
        is_last = self._max_actions and self._goal.actions + 1 >= self._max_actions
        if not self._config.look_ahead or motion.alone or is_last or self._asker.answer_s is None or execution.message:
            return False
        return self._config.is_nearly_done(motion.action.kind, execution, self._asker.answer_s)

    def _is_same_view(self, asked: Asked) -> bool:
        """Return whether the robot still sees about what it saw when the question's frame came; at rest it does."""
        return not asked.in_motion or self._config.is_same_view(asked.frame.place, self._body.place())

    # -- the link

    def _link_mode(self) -> LinkMode:
        """Return who decides now. Raises the goal's end where the verifier refuses this robot."""
        link = self._decoder.link
        if link is None:
            return LinkMode.NOMINAL
        if link.state == "refused":
            raise GoalEnded(End.LINK_LOST, link.why)
        return self._monitor.update(link.state, self._clock())

    def _may_go_on(self, asked: Asked) -> bool:
        """Return whether the answer still counts; else its question is cancelled, and what it began is held."""
        mode = self._link_mode()
        if mode is LinkMode.NOMINAL or (asked.alone and mode is LinkMode.DEGRADED):
            return True
        if self._publisher.motion is not None or mode is LinkMode.HOLD:
            self._hold_for_link()
        self._asker.drop()
        return False

    def _hold_for_link(self) -> None:
        link = self._decoder.link
        self._publisher.hold_for_verifier(link.why if link is not None else "", self._config.link.link_lost_s)

    def _lost(self, why: str) -> None:
        self._publisher.hold_for_verifier(why, self._config.link.link_lost_s)
        self._wait(RETRY_S)

    # -- the time

    @property
    def _left_s(self) -> float:
        return self.end_at - self._clock()

    def _wait(self, seconds: float) -> None:
        self._check()
        self._sleep(seconds)
        self._check()

    def _check(self) -> None:
        over, held = self._over(), self._publisher.held
        if over is not None:
            raise GoalEnded(over)
        if self._left_s <= 0.0:
            raise GoalEnded(End.TIMEOUT) if held is None else GoalEnded(held.end, held.reason)
