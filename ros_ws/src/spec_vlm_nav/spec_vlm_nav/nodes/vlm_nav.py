"""Action server NavigateByInstruction: wires camera, executor and decoder to the navigator. Latest frame only."""

from __future__ import annotations

import gc
import itertools
import math
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from rclpy.action import ActionServer, CancelResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from spec_vlm_nav_interfaces.action import NavigateByInstruction

from edge_drafter.decoder import EdgeDecoder
from edge_drafter.question import VerifierLost
from spec_vlm_nav.answer_stats import AnswerStats
from spec_vlm_nav.diagnostics import Level, Status
from spec_vlm_nav.goal_file import KeptGoal
from spec_vlm_nav.graph import EDGE
from spec_vlm_nav.image_alarm import ImageAlarm
from spec_vlm_nav.link_monitor import MEET_LOG_S, LinkMonitor, link_status, meet
from spec_vlm_nav.messages import to_done
from spec_vlm_nav.navigation_goal import HOLD_UNCONFIRMED, End, NavigationGoal
from spec_vlm_nav.nodes.conversions import seconds_of
from spec_vlm_nav.nodes.goal import Feedback, Goal
from spec_vlm_nav.nodes.heartbeat import Heartbeat
from spec_vlm_nav.nodes.inputs import Inputs
from spec_vlm_nav.nodes.managed import ManagedNode, run_managed
from spec_vlm_nav.nodes.outputs import Outputs, write_trace
from spec_vlm_nav.nodes.parameters import settings
from spec_vlm_nav.nodes.process import keep_loaded, route_logging
from spec_vlm_nav.nodes.resumption import NotTakenUp, Resumption
from spec_vlm_nav.parameters import FRAMES, NAVIGATOR, VLM_NAV
from speculation.language.instructions import is_stop
from speculation.language.prompts import Vocabulary
from speculation.trace import Trace

BUSY_S = 1.0
"""An executor that ran nothing for so long hangs. While the draft model computes, its callbacks wait for the
interpreter, half a second on busy cores; and the robot can do without this node for a second, since every action
is bounded, runs in action_executor's own loop and ends by itself."""
LOOK_S = 0.05
SPANS = 100_000
"""The latest of a trace that is written, some 1,500 answers; without a file none are kept: they would be 30 MB."""
FIRST_FRAME_S = 30.0
"""Longest wait for a camera frame in activate: other nodes may still open the camera, or build a simulated room."""
END_S = 2.0
"""How long a goal gets to end by itself where the node stops acting."""
MOVED_M = 1.0
"""A robot that is further from where a kept goal left it was carried, or its odometry counts from another place."""
_RESULT = NavigateByInstruction.Result


