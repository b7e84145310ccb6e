"""In every family every mode's answers are those of transformers' own `generate`, or of the target alone.

`SLOW=1 pytest tests/test_family_exactness.py` asks each family 200 questions in place of a few.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
import torch

from edge_drafter import DraftingConfig, StepRequest
from speculation.language.grammar import Grammars
from speculation.sampling import GREEDY
from speculation.vlm.inputs import prepare
from speculation.vlm.load import load_vlm
from speculation.vlm.model import Vlm
from speculation.wire import Grammar
from tests.cloud_verifier.test_engine import PROMPTS, jpeg
from tests.edge_drafter.fakes import Weather
from tests.models import FAMILIES, TEXT_FAMILIES, TILED, scratch_inputs, tiny_model, tiny_text_model
from tests.pair import SERVER, Robot, run
from tests.test_exactness import ALONE, HOW, LINKED, alone, near, noisy_exits

CAPACITY = 512


def pair(family: str, folder: Path) -> tuple[Vlm, Vlm]:
    """Return a target in float64 and a draft model that is often right."""
    if family in TEXT_FAMILIES:
        tiny_text_model(folder, family=family)
    else:
        tiny_model(folder, layers=3, hidden=64, family=family, dtype=torch.float32)
    return load_vlm(folder, dtype="float64"), near(folder, 0.1)


def question(dice: random.Random, target: Vlm, number: int) -> StepRequest:
    """Return one of about as many that are greedy, sampled and constrained, about up to three frames."""
    grammar = None
    if dice.random() < 1 / 3:
        name = dice.choice([Grammar.REASON_FIRST, Grammar.ACTION_FIRST])
        grammar = Grammars(target.tokenizer, target.vocabulary).of(name, target.eos)
    frames = tuple(jpeg(dice.randrange(99)) for _ in range(dice.randint(1, 3)))
    seen = b"" if not target.sees_images else frames[0] if len(frames) == 1 else frames
    return StepRequest(
        1, dice.choice(PROMPTS), seen, target.eos, dice.randint(4, 20), sampling=dice.choice([GREEDY, *HOW]),
        key=number, grammar=grammar,
    )  # fmt: skip


def expected(target: Vlm, request: StepRequest) -> tuple[int, ...]:
    """Return what `generate` says where it can be asked, else the target alone."""
    if request.sampling != GREEDY or request.grammar is not None:
        return alone(target, request)
    inputs = prepare(target, request.prompt, request.jpeg)
    target.family.forget(target.model)
    said = target.model.generate(
        **scratch_inputs(target, inputs), do_sample=False, max_new_tokens=request.max_tokens,
        eos_token_id=list(target.eos), pad_token_id=target.eos[0],
    )  # fmt: skip
    return tuple(said[0, len(inputs.ids) :].tolist())


@pytest.mark.parametrize("count", [len(LINKED), pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", [*FAMILIES, *TILED, *TEXT_FAMILIES])
def test_answers_in_every_mode_are_the_targets_own(family: str, count: int, tmp_path: Path) -> None:
    """Links lose, repeat and delay messages, and break."""
    target, draft = pair(family, tmp_path)
    exits, asked = noisy_exits(target, 0.6), Counter[str]()
    for number in range(count):
        dice = random.Random(f"{family} {number}")
        mode = LINKED[number % len(LINKED)]
        request = question(dice, target, number)
        weather = Weather(
            one_way_s=dice.choice([0.0, 0.02, 0.2]), jitter_s=dice.choice([0.0, 0.1]), duplicates=0.1,
            losses=0.0 if mode in ALONE else 0.05, cut_after=dice.choice([None, 6]), seed=number,
        )  # fmt: skip
        robot = Robot(draft, DraftingConfig.of(mode), [request], weather, resumes=dice.random() < 0.5)
        server = SERVER.changed(frames=3, prefill_chunk=dice.choice([0, 7]))
        run(target, [robot], config=server, exits=exits, self_draft=draft, capacity=CAPACITY)
        assert robot.answers == [expected(target, request)], (mode, number)
        asked[mode.value] += 1
    assert set(asked) == {mode.value for mode in LINKED}
