"""What is kept on disk is what the target makes of every record; later trainings find it there."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from adapters_training.fed_head import hidden_state_cache as kept
from adapters_training.fed_head.config import FedHeadConfig
from adapters_training.fed_head.hidden_state_cache import CachedRuns
from adapters_training.fed_head.runs import Runs, gather
from adapters_training.frozen_target.trainer import Prepared
from adapters_training.packing import IGNORE
from tests.adapters_training.fed_head.test_training import config, prepare, train
from tests.adapters_training.targets import chats
from tests.models import tiny_text_model

PART = 4


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared[FedHeadConfig]:
    folder = tmp_path_factory.mktemp("kept")
    target, data = tiny_text_model(folder / "llama", layers=4), chats(folder / "chat.json")
    return prepare(config(target, data, folder / "head", kept=str(folder / "outputs"), batch=3))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "PART", PART)


def computed(prepared: Prepared[FedHeadConfig], numbers: list[int], first: int) -> Runs:
    """Return the runs of one forward of the target, as the parts were computed."""
    batch = prepared.maker(lambda place: numbers[place], first, min(3, PART - first % PART), prepared.config.seed)
    runs = gather(prepared.vlm, batch, prepared.layers, prepared.config.prompt_tokens)
    assert runs is not None
    return runs


def test_kept_runs_are_those_of_the_target(prepared: Prepared[FedHeadConfig]) -> None:
    keeper = pickle.loads(pickle.dumps(CachedRuns(prepared)))
    numbers = np.sort(prepared.plan.order(0)).tolist()
    for first in (0, 3, 4):
        truth = computed(prepared, numbers, first)
        count = int(truth.rows.max()) + 1
        found = keeper(lambda place: numbers[place], first, count, 99)
        assert found is not None
        assert found.rows.tolist() == truth.rows.tolist()
        for row, labels in enumerate(truth.labels):
            length = int((labels != IGNORE).nonzero().max()) + 1
            assert torch.equal(found.tokens[row, :length], truth.tokens[row, :length])
            assert torch.equal(found.labels[row, :length], labels[:length])
            assert (found.labels[row, length:] == IGNORE).all()
            for mine, theirs in zip([*found.hidden, found.last], [*truth.hidden, truth.last], strict=True):
                assert torch.equal(mine[row, :length], theirs[row, :length].to(torch.bfloat16))


def test_what_is_there_is_not_computed_again(
    prepared: Prepared[FedHeadConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(prepared.config.kept)
    CachedRuns(prepared)
    parts = sorted(folder.glob("*.safetensors"))
    assert len(parts) == -(-prepared.plan.records // PART)
    before = parts[1].read_bytes()
    parts[1].unlink()
    passes: list[int] = []

    def counted(*given: Any) -> Runs | None:
        passes.append(1)
        return gather(*given)

    monkeypatch.setattr(kept, "gather", counted)
    CachedRuns(prepared)
    assert parts[1].read_bytes() == before and len(passes) == 2
    with pytest.raises(ValueError, match="is of other settings .prompt_tokens: 4 there, 3 now"):
        CachedRuns(replace(prepared, config=msgspec.structs.replace(prepared.config, prompt_tokens=3)))


def test_a_full_disk_is_an_error(
    prepared: Prepared[FedHeadConfig], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    full = msgspec.structs.replace(prepared.config, kept=str(tmp_path / "outputs"))
    monkeypatch.setattr(kept.shutil, "disk_usage", lambda folder: SimpleNamespace(free=0))
    with pytest.raises(ValueError, match="--kept .* more, .* are free"):
        CachedRuns(replace(prepared, config=full))


def test_records_without_an_answer_are_kept_as_such(
    prepared: Prepared[FedHeadConfig], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kept, "gather", lambda *given: None)
    empty = msgspec.structs.replace(prepared.config, kept=str(tmp_path / "outputs"))
    keeper = CachedRuns(replace(prepared, config=empty))
    number = int(prepared.plan.order(0)[0])
    assert keeper(lambda place: number, 0, 2, 0) is None


def test_a_training_on_them_learns(prepared: Prepared[FedHeadConfig], tmp_path: Path) -> None:
    settings = msgspec.structs.replace(prepared.config, out=str(tmp_path / "one"), steps=1, learning_rate=1e-9)
    untrained = train(settings)
    trained = train(msgspec.structs.replace(settings, out=str(tmp_path / "more"), steps=40, learning_rate=1e-2))
    assert trained["head"]["cross-entropy"][0] < 0.95 * untrained["head"]["cross-entropy"][0]
