"""Offline evaluation: recorded bags and simulated rooms, decoding mode by decoding mode."""

from speculation.early_end import begin
from speculation.extras import need

begin()
need("evaluation", "matplotlib", "mujoco", "rosbags", "tqdm")
