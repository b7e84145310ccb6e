"""What vlm_nav publishes: decisions, prompts, figures, states; and the messages that it makes for them."""

from __future__ import annotations

import math

from geometry_msgs.msg import PoseWithCovarianceStamped
from rclpy.node import Node
from spec_vlm_nav_interfaces.msg import DecodingStats, NavigationAction
from std_msgs.msg import String

from edge_drafter.question import Reply
from spec_vlm_nav.messages import AskedPrompt, figures, to_numbers
from spec_vlm_nav.navigator_interfaces import Decision, Frame
from spec_vlm_nav.nodes.topics import LATCHED
from spec_vlm_nav.sighting import Sighting
from speculation.language.prompts import parse_answer
from speculation.settings import expanded
from speculation.trace import Trace

HEIGHT_VARIANCE = 1.0
"""Of an object's height above the floor, which no answer names, square metres."""


class Outputs:
    """The node's publishers."""

    def __init__(self, node: Node, sightings: bool = False) -> None:
        self.actions = node.create_publisher(NavigationAction, "navigation_action", 10)
        """What action_executor carries out."""
        self.decisions = node.create_publisher(NavigationAction, "~/decision", 10)
        """Decisions from whole answers, also those of dry runs."""
        self._prompts = node.create_publisher(String, "~/prompt", 10)
        self.stats = node.create_publisher(DecodingStats, "decoding_stats", 10)
        self._states = node.create_publisher(String, "navigation_state", 10)
        self._sightings = node.create_publisher(PoseWithCovarianceStamped, "~/sighting", 10) if sightings else None
        # A goal's instruction is on no topic of its own; without this a bag would hold answers to an unknown question.
        self._instructions = node.create_publisher(String, "instruction", LATCHED)

    def instruction(self, text: str) -> None:
        """Publish a goal's instruction."""
        self._instructions.publish(String(data=text))

    def prompt(self, text: str, frame: Frame) -> None:
        """Publish the prompt about a frame, which it names, so that a bag can be replayed with the same prompts."""
        stamp = frame.stamp.stamp
        stamp_ns = stamp.sec * 10**9 + stamp.nanosec
        self._prompts.publish(String(data=AskedPrompt(stamp_ns, text).to_json()))

    def sighting(self, seen: Sighting, frame: Frame, fixed: str) -> None:
        """Publish where an answer about a frame places the object, in odometry's own frame `fixed`."""
        if self._sightings is None or not fixed:
            return
        message = PoseWithCovarianceStamped()
        message.header.stamp, message.header.frame_id = frame.stamp.stamp, fixed
        pose, covariance = message.pose.pose, message.pose.covariance
        pose.position.x, pose.position.y = seen.x, seen.y
        pose.orientation.z, pose.orientation.w = math.sin(seen.yaw / 2), math.cos(seen.yaw / 2)
        covariance[0], covariance[1], covariance[6], covariance[7] = seen.xx, seen.xy, seen.xy, seen.yy
        covariance[14] = HEIGHT_VARIANCE
        covariance[21] = covariance[28] = covariance[35] = seen.yaw_variance
        self._sightings.publish(message)

    def state(self, state: str, reason: str) -> None:
        """Publish what the robot is at."""
        self._states.publish(String(data=f"{state}: {reason}" if reason else state))


def to_message(goal: int, decision: Decision) -> NavigationAction:
    """Return the message of a decision."""
    kind, size, value = to_numbers(decision.action)
    message = NavigationAction(goal=goal, step=decision.step, kind=kind, size=size, value=value)
    message.complete, message.in_motion = decision.complete, decision.in_motion
    message.speed_scale = decision.speed_scale
    message.source = NavigationAction.FALLBACK
    if decision.frame is not None:
        message.header = decision.frame.stamp
        message.source = NavigationAction.EDGE_ONLY if decision.alone else NavigationAction.CLOUD_VERIFIED
    if decision.reply is not None:
        message.reasoning = parse_answer(decision.reply.text).shown
    return message


def to_stats(goal: int, decision: Decision, reply: Reply) -> DecodingStats:
    """Return the message about how the decision's answer was decoded."""
    message = DecodingStats(goal=goal, step=decision.step, answer=reply.text, **figures(reply.stats))
    message.profile = "" if reply.profile == "raw" else reply.profile
    message.link, message.link_rtt_s = reply.link, float(reply.link_rtt_s)
    message.action_s = -1.0 if decision.action_s is None else float(decision.action_s)
    message.in_motion = decision.in_motion
    if decision.frame is not None:
        message.header, message.frame_age_s = decision.frame.stamp, float(decision.frame.age)
    return message


def write_trace(node: Node, trace: Trace, file: str) -> None:
    """Write what was traced so far, if anything was; log why that fails."""
    try:
        if trace.spans:
            trace.write(expanded(file))
    except OSError as error:
        node.get_logger().error(f"the trace {file} cannot be written: {error.strerror}")
