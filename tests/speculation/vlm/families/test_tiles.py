"""InternVL and SmolVLM2 in folders as published: frames, prompts, forwards and answers are transformers' own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from speculation.frames import decode_jpeg
from speculation.language.prompts import chat
from speculation.vlm.families.internvl import InternVL, InternVLFrames
from speculation.vlm.families.smolvlm import SmolVLM, SmolVLMFrames
from speculation.vlm.families.tiles import TileFrames
from speculation.vlm.folder import stored_tensors, weight_files
from speculation.vlm.forward import encode_image
from speculation.vlm.inputs import as_sent, prepare
from speculation.vlm.load import ModelFolderError, load_vlm
from speculation.vlm.memory import loaded_bytes, weight_bytes
from speculation.vlm.model import Vlm
from speculation.vlm.quantise import quantisation_config
from speculation.vlm.settings import Quantisation
from speculation.wire import MAX_FRAMES, Sight
from tests.models import check_tree, tree_logits
from tests.published_tiles import LAYOUTS, TOKENS_PER_TILE, published_tiles
from tests.speculation.files import edit
from tests.speculation.pictures import jpeg

EXACT = 1e-9
NAMES = tuple(LAYOUTS)
FAMILIES = ("InternVL3_5-8B-HF", "SmolVLM2-2.2B-Instruct")
"""One checkpoint of each, for what does not depend on a layout."""
PROMPT = "find the silver bottle"
TREE = ([7, 8, 9, 10], [-1, 0, 0, -1])


def pixels(height: int, width: int, seed: int = 3) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


FRAME = pixels(90, 170)
WIDE = pixels(40, 150, 4)


def tiles_of(vlm: Vlm) -> TileFrames:
    frames = vlm.processor.frames
    assert isinstance(frames, InternVLFrames | SmolVLMFrames)
    return frames


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("published")
    return {name: published_tiles(place / name, name) for name in NAMES}


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> dict[str, Vlm]:
    return {name: load_vlm(folder, dtype="float64") for name, folder in folders.items()}


@pytest.fixture(params=FAMILIES)
def vlm(request: pytest.FixtureRequest, models: dict[str, Vlm]) -> Vlm:
    """One model of each family."""
    return models[request.param]


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder of one's own, to be changed."""
    return published_tiles(tmp_path / "own", request.param)


# --- folders


@pytest.mark.parametrize("name", NAMES)
def test_all_published_weights_are_read(folders: dict[str, Path], models: dict[str, Vlm], name: str) -> None:
    vlm, layout = models[name], LAYOUTS[name]
    assert len(weight_files(folders[name])) == layout.shards
    stored = {each.name: each.count for each in stored_tensors(weight_files(folders[name]))}
    assert sum(stored.values()) == sum(weight.numel() for weight in vlm.model.parameters())
    assert any(key.startswith("language_model.model.layers.0.") for key in stored) is layout.older
    assert (vlm.model.lm_head.weight is vlm.text.embed_tokens.weight) is layout.tied
    assert vlm.num_layers == layout.layers and vlm.eos == (vlm.tokenizer.eos_token_id,)


@pytest.mark.parametrize("name", FAMILIES)
def test_files_of_transformers_5_say_the_same(models: dict[str, Vlm], tmp_path: Path, name: str) -> None:
    newer = published_tiles(tmp_path / name, name, newer=True)
    assert not (newer / "preprocessor_config.json").exists() and not (newer / "chat_template.json").exists()
    one, other = (prepare(vlm, PROMPT, FRAME) for vlm in (models[name], load_vlm(newer, dtype="float64")))
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_array_equal(one.pixel_values, other.pixel_values)
    assert one.grids == other.grids


def test_vision_and_projector_stay_whole_when_the_rest_is_rounded(folders: dict[str, Path]) -> None:
    pytest.importorskip("bitsandbytes")
    for name, parts in zip(FAMILIES, (InternVL.vision, SmolVLM.vision), strict=True):
        config = json.loads((folders[name] / "config.json").read_text(encoding="utf-8"))
        rounding = quantisation_config(folders[name], config, Quantisation.NF4, torch.float32)
        assert rounding.llm_int8_skip_modules == [*parts, "lm_head"]
        vlm = load_vlm(folders[name], quantisation="nf4")
        rounded = {key for key, module in vlm.model.named_modules() if type(module).__name__ == "Linear4bit"}
        assert rounded and all(key.startswith(f"{vlm.family.decoder}.layers.") for key in rounded)
        predicted = weight_bytes(stored_tensors(weight_files(folders[name])), "float32", Quantisation.NF4)
        assert predicted == pytest.approx(loaded_bytes(vlm.model), rel=0.03)


