"""A robot with a fed head against a real verifier process over real sockets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from edge_drafter import decoder
from edge_drafter.decoder import EdgeDecoder
from edge_drafter.question import VerifierRefused
from speculation.fed.files import CONFIG_FILE, save
from speculation.profiles import DeviceProfile
from speculation.vlm.load import ModelFolderError
from speculation.vlm.model import Vlm
from tests.cloud_verifier.test_engine import jpeg
from tests.edge_drafter.conftest import Robot, Serve
from tests.edge_drafter.test_decoder import PROMPT, config, greedy
from tests.models import tiny_model
from tests.speculation.fed.heads import random_encoder, random_head, tiny_config


@pytest.fixture(scope="module")
def folder(target: Vlm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = tiny_config(
        target=target.fingerprint, tokenizer=target.tokenizer_fingerprint, vocabulary=target.vocabulary,
        hidden=target.hidden_size, short_list=tuple(range(target.vocabulary)),
    )  # fmt: skip
    path = Path(tmp_path_factory.mktemp("fed"))
    save(path, random_encoder(shape), random_head(shape, scale=2.0))
    return path


def test_a_fed_robot_gets_the_targets_own_tokens(
    folder: Path, tiny_target: Path, tiny_draft: Path, robot: Robot, serve: Serve, tmp_path: Path
) -> None:
    """In modes that it drafts in and in others; without a verifier the draft model answers alone. Other features than
    the verifier's are refused."""
    server = serve(tiny_target, "--fed-head", str(folder))
    edge = robot(server.address, fed_head=str(folder))
    results = {mode: edge.decode(PROMPT, jpeg(0), 60.0, mode) for mode in ("full", "sd", "cloud", "edge")}
    shutil.copytree(folder, tmp_path / "other")
    other = json.loads((folder / CONFIG_FILE).read_text()) | {"features": "0" * 16}
    (tmp_path / "other" / CONFIG_FILE).write_text(json.dumps(other))
    with pytest.raises(VerifierRefused, match="Hello.features '0000000000000000': this verifier has "):
        robot(server.address, fed_head=str(tmp_path / "other")).connect(20.0)
    (truth,) = greedy(tiny_target, [jpeg(0)])
    for mode in ("full", "sd", "cloud"):
        assert list(results[mode].tokens) == truth, mode
    assert list(results["edge"].tokens) == greedy(tiny_draft, [jpeg(0)])[0]
    assert results["sd"].stats.drafted > 0 and results["sd"].stats.resent == 0


def test_what_does_not_fit_is_refused_before_anything_connects(
    folder: Path, tiny_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "tcp://127.0.0.1:5999"
    with pytest.raises(ModelFolderError, match="has no fed_head.json"):
        EdgeDecoder(config(tiny_draft, address, fed_head=str(tmp_path)))
    monkeypatch.setattr(decoder, "load_profile", lambda name: DeviceProfile("slow", draft_s=0.07))
    with pytest.raises(ValueError, match="profile slow declares draft_s and no fed_s"):
        EdgeDecoder(config(tiny_draft, address, fed_head=str(folder)))
    monkeypatch.undo()
    stranger = tiny_model(tmp_path / "stranger", layers=1, vocabulary=300)
    with pytest.raises(ModelFolderError, match="target and draft model must share one"):
        EdgeDecoder(config(stranger, address, fed_head=str(folder)))
