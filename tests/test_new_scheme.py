"""A way to sample in a few lines, registered here and nowhere else: edge and verifier take it in every mode."""

from __future__ import annotations

from dataclasses import replace
from types import FunctionType
from typing import ClassVar

import numpy as np
import pytest

from edge_drafter import DraftingConfig, Mode, StepRequest
from speculation.sampling import (
    GREEDY,
    SCHEMES,
    Coupled,
    DraftSampler,
    Logits,
    Prefix,
    SamplingScheme,
    Split,
    StepDraws,
    Tokens,
    masses,
    point,
    rejection,
    sparse,
    split,
    whole,
)
from tests.cloud_verifier.test_engine import PROMPTS, jpeg
from tests.edge_drafter.fakes import Weather
from tests.pair import Robot, run
from tests.test_exactness import ALONE, LINKED, Pair, alone, pairs, rumours

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
    run(target, [robot], exits=rumours(target, 0.9), self_draft=target)
    assert robot.answers == [alone(target, request)] != [alone(target, replace(request, sampling=GREEDY))]
    if mode not in ALONE:
        assert robot.stats.accepted > 0


@pytest.mark.parametrize("how", [GREEDY, Coupled(0.9)], ids=lambda how: how.name)
def test_greedy_and_coupled_answers_run_no_other_scheme(
    how: SamplingScheme, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the files of the others hold raises here."""

    def foreign(*_: object, **__: object) -> None:
        raise AssertionError("another scheme's code runs")

    for module in (point, rejection, masses, whole, split, sparse):
        for name, each in list(vars(module).items()):
            if getattr(each, "__module__", None) != module.__name__:
                continue
            if isinstance(each, FunctionType):
                monkeypatch.setattr(module, name, foreign)
            elif isinstance(each, type):
                for method in [key for key, value in vars(each).items() if isinstance(value, FunctionType)]:
                    monkeypatch.setattr(each, method, foreign)
    with pytest.raises(AssertionError, match="another scheme's code runs"):
        Split(1.0).sampler(0)
    target = pairs[0].target
    request = StepRequest(1, PROMPTS[1], jpeg(2), target.eos, 12, sampling=how, key=9)
    weather = Weather(one_way_s=0.05, jitter_s=0.1, duplicates=0.2, losses=0.1, cut_after=6, seed=1)
    robot = Robot(pairs[0].drafts[1], DraftingConfig.of(Mode.FULL), [request], weather)
    run(target, [robot], exits=rumours(target, 0.9))
    assert robot.answers == [alone(target, request)]