class _Refused(Exception):
    """Why a goal is not taken, in a sentence, with the error code of its result."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


def _not_taken_up(why: object) -> str:
    return f"vlm_nav was started again and does not go on with the goal: {why}"


class VlmNav(ManagedNode):
    """Holds what outlives a goal."""

    def __init__(self) -> None:
        super().__init__("vlm_nav")
        route_logging(self)
        self.config, self._edge = settings(self, NAVIGATOR), settings(self, EDGE)
        self._settings, self._frames = settings(self, VLM_NAV), settings(self, FRAMES)
        self.alarm = ImageAlarm(
            self._settings.swap_every, lambda question: self.decoder.swap_test(*question), self.get_logger().warning
        )
        self._decoder: EdgeDecoder | None = None
        self.monitor, self.answers = LinkMonitor(self.config.link, lambda: self.alarm.raised), AnswerStats()
        self.inputs, self.out = Inputs(self), Outputs(self, self._frames.sightings)
        self.resumption = Resumption(self, self.inputs, self._settings.resume_within_s, self._settings.goal_folder)
        self._objects: Vocabulary | None = None
        self._goal_lock, self._running, self._given_up = threading.Lock(), threading.Lock(), threading.Event()
        self._current: Goal | None = None
        self._numbers = itertools.count(int(time.time() * 1000))
        self.heartbeat = Heartbeat(self, lambda: self.active, BUSY_S)
        self._server = ActionServer(
            self,
            NavigateByInstruction,
            "navigate_by_instruction",
            execute_callback=self._execute,
            cancel_callback=self._on_cancel,
            callback_group=ReentrantCallbackGroup(),
        )

    @property
    def decoder(self) -> EdgeDecoder:
        """The decoder, which is there from `configure` on."""
        if self._decoder is None:
            raise RuntimeError("the draft model is not loaded")
        return self._decoder

    def configure(self) -> None:
        """Load the draft model and wait for the verifier's Welcome."""
        self._given_up.clear()
        chosen = self._settings
        self.problem = "it loads the draft model"
        decoder = EdgeDecoder(self._edge, Trace(limit=SPANS if chosen.trace else 1))
        self._decoder = decoder
        if decoder.link is not None:
            self.problem = "it waits for the verifier"
            meet(decoder.connect, chosen.welcome_s, self._given_up.is_set, self._wait)
        self._objects = decoder.objects(0.0)
        keep_loaded()
        way = decoder.link.why if decoder.link is not None else "no verifier"
        self.get_logger().info(f"configured: mode {self._edge.decoding.mode}, {way}")

    def activate(self) -> None:
        """Wait for a camera frame: vlm_nav is activated before the robot stands up, and a blind robot has to lie."""
        began = noted = time.monotonic()
        while True:
            missing, now = self.inputs.missing(self.config.stale_s), time.monotonic()
            if not missing:
                return
            if self.ending or now - began > FIRST_FRAME_S:
                where = "is the launch argument camera right, and does somebody publish it?"
                raise RuntimeError(f"{missing}, {now - began:.0f} s after the start: {where}")
            if now - noted > MEET_LOG_S:
                noted = now
                self._wait(f"waiting for the camera: {missing}")
            time.sleep(LOOK_S)

    def deactivate(self) -> None:
        """End the running goal; the robot stands."""
        with self._goal_lock:
            goal = self._current
            if goal is not None:
                goal.finish(End.SHUTDOWN)
        if self._running.acquire(timeout=END_S):
            self._running.release()
        elif goal is not None and not goal.stand():
            self.get_logger().error(f"the node stops in the middle of a goal{HOLD_UNCONFIRMED}")
        self._write_trace()

    def cleanup(self) -> None:
        """Close the link and free the draft model."""
        self._given_up.set()
        self.alarm.close()
        decoder, self._decoder = self._decoder, None
        if decoder is not None:
            gc.unfreeze()
            decoder.close()

    def destroy_node(self) -> None:
        """Destroy the node, with the action server that rclpy leaves behind."""
        self.inputs.close()
        self.resumption.close()
        self._server.destroy()
        super().destroy_node()

    def health(self) -> Iterable[Status]:
        yield self.inputs.health(self.config.stale_s)
        decoder, goal = self._decoder, self._current
        if decoder is not None:
            link, (state, rtt) = decoder.link, decoder.link_figures()
            if goal is None and link is not None:  # A goal looks by itself, and more often.
                self.monitor.update(state, time.monotonic())
            yield link_status(link.why if link is not None else "no link in mode edge", state, rtt, self.monitor.mode)
        yield self.answers.status(self._edge.decoding.mode)
        yield self.alarm.status(time.monotonic())
        yield Status("goal", Level.OK, goal.summary if goal is not None else "none")

    def _wait(self, why: str) -> None:
        """Report what the start waits for."""
        self.problem = why
        self.get_logger().warning(why)

    def _execute(self, handle: Any) -> Any:
        """Run one goal in a thread of the executor's; a newer goal ends this one, one that is refused does not."""
        try:
            kept = self._kept_of(handle)
            asked = self._goal_of(handle.request, kept)
            with self._goal_lock:
                if not self.active:
                    raise _Refused(_RESULT.NOT_ACTIVE, self.problem)
                if kept is not None and (self._current is not None or not self.resumption.keeps(kept)):
                    # It began after the last look of `taken_up`; what was asked first must not end it.
                    raise _Refused(_RESULT.SHUTDOWN, _not_taken_up("a newer goal took its place"))
                if self._current is not None:
                    self._current.finish(End.PREEMPTED)
                goal = self._current = Goal(self, handle, next(self._numbers), asked, kept)
        except _Refused as refusal:
            self.get_logger().warning(f"goal refused: {refusal}")
            self.resumption.forgo(handle)
            if handle.is_cancel_requested:
                handle.canceled()
            else:
                handle.abort()
            return _RESULT(error_code=refusal.code, error_msg=str(refusal))
        with self._running:
            try:
                return goal.run()
            finally:
                self._write_trace()
                with self._goal_lock:
                    if self._current is goal:
                        self._current = None

    def _kept_of(self, handle: Any) -> KeptGoal | None:
        """Return the goal of before the node's start that this one goes on with, when it may. Raises _Refused."""
        waiting = Feedback(self, handle, NavigationGoal(handle.request.instruction))
        try:
            return self.resumption.taken_up(handle, waiting.report)
        except NotTakenUp as why:
            code = _RESULT.CANCELLED if handle.is_cancel_requested else _RESULT.SHUTDOWN
            raise _Refused(code, _not_taken_up(why)) from None

    def _goal_of(self, request: Any, kept: KeptGoal | None) -> NavigationGoal:
        """Return the goal that a request asks for. Raises _Refused, before the running goal is disturbed."""
        if not self.active:
            name = self.get_fully_qualified_name()
            raise _Refused(_RESULT.NOT_ACTIVE, f"{name} is not active ({self.problem}); see ros2 lifecycle get {name}")
        if is_stop(request.instruction):
            return NavigationGoal(request.instruction, dry=request.dry_run)
        if (seconds := seconds_of(request.time_allowance)) < 0.0:
            raise _Refused(
                _RESULT.INVALID_INPUT, f"time_allowance is {seconds:g} s; give 0 for the node's own, or more"
            )
        if self.decoder.problem:
            raise _Refused(_RESULT.LINK_LOST, self.decoder.problem)
        try:
            # Where the verifier is lost the words that it knew last; the navigator looks again when it is back.
            with suppress(VerifierLost):
                self._objects = self.decoder.objects(0.0)
            done = to_done(request.done)
            frames = self.decoder.config.frames
            goal = NavigationGoal(request.instruction, done, request.dry_run, frames, self._frames)
            goal.understood(self._objects)
            if kept is not None:
                goal.restore(kept.record)
                here = self.inputs.place()
                if here is None or kept.place is None or math.dist(kept.place, (here.x, here.y)) > MOVED_M:
                    self.get_logger().warning("the goal goes on, without what was searched: the robot is elsewhere")
                    goal.forget_search()
        except ValueError as error:
            raise _Refused(_RESULT.INVALID_INPUT, str(error)) from None
        return goal

    def _on_cancel(self, handle: Any) -> CancelResponse:
        with self._goal_lock:
            if self._current is not None and self._current.handle is handle:
                self._current.finish(End.CANCELLED)
        return CancelResponse.ACCEPT

    def _write_trace(self) -> None:
        decoder = self._decoder
        if self._settings.trace and decoder is not None:
            write_trace(self, decoder.trace, self._settings.trace)


def main() -> None:
    """Run the node."""
    sys.exit(run_managed(VlmNav, threads=5))


if __name__ == "__main__":
    main()
