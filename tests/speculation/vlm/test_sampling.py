"""Draws in torch against draws in numpy, row by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from speculation.logits_processors import LogitsProcessors, RepetitionPenalty
from speculation.sampling import GREEDY, MAX_KEY, Coupled, SamplingScheme, StepDraws, choose
from speculation.sampling.noise import all_random_bits, gumbel
from speculation.vlm.sampling import Choices, Place, draw_words, gumbel_rows, process_rows

SETTINGS = (
    GREEDY, Coupled(1.0), Coupled(0.7, 5), Coupled(1.5, 0, 0.8),
    Coupled(0.7, 9, 0.9),
)  # fmt: skip
DRAWS = st.builds(StepDraws, st.integers(0, MAX_KEY), st.integers(0, 512))
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def choose_rows(
    logits: torch.Tensor, settings: Sequence[SamplingScheme], draws: Sequence[StepDraws]
) -> list[tuple[int, float]]:
    places = [Place(*each) for each in zip(settings, draws, strict=True)]
    found = Choices(places, logits.shape[1], logits.device).choose(logits).tolist()
    return [(int(column), chance) for column, chance in found]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    return torch.device(request.param)


@given(st.lists(st.tuples(st.sampled_from(SETTINGS), DRAWS), min_size=1, max_size=9), st.integers(0, 2**31))
def test_a_batch_of_any_sessions_is_drawn_as_each_row_alone(
    rows: list[tuple[SamplingScheme, StepDraws]], seed: int
) -> None:
    logits = 2.0 * np.random.default_rng(seed).normal(size=(len(rows), 41))
    found = choose_rows(torch.from_numpy(logits), [how for how, _ in rows], [draws for _, draws in rows])
    for (column, chance), row, (how, draws) in zip(found, logits, rows, strict=True):
        expected, sure = choose(row, how, draws)
        assert column == expected and chance == pytest.approx(sure, rel=1e-9)


def test_rows_on_a_device_are_drawn_alike(device: torch.device) -> None:
    logits = 4.0 * np.random.default_rng(1).normal(size=(10, 5003)).astype(np.float32)
    draws = [StepDraws(number << 40, number) for number in range(10)]
    settings = [SETTINGS[number % 5] for number in range(10)]
    found = choose_rows(torch.from_numpy(logits).to(device), settings, draws)
    expected = [choose(row, how, each)[0] for row, how, each in zip(logits, settings, draws, strict=True)]
    assert [column for column, _ in found] == expected
    noise = gumbel_rows(torch.from_numpy(draw_words(draws[:1])).to(device), 5003)[0].cpu().numpy()
    assert noise == pytest.approx(gumbel(all_random_bits(5003, draws[0])), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rows_on_a_device_are_penalised_alike(device: torch.device, dtype: torch.dtype) -> None:
    """To the last bit but one: a GPU divides by a number by multiplying with its inverse."""
    logits = torch.from_numpy(4.0 * np.random.default_rng(1).normal(size=(4, 5003))).to(dtype)
    processors = LogitsProcessors(RepetitionPenalty.of(1.05, range(0, 5003, 2), 5003))
    contexts = processors.along(processors.start([1, 3], 9), [5, 7, 2], [-1, 0, 0])
    found = process_rows(logits.to(device), processors, contexts)
    wide = logits if dtype == torch.float64 else logits.float()
    expected = processors.process(wide.numpy(), contexts)
    assert found.device.type == device.type
    np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=np.finfo(expected.dtype).eps, atol=0)


def test_of_equals_the_lowest_is_taken(device: torch.device) -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0]], device=device)
    assert choose_rows(logits, [GREEDY], [StepDraws()])[0][0] == 1


def test_broken_rows_are_no_draws(device: torch.device) -> None:
    logits = torch.tensor([[0.0, torch.nan], [0.0, torch.inf], [0.0, 1.0]], device=device)
    for how in (GREEDY, Coupled(1.0, 0, 0.9)):
        chances = [chance for _, chance in choose_rows(logits, [how] * 3, [StepDraws()] * 3)]
        assert np.isnan(chances[:2]).all() and chances[2] > 0.0
