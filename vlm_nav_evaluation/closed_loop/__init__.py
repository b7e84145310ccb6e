"""Closed loop: finding objects in simulated rooms, decoding mode by decoding mode, with a clock."""
