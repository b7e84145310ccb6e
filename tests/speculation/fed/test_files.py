"""A head's folder: what was saved comes back; what does not belong together is refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from speculation.fed.files import (
    CONFIG_FILE,
    ENCODER_FILE,
    HEAD_FILE,
    load_encoder,
    load_head,
    read_config,
    round_weights,
    save,
)
from speculation.vlm.load import ModelFolderError
from speculation.vlm.model import Vlm
from tests.speculation.fed.heads import random_encoder, random_head, tiny_config
from tests.speculation.files import edit


@pytest.fixture
def folder(target: Vlm, tmp_path: Path) -> Path:
    config = tiny_config(target=target.fingerprint, hidden=target.hidden_size)
    save(tmp_path, random_encoder(config), random_head(config))
    return tmp_path


def test_both_sides_load_what_was_saved(folder: Path, target: Vlm) -> None:
    config = read_config(folder)
    encoder, head = load_encoder(folder, target), load_head(folder, config.tokenizer, dtype=torch.float64)
    assert encoder.config == head.config == config and len(config.features) == 16
    hidden = [torch.randn(2, config.hidden) for _ in config.layers]
    assert torch.equal(encoder(hidden), random_encoder(config)(hidden))
    for name, weight in random_head(config).state_dict().items():
        assert torch.equal(head.state_dict()[name], weight), name


def test_other_weights_are_other_features(folder: Path, target: Vlm, tmp_path: Path) -> None:
    config = read_config(folder)
    other = save(tmp_path / "other", random_encoder(config, seed=1), random_head(config))
    assert other.features != config.features
    (tmp_path / "other" / ENCODER_FILE).replace(folder / ENCODER_FILE)
    with pytest.raises(ModelFolderError, match="is not the bottleneck of fed_head.json beside it"):
        load_encoder(folder, target)


def test_it_belongs_to_one_target_and_one_tokenizer(folder: Path, draft: Vlm) -> None:
    with pytest.raises(ModelFolderError, match=f"the loaded target is {draft.fingerprint}"):
        load_encoder(folder, draft)
    with pytest.raises(ModelFolderError, match="the draft model's is xyz: target and draft model must share one"):
        load_head(folder, "xyz")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"format": 2}, "has format 2, not 1"),
        ({"size": 253}, "Expected `int` <= 252 - at `\\$.size`"),
        ({"layers": [2, 1]}, "layers \\[2, 1\\] must be distinct and ascending"),
        ({"width": 18}, "width 18 is no multiple of two numbers for each of 2 heads"),
        ({"short_list": [3, 40]}, "short_list must be ascending tokens in 0..39"),
        ({"colour": "red"}, "unknown field `colour`"),
    ],
)
def test_an_unusable_config_names_its_field(folder: Path, changes: dict[str, Any], complaint: str) -> None:
    edit(folder / CONFIG_FILE, **changes)
    with pytest.raises(ModelFolderError, match=complaint):
        read_config(folder)


def test_missing_and_broken_files_are_named(folder: Path, target: Vlm, tmp_path: Path) -> None:
    (folder / HEAD_FILE).write_bytes(b"no weights")
    with pytest.raises(ModelFolderError, match="fed_head.safetensors does not load"):
        load_head(folder, "t" * 16)
    (folder / ENCODER_FILE).unlink()
    with pytest.raises(ModelFolderError, match="fed_encoder.safetensors does not load"):
        load_encoder(folder, target)
    with pytest.raises(ModelFolderError, match="has no fed_head.json; train one with"):
        read_config(tmp_path / "nowhere")


def test_rounded_weights_take_half_the_bytes_and_come_back_as_they_are(
    folder: Path, target: Vlm, tmp_path: Path
) -> None:
    config = read_config(folder)
    encoder, head = random_encoder(config), random_head(config)
    for module in (encoder, head):
        round_weights(module)
    rounded = save(tmp_path / "rounded", encoder, head)
    assert rounded.features != config.features
    assert (tmp_path / "rounded" / HEAD_FILE).stat().st_size < 0.6 * (folder / HEAD_FILE).stat().st_size
    found = load_head(tmp_path / "rounded", config.tokenizer, dtype=torch.float64)
    assert all(torch.equal(found.state_dict()[name], weight) for name, weight in head.state_dict().items())
    hidden = [torch.randn(2, config.hidden) for _ in config.layers]
    assert torch.equal(load_encoder(tmp_path / "rounded", target)(hidden), encoder(hidden))
