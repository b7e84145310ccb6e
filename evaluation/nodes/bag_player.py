"""A recorded bag in place of the robot: shows its frames at their own pace, asks about them, records the answers.

Goals are dry runs: vlm_nav publishes its decisions on a topic that nothing executes, so that a replay moves nothing,
even where a robot listens. An action is over as soon as it is decided, and the next frame is asked about.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from array import array
from functools import partial
from pathlib import Path
from typing import Any

from action_msgs.msg import GoalStatus
from nav_msgs.msg import Odometry
from rclpy.action import ActionClient
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import CompressedImage
from spec_vlm_nav_interfaces.action import NavigateByInstruction
from spec_vlm_nav_interfaces.msg import DecodingStats, NavigationAction
from std_msgs.msg import String

from evaluation.bag import BagWriter
from evaluation.playback import Item, Kind, Pace, items, timed
from spec_vlm_nav.navigator import State
from spec_vlm_nav.nodes.common import parameter, run

CAMERA, ODOM, INSTRUCTION = "camera/image/compressed", "odom", "instruction"
HEARD: dict[str, Any] = {
    "vlm_nav/prompt": String,
    "vlm_nav/decision": NavigationAction,
    "decoding_stats": DecodingStats,
    "navigation_state": String,
}
"""What vlm_nav says, and is recorded."""
STILL_HZ = 5.0
TICK_S = 0.1
ALLOWANCE_S = 86400.0
LAST_ANSWER_S, CANCEL_S = 60.0, 3.0
_RESULT = NavigateByInstruction.Result
FATAL = (_RESULT.INVALID_INPUT, _RESULT.LINK_LOST)
"""How a goal ends that would end the same way again; after any other, the next goal asks about the next frames."""


class BagPlayer(Node):
    """Plays in a thread of its own; goals are sent, and answers heard, in the executor's."""

    def __init__(self) -> None:
        super().__init__("bag_player")
        bag = Path(parameter(self, "bag", "", "folder of the bag that is played"))
        self._instruction = parameter(self, "instruction", "", "what is asked about its frames")
        out = parameter(self, "out", "", "folder of a new bag with the played frames and the answers; empty: none")
        camera = parameter(self, "camera_topic", "", "Image or CompressedImage topic of the bag; empty: its first")
        odometry = parameter(self, "odom_topic", "", "Odometry topic of the bag; empty: its first")
        self._pace = Pace(
            parameter(self, "rate", 1.0, "how many times as fast as it was recorded", 0.01, 100.0),
            parameter(self, "start", 0.0, "seconds that are left out at its start", 0.0, 1e6),
            parameter(self, "laps", 1, "how often it is played; 0: for ever", 0, 1_000_000),
        )
        self._wait_s = parameter(self, "wait_s", 120.0, "how long the first frame waits for an answer, s", 1.0, 3600.0)
        if not self._instruction.strip():
            raise ValueError("no instruction; say for example instruction:='find the silver bottle'")
        self._lap = partial(items, bag, camera, odometry)
        next(item for item in self._lap() if item.kind is Kind.FRAME)
        if out and Path(out).resolve() == bag.resolve():
            raise ValueError(f"out {out} is the bag that is played; name another folder")
        self._writer = BagWriter(Path(out)) if out else None
        self.status = 0
        self._shown: dict[tuple[int, int], float] = {}
        self._state = ""
        self._answers = 0
        self._answered, self._played, self._end = threading.Event(), threading.Event(), threading.Event()
        self._goal: Any = None
        self._asked = self._over = False
        self._played_at = 0.0
        self._images = self.create_publisher(CompressedImage, CAMERA, qos_profile_sensor_data)
        self._odometry = self.create_publisher(Odometry, ODOM, qos_profile_sensor_data)
        for topic, kind in HEARD.items():
            self.create_subscription(kind, topic, partial(self._hear, topic, kind), 100, raw=True)
        self._client = ActionClient(self, NavigateByInstruction, "navigate_by_instruction")
        self.create_timer(TICK_S, self._tick)
        self._thread = threading.Thread(target=self._play, name="player", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End playing and close the new bag."""
        self._end.set()
        self._thread.join(timeout=5.0)
        if self._writer is not None:
            self._writer.close()

    # -- the player's thread

    def _play(self) -> None:
        began: float | None = None
        try:
            for due, item in timed(self._lap, self._pace):
                if began is None:
                    if item.kind is Kind.FRAME:
                        self._hold_still(item, due)
                        began = time.monotonic() - due
                    continue
                if self._end.wait(max(0.0, began + due - time.monotonic())):
                    return
                self._show(item, due)
        except ValueError as error:
            self._fail(str(error))
        self._played_at = time.monotonic()
        self._played.set()

    def _hold_still(self, item: Item, due: float) -> None:
        """Show the first frame until it was answered, as a camera in front of a standing robot would.

        Models load and links open meanwhile; of the bag nothing is missed.
        """
        until = time.monotonic() + self._wait_s
        while not (self._answered.wait(1.0 / STILL_HZ) or self._end.is_set()):
            if time.monotonic() > until:
                said = f"; it says '{self._state}'" if self._state else ""
                raise ValueError(f"vlm_nav gave no answer within {self._wait_s:g} s{said}")
            self._show(item, due)

    def _show(self, item: Item, due: float) -> None:
        now = self.get_clock().now().to_msg()
        if item.kind is Kind.ODOMETRY:
            odometry = deserialize_message(item.payload, Odometry)
            odometry.header.stamp = now
            self._publish(self._odometry, ODOM, odometry)
            return
        image = CompressedImage(format="jpeg", data=array("B", item.payload))
        image.header.stamp, image.header.frame_id = now, item.frame_id
        self._shown[now.sec, now.nanosec] = due
        if len(self._shown) > 1000:
            del self._shown[next(iter(self._shown))]
        self._publish(self._images, CAMERA, image)

    def _publish(self, publisher: Any, topic: str, message: Any) -> None:
        payload = serialize_message(message)
        self._record(topic, type(message), payload)
        publisher.publish(payload)

    # -- the executor's thread

    def _hear(self, topic: str, kind: Any, payload: bytes) -> None:
        self._record(topic, kind, payload)
        message = deserialize_message(payload, kind)
        if topic == "navigation_state":
            self._state = message.data
            if self._state.startswith(State.HOLDING.value):
                self.get_logger().warning(self._state)
        elif topic == "decoding_stats":
            self._answers += 1
            self._answered.set()
            stamp = message.header.stamp
            at = self._shown.get((stamp.sec, stamp.nanosec), 0.0)
            words = " ".join(message.answer.split())
            self.get_logger().info(f"{at:7.1f} s  {words}  ({1e3 * message.total_s:.0f} ms)")

    def _tick(self) -> None:
        """Keep a goal running while there are frames; then let the last answer come, and end."""
        if self._over:
            return
        if not self._played.is_set():
            if not self._asked and self._client.server_is_ready():
                self._ask()
            return
        late = time.monotonic() - self._played_at
        thinking = self._asked and self._state == State.THINKING.value and late < LAST_ANSWER_S
        if thinking and not self.status:
            return
        if self._goal is not None:
            self._goal.cancel_goal_async()
            self._goal = None
        if self._asked and late < LAST_ANSWER_S + CANCEL_S and not self.status:
            return
        self._over = True
        if not self.status:
            self.get_logger().info(f"the bag is over: {self._answers} answers")
        # The way in which any node ends, so that the new bag is closed.
        signal.raise_signal(signal.SIGTERM)

    def _ask(self) -> None:
        self._asked = True
        text = String(data=self._instruction)
        self._record(INSTRUCTION, String, serialize_message(text))
        goal = NavigateByInstruction.Goal(instruction=self._instruction, dry_run=True)
        goal.time_allowance.sec = int(ALLOWANCE_S)
        self._client.send_goal_async(goal).add_done_callback(self._on_goal)

    def _on_goal(self, future: Any) -> None:
        self._goal = future.result()
        self._goal.get_result_async().add_done_callback(self._on_result)

    def _on_result(self, future: Any) -> None:
        answer = future.result()
        self._asked, self._goal = False, None
        if answer.status == GoalStatus.STATUS_ABORTED and answer.result.error_code in FATAL:
            self._fail(answer.result.error_msg)

    # -- both

    def _fail(self, why: str) -> None:
        print(f"error: {why}", file=sys.stderr, flush=True)
        self.status = 2
        self._end.set()
        self._played_at = time.monotonic()
        self._played.set()

    def _record(self, topic: str, kind: Any, payload: bytes) -> None:
        if self._writer is not None:
            name = f"{kind.__module__.split('.')[0]}/msg/{kind.__name__}"
            self._writer.write(f"/{topic}", name, time.time_ns(), payload)


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
