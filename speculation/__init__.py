"""Edge and cloud must agree on what is here. It knows no ROS, no ZeroMQ and no drafting policy."""

from speculation.program_exit import take_signals

take_signals()
