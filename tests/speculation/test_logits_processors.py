"""Penalty and mask against transformers' own penalty class and plain definitions, in numpy and torch, node by node."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from speculation.language.grammar import Grammars
from speculation.logits_processors import UNPROCESSED, LogitsProcessors, RepetitionPenalty
from speculation.vlm.model import Vlm
from speculation.vlm.sampling import process_rows
from speculation.wire import Grammar
from tests.speculation.trees import trees

VOCABULARY = 41
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), max_size=12)
FACTORS = st.sampled_from([0.01, 0.9, 1.05, 1.3, 100.0])


def theirs(factor: float, seen: list[int], row: np.ndarray) -> np.ndarray:
    """Return what transformers makes of a row behind these tokens."""
    ids, scores = torch.tensor([seen]), torch.from_numpy(row.copy())[None]
    return np.asarray(RepetitionPenaltyLogitsProcessor(factor)(ids, scores)[0])


@given(FACTORS, TOKENS, TOKENS, trees(VOCABULARY), st.integers(0, 2**31), st.sampled_from([np.float32, np.float64]))
def test_every_node_of_a_tree_is_penalised_as_transformers_does_behind_its_path(
    factor: float, prompt: list[int], answer: list[int], tree: tuple[list[int], list[int]], seed: int, dtype: type
) -> None:
    prompt = [*prompt, 3]  # no prompt is empty
    tokens, parents = tree
    dice = np.random.default_rng(seed)
    rows = (4.0 * dice.normal(size=(len(tokens) + 1, VOCABULARY))).astype(dtype)
    rows[:, dice.integers(VOCABULARY)] = 0.0
    before = rows.copy()
    processors = LogitsProcessors(RepetitionPenalty.of(factor, prompt, VOCABULARY))
    contexts = processors.along(processors.start(answer, 99), tokens, parents)
    own, on_device = processors.process(rows, contexts), process_rows(torch.from_numpy(rows), processors, contexts)
    paths: list[list[int]] = [[]]
    for token, parent in zip(tokens, parents, strict=True):
        paths.append([*paths[parent + 1], token])
    for row, path, found, other in zip(before, paths, own, on_device.numpy(), strict=True):
        expected = theirs(factor, [*prompt, *answer, *path], row)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(other, expected)
    np.testing.assert_array_equal(rows, before, "the model keeps its logits")
    assert own.dtype == dtype == on_device.numpy().dtype
    ids = np.flatnonzero(dice.random(VOCABULARY) < 0.5)
    np.testing.assert_array_equal(processors.process(rows[:, ids], contexts, ids), own[:, ids])


@given(st.sampled_from([torch.bfloat16, torch.float16]), st.integers(0, 2**31))
def test_half_precision_is_penalised_in_float32_as_transformers_does(dtype: torch.dtype, seed: int) -> None:
    rows = torch.from_numpy(np.random.default_rng(seed).normal(size=(1, VOCABULARY))).to(dtype)
    processors = LogitsProcessors(RepetitionPenalty.of(1.05, range(0, VOCABULARY, 2), VOCABULARY))
    found = process_rows(rows, processors, [processors.start([], 9)])
    expected = theirs(1.05, list(range(0, VOCABULARY, 2)), rows[0].float().numpy())
    np.testing.assert_array_equal(found[0].numpy(), expected)


def test_the_penalty_comes_before_the_mask_and_a_node_outside_the_grammar_is_penalised_alone(target: Vlm) -> None:
    grammar = Grammars(target.tokenizer, target.vocabulary).of(Grammar.ACTION_FIRST, target.eos)
    prompt = list(range(0, target.vocabulary, 3))
    processors = LogitsProcessors(RepetitionPenalty.of(1.3, prompt, target.vocabulary), grammar)
    first = int(np.flatnonzero(grammar.allowed(grammar.start(30)).mask)[0])
    contexts = processors.along(processors.start([], 30), [first, target.eos[0]], [-1, -1])
    rows = np.random.default_rng(0).normal(size=(3, target.vocabulary))
    found = processors.process(rows, contexts)
    np.testing.assert_array_equal(process_rows(torch.from_numpy(rows), processors, contexts).numpy(), found)
    for row, mask, out, path in zip(
        rows, processors.masks(contexts), found, ([], [first], [target.eos[0]]), strict=True
    ):
        penalised = theirs(1.3, [*prompt, *path], row)
        np.testing.assert_array_equal(out, penalised if mask is None else np.where(mask, penalised, -np.inf))
    assert processors.masks(contexts)[2] is None


def test_nothing_is_done_for_nothing() -> None:
    rows = np.zeros((2, VOCABULARY))
    contexts = UNPROCESSED.along(UNPROCESSED.start([1, 2], 9), [4], [-1])
    assert UNPROCESSED.process(rows, contexts) is rows and not UNPROCESSED
    tensor = torch.zeros(2, VOCABULARY, dtype=torch.bfloat16)
    assert process_rows(tensor, UNPROCESSED, contexts) is tensor
    assert RepetitionPenalty.of(1.0, [1], VOCABULARY) is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tokens_that_may_not_be_drawn_stay_so_and_padding_of_the_vocabulary_is_left_out(dtype: type) -> None:
    penalty = RepetitionPenalty.of(1.05, [0, 2, VOCABULARY, VOCABULARY + 7], VOCABULARY)
    assert penalty is not None and penalty.prompt.tolist() == [0, 2]
    rows = np.full((1, VOCABULARY), -np.inf, dtype=dtype)
    rows[0, 5] = 2.0
    found = penalty.apply(rows, [[5, 5]])
    assert found[0, 5] == np.array(2.0, dtype) / 1.05 and np.isneginf(np.delete(found[0], 5)).all()
