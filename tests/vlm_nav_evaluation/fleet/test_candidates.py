"""Models of candidates keep what their sources print, and are brought to what SpecEdge prints."""

from __future__ import annotations

import numpy as np
import pytest

from vlm_nav_evaluation.fleet import specedge
from vlm_nav_evaluation.fleet.candidates import MODELS, Candidates, measured, spread_of, tokens_of
from vlm_nav_evaluation.fleet.trees import best_tree, expected_tokens
from vlm_nav_evaluation.virtual_time import Recording
from vlm_nav_evaluation.virtual_time.recording import RecordedStep


def test_the_published_table_is_kept() -> None:
    (kind,) = MODELS["greedy 68M"].kinds
    greedy = np.mean([[68, 77, 81, 84, 85], [69, 79, 83, 86, 87], [62, 72, 77, 80, 82], [70, 81, 85, 88, 89],
                      [63, 75, 79, 83, 85]], axis=0)  # fmt: skip
    assert 100.0 * np.cumsum(kind) == pytest.approx(greedy)
    for model in MODELS.values():
        assert model.workload(8).kinds == model.kinds
        assert sum(model.shares) == pytest.approx(1.0)


def test_tokens_of_one_kind_are_those_of_its_tree() -> None:
    model = MODELS["sampled 68M"]
    levels = model.kinds * 5
    assert tokens_of(model, 16, 5) == pytest.approx(expected_tokens(best_tree(levels, 16, 5), levels))
    assert 0.5 < spread_of(model, 16, 5) < 2.5


def test_easy_text_in_stretches_spreads_what_is_committed() -> None:
    model = MODELS["stretches"]
    alone = Candidates("test", model.kinds, model.shares)
    assert spread_of(model, 32, 12) > spread_of(alone, 32, 12)
    request = model.workload(512).request(0, 3)
    same = np.mean(np.diff(request.kinds) == 0)
    assert same > 0.9 > np.mean(np.diff(alone.workload(512).request(0, 3).kinds) == 0)


@pytest.mark.parametrize("name", ["stretches", "greedy 68M", "two kinds"])
def test_models_are_brought_to_what_the_papers_server_commits(name: str) -> None:
    for pair in specedge.PAIRS.values():
        model = specedge.brought_to(pair, MODELS[name])
        assert tokens_of(model, specedge.TREE, pair.depth) == pytest.approx(pair.printed.server[0], abs=0.01)
        for kind in model.kinds:
            assert min(kind) >= 0.0 and sum(kind) <= 1.0


def test_what_no_draft_model_reaches_is_refused() -> None:
    with pytest.raises(ValueError, match=r"9\.5 tokens a verification are outside"):
        MODELS["greedy 68M"].fitted(9.5, 32, 7)


def test_a_recording_gives_ranks_by_how_sure_the_draft_is() -> None:
    """Every fourth position is unsure, and the target's token is its second candidate or none."""
    length = 80
    tokens = tuple(10 + place % 4 for place in range(length))
    unsure = np.arange(length) % 4 == 0
    drafted = np.stack([np.where(unsure, 1, tokens), np.where(np.arange(length) % 8 == 0, tokens, 2)], axis=1)
    first = np.where(unsure, 0.3, 0.95)
    step = RecordedStep("", 8, tokens, drafted, np.stack([first, 1.0 - first], axis=1), np.ones((length, 1)))
    model = measured(Recording((step,), 100, (1,), 4, (), 128), "test", (0.5,))
    assert model.kinds == ((0.0, 0.5), (1.0,)) and model.shares == (0.25, 0.75)
    assert model.stay == 0.0
    with pytest.raises(ValueError, match="no position"):
        measured(Recording((step,), 100, (1,), 4, (), 128), "test", (0.5, 0.99))
