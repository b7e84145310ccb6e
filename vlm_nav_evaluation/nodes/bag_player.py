"""A recorded bag in place of the robot: shows its frames at their own pace, asks about them, records the answers.

Goals are dry runs: vlm_nav publishes its decisions on a topic that nothing executes, so that a replay moves nothing,
even where a robot is connected. An action is over as soon as it is decided, and the next frame is asked about.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from array import array
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from action_msgs.msg import GoalStatus
from msgspec import Meta
from nav_msgs.msg import Odometry
from rclpy.action import ActionClient
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import CompressedImage
from spec_vlm_nav_interfaces.action import NavigateByInstruction
from spec_vlm_nav_interfaces.msg import DecodingStats, NavigationAction
from std_msgs.msg import String

from adapters_training.sources import LeftOut
from spec_vlm_nav.navigator_interfaces import State
from spec_vlm_nav.nodes.heartbeat import on_heartbeat
from spec_vlm_nav.nodes.parameters import settings
from spec_vlm_nav.nodes.process import run
from spec_vlm_nav.nodes.subscriptions import subscribe
from spec_vlm_nav.parameters import Parameters
from speculation.settings import CheckedSettings
from vlm_nav_evaluation.bags.files import BagWriter, is_inside, kind_of
from vlm_nav_evaluation.bags.playback import Item, Pace, items, timed

CAMERA, ODOM, INSTRUCTION, STATS, STATE = (
    "camera/image/compressed", "odom", "instruction", "decoding_stats", "navigation_state",
)  # fmt: skip
ANSWERS: dict[str, Any] = {
    "vlm_nav/prompt": String, "vlm_nav/decision": NavigationAction, STATS: DecodingStats, STATE: String,
}  # fmt: skip
"""What vlm_nav publishes, and is recorded."""
STILL_HZ = 5.0
BEAT_S = 1.0
PLAY_S, TICK_S = 0.01, 0.1
ALLOWANCE_S = 86400
LAST_ANSWER_S, CANCEL_S = 60.0, 3.0
SHOWN_FRAMES = 1000
_RESULT = NavigateByInstruction.Result
FATAL = (_RESULT.INVALID_INPUT, _RESULT.LINK_LOST)
"""How a goal ends that would end the same way again; after any other, the next goal asks about the next frames."""


class PlayerSettings(CheckedSettings, frozen=True):
    """What the node depends on."""

    bag: Annotated[Path, Meta(description="bag (folder or file) or data set that is played")] = Path()
    instruction: Annotated[str, Meta(description="what is asked about its frames")] = ""
    out: Annotated[str, Meta(description="folder of a new bag with played frames and answers; empty: none")] = ""
    camera_topic: Annotated[
        str, Meta(description="camera topic of the bag, or camera of the data set; empty: the only one")
    ] = ""
    odom_topic: Annotated[str, Meta(description="Odometry topic of the bag; empty: its first")] = ""
    pace: Pace = Pace()
    wait_s: Annotated[float, Meta(ge=1.0, le=3600.0, description="how long the first frame waits for its answer")] = (
        120.0
    )


PLAYER = Parameters(PlayerSettings)


class BagPlayer(Node):
    """Shows the bag, keeps a goal running, and records both. Raises ValueError for a bag that cannot be played."""

    def __init__(self) -> None:
        super().__init__("bag_player")
        chosen = settings(self, PLAYER)
        bag, out = chosen.bag, chosen.out
        self._instruction, self._wait_s = chosen.instruction, chosen.wait_s
        if not self._instruction.strip():
            raise ValueError("no instruction; give for example instruction:='find the silver bottle'")
        self._left_out: set[LeftOut] = set()
        lap = partial(items, bag, chosen.camera_topic, chosen.odom_topic, self._leave_out)
        self._items = timed(lap, chosen.pace, self._leave_out)
        self._next: tuple[float, Item] | None = next(entry for entry in self._items if entry[1].is_frame)
        if out and is_inside(bag, Path(out)):
            raise ValueError(f"out {out} is the bag that is played; name another folder")
        self._writer = BagWriter(Path(out)) if out else None
        self.status = 0
        self._made_at = time.monotonic()
        self._began: float | None = None
        self._played_at: float | None = None
        self._shown: dict[tuple[int, int], float] = {}
        self._state = ""
        self._answers = 0
        self._goal: Any = None
        self._asked = self._over = False
        self._images = self.create_publisher(CompressedImage, CAMERA, qos_profile_sensor_data)
        self._odometry = self.create_publisher(Odometry, ODOM, qos_profile_sensor_data)
        for topic, kind in ANSWERS.items():
            subscribe(self, kind, topic, partial(self._take, topic, kind), 100, raw=True)
        self._beat_at = -math.inf
        on_heartbeat(partial(subscribe, self), "vlm_nav", self._on_heartbeat)
        self._client = ActionClient(self, NavigateByInstruction, "navigate_by_instruction")
        self.create_timer(1.0 / STILL_HZ, self._hold_still)
        self.create_timer(PLAY_S, self._play)
        self.create_timer(TICK_S, self._tick)

    def close(self) -> None:
        """Close the new bag."""
        if self._writer is not None:
            self._writer.close()

    # -- the bag

    def _hold_still(self) -> None:
        """Show the first frame until it was answered, as a camera in front of a standing robot would.

        Models load and links open meanwhile; of the bag nothing is missed.
        """
        if self._began is not None or self._next is None:
            return
        if time.monotonic() > self._made_at + self._wait_s:
            state = f"; its state is '{self._state}'" if self._state else ""
            self._fail(f"vlm_nav gave no answer within {self._wait_s:g} s{state}")
        else:
            self._show(*self._next)

    def _play(self) -> None:
        """Show what is due, and leave the executor to others in time."""
        until = time.monotonic() + PLAY_S
        while self._began is not None and self._next is not None:
            due, item = self._next
            if not due <= time.monotonic() - self._began <= until - self._began:
                return
            self._show(due, item)
            self._step()

    def _leave_out(self, problem: LeftOut) -> None:
        """Name what cannot be shown, once, however often the bag is played."""
        if problem not in self._left_out:
            self._left_out.add(problem)
            which = "" if problem.index is None else f"frame {problem.index}: "
            self.get_logger().warning(f"left out: {which}{problem.reason}")

    def _step(self) -> None:
        try:
            self._next = next(self._items, None)
        except ValueError as error:
            self._fail(str(error))
        if self._next is None:
            self._played_at = time.monotonic()

    def _show(self, due: float, item: Item) -> None:
        now = self.get_clock().now().to_msg()
        if not item.is_frame:
            odometry = deserialize_message(item.payload, Odometry)
            odometry.header.stamp = now
            self._odometry.publish(self._record(ODOM, odometry))
            return
        image = CompressedImage(format="jpeg", data=array("B", item.payload))
        image.header.stamp, image.header.frame_id = now, item.frame_id
        self._shown[now.sec, now.nanosec] = due
        if len(self._shown) > SHOWN_FRAMES:
            del self._shown[next(iter(self._shown))]
        self._images.publish(self._record(CAMERA, image))

    # -- the answers

    def _take(self, topic: str, kind: Any, payload: bytes) -> None:
        message = deserialize_message(payload, kind)
        self._record(topic, message, payload)
        if topic == STATE:
            self._state = message.data
            if self._state.startswith(State.HOLDING.value):
                self.get_logger().warning(self._state)
        elif topic == STATS:
            self._answers += 1
            if self._began is None and self._next is not None:
                self._began = time.monotonic() - self._next[0]
                self._step()
            stamp = message.header.stamp
            at, answer = self._shown.get((stamp.sec, stamp.nanosec), 0.0), " ".join(message.answer.split())
            self.get_logger().info(f"{at:7.1f} s  {answer}  ({1e3 * message.total_s:.0f} ms)")

    def _tick(self) -> None:
        """Keep a goal running while there are frames; then let the last answer come, and end."""
        if self._over:
            return
        if self._played_at is None:
            # vlm_nav takes no goal before it is active, and beats from then on.
            beats = time.monotonic() - self._beat_at < BEAT_S
            if not self._asked and beats and self._client.server_is_ready():
                self._ask()
            return
        late = time.monotonic() - self._played_at
        waiting = self._asked and not self.status
        if waiting and self._state == State.THINKING.value and late < LAST_ANSWER_S:
            return
        if self._goal is not None:
            self._goal.cancel_goal_async()
            self._goal = None
        if waiting and late < LAST_ANSWER_S + CANCEL_S:
            return
        self._over = True
        if not self.status:
            left_out = f", {len(self._left_out)} parts left out" if self._left_out else ""
            self.get_logger().info(f"the bag is over: {self._answers} answers{left_out}")
        # The way in which any node ends, so that the new bag is closed.
        signal.raise_signal(signal.SIGTERM)

    def _on_heartbeat(self, now: float) -> None:
        self._beat_at = now

    def _ask(self) -> None:
        self._asked = True
        self._record(INSTRUCTION, String(data=self._instruction))
        goal = NavigateByInstruction.Goal(instruction=self._instruction, dry_run=True)
        goal.time_allowance.sec = ALLOWANCE_S
        self._client.send_goal_async(goal).add_done_callback(self._on_goal)

    def _on_goal(self, future: Any) -> None:
        self._goal = future.result()
        self._goal.get_result_async().add_done_callback(self._on_result)

    def _on_result(self, future: Any) -> None:
        answer = future.result()
        self._asked, self._goal = False, None
        if answer.status == GoalStatus.STATUS_ABORTED and answer.result.error_code in FATAL:
            self._fail(answer.result.error_msg)

    def _fail(self, problem: str) -> None:
        print(f"error: {problem}", file=sys.stderr, flush=True)
        self.status = 2
        self._next = None
        self._played_at = time.monotonic()

    def _record(self, topic: str, message: Any, payload: bytes = b"") -> bytes:
        """Write a message into the new bag, if there is one; return it serialized."""
        payload = payload or serialize_message(message)
        if self._writer is not None:
            self._writer.write(f"/{topic}", kind_of(type(message)), time.time_ns(), payload)
        return payload


def main() -> None:
    """Run the node."""
    made: list[BagPlayer] = []

    def make() -> BagPlayer:
        made.append(BagPlayer())
        return made[-1]

    status = run(make, BagPlayer.close)
    sys.exit(status or made[-1].status)


if __name__ == "__main__":
    main()
