"""Subscriptions whose messages cannot end a node, and a reader that takes urgent ones without the node's executor."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any

from rclpy.callback_groups import CallbackGroup, MutuallyExclusiveCallbackGroup
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from rclpy.subscription import Subscription

from spec_vlm_nav.nodes.process import steady_timer

HELD = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)
LATCHED_PERIOD_S = 0.1
"""How often is looked whether a topic has a latched publisher."""


def subscribe(
    node: Node, kind: Any, topic: str, callback: Callable[..., None], qos: QoSProfile | int, **options: Any
) -> Subscription:
    """Subscribe as `Node.create_subscription` does; a message that `callback` cannot take is logged and passed over."""
    logger = node.get_logger()

    # rclpy reads from the signature whether a callback takes information about the message, too.
    @wraps(callback)
    def guarded(*given: Any) -> None:
        try:
            callback(*given)
        except Exception as error:
            why = f"a message on {topic} is passed over: {type(error).__name__}: {error}"
            logger.error(why, throttle_duration_sec=5.0)

    return node.create_subscription(kind, topic, guarded, qos, **options)


def subscribe_latched(node: Node, kind: Any, topic: str, callback: Callable[..., None]) -> None:
    """Get what a latched topic held before the node started, once there is a publisher that latches.

    To be used beside a volatile subscription. A subscription that asks for it from the start is incompatible with
    publishers of the default QoS, and ROS warns them as if nothing of theirs arrived.
    """

    def look() -> None:
        publishers = node.get_publishers_info_by_topic(node.resolve_topic_name(topic))
        if any(each.qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL for each in publishers):
            timer.cancel()
            subscribe(node, kind, topic, callback, HELD)

    timer = steady_timer(node, LATCHED_PERIOD_S, look, MutuallyExclusiveCallbackGroup())


class _NoExecutor(CallbackGroup):
    """Keeps its subscriptions out of the executor, which rebuilds its list of everything for each message."""

    def can_execute(self, entity: Any) -> bool:
        return False

    def beginning_execution(self, entity: Any) -> bool:
        return False

    def ending_execution(self, entity: Any) -> None:
        """Do nothing, since no execution begins."""


class Reader:
    """Takes the messages of its subscriptions in the thread that calls `take`.

    A watchdog whose thread calls it has seen everything that arrived before it decides, however busy the executor is,
    and a message costs a tenth of the time that it costs in rclpy's executors.
    """

    def __init__(self, node: Node) -> None:
        self._node, self._group = node, _NoExecutor()
        self._subscriptions: list[Subscription] = []

    def subscribe(
        self, kind: Any, topic: str, callback: Callable[..., None], qos: QoSProfile | int, raw: bool = False
    ) -> None:
        """Subscribe for good; see the function `subscribe`. Not to be called beside `take`. `raw`: in CDR."""
        # Events of the middleware would wait for the executor for ever.
        events = SubscriptionEventCallbacks(use_default_callbacks=False)
        options = {"callback_group": self._group, "event_callbacks": events, "raw": raw}
        self._subscriptions.append(subscribe(self._node, kind, topic, callback, qos, **options))

    def take(self, timeout_s: float) -> None:
        """Wait until a message is there, `timeout_s` at most, and run the callbacks of all that are there."""
        with ExitStack() as stack:
            handles = [each.handle for each in self._subscriptions]
            for handle in handles:
                stack.enter_context(handle)
            wait_set = rclpy_implementation.WaitSet(len(handles), 0, 0, 0, 0, 0, self._node.context.handle)
            wait_set.clear_entities()
            for handle in handles:
                wait_set.add_subscription(handle)
            wait_set.wait(max(int(timeout_s * 1e9), 0))
            ready = set(wait_set.get_ready_entities("subscription"))
            for each, handle in zip(self._subscriptions, handles, strict=True):
                # What comes while its callbacks run is for the next call.
                left = each.qos_profile.depth if handle.pointer in ready else 0
                while left and (taken := handle.take_message(each.msg_type, each.raw)) is not None:
                    left -= 1
                    each.callback(*taken[: 1 if each._callback_type is Subscription.CallbackType.MessageOnly else 2])
