"""The report of `inspect`: what a folder is, whether two are a pair, what memory they need, checked against loading."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from speculation.vlm.__main__ import main
from speculation.vlm.inputs import prepare
from speculation.vlm.inspect import FRAME, inspect_folder, pair_problems, table
from speculation.vlm.load import ModelFolderError, load_vlm
from speculation.vlm.memory import loaded_bytes
from speculation.vlm.processing import CHAT_TEMPLATE
from tests.models import HYBRID_TEMPLATE, THINKING_TEMPLATE, tiny_model, tiny_text_model


def test_report_is_what_loading_finds(tiny_target: Path) -> None:
    report, vlm = inspect_folder(tiny_target), load_vlm(tiny_target)
    assert (report.fingerprint, report.tokenizer) == (vlm.fingerprint, vlm.tokenizer_fingerprint)
    assert report.vocabulary == vlm.vocabulary
    assert report.parameters == sum(weight.numel() for weight in vlm.model.parameters())
    assert report.weights["float32"] == pytest.approx(loaded_bytes(vlm.model), rel=0.01)
    assert report.kv_bytes_per_token == 2 * 2 * vlm.num_layers * vlm.kv_heads * vlm.head_dim
    frame = prepare(vlm, "go", np.zeros((*FRAME, 3), dtype=np.uint8))
    assert report.image_tokens == (frame.ids == vlm.image_token).sum()


def test_what_is_no_pair_says_why(tiny_target: Path, tmp_path: Path) -> None:
    target = inspect_folder(tiny_target)
    assert pair_problems(target, inspect_folder(tiny_model(tmp_path, layers=2, padding=256))) == []
    (same,) = pair_problems(target, target)
    assert "they are the same model" in same
    (tokens,) = pair_problems(target, inspect_folder(tiny_model(tmp_path / "other", vocabulary=300)))
    assert "their tokenizers differ" in tokens
    (blind,) = pair_problems(target, inspect_folder(tiny_text_model(tmp_path / "blind")))
    assert "blind is a language model alone" in blind


def test_whether_a_model_thinks_first_is_said(tiny_target: Path, tmp_path: Path) -> None:
    thinks, may, quick = (
        inspect_folder(tiny_model(tmp_path / str(number), layers=number, template=template))
        for number, template in ((3, THINKING_TEMPLATE), (2, HYBRID_TEMPLATE), (1, CHAT_TEMPLATE + "{# <think> #}"))
    )
    assert inspect_folder(tiny_target).thinking == quick.thinking == "no"
    assert "template" in thinks.thinking and "model" in may.thinking
    assert "do not think alike" in table([thinks, quick], {"cpu": 10**9})


def test_a_chat_that_thinks_without_its_tokens_is_refused(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path)
    (folder / "chat_template.jinja").write_text(THINKING_TEMPLATE)
    for read in (inspect_folder, load_vlm):
        with pytest.raises(ModelFolderError, match=f"{folder}: the chat template begins to think .* add them to it"):
            read(folder)


def test_weights_that_were_cut_off_are_no_model(tmp_path: Path) -> None:
    weights = tiny_model(tmp_path) / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1)
    with pytest.raises(ModelFolderError, match=f"{weights} is cut off"):
        inspect_folder(tmp_path)


def test_command_line(
    tiny_target: Path, tiny_draft: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(tiny_target), str(tiny_draft)]) == 0
    shown = capsys.readouterr().out
    assert "they can be target and draft" in shown and "qwen2_vl, sees images" in shown and "weights, nf4" in shown
    assert main(["inspect", str(tiny_target), str(tiny_target)]) == 1
    (folder / "generation_config.json").write_text(json.dumps({"no_repeat_ngram_size": 3}))
    capsys.readouterr()
    for arguments in ([str(tmp_path)], [str(folder)], ["a", "b", "c"], ["nobody/nothing"]):
        assert main(["inspect", *arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith("speculation.vlm: ")
        assert error.count("\n") == 1
