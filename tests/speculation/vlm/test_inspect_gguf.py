"""`inspect TARGET DRAFT.gguf`: whether a GGUF file can draft for a target, and which token differs where it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from speculation.vlm.__main__ import main
from speculation.vlm.model import Vlm
from tests.models import tiny_tokenizer
from tests.speculation.vlm.test_gguf_file import file_of
from tests.speculation.vlm.test_gguf_tokenizer import metadata

FORMS = {"tokens": "[s]", "merges": "[s]", "token_type": "[i]", "eos_token_id": "I"}


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    """A GGUF file with the tiny tokenizer and no weights, and one of a vision tower beside it."""
    pairs = {key: (FORMS.get(key.rpartition(".")[2], "s"), value) for key, value in metadata().items()}
    about = {"general.architecture": ("s", "qwen2vl"), "qwen2vl.context_length": ("I", 2048)}
    (tmp_path / "draft.gguf").write_bytes(file_of(about | pairs))
    (tmp_path / "eyes.gguf").write_bytes(file_of({"general.architecture": ("s", "clip")}))
    return tmp_path / "draft.gguf"


def test_one_of_the_targets_tokenizer_can_draft(target: Vlm, draft: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(target.folder), f"{draft},eyes.gguf"]) == 0
    shown = capsys.readouterr().out
    assert f"can draft for {target.name}" in shown and target.tokenizer_fingerprint in shown
    assert main(["inspect", str(target.folder), str(draft)]) == 0
    assert "it drafts without seeing" in capsys.readouterr().out
    assert main(["inspect", str(target.folder), str(draft), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["gguf"]
    assert (found["vocabulary"], found["context"]) == (len(tiny_tokenizer()), 2048)


def test_another_tokenizer_is_named_by_its_first_token(
    target: Vlm, draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft.write_bytes(draft.read_bytes().replace(b"<|vision_pad|>", b"<|vision_bad|>"))
    assert main(["inspect", str(target.folder), str(draft)]) == 1
    shown = capsys.readouterr().out
    assert "cannot draft for" in shown
    assert "is '<|vision_bad|>' here and '<|vision_pad|>' in" in shown


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["TARGET", "none.gguf"], "none.gguf does not exist"),
        (["TARGET", "eyes.gguf"], "is a vision tower"),
        (["draft.gguf"], "serve as a robot's draft model"),
        (["draft.gguf", "TARGET"], "serve as a robot's draft model"),
    ],
)
def test_what_is_no_draft_is_a_sentence(
    target: Vlm, draft: Path, names: list[str], words: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(draft.parent)
    assert main(["inspect", *(str(target.folder) if name == "TARGET" else name for name in names)]) == 2
    assert words in capsys.readouterr().err
