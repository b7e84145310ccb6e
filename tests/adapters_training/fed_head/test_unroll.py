"""Training sees what a robot will: every depth of every draft as the session computes it, one after another."""

from __future__ import annotations

import numpy as np
import torch

from adapters_training.fed_head.unroll import unroll
from speculation.features import pack, unpack
from speculation.fed.session import FedSession
from tests.speculation.fed.heads import random_head, tiny_config

CONFIG = tiny_config(rope_theta=50.0)
HEAD = random_head(CONFIG, seed=3)
DEPTHS = 4


def text(seed: int, count: int) -> tuple[list[int], np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, CONFIG.vocabulary, count).tolist(), rng.normal(size=(count, CONFIG.size)).astype(np.float32)


def test_every_depth_is_what_a_session_drafts() -> None:
    texts = [text(1, 11), text(2, 8)]
    rows = torch.zeros(2, 11, dtype=torch.long)
    states = torch.zeros(2, 11, CONFIG.width, dtype=torch.float64)
    for place, (tokens, features) in enumerate(texts):
        rows[place, : len(tokens)] = HEAD.rows(tokens)
        states[place, : len(tokens)] = HEAD.up(torch.from_numpy(unpack(pack(features), CONFIG.size)).double())
    found = [HEAD.logits(outputs) for outputs in unroll(HEAD, rows, states, DEPTHS)]
    listed = list(CONFIG.short_list)
    for place, (tokens, features) in enumerate(texts):
        for root in range(2, len(tokens) - DEPTHS):
            session = FedSession(HEAD)
            session.begin("prompt", b"jpeg", tokens[: root + 1])
            session.feed(tokens[: root + 1], root + 1, pack(features[: root + 1]))
            drafted = [session.root_logits(), *session.extend(tokens[root + 1 : root + DEPTHS], range(-1, DEPTHS - 2))]
            for depth, logits in enumerate(drafted):
                np.testing.assert_allclose(found[depth][place, root + depth].numpy(), logits[listed], atol=1e-9)
