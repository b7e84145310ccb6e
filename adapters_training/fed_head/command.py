"""Train a fed head for a target model of your own: a draft of one layer that continues from the target's features.

It sees no image: all that it knows of frame and prompt is in the target's hidden states, at most 256 bytes a token.
The target is frozen; bottleneck and head learn together, from the target's own distribution, along its own answers.

data (any mix, local files): as for `exits`. Best are the target's own answers: folders of `adapters_training answers`.
writes: fed_head.json, fed_encoder.safetensors (for the verifier), fed_head.safetensors (for the robot), config.yaml
  (every setting as it was used), results.json (tokens a verification on held-out answers), tensorboard/.

A killed run goes on when it is started again with the same words, and ends with the same weights. Several GPUs or
nodes: `accelerate launch -m adapters_training fed-head ...` (or torchrun).

examples:
  python -m adapters_training answers --model models/target --data out/data --out out/answers --frames 6000
  python -m adapters_training fed-head --config config/fed_head/embedded_pair.yaml --target models/target \\
      --data out/answers --held-out out/held-out-answers --draft models/draft --out models/fed_head --dry-run
"""

from __future__ import annotations

from adapters_training.fed_head.training import FedTrainer
from adapters_training.frozen_target.training import training_command

COMMAND = training_command("fed-head", "train a draft head that a frozen target feeds", __doc__, FedTrainer)
