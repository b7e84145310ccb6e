from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.exits import DRAFTS, added, alone, compare, exits_of, never_wrong
from vlm_nav_evaluation.virtual_time import Recording, Synthetic, Timings


def recorded(steps: int = 2, tokens: int = 20) -> Recording:
    """A synthetic draft beside two recorded exits: the first always wrong, the second right in every other place."""
    drawn = Synthetic(tokens=tokens, layers=8, exits=(2, 5), mean_exit=3.0).draw(steps)
    every = []
    for step in drawn.steps:
        right = np.array(step.tokens)
        exits = np.stack([right + 1, right + np.arange(tokens) % 2], axis=1)
        chances = np.full(exits.shape, 0.8)
        every.append(replace(step, exit_tokens=exits, exit_probabilities=chances, agrees=None, confidences=None))
    return replace(drawn, steps=tuple(every))


def test_an_exit_alone_is_that_exit() -> None:
    whole = recorded()
    part = alone(whole, 5)
    assert part.exit_layers == (5,)
    for one, other in zip(part.steps, whole.steps, strict=True):
        assert one.exit_tokens is not None and other.exit_tokens is not None
        assert one.exit_tokens[:, 0].tolist() == other.exit_tokens[:, 1].tolist()


def test_one_that_is_never_wrong_names_the_answer() -> None:
    for step in never_wrong(recorded(), 2).steps:
        assert step.exit_tokens is not None and step.exit_tokens[:, 0].tolist() == list(step.tokens)


@pytest.mark.parametrize("drafts", ["full, chains", "fsd"])
def test_every_choice_of_exits_is_compared_with_none(drafts: str) -> None:
    recording, (mode, text) = recorded(), DRAFTS[drafts]
    times = Timings("test", draft_s=0.05, verify_s=0.4, one_way_s=0.03)
    rows = compare(recording, times, mode, text)
    assert list(rows)[:1] == ["no exits"] and set(exits_of(recording)) < set(rows)
    assert rows["no exits"]["faster"][0] == pytest.approx(1.0)
    assert rows["never wrong after 2"]["faster"][0] > 1.1
    table = added({"one": rows, "other": {"no exits": rows["no exits"]}}).splitlines()
    assert len(table) == 4 and table[0].count("|") == len(rows) + 1
    assert f"{rows['exit 2']['faster'][1]:.2f}" in table[2] and table[3].count(" - ") == len(rows) - 1
