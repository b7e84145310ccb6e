"""Trainings of fed heads on tiny targets: they learn, they are served, and a killed one ends as an unbroken one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adapters_training.encoding import Encoded
from adapters_training.fed_head.acceptance import HeadDrafter, measure
from adapters_training.fed_head.config import FedHeadConfig
from adapters_training.fed_head.losses import depth_losses
from adapters_training.fed_head.runs import gather, spans
from adapters_training.fed_head.training import FedTrainer
from adapters_training.frozen_target import preparation, training
from adapters_training.frozen_target.batches import Batch, collate
from adapters_training.frozen_target.training import finished_results
from adapters_training.packing import IGNORE
from adapters_training.settings import make
from adapters_training.trainer import CHECKPOINT_FILE
from edge_drafter import DraftingConfig, StepRequest
from speculation.fed.encoder import FeatureEncoder
from speculation.fed.files import fingerprint, load_encoder, load_head
from speculation.fed.head import FedHead
from speculation.vlm.inputs import prepare as prepare_inputs
from speculation.vlm.load import load_vlm
from speculation.vlm.model import Vlm
from tests.cloud_verifier.test_engine import PROMPTS, greedy, jpeg
from tests.edge_drafter.fakes import Weather
from tests.pair import Robot, run
from tests.speculation.fed.heads import tiny_config

train, prepare = partial(training.train, FedTrainer), partial(preparation.prepare, FedTrainer)


def config(target: Path, data: Path, out: Path, **changes: Any) -> FedHeadConfig:
    """Return settings of a short training on the CPU."""
    values = {
        "target": str(target), "data": [str(data)], "out": str(out), "steps": 12, "batch": 4, "context": 96,
        "learning_rate": 1e-2, "device": "cpu", "held_out_samples": 8, "seed": 5, "size": 16, "width": 32, "heads": 2,
        "depths": 3, "prompt_tokens": 4, "gamma": 3,
    }  # fmt: skip
    return make(FedHeadConfig, values | changes)


def own_answers(vlm: Vlm, count: int) -> Batch:
    """Return the target's own answers to the tests' prompts as a batch."""
    rows = []
    for number, prompt in enumerate(PROMPTS):
        inputs, answer = prepare_inputs(vlm, prompt, jpeg(number)), greedy(vlm, prompt, jpeg(number), count)
        ids = np.concatenate([inputs.ids, answer]).astype(np.int64)
        behind = np.tile(np.arange(len(inputs.ids), len(ids)) + inputs.delta, (3, 1))
        labels = np.full(len(ids), IGNORE)
        labels[len(inputs.ids) - 1 : -1] = answer
        positions = np.concatenate([inputs.positions, behind], axis=1)
        rows.append(Encoded(ids, labels, positions, inputs.pixel_values, inputs.grids[0], False))
    return collate(rows, 0)


def test_a_head_that_was_trained_on_the_spot_drafts_right_tokens(target: Vlm, draft: Vlm) -> None:
    """On three answers, which it knows by heart after some steps: then most of what it drafts over the link stands."""
    torch.manual_seed(1)
    shape = tiny_config(
        target=target.fingerprint, tokenizer=target.tokenizer_fingerprint, vocabulary=target.vocabulary,
        hidden=target.hidden_size, size=48, width=64, heads=4, intermediate=64,
        short_list=tuple(range(target.vocabulary)),
    )  # fmt: skip
    encoder, head = FeatureEncoder(shape), FedHead(shape)
    batch, gamma = own_answers(target, 12), 3
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


def slow_spans(labels: Sequence[int], positions: Sequence[int], most: int) -> list[tuple[int, int, int]]:
    found = []
    for at in range(len(labels)):
        if labels[at] == IGNORE or (at and labels[at - 1] != IGNORE and positions[at] == positions[at - 1] + 1):
            continue
        end = at + 1
        while end < len(labels) and labels[end] != IGNORE and positions[end] == positions[end - 1] + 1:
            end += 1
        first = at
        while (
            at - first + 1 < most
            and first >= 2
            and positions[first - 1] == positions[first - 2] + 1
            and (positions[first] == positions[first - 1] + 1)
        ):
            first -= 1
        if first >= 1 and positions[first] == positions[first - 1] + 1:
            found.append((first, at, end))
    return found


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=25), st.integers(1, 5))
def test_runs_are_answers_with_the_end_of_their_prompt(tokens: list[tuple[bool, int]], most: int) -> None:
    """No run crosses a place where the text does not go on: an image, or the question before."""
    labels = [IGNORE if not labelled else 1 for labelled, _ in tokens]
    positions = [0]
    for _, jump in tokens[1:]:
        positions.append(positions[-1] + (1 if jump else 0))
    found = list(spans(torch.tensor([labels]), torch.tensor([positions]), most))
    assert [(first, at, end) for _, first, at, end in found] == slow_spans(labels, positions, most)
