from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.distributions import Distributions
from speculation.predictor import CONFIG_FILE, FEATURES, WEIGHTS_FILE, Predictor, features, find, name


def network(seed: int = 0, threshold: float = 0.5, max_depth: int = 8, draft: str = "d") -> Predictor:
    """A random predictor with one hidden layer."""
    dice = np.random.default_rng(seed)
    layers = tuple(
        (dice.normal(size=(a, b)).astype(np.float32), dice.normal(size=b).astype(np.float32))
        for a, b in ((len(FEATURES), 6), (6, 1))
    )
    mean, scale = dice.normal(size=len(FEATURES)), dice.uniform(0.5, 2.0, len(FEATURES))
    return Predictor(draft, "t", mean, scale, layers, threshold, max_depth)


@given(st.lists(st.floats(-20, 20), min_size=2, max_size=30), st.integers(1, 9))
def test_features_are_what_their_names_say(logits: list[float], depth: int) -> None:
    row = np.array(logits)
    weights = np.exp(row - row.max())
    probabilities = weights / weights.sum()
    entropy = -sum(p * np.log(p) for p in probabilities if p > 0)
    first, second = sorted(logits, reverse=True)[:2]
    expected = [probabilities.max(), entropy, min(first - second, 50.0), row.std(), depth]
    for each in (row, np.append(row, -np.inf)):  # a token that is ruled out does not count
        assert features(Distributions(each[None]), [depth])[0] == pytest.approx(expected, abs=1e-9)


def test_a_saved_predictor_says_the_same(tmp_path: Path) -> None:
    made = network(3, 0.3)
    made.save(tmp_path, {"family": "random"})
    read = Predictor.load(tmp_path, "d")
    rows = np.random.default_rng(1).normal(size=(50, len(FEATURES)))
    assert (read.probabilities(rows) == made.probabilities(rows)).all()
    assert (read.target, read.threshold, read.max_depth) == ("t", 0.3, 8)
    assert json.loads((tmp_path / CONFIG_FILE).read_text())["features"] == list(FEATURES)


@given(st.integers(0, 100), st.integers(1, 6), st.sampled_from([1, 2, 40]), st.floats(0.1, 100.0), st.booleans())
def test_many_chances_at_once_are_those_one_by_one(
    seed: int, count: int, size: int, scale: float, ruled_out: bool
) -> None:
    dice = np.random.default_rng(seed)
    made, rows = network(seed), dice.normal(size=(count, size)) * scale
    if ruled_out:
        rows[dice.random(rows.shape) < 0.3] = -np.inf
        rows[:, 0] = 1.0
    depths = dice.integers(1, 12, count).tolist()
    expected = [made.chances(Distributions(row[None]), [depth])[0] for row, depth in zip(rows, depths, strict=True)]
    assert made.chances(Distributions(rows), depths) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_what_cannot_be_used_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"has no {CONFIG_FILE}; train one with"):
        Predictor.load(tmp_path, "d")
    network().save(tmp_path)
    with pytest.raises(ValueError, match="belongs to draft d, the loaded draft is other; train one"):
        Predictor.load(tmp_path, "other")
    config = json.loads((tmp_path / CONFIG_FILE).read_text())
    for change, said in (
        ({"threshold": 2.0}, "threshold is 2.0; give 0 to 1"),
        ({"mean": [0.0]}, "mean and scale must be 5 numbers"),
        ({"features": ["luck"]}, "wants features"),
        ({"format": 9}, r"Invalid enum value 9 - at `\$\.format`"),
    ):
        (tmp_path / CONFIG_FILE).write_text(json.dumps(config | change))
        with pytest.raises(ValueError, match=said):
            Predictor.load(tmp_path, "d")
    (tmp_path / CONFIG_FILE).write_text(json.dumps(config))
    (tmp_path / WEIGHTS_FILE).write_bytes(b"nothing")
    with pytest.raises(ValueError, match="does not load"):
        Predictor.load(tmp_path, "d")


def test_auto_is_the_one_beside_the_draft(tmp_path: Path) -> None:
    draft, other = tmp_path / "draft", tmp_path / "other"
    assert find("auto", draft) is None and name("auto", draft) == "off"
    network(1).save(draft)
    network(2).save(other)
    assert find("auto", draft) == draft and find("off", draft) is None and find(str(other), draft) == other
    assert name("auto", draft) == name(str(draft), other) != name(str(other), draft)
    with pytest.raises(ValueError, match="has no predictor.json"):
        name(str(tmp_path), draft)
