"""A profile beside the model seeds the estimator where it fits; one that was asked for must."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from cloud_verifier.config import ServerConfig, StartError
from cloud_verifier.interfaces import ModelInfo
from cloud_verifier.serving import find_cost
from cloud_verifier.sessions import check_welcome
from speculation.language.prompts import Vocabulary
from speculation.pass_cost import COST_FILE
from speculation.wire import MAX_END_TOKENS, Thinking
from tests.speculation.test_pass_cost import PROFILE

if TYPE_CHECKING:
    from speculation.vlm.model import Vlm


@dataclass
class Loaded:
    folder: Path
    fingerprint: str = PROFILE.fingerprint
    device: str = "cpu"


def model(**changes: Any) -> ModelInfo:
    plain: dict[str, Any] = {"name": "me/tiny", "fingerprint": "f", "tokenizer_fingerprint": "t", "vocabulary": 100,
                             "num_layers": 4, "exit_layers": (1,), "eos": (9,)}  # fmt: skip
    return ModelInfo(**{**plain, **changes})


def test_a_verifier_that_no_robot_could_read_does_not_start() -> None:
    check_welcome(model(), 64, "raw")
    for changes, named in (
        ({"eos": tuple(range(MAX_END_TOKENS + 1))}, r"Welcome.eos: .*length <= 64\); change that of me/tiny"),
        ({"eos": (100,)}, r"Welcome.eos: token 100 is outside the vocabulary 0..99"),
        ({"thinking": Thinking(7, 100, True)}, r"Welcome.thinking: token 100 is outside the vocabulary 0..99"),
        ({"objects": Vocabulary(("red",), ("x" * 41,))}, "Welcome.classes"),
    ):
        with pytest.raises(ValueError, match=f"no robot could read what this verifier is .{named}"):
            check_welcome(model(**changes), 64, "raw")


def found(folder: Path, fingerprint: str = PROFILE.fingerprint, **settings: Any) -> Any:
    return find_cost(ServerConfig.of(folder, **settings), cast("Vlm", Loaded(folder, fingerprint)))


def test_the_models_own_profile_is_taken_where_it_fits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert found(tmp_path) is None
    PROFILE.save(tmp_path / COST_FILE)
    assert found(tmp_path) == PROFILE
    with caplog.at_level(logging.WARNING):
        assert found(tmp_path, "e" * 16) is None
        assert found(tmp_path, dtype="bfloat16") is None
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [COST_FILE in message for message in warned] == [True, True]


def test_one_that_was_asked_for_must_fit(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    with pytest.raises(StartError, match=r"--pass-cost: .*mine\.json"):
        found(tmp_path, pass_cost=path)
    PROFILE.save(path)
    assert found(tmp_path, pass_cost=path) == PROFILE
    with pytest.raises(StartError, match="model"):
        found(tmp_path, "e" * 16, pass_cost=path)
