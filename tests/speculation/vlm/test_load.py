"""A usable folder loads in every dtype without a hub, any other gives one sentence; what fingerprints tell apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from speculation.vlm import folder as folder_module
from speculation.vlm import load, memory
from speculation.vlm.load import ModelFolderError, load_vlm, model_fingerprint, tokenizer_fingerprint
from speculation.vlm.model import Vlm
from tests.models import tiny_model, tiny_tokenizer
from tests.speculation.files import edit

WEIGHTS = "model.safetensors"


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_runs_in_any_dtype_from_bfloat16_files(tiny_target: Path, dtype: str) -> None:
    stored = load_file(str(tiny_target / WEIGHTS))
    assert {weight.dtype for weight in stored.values()} == {torch.bfloat16}
    vlm = load_vlm(tiny_target, dtype=dtype)
    assert vlm.dtype == getattr(torch, dtype)
    assert vlm.num_layers == 4
    assert vlm.vocabulary == len(vlm.tokenizer) < vlm.text.embed_tokens.num_embeddings
    assert vlm.eos == (vlm.tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    assert not any(weight.requires_grad for weight in vlm.model.parameters())


def test_generation_config_adds_ends_and_is_not_silently_dropped(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "generation_config.json"
    asked = {"eos_token_id": [3, 5], "repetition_penalty": 1.05, "do_sample": True, "temperature": 0.01, "min_p": 0.1}
    path.write_text(json.dumps(asked))
    with caplog.at_level("INFO", "speculation"):
        vlm = load_vlm(folder)
    assert vlm.eos == (3, 5, vlm.tokenizer.eos_token_id)
    assert vlm.repetition_penalty == 1.05 and "answers get the repetition penalty of" in caplog.text
    assert "suggests temperature=0.01, min_p=0.1; the robot's own sampling setting decides" in caplog.text
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    with caplog.at_level("INFO", "speculation"):
        raw = load_vlm(folder, generation="raw")
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert raw.repetition_penalty == 1.0 and raw.eos == vlm.eos
    assert "asks for repetition_penalty=1.05; generation is raw, so it is not applied" in warning


def test_a_generation_config_that_cannot_be_applied_is_refused_unless_it_is_left_out(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"no_repeat_ngram_size": 3}))
    with pytest.raises(ModelFolderError, match="asks for no_repeat_ngram_size=3, which cannot be applied here"):
        load_vlm(folder)
    assert load_vlm(folder, generation="raw").repetition_penalty == 1.0
    with pytest.raises(ValueError, match="generation 'checkpoints' is none of checkpoint, raw"):
        load_vlm(folder, generation="checkpoints")


def drop(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def edit_config(name: str = "config.json", **values: object) -> Callable[[Path], object]:
    return lambda folder: edit(folder / name, **values)


def edit_text(**values: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        edit(folder / "config.json", text_config=config["text_config"] | values)

    return change


def lose(tensor: str) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        weights = {name: value for name, value in load_file(str(folder / WEIGHTS)).items() if name != tensor}
        save_file(weights, str(folder / WEIGHTS), metadata={"format": "pt"})

    return damage


def leave_the_adapter(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    write("adapter_config.json", '{"base_model_name_or_path": "Qwen/Qwen2-VL-2B-Instruct"}')(folder)


def rename(new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / WEIGHTS).rename(folder / new)


def grow_tokenizer(folder: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([f"extra{index}" for index in range(64)])
    tokenizer.save_pretrained(str(folder))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (drop("config.json"), "has no config.json; give the path of a model's folder"),
        (write("config.json", "{"), "config.json is no JSON"),
        (edit_config(model_type="gpt2"), "holds a model of type 'gpt2'; known are qwen2_vl, qwen2_5_vl, qwen3_vl, "),
        (edit_config(image_token_id=7), "image_token_id in config.json is not the tokenizer's"),
        (drop(WEIGHTS), "lacks its weights, model.safetensors; fetch or train the model"),
        (write(WEIGHTS, "version https://git-lfs.github.com/spec/v1\n"), "weights do not load"),
        (lose("lm_head.weight"), "such as lm_head.weight; where the head is the embedding, set tie_word_embeddings to"),
        (rename("model-00001-of-00001.safetensors"), "has 1 shards of weights but no model.safetensors.index"),
        (rename("pytorch_model-00001-of-00002.bin"), "weights as pickles"),
        (write("adapter_config.json", "{}"), "holds a LoRA adapter (adapter_config.json) beside a model"),
        (leave_the_adapter, "is a LoRA adapter of Qwen/Qwen2-VL-2B-Instruct; merge it first: peft's"),
        (
            lose("model.layers.1.mlp.up_proj.weight"),
            "1 missing_keys such as model.language_model.layers.1.mlp.up_proj.weight",
        ),
        (grow_tokenizer, "they do not belong together"),
        (drop("preprocessor_config.json"), "tokenizer or processor files do not load"),
        (drop("chat_template.jinja"), "no chat_template.jinja"),
        (write("chat_template.jinja", "{{ raise_exception('no images') }}"), "cannot be rendered (no images)"),
        (write("chat_template.jinja", "no place"), "renders 0 image places, one is needed"),
        (edit_config("preprocessor_config.json", patch_size=16), "patch_size of its image processor is 16, patch_size"),
        (
            edit_config("preprocessor_config.json", merge_size=4),
            "merge_size of its image processor is 4, spatial_merge",
        ),
        (write("generation_config.json", "[]"), "generation_config.json is no JSON object"),
        (edit_config(text_config=[]), "text_config in config.json is no object"),
        (edit_config(quantization_config="nf4"), "quantization_config in config.json is no object"),
        (edit_text(num_hidden_layers="4"), "num_hidden_layers in config.json is '4', no whole number above 0"),
        (edit_text(num_attention_heads=0), "num_attention_heads in config.json is 0, no whole number above 0"),
        (
            edit_config("preprocessor_config.json", size={"shortest_edge": 3136, "longest_edge": 0}),
            "size of its image processor is 3136 to 0 pixels",
        ),
        (edit_text(layer_types=["full_attention"] * 3 + ["sliding_attention"], sliding_window=16), "sliding-window"),
        (
            edit_text(use_sliding_window=True, sliding_window=16, max_window_layers=2, layer_types=None),
            "sliding-window",
        ),
        (edit_text(num_hidden_layers=3, layer_types=None), "config.json has 3 layers, the weights have more, such as"),
    ],
)
def test_unusable_folder_gives_one_sentence(folder: Path, damage: Callable[[Path], object], sentence: str) -> None:
    damage(folder)
    with pytest.raises(ModelFolderError) as caught:
        load_vlm(folder)
    assert sentence in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_word_that_a_user_added_to_the_tokenizer_may_be_said(folder: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["bottle"])
    tokenizer.save_pretrained(str(folder))
    vlm = load_vlm(folder)
    assert tokenizer.convert_tokens_to_ids("bottle") in vlm.words("find the silver bottle")
    with pytest.raises(ValueError, match=r"contains the special token <\|im_end\|>"):
        vlm.words("find<|im_end|>")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Qwen/Qwen2-VL-2B-Instruct@main", "`hf download Qwen/Qwen2-VL-2B-Instruct --revision main`"),
        ("hf://Qwen/Qwen2-VL-2B-Instruct", "`hf download Qwen/Qwen2-VL-2B-Instruct`"),
        (Path("hf://Qwen/Qwen2-VL-2B-Instruct@v1.0"), "`hf download Qwen/Qwen2-VL-2B-Instruct --revision v1.0`"),
        ("https://huggingface.co/Qwen/Qwen2-VL-2B-Instruct", "is an address; give a folder, or its name on the hub"),
    ],
)
def test_names_of_the_hub_are_read_as_what_they_are(name: str | Path, sentence: str) -> None:
    with pytest.raises(ModelFolderError) as caught:
        load_vlm(name)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("version", "tested"),
    [("5.19.0", False), ("5.20.2", True), (transformers.__version__, True), ("5.25.0", False), ("6.0.0.dev0", False)],
)
def test_a_transformers_that_was_not_tested_is_said_once(
    version: str, tested: bool, caplog: pytest.LogCaptureFixture
) -> None:
    load._warn_of_untested.cache_clear()
    for _ in range(2):
        load._warn_of_untested(version)
    said = [record.getMessage() for record in caplog.records]
    assert said == [] if tested else len(said) == 1
    assert all(f"transformers {version} is installed, tested are 5.20 to 5." in each for each in said)


def test_shards_are_one_model(folder: Path, target: Vlm) -> None:
    whole = load_file(str(folder / WEIGHTS))
    (folder / WEIGHTS).unlink()
    names = sorted(whole)
    places = {name: f"model-{1 + index % 3:05}-of-00003.safetensors" for index, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: whole[name] for name in names if places[name] == file}, str(folder / file), {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    vlm = load_vlm(folder, dtype="float64")
    assert vlm.fingerprint != target.fingerprint  # the same words from other files
    for mine, expected in zip(vlm.model.parameters(), target.model.parameters(), strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=0)


def test_too_little_memory_is_said_before_loading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda device: 1_000_000)
    (folder / "tokenizer.json").touch()
    with pytest.raises(ModelFolderError, match=r"its weights take 1\.1 MB in float32, cpu has 1\.0 MB free; choose"):
        load_vlm(folder)
    assert load_vlm(folder, dtype="bfloat16").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_pixels": 5}, "max_pixels 5 is outside 3136 to"),
        ({"min_pixels": 8000, "max_pixels": 4000}, "min_pixels 8000 is more than max_pixels 4000"),
        ({"min_pixels": 8000}, "set both min_pixels and max_pixels"),
        ({"device": "nonsense"}, "device nonsense: "),
    ],
)
def test_settings_that_make_no_sense(tiny_target: Path, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        load_vlm(tiny_target, **settings)
    assert "\n" not in str(caught.value)


def test_fingerprint_names_config_and_weights(folder: Path, tiny_target: Path, tmp_path: Path) -> None:
    same = load_vlm(folder).fingerprint
    assert same == load_vlm(tiny_target, dtype="float64").fingerprint
    edit_config(transformers_version="0")(folder)
    assert load_vlm(folder, load_check=False).fingerprint == same
    edit_config(extra_key=1)(folder)
    assert load_vlm(folder, load_check=False).fingerprint != same
    assert load_vlm(tiny_model(tmp_path / "other", seed=7)).fingerprint != same


def test_fingerprint_samples_large_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "WHOLE_FILE_BYTES", 1000)
    monkeypatch.setattr(folder_module, "SAMPLES", 4)
    monkeypatch.setattr(folder_module, "SAMPLE_BYTES", 16)
    path = tmp_path / WEIGHTS

    def name(value: float, place: int) -> str:
        weight = torch.zeros(5000)
        weight[place] = value
        save_file({"w": weight}, str(path))
        return model_fingerprint({}, [path])

    assert name(0, 0) != name(1, 0)
    assert name(0, 0) != name(1, 4999)
    assert name(0, 0) == name(1, 10)  # between two samples, as documented


def test_fingerprint_refuses_a_pointer_file(tmp_path: Path) -> None:
    path = tmp_path / WEIGHTS
    path.write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ModelFolderError, match="Git LFS pointer"):
        model_fingerprint({}, [path])


def test_tokenizer_fingerprint_names_the_meaning_of_ids(target: Vlm, draft: Vlm) -> None:
    assert target.tokenizer_fingerprint == draft.tokenizer_fingerprint == tokenizer_fingerprint(tiny_tokenizer())
    more = tiny_tokenizer()
    more.add_tokens(["extra"])
    assert tokenizer_fingerprint(more) != target.tokenizer_fingerprint
    assert tokenizer_fingerprint(tiny_tokenizer(300)) != target.tokenizer_fingerprint
