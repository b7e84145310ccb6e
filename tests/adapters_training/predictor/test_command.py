"""From frames to an exported predictor on the tiny random pair: log, kill, go on, train, load."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from adapters_training.__main__ import main
from adapters_training.predictor import drafts
from adapters_training.predictor.drafts import ACCEPTED, REJECTED, UNLABELLED, LogConfig, log, read
from adapters_training.records import write_shard
from speculation.predictor import Predictor
from speculation.vlm.model import Vlm
from tests.adapters_training.frames import make_frame


def small(data: Path, out: Path, gamma: int = 3) -> LogConfig:
    return LogConfig(data=data, out=out, gamma=gamma, frames=12, max_tokens=10)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards of six scenes, one frame each."""
    folder = Path(tmp_path_factory.mktemp("predictor-data"))
    dice = np.random.default_rng(0)
    for first in (0, 6):
        frames = [make_frame(dice, side) for side in ("left", "ahead", "right")] * 2
        write_shard(folder / f"seeds-{first:07d}-{first + 6:07d}.msgpack", frames)
    return folder


@pytest.fixture(scope="module")
def logged(data: Path, draft: Vlm, target: Vlm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(tmp_path_factory.mktemp("drafts"))
    log(draft, target, small(data, folder))
    return folder


def predictor(*words: object) -> int:
    return main(["predictor", *map(str, words)])


def test_what_is_logged_is_what_mode_sd_drafts(logged: Path) -> None:
    some = read(logged)
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


def test_a_killed_log_goes_on_to_the_same_drafts(
    data: Path, draft: Vlm, target: Vlm, logged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = drafts._log_shard

    def dies(decoder: object, form: int, path: Path, *rest: object) -> object:
        if path.stem.startswith("seeds-0000006"):
            raise KeyboardInterrupt
        return real(decoder, form, path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(drafts, "_log_shard", dies)
    with pytest.raises(KeyboardInterrupt):
        log(draft, target, small(data, tmp_path))
    with pytest.raises(ValueError, match="lacks the drafts of 1 shards"):
        read(tmp_path)
    monkeypatch.undo()
    whole, unbroken = log(draft, target, small(data, tmp_path)), read(logged)
    assert (whole.features == unbroken.features).all() and (whole.label == unbroken.label).all()
    assert (whole.draft == unbroken.draft).all()
    with pytest.raises(ValueError, match="was logged with another gamma; give another --out"):
        log(draft, target, small(data, tmp_path, 2))


def test_train_measures_and_exports_what_the_edge_loads(
    logged: Path, draft: Vlm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("train", "--drafts", logged, "--out", tmp_path, "--gamma", 3, "--epochs", 5)
    assert predictor(*words) == 0
    assert "never stopping: " in capsys.readouterr().out
    chosen = Predictor.load(tmp_path, draft.fingerprint)
    notes = json.loads((tmp_path / "predictor.json").read_text())["notes"]
    assert notes["test"]["threshold"] == pytest.approx(chosen.threshold) and notes["gamma"] == 3
    assert predictor(*words, "--threshold", 0.25) == 0
    assert Predictor.load(tmp_path, draft.fingerprint).threshold == 0.25


def refusals(data: Path, logged: Path, draft: Path, empty: Path) -> list[tuple[Sequence[object], str]]:
    train = ("train", "--out", empty / "x", "--drafts")
    return [
        (("log", "--data", empty, "--out", empty / "x", "--draft", draft, "--target", draft), "no frames in"),
        ((*train, empty), "run 'python -m adapters_training predictor log' first"),
        ((*train, logged, "--gamma", 9), "--gamma is 9; the drafts were logged with 3"),
        ((*train, logged, "--profile", "raw"), "profile raw declares no times"),
    ]


def test_what_cannot_be_done_is_one_sentence_and_status_2(
    data: Path, logged: Path, tiny_draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, sentence in refusals(data, logged, tiny_draft, tmp_path):
        assert predictor(*words) == 2
        said = capsys.readouterr().err.strip().splitlines()[-1]
        assert said.startswith("adapters_training predictor: ") and sentence in said
