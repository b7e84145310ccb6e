"""Training: the embedded draft/target pair and early-exit adapters for any target model."""

from speculation.extras import need

need("train", "accelerate", "jinja2", "mujoco", "rosbags", "tensorboard", "tqdm", "yaml")
