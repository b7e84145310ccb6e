"""The report of `inspect`: what a folder is, whether two are a pair, what memory they need, checked against loading."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from speculation.vlm.__main__ import main
from speculation.vlm.blocks import BLOCK
from speculation.vlm.cache import KVCache
from speculation.vlm.inputs import prepare
from speculation.vlm.inspect import FRAME, inspect_folder, inspect_pair, table
from speculation.vlm.load import ModelFolderError, load_vlm
from speculation.vlm.memory import loaded_bytes
from speculation.vlm.processing import CHAT_TEMPLATE
from tests.models import HYBRID_TEMPLATE, THINKING_TEMPLATE, tiny_model, tiny_text_model


def test_report_is_what_loading_finds(tiny_target: Path) -> None:
    report, vlm = inspect_folder(tiny_target, capacity=100), load_vlm(tiny_target)
    assert (report.fingerprint, report.tokenizer) == (vlm.fingerprint, vlm.tokenizer_fingerprint)
    assert (report.layers, report.hidden, report.kv_heads) == (vlm.num_layers, vlm.hidden_size, vlm.kv_heads)
    assert (report.vocabulary, report.eos, report.head_dim) == (vlm.vocabulary, vlm.eos, vlm.head_dim)
    assert report.embedding_rows == vlm.text.embed_tokens.num_embeddings == report.vocabulary + report.padding
    assert report.parameters == sum(weight.numel() for weight in vlm.model.parameters())
    assert report.stored_as == {"BF16": report.parameters}
    assert report.weights["float32"] == pytest.approx(loaded_bytes(vlm.model), rel=0.01)
    # A row of 100 slots takes seven blocks, and the cache has a spare one.
    assert report.session_bytes("float32") * 8 * BLOCK == KVCache(vlm, 1, 100).nbytes * 100
    frame = inspect_folder(tiny_target).image_tokens
    assert frame == (prepare(vlm, "go", np.zeros((*FRAME, 3), dtype=np.uint8)).ids == vlm.image_token).sum()


def test_pair_of_one_family_with_different_padding(tiny_target: Path, tmp_path: Path) -> None:
    draft = inspect_folder(tiny_model(tmp_path, layers=2, padding=256))
    pair = inspect_pair(draft, inspect_folder(tiny_target))
    assert (pair.target, pair.draft) == (tiny_target.name, draft.name)
    assert pair.problems == ()
    assert pair.vocabulary == draft.vocabulary
    assert "padded differently" in pair.notes[0]


def test_what_is_no_pair_says_why(tiny_target: Path, tmp_path: Path) -> None:
    target = inspect_folder(tiny_target)
    (same,) = inspect_pair(target, target).problems
    assert "they are the same model" in same
    (tokens,) = inspect_pair(target, inspect_folder(tiny_model(tmp_path / "other", vocabulary=300))).problems
    assert "their tokenizers differ" in tokens
    (blind,) = inspect_pair(target, inspect_folder(tiny_text_model(tmp_path / "blind"))).problems
    assert "blind is a language model alone" in blind


def test_whether_a_model_thinks_first_is_said(tiny_target: Path, tmp_path: Path) -> None:
    thinks, may, quick = (
        inspect_folder(tiny_model(tmp_path / str(number), layers=number, template=template))
        for number, template in ((3, THINKING_TEMPLATE), (2, HYBRID_TEMPLATE), (1, CHAT_TEMPLATE + "{# <think> #}"))
    )
    assert inspect_folder(tiny_target).thinking == quick.thinking == "no"
    assert "template" in thinks.thinking and "model" in may.thinking
    for draft in (may, quick):
        pair = inspect_pair(thinks, draft)
        assert not pair.problems and any("do not think alike" in note for note in pair.notes)
    assert not any("think" in note for note in inspect_pair(thinks, thinks).notes)


def test_a_chat_that_thinks_without_its_tokens_is_refused(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path)
    (folder / "chat_template.jinja").write_text(THINKING_TEMPLATE)
    for read in (inspect_folder, load_vlm):
        with pytest.raises(ModelFolderError, match=f"{folder}: the chat template begins to think .* add them to it"):
            read(folder)


def test_a_text_pair_is_a_pair_for_text(tmp_path: Path) -> None:
    big, small = (inspect_folder(tiny_text_model(tmp_path / name, layers=n)) for name, n in (("big", 3), ("small", 1)))
    pair = inspect_pair(big, small)
    assert pair.problems == () and "language models alone" in pair.notes[-1]


def test_table_names_what_people_ask(tiny_target: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_target, tmp_path / "model"))
    (folder / "generation_config.json").write_text(json.dumps({"repetition_penalty": 1.05}))
    report = inspect_folder(folder)
    text = table([report], {"cpu": 10**9, "cuda:0": 10})
    assert "qwen2_vl, sees images" in text
    assert f"{report.vocabulary} tokens, {report.embedding_rows} rows ({report.padding} padding)" in text
    assert "weights, nf4" in text and "fits cpu yes, cuda:0 no" in text
    assert "generation_config asks for repetition_penalty=1.05: answers get it, unless generation is raw" in text
    (folder / "generation_config.json").write_text(json.dumps({"no_repeat_ngram_size": 3}))
    assert "not usable: " in (text := table([inspect_folder(folder)], {"cpu": 10**9}))
    assert "asks for no_repeat_ngram_size=3, which cannot be applied here; with generation set to raw" in text


def test_command_line(tiny_target: Path, tiny_draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tiny_target), str(tiny_draft)]) == 0
    assert "can be a pair" in capsys.readouterr().out
    assert main(["inspect", "--json", str(tiny_target), str(tiny_target)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["models"][0]["layers"] == 4
    assert found["free"]["cpu"] > 0
    assert found["pair"]["problems"]
    for arguments in ([str(tmp_path)], [str(tmp_path / "nowhere")], ["a", "b", "c"], ["nobody/nothing"]):
        assert main(["inspect", *arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith("speculation.vlm: ")
        assert error.count("\n") == 1
