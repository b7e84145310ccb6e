"""Messages made with zeros, and topics found by their types."""

from __future__ import annotations

import numpy as np

from tests import bags
from vlm_nav_evaluation.bags.files import header_stamp, make, typestore

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
