"""What `inspect` reports of a fed head, against loading it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from speculation.fed.files import load_encoder, load_head, save
from speculation.vlm.__main__ import main
from speculation.vlm.model import Vlm
from tests.models import tiny_model
from tests.speculation.fed.heads import random_encoder, random_head, tiny_config


@pytest.fixture
def folder(target: Vlm, tmp_path: Path) -> Path:
    config = tiny_config(
        target=target.fingerprint, tokenizer=target.tokenizer_fingerprint, hidden=target.hidden_size,
        vocabulary=target.vocabulary,
    )  # fmt: skip
    save(tmp_path / "head", random_encoder(config), random_head(config))
    return tmp_path / "head"


def test_a_head_beside_its_target_and_a_draft_model(
    folder: Path, target: Vlm, tiny_target: Path, tiny_draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(tiny_target), str(tiny_draft), "--fed-head", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert f"{tiny_target.name} feeds it" in shown and f"{tiny_draft.name} can stand beside it on the robot" in shown
    assert "16 bytes a token, of the prompt's last 4 and of every committed one" in shown
    main(["inspect", str(tiny_target), "--fed-head", str(folder), "--json"])
    found = json.loads(capsys.readouterr().out)["fed_head"]
    head, encoder = load_head(folder, target.tokenizer_fingerprint), load_encoder(folder, target)
    assert found["head_weights"] == sum(weight.numel() for weight in head.parameters())
    assert found["bottleneck_weights"] == sum(weight.numel() for weight in encoder.parameters())
    assert found["config"]["features"] == head.config.features


def test_what_does_not_go_with_it_is_named(
    folder: Path, tiny_draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(tiny_draft), "--fed-head", str(folder)]) == 1
    assert "not usable: none of these models is the target that feeds it" in capsys.readouterr().out
    stranger = tiny_model(tmp_path / "stranger", layers=1, vocabulary=300)
    assert main(["inspect", str(stranger), "--fed-head", str(folder)]) == 1
    assert "not usable: stranger has another tokenizer" in capsys.readouterr().out
    assert main(["inspect", str(tiny_draft), "--fed-head", str(tmp_path / "nowhere")]) == 2
    assert "has no fed_head.json" in capsys.readouterr().err
