"""Whatever is in a message, of any topic, the node that gets it goes on: every field, through the real callbacks."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import rclpy
from hypothesis import given, settings
from hypothesis import strategies as st
from rclpy.node import Node
from rclpy.subscription import Subscription
from std_msgs.msg import String

from spec_vlm_nav.nodes.action_executor import ActionExecutor
from spec_vlm_nav.nodes.conversions import message_type
from spec_vlm_nav.nodes.go2_bridge import Go2Bridge
from spec_vlm_nav.nodes.go2_camera import Go2Camera
from spec_vlm_nav.nodes.lifecycle_manager import LifecycleManager
from spec_vlm_nav.nodes.stop_watchdog import StopWatchdog
from spec_vlm_nav.nodes.subscriptions import subscribe
from spec_vlm_nav.nodes.vlm_nav import VlmNav

OWN = ("/parameter_events", "/rosout")
NODES: dict[str, tuple[Any, list[str]]] = {
    "go2_bridge": (Go2Bridge, ["guard:=cloud"]),
    "go2_bridge, stamped, scan": (Go2Bridge, ["guard:=scan", "stamped_cmd_vel:=true"]),
    "action_executor": (ActionExecutor, []),
    "vlm_nav": (VlmNav, []),
    "go2_camera": (Go2Camera, ["source:=topic:/front/image_raw"]),
    "stop_watchdog": (StopWatchdog, []),
    "lifecycle_manager": (LifecycleManager, ["node_names:=[vlm_nav]"]),
}
SIZES = {"int8": (-(2**7), 2**7 - 1), "uint8": (0, 255), "octet": (0, 255), "int16": (-(2**15), 2**15 - 1)}
SIZES |= {"uint16": (0, 2**16 - 1), "int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1)}
SIZES |= {"int64": (-(2**63), 2**63 - 1), "uint64": (0, 2**64 - 1)}


def values(kind: str) -> st.SearchStrategy[Any]:
    """Values of a field, by its type in the message's definition."""
    many = re.fullmatch(r"sequence<(.+?)(?:, \d+)?>|(.+)\[(\d+)\]", kind)
    if many:
        one, of, count = many.groups()
        size = {"min_size": int(count), "max_size": int(count)} if count else {"max_size": 3}
        return st.lists(values(one or of), **size)
    if kind.startswith("string"):
        return st.text(max_size=8) | st.just("\x00jpeg")
    if kind in ("float", "double", "float32", "float64"):
        narrow = 32 if kind in ("float", "float32") else 64
        return st.floats(width=narrow) | st.sampled_from([0.0, -1.0, 1.0, math.inf, -math.inf, math.nan])
    if kind == "boolean":
        return st.booleans()
    if kind in ("byte", "octet"):
        return st.binary(min_size=1, max_size=1)
    if kind in SIZES:
        least, most = SIZES[kind]
        return st.sampled_from([least, most, 0, 1]) | st.integers(least, most)
    package, name = kind.split("/")
    if name.endswith("_Feedback"):
        return messages(getattr(import_module(f"{package}.action"), name.removesuffix("_Feedback")).Feedback)
    return messages(message_type(f"{package}/msg/{name}"))


def messages(kind: Any) -> st.SearchStrategy[Any]:
    """Messages of a class with anything in each field."""
    fields = {name: values(of) for name, of in kind.get_fields_and_field_types().items()}
    return st.fixed_dictionaries(fields).map(lambda given: kind(**given))


@pytest.fixture(params=NODES)
def node(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A node of ours, not configured, with the parameters given."""
    make, parameters = NODES[request.param]
    rclpy.init(args=["--ros-args", *(word for each in parameters for word in ("-p", each))])
    made = make()
    if make is Go2Camera:
        made.configure()
    yield made
    made.destroy_node()
    rclpy.shutdown()


@pytest.fixture(scope="module")
def taken() -> set[tuple[Any, ...]]:
    """Node, topic and type of what was tried: a bridge with other settings differs in a few of its topics."""
    return set()


def take_anything(topic: Subscription) -> None:
    """Call a subscription's own callback, without what keeps its errors from the node, with messages of any content."""
    callback = inspect.unwrap(topic.callback)
    aware = topic._callback_type is not Subscription.CallbackType.MessageOnly

    @settings(max_examples=25)
    @given(message=messages(topic.msg_type))
    def take(message: Any) -> None:
        callback(*((message, {"received_timestamp": 0}) if aware else (message,)))

    take()


def test_every_callback_takes_any_message(node: Any, taken: set[tuple[Any, ...]]) -> None:
    topics: list[Subscription] = [each for each in node.subscriptions if each.topic_name not in OWN]
    assert topics
    for topic in topics:
        assert topic.callback is not inspect.unwrap(topic.callback), f"{topic.topic_name}: use `subscribe`"
        kind = type(node), topic.topic_name, topic.msg_type
        if kind not in taken:
            taken.add(kind)
            take_anything(topic)


@pytest.mark.usefixtures("ros")
def test_a_callback_that_fails_costs_its_message_and_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    node, heard = Node("listener"), list[str]()

    def take(message: String) -> None:
        heard.append(message.data)
        raise KeyError(message.data)

    subscription = subscribe(node, String, "words", take, 10)
    for word in ("one", "two"):
        subscription.callback(String(data=word))
    node.destroy_node()
    assert heard == ["one", "two"]
    assert "a message on words is passed over: KeyError: 'one'" in capfd.readouterr().err
