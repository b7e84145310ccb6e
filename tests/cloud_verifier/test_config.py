"""Settings of the verifier are checked before anything is loaded; a target must see and must verify exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloud_verifier.config import EXITS_FILE, ServerConfig, StartError
from tests.models import tiny_text_model


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"quantisation": "int8"}, "--quantisation int8 rounds a token by what else is in the forward"),
        ({"quantisation": "int3"}, "--quantisation 'int3' is unknown"),
        ({"attention": "flash_attention_2"}, "knows no mask but the causal one"),
        ({"max_pixels": 5}, "--max-pixels 5 is outside"),
        ({"dtype": "int4"}, "--dtype 'int4' is unknown"),
    ],
)
def test_settings_that_cannot_serve(tiny_target: Path, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(StartError, match=sentence):
        ServerConfig.of(tiny_target, **settings)


def test_target_is_a_folder_or_a_name_and_sees(tiny_target: Path, tmp_path: Path) -> None:
    assert ServerConfig.of(tiny_target).model_folder == tiny_target
    with pytest.raises(StartError, match="--model nobody/nothing: model nobody/nothing does not exist as a folder"):
        _ = ServerConfig.of(Path("nobody/nothing")).model_folder
    blind = tiny_text_model(tmp_path / "blind", layers=1)
    with pytest.raises(StartError, match="a language model alone sees no camera"):
        _ = ServerConfig.of(blind).model_folder
    assert ServerConfig.of(blind, text_only=True).model_folder == blind
    assert ServerConfig.of(blind, draft_model=blind, text_only=True).draft_folder == blind
    with pytest.raises(StartError, match="it sees images, --text-only serves a language model alone"):
        _ = ServerConfig.of(tiny_target, text_only=True).model_folder


def test_exits_beside_a_model_named_by_its_hub_name_are_found(hub: Path) -> None:
    config = ServerConfig.of(Path("me/tiny"))
    assert config.exits_folder is None
    beside = hub.parent / "exits"
    for folder in (beside, hub):
        folder.mkdir(exist_ok=True)
        (folder / EXITS_FILE).write_text("{}")
        assert config.exits_folder == folder
    with pytest.raises(StartError, match="--model nobody/nothing: model nobody/nothing does not exist as a folder"):
        _ = ServerConfig.of(Path("nobody/nothing")).exits_folder
