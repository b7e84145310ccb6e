"""Folders as Qwen published its checkpoints load, and answer as transformers does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from speculation.vlm.inputs import prepare
from speculation.vlm.load import load_vlm
from speculation.vlm.session import VlmSession
from tests.models import scratch_inputs, scratch_logits, tree_logits
from tests.published import FILES, LAYOUTS, QWEN25_TOKENS, published, stored

FRAME = np.random.default_rng(3).integers(0, 256, (168, 140, 3), dtype=np.uint8)
"""Wider and higher than a window of the vision tower of 2.5, 112 pixels, and a multiple of neither."""
PLACES = {"qwen2_vl": 6 * 5, "qwen2_5_vl": 6 * 5, "qwen3_vl": 9 * 8, "qwen3_vl_moe": 9 * 8}
"""Tokens of FRAME; Qwen3-VL enlarges it to 65,536 pixels at least."""


TOKENS = [7, 8, 9]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("published")
    return {name: published(place / name, name) for name in LAYOUTS}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_files_are_the_published_ones_and_all_of_them_are_read(folders: dict[str, Path], name: str) -> None:
    folder, layout = folders[name], LAYOUTS[name]
    shards = {f"model-{number:05}-of-{layout.shards:05}.safetensors" for number in range(1, layout.shards + 1)}
    video = {"video_preprocessor_config.json"} if layout.is_third else set()
    assert {path.name for path in folder.iterdir()} == FILES | shards | video
    vlm = load_vlm(folder, dtype="float64")
    files = stored(folder)
    assert (vlm.model.lm_head.weight is vlm.text.embed_tokens.weight) is layout.tied is ("lm_head.weight" not in files)
    tower = vlm.model.model.visual.blocks[0].attn.qkv.weight
    before, decoder = ("model.", "model.language_model") if layout.is_third else ("", "model")
    torch.testing.assert_close(tower, files[f"{before}visual.blocks.0.attn.qkv.weight"].double(), rtol=0, atol=0)
    last = f"{decoder}.layers.{layout.layers - 1}.self_attn.o_proj.weight"
    torch.testing.assert_close(vlm.text.layers[-1].self_attn.o_proj.weight, files[last].double(), rtol=0, atol=0)
    assert vlm.text.embed_tokens.num_embeddings == vlm.vocabulary + layout.padding
    section, theta = ([24, 20, 20], 5e6) if layout.is_third else ([16, 24, 24], 1e6)
    assert vlm.text.config.rope_parameters["mrope_section"] == section and vlm.head_dim == 128
    assert vlm.text.config.rope_parameters["rope_theta"] == theta
    ends = sorted(vlm.tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>"))
    assert vlm.eos == tuple(ends)
    assert (QWEN25_TOKENS[0] in vlm.tokenizer.get_added_vocab()) is (layout.family != "qwen2_vl")
    if layout.family == "qwen2_5_vl":
        assert list(vlm.model.config.vision_config.fullatt_block_indexes) == [1, 3]
        assert vlm.model.config.vision_config.window_size == 112


@pytest.mark.parametrize(
    ("name", "nested"),
    [
        ("Qwen2-VL-2B-Instruct", True),
        ("Qwen2.5-VL-7B-Instruct", True),
        ("Qwen3-VL-8B-Instruct", False),
        ("Qwen3-VL-30B-A3B-Instruct", False),
    ],
)
def test_own_forward_is_that_of_transformers(folders: dict[str, Path], tmp_path: Path, name: str, nested: bool) -> None:
    folder = published(tmp_path / name, name, nested=True) if nested else folders[name]
    vlm = load_vlm(folder, dtype="float64")
    inputs = prepare(vlm, "find the silver bottle", FRAME)
    assert vlm.processor.frames is not None
    assert vlm.processor.frames.tokens(inputs.grids[0]) == PLACES[LAYOUTS[name].family]
    mine = tree_logits(vlm, inputs, TOKENS)
    np.testing.assert_allclose(mine, scratch_logits(vlm, inputs, TOKENS), rtol=0, atol=1e-5)
    if nested:
        np.testing.assert_array_equal(tree_logits(load_vlm(folders[name], dtype="float64"), inputs, TOKENS), mine)


@pytest.mark.parametrize(("penalty", "views"), [(1.05, 0), (1.3, 1), (0.8, 3)])
def test_alone_it_is_generate_of_the_published_folder(tmp_path: Path, penalty: float, views: int) -> None:
    """With the penalty that its generation_config asks for, behind all of the prompt; and without, where it is raw."""
    folder = published(tmp_path / "model", "Qwen2.5-VL-7B-Instruct")
    asked = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(asked | {"repetition_penalty": penalty}))
    vlm, raw = load_vlm(folder, dtype="float64"), load_vlm(folder, dtype="float64", generation="raw")
    frames = [FRAME, FRAME[::-1], FRAME[:, ::-1]][:views] or None
    prompt, answers = "I see the red chair ahead, on the left. What now?", []
    arguments = scratch_inputs(vlm, prepare(vlm, prompt, frames))
    for model, more in ((vlm, {}), (raw, {"repetition_penalty": 1.0})):
        output = vlm.model.generate(**arguments, do_sample=False, max_new_tokens=20, **more)
        answers.append([token for token, _ in VlmSession(model, 512).greedy(prompt, frames, 20)])
        assert answers[-1] == output[0, arguments["input_ids"].shape[1] :].tolist()
    assert answers[0] != answers[1], "else the penalty shows nothing"
