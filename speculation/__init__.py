"""The method: what edge and cloud must agree on, and the drafting policy. No ROS, no ZeroMQ."""
