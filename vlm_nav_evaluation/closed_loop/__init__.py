"""Closed loop: what models find in simulated rooms, and what decoding modes do to the robot's time."""
