"""Training: the embedded draft/target pair and early-exit adapters for any target model."""

from speculation.optional_packages import need
from speculation.program_exit import take_signals

take_signals()
need("train", "accelerate", "jinja2", "mujoco", "rosbags", "tensorboard", "tqdm", "yaml")