# --- frames and prompts


def rendered(vlm: Vlm, counts: list[tuple[int, int, int]]) -> str:
    """Return the prompt as the processors of transformers expand it, by their own functions."""
    text = vlm.tokenizer.apply_chat_template(
        chat(PROMPT, len(counts)), chat_template=vlm.processor.template, tokenize=False, add_generation_prompt=True
    )
    place = tiles_of(vlm).place
    for tiles, rows, columns in counts:
        if isinstance(vlm.family, InternVL):
            own: Any = SimpleNamespace(
                start_image_token="<img>", end_image_token="</img>", image_token=place, image_seq_length=TOKENS_PER_TILE
            )
            expanded = InternVLProcessor.replace_image_token(own, {"num_patches": [tiles]}, 0)
        else:
            names = ("<fake_token_around_image>", place, "<global-img>")
            prompt: Any = get_image_prompt_string
            expanded = prompt(rows, columns, TOKENS_PER_TILE, *names)
        text = text.replace(place, expanded.replace(place, "<here>"), 1)
    return str(text.replace("<here>", place))


ODD = {
    "flat": pixels(1, 1000),
    "high": pixels(1000, 1),
    "one pixel": pixels(1, 1),
    "grey": decode_jpeg(jpeg(pixels(60, 80)[..., 0])),
    "huge": np.full((2000, 3000, 3), 128, np.uint8),
}


@pytest.mark.parametrize("odd", ODD)
def test_any_frame_is_prepared_as_by_transformers_own_processor(vlm: Vlm, odd: str) -> None:
    picture, images = ODD[odd], tiles_of(vlm).images
    inputs = prepare(vlm, PROMPT, picture)
    more = {"crop_to_patches": True} if isinstance(vlm.family, InternVL) else {"return_row_col_info": True}
    found = images.preprocess(images=Image.fromarray(picture), return_tensors="np", **more)
    expected = found["pixel_values"].reshape(-1, 3, tiles_of(vlm).side, tiles_of(vlm).side)
    np.testing.assert_array_equal(inputs.pixel_values, expected)
    if isinstance(vlm.family, InternVL):
        shape = (int(found["num_patches"][0]), 0, 0)
    else:
        assert found["pixel_attention_mask"].all(), "no tile is padded"
        shape = (len(expected), found["rows"][0][0], found["cols"][0][0])
    assert inputs.grids == (shape,)
    assert vlm.tokenizer.decode(inputs.ids) == rendered(vlm, [shape])
    assert (inputs.ids == vlm.image_token).sum() == TOKENS_PER_TILE * len(expected)
    np.testing.assert_array_equal(inputs.positions, np.tile(np.arange(len(inputs.ids)), (3, 1)))
    assert inputs.delta == 0
    seen = encode_image(vlm, inputs)
    assert seen is not None and len(seen.features) == TOKENS_PER_TILE * len(expected)


@settings(max_examples=25, deadline=None)
@given(height=st.integers(1, 600), width=st.integers(1, 600), bound=st.sampled_from([0, 20_000, 70_000, 200_000]),
       longest=st.sampled_from([0, 100, 336, 500]))  # fmt: skip
@example(height=1, width=600, bound=0, longest=5000)
@example(height=599, width=1, bound=0, longest=100)
def test_the_tokens_of_a_frame_are_known_from_its_size(
    models: dict[str, Vlm], folders: dict[str, Path], height: int, width: int, bound: int, longest: int
) -> None:
    for name in FAMILIES:
        frames: Any = models[name].family.frames(folders[name], json.loads((folders[name] / "config.json").read_text()))
        if isinstance(frames, SmolVLMFrames):
            if longest:
                frames.images.size = {"longest_edge": longest}
            frames.images.do_resize = longest != 500
            if longest == 336:
                frames.images.do_image_splitting = False
            elif frames.images.do_resize:
                frames.limit(0, bound)
        else:
            frames.limit(0, bound)
        values, grid = frames.encode(np.zeros((height, width, 3), np.uint8))
        assert grid == frames.grid(height, width) and len(values) == grid[0]
        if bound and frames.images.do_resize and longest != 336:
            assert (grid[0] - (grid[0] > 1)) * frames.side**2 <= bound


