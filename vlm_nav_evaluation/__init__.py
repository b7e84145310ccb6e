"""Offline evaluation: recorded bags and simulated rooms, decoding mode by decoding mode."""

from speculation.optional_packages import need
from speculation.program_exit import take_signals

take_signals()
need("evaluation", "matplotlib", "mujoco", "rosbags", "tqdm")
