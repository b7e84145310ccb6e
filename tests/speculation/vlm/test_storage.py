"""Weights in 8 bits: half the bytes, near the original, loaded as any other folder; what is damaged is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import Qwen2VLForConditionalGeneration

from speculation.vlm.folder import INT8_FILE, SCALE_SUFFIX, folder_fingerprint, weight_files
from speculation.vlm.load import ModelFolderError, load_vlm
from speculation.vlm.memory import loaded_bytes
from speculation.vlm.storage import pack, store, unpack
from tests.speculation.vlm.test_quantise import logits


def stored(model: Path, out: Path) -> Path:
    out.mkdir(parents=True)
    store(model, out)
    return out


@pytest.fixture(scope="module")
def packed(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tiny_target, tmp_path_factory.mktemp("packed") / "model")


@given(
    st.integers(1, 4),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.integers(1, 70),
    st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 3e4]),
    st.integers(0, 99),
)
def test_no_weight_moves_by_more_than_half_a_step(
    rows: int, inner: list[int], group: int, scale: float, seed: int
) -> None:
    weight = scale * torch.randn(rows, *inner, generator=torch.Generator().manual_seed(seed))
    found = pack({"w": weight}, group)
    back = unpack(found, group, torch.float32)["w"]
    assert found["w"].dtype is torch.int8 and found["w"].shape == back.shape == weight.shape
    rows_of = weight.flatten(1)
    for first in range(0, rows_of.shape[1], group):
        run = rows_of[:, first : first + group]
        step = run.abs().amax(-1, keepdim=True) / 127
        # The scale is a float16: 2^-11 of it at most for 127 steps, or nothing at all below 6e-8.
        allowed = step * (0.5 + 127 * 2**-11) + 127 * 6e-8
        assert bool(((back.flatten(1)[:, first : first + group] - run).abs() <= allowed).all())


def test_vectors_stay_and_no_number_is_refused() -> None:
    weights = {"norm": torch.tensor([0.123456, 3.0]), "ids": torch.tensor([[1, 2]])}
    assert pack(weights).keys() == weights.keys()
    assert torch.equal(unpack(pack(weights), 64, torch.float32)["norm"], weights["norm"])
    with pytest.raises(ValueError, match="w holds what is no number"):
        pack({"w": torch.tensor([[1.0, torch.nan]])})


def test_a_stored_folder_is_half_as_large_near_and_another_model(tiny_target: Path, packed: Path) -> None:
    before, after = (sum(path.stat().st_size for path in weight_files(folder)) for folder in (tiny_target, packed))
    assert after < 0.6 * before
    vlm, whole = load_vlm(packed), load_vlm(tiny_target)
    assert vlm.fingerprint == folder_fingerprint(packed) != whole.fingerprint
    assert vlm.tokenizer_fingerprint == whole.tokenizer_fingerprint
    assert vlm.quantisation == "spec_vlm_nav_int8" and vlm.dtype == torch.float32
    assert loaded_bytes(vlm.model) == loaded_bytes(whole.model), "in memory it is as any other"
    mine, expected = logits(vlm, [7, 8, 9]), logits(whole, [7, 8, 9])
    assert np.corrcoef(mine.ravel(), expected.ravel())[0, 1] > 0.99
    assert not np.array_equal(mine, expected)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_it_runs_in_any_dtype_with_the_weights_that_were_stored(packed: Path, dtype: str) -> None:
    vlm = load_vlm(packed, dtype=dtype)
    files = load_file(str(packed / INT8_FILE))
    name = "model.layers.1.mlp.up_proj.weight"
    scales = files[name + SCALE_SUFFIX].double().repeat_interleave(64, dim=1)
    expected = (files[name].double() * scales).to(vlm.dtype)
    torch.testing.assert_close(vlm.text.layers[1].mlp.up_proj.weight, expected, rtol=0, atol=0)


def test_plain_transformers_refuses_it_and_so_does_a_second_rounding(packed: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no file named model.safetensors"):
        Qwen2VLForConditionalGeneration.from_pretrained(str(packed))
    with pytest.raises(ModelFolderError, match=r"stored quantised \(spec_vlm_nav_int8\); leave quantisation at none"):
        load_vlm(packed, quantisation="nf4")
    with pytest.raises(ModelFolderError, match="is stored quantised already; take the original"):
        store(packed, tmp_path)


@pytest.mark.parametrize("damage", ["cut", "scales", "group"])
def test_damaged_files_give_one_sentence(packed: Path, tmp_path: Path, damage: str) -> None:
    folder = Path(shutil.copytree(packed, tmp_path / "model"))
    path = folder / INT8_FILE
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "scales":
        save_file(
            {n: w for n, w in load_file(str(path)).items() if "layers.0.mlp" not in n or "scale" not in n}, str(path)
        )
    else:
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"]["group_size"] = 0
        (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFolderError, match="weights do not load") as caught:
        load_vlm(folder)
    assert "\n" not in str(caught.value)
