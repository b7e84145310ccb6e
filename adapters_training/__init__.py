"""Training: the embedded draft/target pair and early-exit adapters for any target model."""

from speculation.early_end import begin
from speculation.extras import need

begin()
need("train", "accelerate", "jinja2", "mujoco", "rosbags", "tensorboard", "tqdm", "yaml")
