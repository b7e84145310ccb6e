"""What edge and cloud must agree on. No ROS, no ZeroMQ, no drafting policy."""

from speculation.program_exit import take_signals

take_signals()