@pytest.mark.parametrize("images", [0, MAX_FRAMES])
def test_a_chat_has_a_place_for_each_frame_and_keeps_the_words(vlm: Vlm, images: int) -> None:
    inputs = prepare(vlm, PROMPT, [FRAME, WIDE, FRAME, WIDE][:images] or None)
    text = vlm.tokenizer.decode(inputs.ids)
    assert text == rendered(vlm, list(inputs.grids)) and PROMPT in text and len(inputs.grids) == images
    with pytest.raises(ValueError, match="contains the special token"):
        prepare(vlm, f"find {tiles_of(vlm).place}", FRAME)


def test_robots_send_frames_as_they_are(vlm: Vlm) -> None:
    """No smaller frame gives the same tiles, and what is said of it to robots is within the wire's bounds."""
    sight = Sight(MAX_FRAMES, *tiles_of(vlm).resize_rule)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sight), type=Sight) == sight
    for picture in (FRAME, pixels(4096, 4096), *(ODD[name] for name in ("flat", "high", "one pixel"))):
        sent = jpeg(picture)
        assert as_sent(vlm, sent) is sent


@pytest.mark.parametrize("name", FAMILIES)
def test_bounds_that_no_tiles_fit_are_refused(folders: dict[str, Path], name: str) -> None:
    side, frames = LAYOUTS[name].side, load_vlm(folders[name], load_check=False).processor.frames
    assert frames is not None
    with pytest.raises(ValueError, match=f"{side} x {side} = {side**2} pixels"):
        frames.limit(0, side**2 - 1)
    internvl = "InternVL" in name
    least = f"within min_pixels {13 * side**2} and" if internvl else "leave min_pixels out, and set max_pixels"
    with pytest.raises(ValueError, match=re.escape(least)):
        frames.limit(13 * side**2, 0)
    frames.limit(0, 0)
    if internvl:
        frames.limit(6 * side**2, 6 * side**2)
        assert frames.grid(10, 10) == (7, 0, 0)


@pytest.mark.parametrize(
    ("name", "file", "values", "sentence"),
    [
        (1, "processor_config.json", {"image_seq_len": 64}, "is 64, by config.json a tile takes 4"),
        (0, "preprocessor_config.json", {"size": {"height": 448, "width": 448}}, "image_size in config.json is 56"),
        (1, "preprocessor_config.json", {"max_image_size": {"longest_edge": 364}}, "image_size in config.json is 84"),
        (1, "preprocessor_config.json", {"size": {"height": 84, "width": 84}}, "known is a longest_edge"),
        (0, "preprocessor_config.json", {"do_normalize": False}, "do_normalize is false"),
        (0, "config.json", {"vision_feature_select_strategy": "full"}, "only 'default' makes a square"),
        (
            0,
            "config.json",
            {"text_config": {"model_type": "gpt_oss"}},
            "a decoder of type 'gpt_oss'; known are qwen3, ",
        ),
        (1, "config.json", {"scale_factor": "three"}, "scale_factor"),
    ],
)
def test_files_that_contradict_each_other_are_one_sentence(
    tmp_path: Path, name: int, file: str, values: dict[str, Any], sentence: str
) -> None:
    folder = published_tiles(tmp_path / "own", FAMILIES[name])
    edit(folder / file, **values)
    with pytest.raises(ModelFolderError, match=re.escape(sentence)) as caught:
        load_vlm(folder)
    assert str(folder) in str(caught.value)


# --- forwards


@pytest.mark.parametrize("name", NAMES)
def test_whole_prompts_of_any_frames_are_transformers_own(models: dict[str, Vlm], name: str) -> None:
    vlm = models[name]
    for images in ([WIDE, FRAME], pixels(3, 3)):
        inputs = prepare(vlm, PROMPT, images)
        check_tree(vlm, inputs, TREE, tree_logits(vlm, inputs, *TREE))


@pytest.mark.parametrize("decoder", ["llama", "qwen2", "qwen3_moe"])
def test_other_decoders_of_internvl_pass_the_check_at_load(tmp_path: Path, decoder: str) -> None:
    more = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "decoder_sparse_step": 1}
    text = {"model_type": decoder, **(more if "moe" in decoder else {})}
    folder = published_tiles(tmp_path / "own", FAMILIES[0], text=text)
    # torch multiplies the matrices of experts in float32 at most.
    dtype, tolerance = ("float32", 1e-4) if "moe" in decoder else ("float64", EXACT)
    vlm = load_vlm(folder, dtype=dtype)
    inputs = prepare(vlm, PROMPT, WIDE)
    check_tree(vlm, inputs, TREE, tree_logits(vlm, inputs, *TREE), tolerance)
