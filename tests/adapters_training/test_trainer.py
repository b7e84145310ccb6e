"""Learning rates, and steps in which a process of a data-parallel training has no answer to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adapters_training.batches import Plan, Run
from adapters_training.data_parallel import Replicas
from adapters_training.trainer import (
    END_SHARE,
    LearningConfig,
    Schedule,
    StepLosses,
    Trainer,
    learning_rate,
)


class TwoReplicas(Replicas):
    """This process and another one, which sends the tensor `other` of the same shape, or nothing but zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.size, self.other = 2, None

    def sum(self, values: Tensor) -> Tensor:
        return values if self.other is None or values.shape != self.other.shape else values + self.other

    def mean(self, number: float) -> float:
        return number


class Line(Trainer[LearningConfig]):
    """Learns `used`; `unused` takes part in no forward."""

    name = "line"

    def __init__(self, out: Path) -> None:
        torch.manual_seed(0)
        self.used, self.unused = nn.Linear(2, 1, bias=False), nn.Linear(3, 1, bias=False)
        self.both = TwoReplicas()
        modules = {"used": self.used, "unused": self.unused}
        forwards = Run(Plan(1, lambda epoch: np.zeros(1, np.int64), 1), lambda *_: None, 0, 0)
        super().__init__(LearningConfig(out=str(out), steps=3), self.both, modules, forwards, 3)

    @property
    def settings(self) -> dict[str, Any]:
        return {}

    def learn(self, batches: Sequence[Any]) -> StepLosses:
        if not batches:
            return StepLosses(torch.zeros(1))
        loss = self.used(torch.ones(4, 2)).pow(2).sum()
        loss.backward()
        return StepLosses(loss.detach()[None], learned=4, tokens=4)

    def loss_of(self, means: Tensor) -> float:
        return float(means[0])

    def figures(self, means: Tensor) -> dict[str, float]:
        return {}


def test_a_step_in_which_nobody_has_an_answer_leaves_the_weights(tmp_path: Path) -> None:
    line = Line(tmp_path)
    before = line.used.weight.detach().clone()
    line.update(line.learn([]))
    assert line.step == 1 and torch.equal(line.used.weight, before)


def test_a_process_without_an_answer_learns_what_the_other_has_learned(tmp_path: Path) -> None:
    alone, without = Line(tmp_path / "alone"), Line(tmp_path / "without")
    # Gradients of both weights, who has them, and the counts.
    gradient = 2 * 4 * alone.used.weight.sum().item()
    without.both.other = torch.tensor([gradient, gradient, 0.0, 0.0, 0.0, 1.0, 0.0, 4.0, 4.0, 0.0, 0.0])
    alone.update(alone.learn([1]))
    without.update(without.learn([]))
    assert without.counts.learned_tokens == 4
    assert without.used.weight.tolist() == [pytest.approx(alone.used.weight[0].tolist())]
    assert torch.equal(without.unused.weight, alone.unused.weight)


def test_learning_rates() -> None:
    settings = LearningConfig(out="o", steps=10, learning_rate=1.0)
    assert [learning_rate(settings, step, 10) for step in (0, 9)] == [1.0, 1.0]
    warm = msgspec.structs.replace(settings, warmup_steps=4)
    assert [learning_rate(warm, step, 10) for step in (0, 1, 3, 9)] == [0.25, 0.5, 1.0, 1.0]
    linear = msgspec.structs.replace(settings, schedule=Schedule.LINEAR)
    assert [learning_rate(linear, step, 10) for step in (0, 5, 10)] == [1.0, 0.5, END_SHARE]
    assert learning_rate(linear, 5, 10) < learning_rate(warm, 5, 10)
    cosine = msgspec.structs.replace(settings, schedule=Schedule.COSINE)
    assert learning_rate(cosine, 10, 10) == pytest.approx(END_SHARE)
