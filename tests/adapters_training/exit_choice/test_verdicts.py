"""What exits say of drafts, against a slow twin that keeps no cache: transformers' own hidden states."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters_training.exit_choice.verdicts import Prompt, Verdicts, measure, short_list
from adapters_training.speculative_decoding import cut
from speculation.exits import ExitHeads, Head
from speculation.sampling import Greedy
from speculation.vlm.forward import to_numpy
from speculation.vlm.inputs import prepare
from speculation.vlm.model import Vlm
from tests.models import frame, scratch_inputs, scratch_logits

GAMMA, TOKENS, CAPACITY = 3, 8, 96


def prompts(count: int) -> list[Prompt]:
    return [
        (f"find the {colour} bottle", cv2.imencode(".jpg", frame(seed))[1].tobytes())
        for seed, colour in enumerate(("silver", "red", "blue")[:count])
    ]


@pytest.fixture(scope="module")
def heads(target: Vlm) -> ExitHeads:
    """Exits that are right now and then: logit lenses, a little bent; half of all tokens are listed."""
    heads = ExitHeads(target, [0, 1, 2], rank=4)
    torch.manual_seed(1)
    for name, weight in heads.adapters.named_parameters():
        if "up" in name:
            torch.nn.init.normal_(weight, std=0.05)
    heads.set_short_list(range(0, target.vocabulary, 2))
    return heads


@pytest.fixture(scope="module")
def verdicts(target: Vlm, draft: Vlm, heads: ExitHeads) -> Verdicts:
    return measure(target, heads, draft, prompts(3), gamma=GAMMA, max_tokens=TOKENS, capacity=CAPACITY)


def greedy(vlm: Vlm, prompt: Prompt, committed: list[int], count: int) -> list[int]:
    """Return a model's own continuation of an answer, each token from a forward over everything."""
    inputs, answer = prepare(vlm, *prompt), list(committed)
    while len(answer) < len(committed) + count:
        answer.append(int(scratch_logits(vlm, inputs, answer)[-1].argmax()))
        if answer[-1] in vlm.eos:
            break
    return answer[len(committed) :]


def twin(target: Vlm, draft: Vlm, heads: ExitHeads, asked: list[Prompt]) -> dict[Head, list[list[Any]]]:
    """Return (confidence or None, right) by verification and exit, by head."""
    rows: dict[Head, list[list[Any]]] = {head: [] for head in Head}
    for prompt in asked:
        inputs, answer = prepare(target, *prompt), list[int]()
        while len(answer) < TOKENS and not set(answer) & set(target.eos):
            drafted = greedy(draft, prompt, answer, GAMMA)
            parents = range(-1, len(drafted) - 1)
            arguments = scratch_inputs(target, inputs, [*answer, *drafted])
            target.model.model.rope_deltas = None
            states = target.model(**arguments, use_cache=False, output_hidden_states=True).hidden_states
            final = Greedy().judge(drafted, parents, scratch_logits(target, inputs, [*answer, *drafted])[len(answer) :])
            truth = cut([*(drafted[node] for node in final.path), final.token], target.eos)
            for head in Head:
                row: list[Any] = []
                for layer in heads.layers:
                    hidden = states[layer + 1][0, -len(drafted) - 1 :]
                    said = heads.judge(Greedy(), drafted, parents, to_numpy(heads.logits(layer, hidden, head)), head)
                    own = said and cut([*(drafted[node] for node in said.path), said.token], target.eos)
                    row.append((said and said.confidence, own == truth))
                rows[head].append(row)
            answer += truth
    return rows


@torch.no_grad()
def test_verdicts_are_those_of_a_slow_twin(target: Vlm, draft: Vlm, heads: ExitHeads, verdicts: Verdicts) -> None:
    expected = twin(target, draft, heads, prompts(3))
    for head, judged in verdicts.by_head.items():
        assert judged.confidence.shape == (3, len(expected[head]))
        for number, row in enumerate(expected[head]):
            for exit, (confidence, right) in enumerate(row):
                assert judged.spoke[exit, number] == (confidence is not None)
                assert judged.agreed[exit, number] == right
                assert judged.confidence[exit, number] == pytest.approx(confidence or 0.0, abs=1e-5)
    full, short = verdicts.by_head[Head.FULL], verdicts.by_head[Head.SHORT]
    assert full.spoke.all() and not short.spoke.all() and short.spoke.any(), "the test must see both"
    assert 0 < full.agreed.sum() < full.agreed.size


@settings(max_examples=40)
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=30).filter(any),
    coverage=st.floats(0.01, 1.0),
    always=st.sets(st.integers(0, 29), max_size=2),
)
def test_a_short_list_is_the_shortest_that_covers(counts: list[int], coverage: float, always: set[int]) -> None:
    array = np.array(counts)
    ids = short_list(array, coverage, always)
    assert (np.diff(ids) > 0).all() and always <= set(ids.tolist())
    frequent = sorted(short_list(array, coverage).tolist(), key=lambda token: (-counts[token], token))
    covered = np.cumsum([counts[token] for token in frequent])
    assert covered[-1] >= coverage * array.sum() - 1e-6
    assert len(frequent) == 1 or covered[-2] < coverage * array.sum()
    assert min(counts[token] for token in frequent) >= max(
        (count for token, count in enumerate(counts) if token not in frequent), default=0
    )
