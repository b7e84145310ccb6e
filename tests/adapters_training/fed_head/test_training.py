"""Trainings of fed heads on tiny targets: they learn, they are served, and a killed one ends as an unbroken one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters_training.fed_head.acceptance import HeadDrafter, Tally, measure
from adapters_training.fed_head.runs import gather, spans
from adapters_training.fed_head.training import FedTrainer
from adapters_training.fed_head.unroll import depth_losses
from adapters_training.frozen_target import training
from adapters_training.frozen_target.training import finished_results
from adapters_training.packing import IGNORE
from adapters_training.trainer import CHECKPOINT_FILE
from edge_drafter import DraftingConfig, StepRequest
from speculation.fed.encoder import FeatureEncoder
from speculation.fed.files import fingerprint, load_encoder, load_head
from speculation.fed.head import FedHead
from speculation.vlm.load import load_vlm
from speculation.vlm.model import Vlm
from tests.adapters_training.targets import of_a_head as config
from tests.adapters_training.targets import own_answers
from tests.cloud_verifier.test_engine import PROMPTS, greedy, jpeg
from tests.edge_drafter.fakes import Weather
from tests.pair import Robot, run
from tests.speculation.fed.heads import tiny_config

train, prepare = partial(training.train, FedTrainer), partial(training.prepare, FedTrainer)


def test_a_head_that_was_trained_on_the_spot_drafts_right_tokens(target: Vlm, draft: Vlm) -> None:
    """On three answers, which it knows by heart after some steps: then most of what it drafts over the link stands."""
    torch.manual_seed(1)
    shape = tiny_config(
        target=target.fingerprint, tokenizer=target.tokenizer_fingerprint, vocabulary=target.vocabulary,
        hidden=target.hidden_size, size=48, width=64, heads=4, intermediate=64,
        short_list=tuple(range(target.vocabulary)),
    )  # fmt: skip
    encoder, head = FeatureEncoder(shape), FedHead(shape)
    batch = own_answers(target, [(prompt, jpeg(number)) for number, prompt in enumerate(PROMPTS)], 12)
    gamma = 3
    drafters = {"head": HeadDrafter(target, encoder, head, gamma, 64)}
    before = measure(target, drafters, [batch], gamma, shape.layers, shape.prompt_tokens)
    runs = gather(target, batch, shape.layers, shape.prompt_tokens)
    assert runs is not None
    learning = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=5e-3)
    for _ in range(200):
        learning.zero_grad()
        (depth_losses(target, encoder, head, runs, gamma, 64)[:, 0].sum() / 36).backward()
        learning.step()
    after = measure(target, drafters, [batch], gamma, shape.layers, shape.prompt_tokens)
    assert before["own"] == after["own"] == 1.0 and after["tokens"] == 36
    assert before["head"]["tokens a verification"] < 1.5 < 2.5 < after["head"]["tokens a verification"]
    for module in (encoder, head):
        module.requires_grad_(False).eval()
    encoder.config = head.config = msgspec.structs.replace(shape, features=fingerprint(encoder))
    robots = []
    for number, prompt in enumerate(PROMPTS):
        request = StepRequest(1, prompt, jpeg(number), target.eos, 12)
        robots.append(Robot(draft, DraftingConfig.of("sd", gamma=gamma), [request], Weather(), head=head))
        run(target, robots[-1:], encoder=encoder)
        assert list(robots[-1].answers[0]) == greedy(target, prompt, jpeg(number), 12)[: len(robots[-1].answers[0])]
    tokens, rounds = (sum(getattr(robot.stats, name) for robot in robots) for name in ("tokens", "rounds"))
    assert tokens / rounds == pytest.approx(after["head"]["tokens a verification"], rel=0.15), "measured is served"
    for resumes in (True, False):
        request = StepRequest(1, PROMPTS[0], jpeg(0), target.eos, 12)
        robot = Robot(draft, DraftingConfig.of("sd", gamma=gamma), [request], Weather(cut_after=3), resumes=resumes)
        robot.head = head
        run(target, [robot], encoder=encoder)
        assert robot.answers == robots[0].answers and robot.stats.interruptions > 0
        assert robot.stats.tokens / robot.stats.rounds >= 2.0, "after a reconnect the features come again"


def test_losses_fall_and_what_was_trained_loads(llama: Path, chat: Path, tmp_path: Path) -> None:
    untrained = train(config(llama, chat, tmp_path / "none", steps=1, learning_rate=1e-9))
    results = train(config(llama, chat, tmp_path / "head", steps=40, draft=str(llama)))
    for depth in range(3):
        assert results["head"]["cross-entropy"][depth] < 0.95 * untrained["head"]["cross-entropy"][depth]
    assert results["draft"]["right at depth"][0] == pytest.approx(results["own"]), "the target beside itself"
    vlm = load_vlm(llama)
    encoder, head = load_encoder(tmp_path / "head", vlm), load_head(tmp_path / "head", vlm.tokenizer_fingerprint)
    assert encoder.config == head.config and head.config.layers == (2,) == encoder.config.layers
    assert results["bytes a token"] == 20 and results["short list"] == vlm.vocabulary
    assert not (tmp_path / "head" / CHECKPOINT_FILE).exists()
    settings = config(llama, chat, tmp_path / "head", steps=40, draft=str(llama))
    assert finished_results(settings) is not None
    assert finished_results(msgspec.structs.replace(settings, depths=2)) is None


@pytest.mark.parametrize(
    ("answered", "positions", "most", "runs"),
    [
        ("...xx.", [0, 1, 2, 3, 4, 5], 3, [(1, 3, 5)]),
        ("...xx.", [0, 1, 2, 3, 4, 5], 1, [(3, 3, 5)]),
        ("..x.xx", [0, 1, 2, 3, 4, 5], 9, [(1, 2, 3), (1, 4, 6)]),
        ("xx.x", [0, 1, 2, 3], 2, [(2, 3, 4)]),  # nothing stands before the first answer
        ("....x", [0, 1, 1, 2, 3], 5, [(3, 4, 5)]),  # behind an image
        ("..xxxx", [0, 1, 2, 3, 2, 3], 2, [(1, 2, 4)]),  # another question about the same image
    ],
)
def test_runs_are_answers_with_the_end_of_their_prompt(
    answered: str, positions: list[int], most: int, runs: list[tuple[int, int, int]]
) -> None:
    """No run crosses a place where the text does not go on."""
    labels = torch.tensor([[1 if place == "x" else IGNORE for place in answered]])
    assert [found[1:] for found in spans(labels, torch.tensor([positions]), most)] == runs


@settings(max_examples=50)
@given(st.integers(1, 4), st.integers(1, 12), st.data())
def test_tokens_a_verification_are_those_of_a_walk_along_the_answer(
    gamma: int, count: int, data: st.DataObject
) -> None:
    """The twin drafts one token after another, and the verdict adds one of its own, as long as there is room."""
    hits = [np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count))) for _ in range(gamma)]
    tally = Tally(gamma)
    tally.add(hits)
    committed = verifications = drafted = 0
    while committed < count:
        verifications += 1
        place = committed
        for depth in range(gamma):
            if place >= count - 1:
                break
            drafted += 1
            if not hits[depth][place]:
                drafted += min(gamma, count - committed - 1) - depth - 1
                break
            place += 1
        committed = place + 1
    assert (tally.verifications, tally.tokens, tally.drafted) == (verifications, count, drafted)
    assert tally.accepted == count - verifications
    assert tally.tau == pytest.approx(count / verifications)
