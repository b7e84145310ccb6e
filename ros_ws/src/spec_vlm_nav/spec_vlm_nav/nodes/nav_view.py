"""Shows people the camera image with state, answer and decision of the running goal; it commands nothing."""

from __future__ import annotations

import math
import sys
import time
from array import array
from dataclasses import replace
from typing import Any

from geometry_msgs.msg import TransformStamped
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy, qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage
from spec_vlm_nav_interfaces.action import NavigateByInstruction
from spec_vlm_nav_interfaces.msg import DecodingStats, NavigationAction
from std_msgs.msg import String
from tf2_msgs.msg import TFMessage

from spec_vlm_nav.annotate import OLD_S, VIEW, Caption, annotated_jpeg
from spec_vlm_nav.messages import to_action
from spec_vlm_nav.nodes.conversions import sample_of
from spec_vlm_nav.nodes.parameters import settings
from spec_vlm_nav.nodes.process import run, steady_timer
from spec_vlm_nav.nodes.subscriptions import subscribe
from spec_vlm_nav.nodes.topics import LATCHED
from spec_vlm_nav.odometry import OdometryCheck

NEWEST = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
"""RViz subscribes to reliable images by default."""
TRANSFORMS = QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE)
"""Quality of service that tf2 publishes transforms with."""
BASE = "base_link"
"""Frame of the robot (REP 105), where odometry names none."""
FEEDBACK = "navigate_by_instruction/_action/feedback"


class NavView(Node):
    """Keeps the newest of everything and publishes what changed, at most `max_hz` times a second."""

    def __init__(self) -> None:
        super().__init__("nav_view")
        self._settings = settings(self, VIEW)
        self._caption = Caption()
        self._decided: tuple[int, int] | None = None
        self._fed = False
        """Whether goals give feedback, as they do but in a recording: it knows the link better than the last answer."""
        self._frame: CompressedImage | None = None
        self._frame_at = -math.inf
        self._shown_age = 0
        self._new_image = False
        self._odometry = OdometryCheck()
        self._images = self.create_publisher(CompressedImage, "annotated/compressed", NEWEST)
        self._transforms = self.create_publisher(TFMessage, "/tf", TRANSFORMS)
        for kind, topic, take, qos in (
            (CompressedImage, "camera/image/compressed", self._on_frame, qos_profile_sensor_data),
            (NavigationAction, "vlm_nav/decision", self._on_decision, 10),
            (NavigationAction, "navigation_action", self._on_decision, 10),
            (DecodingStats, "decoding_stats", self._on_stats, 10),
            (String, "navigation_state", self._on_state, 10),
            (String, "instruction", self._on_instruction, LATCHED),
            (NavigateByInstruction.Impl.FeedbackMessage, FEEDBACK, self._on_feedback, 10),
        ):
            subscribe(self, kind, topic, take, qos)
        if self._settings.broadcast_tf:
            subscribe(self, Odometry, "odom", self._on_odometry, qos_profile_sensor_data)
        steady_timer(self, 1.0 / self._settings.max_hz, self._publish)

    def _on_frame(self, image: CompressedImage) -> None:
        self._frame, self._frame_at, self._new_image = image, time.monotonic(), True

    def _on_odometry(self, odometry: Odometry) -> None:
        """Publish where odometry puts the robot, as a transform from its own frame, while it can be trusted."""
        if self._odometry.take(sample_of(odometry)) is None:
            return
        transform = TransformStamped(header=odometry.header, child_frame_id=odometry.child_frame_id or BASE)
        at, to = odometry.pose.pose.position, transform.transform.translation
        to.x, to.y, to.z = at.x, at.y, at.z
        transform.transform.rotation = odometry.pose.pose.orientation
        self._transforms.publish(TFMessage(transforms=[transform]))

    def _on_decision(self, decision: NavigationAction) -> None:
        try:
            action = to_action(decision.kind, decision.size)
        except ValueError as error:
            self.get_logger().error(f"a decision is not shown: {error}")
            return
        which = (decision.goal, decision.step)
        if (decision.goal, decision.step + 1) == self._decided:
            # It comes on two topics, also to one who only watches a dry run: this is the slower one.
            return
        self._decided = which
        self._change(
            decided=True, step=decision.step, action=action, source=decision.source, complete=decision.complete
        )
        if decision.complete:
            self._change(reasons=decision.reasoning, guess="")

    def _on_stats(self, stats: DecodingStats) -> None:
        known = {"acceptance": stats.estimated_acceptance, "rtt_s": stats.link_rtt_s, "answer_s": stats.total_s}
        figures: dict[str, Any] = {name: value if value >= 0.0 else None for name, value in known.items()}
        if not self._fed:
            figures["link"] = stats.link
        self._change(**figures)

    def _on_state(self, state: String) -> None:
        name, _, reason = state.data.partition(": ")
        self._change(state=name, reason=reason)

    def _on_instruction(self, instruction: String) -> None:
        self._change(instruction=instruction.data, understood="")

    def _on_feedback(self, message: Any) -> None:
        feedback = message.feedback
        self._change(understood=feedback.understood)
        if feedback.link_state:
            self._fed = True
            self._change(link=feedback.link_state)
        if feedback.answer or feedback.guess:
            self._change(reasons=feedback.answer, guess=feedback.guess)

    def _change(self, **facts: Any) -> None:
        changed = replace(self._caption, **facts)
        self._new_image |= changed != self._caption
        self._caption = changed

    def _publish(self) -> None:
        age = time.monotonic() - self._frame_at
        shown_age = int(age) if OLD_S < age < math.inf else 0
        changed = self._new_image or shown_age != self._shown_age
        if changed and self._frame is not None and self._images.get_subscription_count():
            self._new_image, self._shown_age = False, shown_age
            self._publish_image(self._frame, age)

    def _publish_image(self, frame: CompressedImage, age_s: float) -> None:
        try:
            jpeg = annotated_jpeg(bytes(frame.data), replace(self._caption, frame_age_s=age_s), self._settings.width)
        except ValueError as error:
            self.get_logger().error(f"a frame is not shown: {error}", throttle_duration_sec=5.0)
            return
        self._images.publish(CompressedImage(header=frame.header, format="jpeg", data=array("B", jpeg)))


def main() -> None:
    """Run the node."""
    sys.exit(run(NavView))


if __name__ == "__main__":
    main()
