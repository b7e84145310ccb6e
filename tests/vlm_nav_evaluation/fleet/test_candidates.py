"""Models of candidates keep what their sources print, and are brought to what SpecEdge prints."""

from __future__ import annotations

import numpy as np
import pytest

from vlm_nav_evaluation.fleet import specedge
from vlm_nav_evaluation.fleet.candidates import MODELS, Candidates, tokens_of
from vlm_nav_evaluation.fleet.trees import best_tree, expected_tokens


def test_tokens_of_one_kind_are_those_of_its_tree() -> None:
    model = Candidates("test", ((0.5, 0.3, 0.1),))
    levels = model.kinds * 5
    assert tokens_of(model, 16, 5) == pytest.approx(expected_tokens(best_tree(levels, 16, 5), levels))


def test_easy_text_comes_in_stretches() -> None:
    model = MODELS["stretches"]
    alone = Candidates("test", model.kinds, model.shares)
    same = np.mean(np.diff(model.workload(512).request(0, 3).kinds) == 0)
    assert same > 0.9 > np.mean(np.diff(alone.workload(512).request(0, 3).kinds) == 0)


@pytest.mark.parametrize("name", MODELS)
def test_models_are_brought_to_what_the_papers_server_commits(name: str) -> None:
    for pair in specedge.PAIRS.values():
        model = specedge.brought_to(pair, MODELS[name])
        assert tokens_of(model, specedge.TREE, pair.depth) == pytest.approx(pair.tokens, abs=0.01)
        for kind in model.kinds:
            assert min(kind) >= 0.0 and sum(kind) <= 1.0


def test_what_no_draft_model_reaches_is_refused() -> None:
    with pytest.raises(ValueError, match=r"9\.5 tokens a verification are outside"):
        Candidates("test", ((0.5, 0.3),)).fitted(9.5, 32, 7)
