"""From frames to an exported predictor on the tiny random pair."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from adapters_training.__main__ import main
from adapters_training.predictor.drafts import ACCEPTED, REJECTED, UNLABELLED, PredictorConfig, collect
from adapters_training.records import write_shard
from speculation.predictor import Predictor
from speculation.vlm.model import Vlm
from tests.adapters_training.frames import make_frame


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards of six scenes, one frame each."""
    folder = Path(tmp_path_factory.mktemp("predictor-data"))
    dice = np.random.default_rng(0)
    for first in (0, 6):
        frames = [make_frame(dice, side) for side in ("left", "ahead", "right")] * 2
        write_shard(folder / f"seeds-{first:07d}-{first + 6:07d}.msgpack", frames)
    return folder


def predictor(*words: object) -> int:
    return main(["predictor", *map(str, words)])


def test_what_is_collected_is_what_mode_sd_drafts(data: Path, draft: Vlm, target: Vlm) -> None:
    some = collect(draft, target, PredictorConfig(data=data, out=data, gamma=3, frames=12, max_tokens=10))
    assert set(some.scene.tolist()) == set(range(12))
    assert {ACCEPTED, REJECTED} <= set(some.label.tolist()) <= {ACCEPTED, REJECTED, UNLABELLED}
    for number in set(some.draft.tolist()):
        mine = some.draft == number
        labels, depths = some.label[mine].tolist(), some.features[mine, -1].tolist()
        assert depths == list(range(1, len(labels) + 1)) and len(labels) <= 3
        accepted = labels.count(ACCEPTED)
        assert labels == [1] * accepted + [0, -1, -1][: len(labels) - accepted]
    rows, labels_ = some.labelled()
    assert len(rows) == len(labels_) == int((some.label != UNLABELLED).sum())


def test_the_command_measures_and_exports_what_the_edge_loads(
    data: Path, draft: Vlm, target: Vlm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--data", data, "--out", tmp_path, "--draft", draft.folder, "--target", target.folder, "--gamma", 3,
             "--threshold-gamma", 3, "--frames", 12, "--max-tokens", 10)  # fmt: skip
    pytest.importorskip("sklearn")
    assert predictor(*words, "--compare") == 0
    printed = capsys.readouterr().out
    assert "never stopping: " in printed and "random forest, WISP: auc " in printed
    assert "confidence alone, profile: auc " in printed and "histogram boosting, profile: auc " in printed
    notes = json.loads((tmp_path / "predictor.json").read_text())["notes"]
    assert Predictor.load(tmp_path, draft.fingerprint).max_depth == 3 and notes["gamma"] == 3
    assert predictor(*words, "--threshold", 0.25) == 0
    assert Predictor.load(tmp_path, draft.fingerprint).threshold == 0.25


def test_what_cannot_be_done_is_one_sentence_and_status_2(
    data: Path, tiny_draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = ("--draft", tiny_draft, "--target", tiny_draft, "--out", tmp_path / "x")
    for words, sentence in (
        (("--data", tmp_path, *pair), "no frames in"),
        (("--data", data, *pair, "--threshold-gamma", 9), "--threshold-gamma 9 is more than --gamma 8"),
        (("--data", data, *pair, "--profile", "raw"), "profile raw declares no times"),
    ):
        assert predictor(*words) == 2
        said = capsys.readouterr().err.strip().splitlines()[-1]
        assert said.startswith("adapters_training predictor: ") and sentence in said
