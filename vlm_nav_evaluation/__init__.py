"""Offline evaluation: recorded bags and simulated rooms, decoding mode by decoding mode."""

from speculation.extras import need

need("evaluation", "matplotlib", "mujoco", "rosbags", "tqdm")
