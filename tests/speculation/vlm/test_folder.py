"""A hub name means what lies in the local cache; nothing is fetched unasked; what a folder asks for is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from speculation.vlm.folder import (
    DOWNLOAD_VARIABLE,
    ModelFolderError,
    asked_processors,
    find_model,
    folder_fingerprint,
    model_name,
    repetition_penalty,
    suggested_sampling,
)
from speculation.vlm.load import load_vlm


def test_hub_name_is_found_in_the_cache(hub: Path, tiny_target: Path) -> None:
    vlm = load_vlm("me/tiny")
    assert vlm.folder == hub
    assert vlm.name == model_name(vlm.folder) == "me/tiny"
    assert vlm.fingerprint == load_vlm(tiny_target).fingerprint == folder_fingerprint(Path("me/tiny"))


def test_a_home_folder_that_is_not_there_is_said() -> None:
    with pytest.raises(ModelFolderError, match=r"^model ~nosuch/m: there is no such home folder$"):
        find_model("~nosuch/m")


@pytest.mark.parametrize("way", ["argument", "environment", "neither"])
def test_nothing_is_fetched_unasked_and_a_hub_that_fails_is_one_sentence(
    way: str, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def download(name: str, *, local_files_only: bool, **_: Any) -> str:
        asked.append(not local_files_only)
        raise LocalEntryNotFoundError("nothing here") if local_files_only else ConnectionError("no route\nto anywhere")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    if way == "environment":
        monkeypatch.setenv(DOWNLOAD_VARIABLE, "1")
    unasked = "fetch it with `hf download me/other`, or let it be fetched with --all"
    sentence = unasked if way == "neither" else "model me/other cannot be fetched: no route$"
    with pytest.raises(ModelFolderError, match=sentence):
        find_model("me/other", allow_download=way == "argument")
    assert asked == [way != "neither"]


@pytest.mark.parametrize("stops", [list(range(70)), ["<|im_end|>"], {"a": 1}])
def test_end_tokens_that_no_robot_could_be_sent_are_refused_before_weights_are_read(folder: Path, stops: Any) -> None:
    (folder / "model.safetensors").write_bytes(b"no weights")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    sentence = "names 71 tokens that end an answer, robots take 64 at most; shorten eos_token_id"
    with pytest.raises(ModelFolderError, match=sentence if len(stops) > 1 else "not a token or a list of tokens"):
        load_vlm(folder)


def test_an_end_token_that_the_tokenizer_does_not_have_ends_nothing(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 151643, -1]}))
    vlm = load_vlm(folder)
    assert vlm.eos == (3, vlm.tokenizer.eos_token_id)


def test_only_what_changes_answers_is_reported(tmp_path: Path) -> None:
    asked = {"repetition_penalty": 1.05, "temperature": 0.1, "top_k": 1, "min_length": 0, "suppress_tokens": [4]}
    (tmp_path / "generation_config.json").write_text(json.dumps(asked))
    assert asked_processors(tmp_path) == {"repetition_penalty": 1.05, "suppress_tokens": [4]}
    assert suggested_sampling(tmp_path) == {}
    drawn = {"do_sample": True, "temperature": 0.01, "top_k": 1, "top_p": 0.001, "min_p": 0.1, "typical_p": 1.0}
    (tmp_path / "generation_config.json").write_text(json.dumps(drawn))
    assert asked_processors(tmp_path) == {} and repetition_penalty(tmp_path) == 1.0
    assert suggested_sampling(tmp_path) == {"temperature": 0.01, "top_k": 1, "top_p": 0.001, "min_p": 0.1}
    (tmp_path / "generation_config.json").write_text("[")
    with pytest.raises(ModelFolderError, match="is no JSON object"):
        asked_processors(tmp_path)


def test_an_old_checkpoint_asks_in_its_config(folder: Path) -> None:
    """As transformers reads it: the whole model's settings, and the decoder's where those have none."""
    (folder / "generation_config.json").unlink()
    path, decoder = folder / "config.json", {"repetition_penalty": 1.2}
    config = json.loads(path.read_text())
    config["text_config"] |= decoder
    for settings, penalty in (({}, 1.2), ({"repetition_penalty": None}, 1.2), ({"repetition_penalty": 1.3}, 1.3)):
        path.write_text(json.dumps({**config, **settings}))
        loaded = load_vlm(folder, load_check=False)
        assert loaded.repetition_penalty == loaded.model.generation_config.repetition_penalty == penalty
    path.write_text(json.dumps({**config, "no_repeat_ngram_size": 3}))
    with pytest.raises(
        ModelFolderError, match=r"config\.json asks for no_repeat_ngram_size=3, which cannot be applied"
    ):
        repetition_penalty(folder)
    (folder / "generation_config.json").write_text("{}")
    assert repetition_penalty(folder) == 1.0


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"no_repeat_ngram_size": 3}, "asks for no_repeat_ngram_size=3, which cannot be applied here; with generation"),
        ({"suppress_tokens": list(range(99))}, "suppress_tokens=[0, 1, 2"),
        ({"num_beams": 4, "min_new_tokens": 2}, "asks for min_new_tokens=2, num_beams=4, which"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0, no number from 0.01 to 100; correct it, or load"),
        ({"repetition_penalty": 1e9}, "repetition_penalty is 1000000000.0, no number"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty is nan, no number"),
        ({"repetition_penalty": "1.05"}, "repetition_penalty is '1.05', no number"),
    ],
)
def test_what_cannot_be_applied_is_refused_by_name(tmp_path: Path, asked: dict[str, object], named: str) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(asked))
    with pytest.raises(ModelFolderError) as refused:
        repetition_penalty(tmp_path)
    assert named in str(refused.value) and "generation set to raw" in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("asked", "penalty"),
    [
        ({"repetition_penalty": None, "bad_words_ids": [], "num_beams": 1, "max_length": 20}, 1.0),
        ({"repetition_penalty": 2}, 2.0),
        ({"repetition_penalty": 0.9, "do_sample": True, "min_p": 0.1}, 0.9),
    ],
)
def test_the_repetition_penalty_is_read(tmp_path: Path, asked: dict[str, object], penalty: float) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(asked))
    assert repetition_penalty(tmp_path) == penalty
