"""A way to sample in a few lines, registered here and nowhere else: edge and verifier take it in every mode."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from edge_drafter import DraftingConfig, Mode, StepRequest
from speculation.sampling import (
    GREEDY,
    SCHEMES,
    DraftSampler,
    Logits,
    Prefix,
    SamplingScheme,
    StepDraws,
    Tokens,
)
from tests.cloud_verifier.test_engine import PROMPTS, jpeg
from tests.edge_drafter.fakes import Weather
from tests.pair import Robot, run
from tests.test_exactness import ALONE, LINKED, Pair, alone, noisy_exits, pairs

__all__ = ["pairs"]


class SecondSampler(DraftSampler):
    def rank(self, logits: Logits, prefix: Prefix) -> Logits:
        return np.where(np.arange(len(logits)) == np.argmax(logits), -np.inf, logits)


class Second(SamplingScheme, frozen=True):
    """Never the likeliest token, always the one after it."""

    name: ClassVar[str] = "second"
    random: ClassVar[bool] = False

    def sampler(self, key: int) -> DraftSampler:
        return SecondSampler()

    def pick(self, row: Logits, draws: StepDraws, ids: Tokens | None = None) -> tuple[int, float]:
        return int(np.argmax(SecondSampler().rank(row, Prefix(0, b"")))), 0.5


@pytest.mark.parametrize("mode", LINKED)
def test_a_new_scheme_decodes_end_to_end(mode: Mode, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "second", Second)
    target = pairs[0].target
    request = StepRequest(1, PROMPTS[0], jpeg(4), target.eos, 12, sampling=SamplingScheme.parse("second"), key=3)
    lost = 0.0 if mode in ALONE else 0.1
    weather = Weather(one_way_s=0.05, jitter_s=0.1, duplicates=0.2, losses=lost, cut_after=6, seed=2)
    robot = Robot(target, DraftingConfig.of(mode, gamma=3), [request], weather)
    run(target, [robot], exits=noisy_exits(target, 0.9), self_draft=target if mode is Mode.SERVER_SD else None)
    assert robot.answers == [alone(target, request)] != [alone(target, replace(request, sampling=GREEDY))]
    if mode not in (*ALONE, Mode.FULL):  # whose verifier decodes by itself in such weather
        assert robot.stats.accepted > 0
