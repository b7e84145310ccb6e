"""Rounded models: smaller, near the original, a model of their own; what is missing or makes no sense is said."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from speculation.vlm import quantise
from speculation.vlm.folder import folder_fingerprint, stored_tensors, weight_files
from speculation.vlm.inputs import prepare
from speculation.vlm.inspect import inspect_folder
from speculation.vlm.load import ModelFolderError, load_vlm
from speculation.vlm.memory import loaded_bytes, weight_bytes
from speculation.vlm.model import Vlm
from speculation.vlm.settings import Quantisation
from tests.models import frame, tree_logits
from tests.speculation.files import edit

PACKAGE = {Quantisation.INT8_WEIGHT_ONLY: "torchao"}
ROUNDED = [each for each in Quantisation if each is not Quantisation.NONE]


def load(folder: Path, quantisation: Quantisation) -> Vlm:
    pytest.importorskip(PACKAGE.get(quantisation, "bitsandbytes"))
    return load_vlm(folder, quantisation=quantisation.value)


def logits(vlm: Vlm, tokens: list[int]) -> np.ndarray:
    return tree_logits(vlm, prepare(vlm, "find the silver bottle", frame(0)), tokens)


@pytest.mark.parametrize("quantisation", ROUNDED)
def test_a_rounded_model_is_smaller_near_and_another_and_verifies_its_own_words(
    tiny_target: Path, quantisation: Quantisation
) -> None:
    """One token at a time or all at once: a model that rounds weights alone gives the same logits."""
    vlm, whole = load(tiny_target, quantisation), load_vlm(tiny_target)
    assert loaded_bytes(vlm.model) < 0.8 * loaded_bytes(whole.model)
    predicted = weight_bytes(stored_tensors(weight_files(tiny_target)), "float32", quantisation)
    assert predicted == pytest.approx(loaded_bytes(vlm.model), rel=0.03), "what it takes is known before it is loaded"
    assert vlm.fingerprint == folder_fingerprint(tiny_target, quantisation.value) != whole.fingerprint
    assert vlm.tokenizer_fingerprint == whole.tokenizer_fingerprint
    assert (vlm.quantisation, vlm.dtype) == (quantisation.value, torch.float32)
    mine, expected = logits(vlm, [7, 8, 9]), logits(whole, [7, 8, 9])
    correlation = np.corrcoef(mine.ravel(), expected.ravel())[0, 1]
    assert correlation > 0.9
    assert not np.array_equal(mine, expected)
    for count in range(3):
        np.testing.assert_allclose(logits(vlm, [7, 8, 9][:count])[-1], mine[count], rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", ["awq", "gptq", "torchao"])
def test_stored_quantisation_needs_its_packages_and_no_other(
    folder: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(folder / "config.json", quantization_config={"quant_method": method, "bits": 4})
    monkeypatch.setitem(quantise.STORED_PACKAGES, method, ("no_such_package",))
    with pytest.raises(
        ModelFolderError, match=rf"quantised \({method}\), which needs no_such_package: pip .*, or take the orig"
    ):
        load_vlm(folder)
    with pytest.raises(ModelFolderError, match=rf"stored quantised \({method}\); leave quantisation at none"):
        load_vlm(folder, quantisation="nf4")


@pytest.mark.parametrize("method", ["fp8", "compressed-tensors", "hqq", ""])
def test_what_is_stored_in_a_way_that_is_not_read_is_refused_before_its_weights(folder: Path, method: str) -> None:
    edit(folder / "config.json", quantization_config={"quant_method": method} if method else {"bits": 4})
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(
        ModelFolderError, match=f"by '{method or 'unknown'}', read are awq, gptq, bitsandbytes, torchao;"
    ):
        load_vlm(folder)


@pytest.mark.parametrize("given", ["folder", "folder with a config", "file"])
def test_gguf_files_are_refused_with_what_to_do_instead(folder: Path, given: str) -> None:
    (folder / "model.safetensors").rename(folder / "qwen2-vl-2b-q4_k_m.gguf")
    if given == "folder":
        (folder / "config.json").unlink()
    name = folder / "qwen2-vl-2b-q4_k_m.gguf" if given == "file" else folder
    with pytest.raises(ModelFolderError, match="is of GGUF files, .* quantisation set to nf4 or int8_weight_only"):
        load_vlm(name)
    with pytest.raises(ModelFolderError, match="GGUF"):
        inspect_folder(name)


def test_a_checkpoint_stored_in_nf4_is_read(tiny_target: Path, tmp_path: Path) -> None:
    vlm = load(tiny_target, Quantisation.NF4)
    shutil.copytree(tiny_target, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    vlm.model.save_pretrained(str(tmp_path / "model"))
    again = load_vlm(tmp_path / "model")
    assert again.quantisation == "bitsandbytes"
    assert again.fingerprint != vlm.fingerprint
    np.testing.assert_allclose(logits(again, [7, 8]), logits(vlm, [7, 8]), rtol=0, atol=1e-5)
