"""The relay of `link-loss`: what it passes on, and that its own waiting is not measured as the robot's."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from geometry_msgs.msg import Twist

from spec_vlm_nav.nodes.process import NICENESS, SWITCH_S
from tests.system.conftest import PRIORITY, until
from tests.system.spinning import Client
from vlm_nav_evaluation.link_loss.faults import Kind
from vlm_nav_evaluation.nodes.fault_relay import relaying, remaps


@contextmanager
def sending(speeds: list[float]) -> Iterator[None]:
    """Publish a command of 0.5 m/s under the executor's own name over and over, and append what comes through."""
    raw = dict(remaps("action_executor"))["cmd_vel"]
    with closing(Client()) as client:
        client.node.create_subscription(Twist, "cmd_vel", lambda message: speeds.append(message.linear.x), 10)
        sender, message = client.node.create_publisher(Twist, raw, 10), Twist()
        message.linear.x = 0.5
        client.node.create_timer(0.02, lambda: sender.publish(message))
        yield


def test_commands_pass_until_they_are_cut_or_garbled() -> None:
    """Commands are noted under every fault: what the executor said, whether or not it arrived."""
    speeds: list[float] = []
    with relaying(0.0) as relay, sending(speeds):
        until(lambda: len(speeds) > 2, "a command")
        assert set(speeds) == {0.5}
        relay.faults["action_executor"] = Kind.GARBAGE
        until(lambda: math.isnan(speeds[-1]), "a garbled command")
        relay.faults["action_executor"] = Kind.CUT
        seen = len(relay.commands("cmd_vel", 0.0))
        until(lambda: len(relay.commands("cmd_vel", 0.0)) > seen + 30, "commands that are cut")
        arrived = len(speeds)
        assert arrived <= seen + 1
        del relay.faults["action_executor"]
        until(lambda: len(speeds) > arrived, "a command after the fault")
        assert {speed for _, speed in relay.commands("cmd_vel", 0.0)} == {0.5}


def test_its_threads_alone_run_before_others() -> None:
    """A program that computes beside it would else be measured as a robot that stops late."""
    before, interval = os.getpriority(os.PRIO_PROCESS, 0), sys.getswitchinterval()
    with relaying(0.0):
        (thread,) = (each for each in threading.enumerate() if each.name == "relay")
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S) and os.getpriority(os.PRIO_PROCESS, 0) == before
        first = before + NICENESS if PRIORITY else before
        assert os.getpriority(os.PRIO_PROCESS, thread.native_id or 0) == first
    assert sys.getswitchinterval() == interval
