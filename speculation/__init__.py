"""What edge and cloud must agree on. No ROS, no ZeroMQ, no drafting policy."""

from speculation.early_end import begin

begin()
