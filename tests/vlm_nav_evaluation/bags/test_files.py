"""Messages made with zeros, and topics found by their types."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from speculation.images import COMPRESSED, RAW
from tests import bags
from vlm_nav_evaluation.bags.files import BagReader, header_stamp, kind_of, make, typestore

ODOMETRY = "nav_msgs/msg/Odometry"


def test_a_message_has_zeros_where_nothing_is_given_and_can_be_written() -> None:
    types = typestore()
    made = make(types, ODOMETRY, child_frame_id="base_link")
    assert made.child_frame_id == "base_link" and made.header.frame_id == "" and header_stamp(made) == 0
    assert np.array_equal(made.pose.covariance, np.zeros(36)) and made.pose.pose.orientation.w == 0
    made.pose.pose.position.x = 2.0
    assert make(types, ODOMETRY).pose.pose.position.x == 0, "no two messages share their parts"
    again = types.deserialize_cdr(types.serialize_cdr(made, ODOMETRY), ODOMETRY)
    assert again.pose.pose.position.x == 2.0 and again.child_frame_id == "base_link"
    assert header_stamp(bags.odometry(7_000_000_011)) == 7_000_000_011


def test_a_type_is_named_as_in_bags() -> None:
    String = type("String", (), {"__module__": "std_msgs.msg._string"})
    assert kind_of(String) == "std_msgs/msg/String"


def test_a_topic_is_found_by_its_name_or_as_the_one_that_starts_first(tmp_path: Path) -> None:
    messages = [
        ("/a_late", 5, bags.plain("rgb8", (1, 1, 1))),
        ("/early", 3, bags.plain("rgb8", (1, 1, 1))),
        ("/odom", 1, bags.odometry(0)),
    ]
    with BagReader(bags.write(tmp_path / "bag", messages)) as bag:
        assert next(iter(bag.topics)) == "/a_late"
        first, named = bag.find((RAW, COMPRESSED)), bag.find((RAW,), "a_late")
        assert first is not None and first.name == "/early" and named is not None and named.name == "/a_late"
        assert bag.find((COMPRESSED,)) is None and bag.find((RAW,), "odom") is None
        odometry = bag.find((ODOMETRY,))
        assert odometry is not None and odometry.count == 1
