"""Fixtures of all tests: a tiny target and draft that share a tokenizer, offline and on one thread."""

from __future__ import annotations

import hashlib
import os
import shutil

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
if shutil.which("nvidia-smi") is None:  # whoever imports Triton first
    os.environ["TRITON_INTERPRET"] = "1"

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from speculation.vlm.model import Vlm


# No example fails because the machine was busy.
settings.register_profile("calm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("calm")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what takes minutes, unless it is asked for, and what needs a GPU where there is none."""
    if item.get_closest_marker("slow") and os.environ.get("SLOW") != "1":
        pytest.skip("takes minutes: SLOW=1 runs it")
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no GPU")


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random 4-layer Qwen2-VL model."""
    from tests.models import tiny_model

    return tiny_model(tmp_path_factory.mktemp("target"), layers=4, seed=0)


@pytest.fixture(scope="session")
def tiny_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the target cut to 2 layers: a draft that is right about one time in five."""
    from tests.models import tiny_model

    return tiny_model(tmp_path_factory.mktemp("draft"), layers=2, seed=0)


@pytest.fixture(scope="session")
def target(tiny_target: Path) -> Vlm:
    """The tiny target in float64, in which exactness is proved. It holds no state, so all tests share it."""
    from speculation.vlm.load import load_vlm

    return load_vlm(tiny_target, dtype="float64")


@pytest.fixture(scope="session")
def draft(tiny_draft: Path) -> Vlm:
    """The tiny draft in float64."""
    from speculation.vlm.load import load_vlm

    return load_vlm(tiny_draft, dtype="float64")


@pytest.fixture
def forked_verifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands under test start their verifiers without the seconds of a new process's imports."""
    from tests.forked import SUBPROCESS
    from vlm_nav_evaluation import verifier_process

    monkeypatch.setattr(verifier_process, "subprocess", SUBPROCESS)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search among few candidates where a mode is tuned."""
    monkeypatch.setattr("vlm_nav_evaluation.virtual_time.tuning.BUDGET", 6)
    monkeypatch.setattr("vlm_nav_evaluation.virtual_time.tuning.RUNGS", ((1, 2), (2, 1)))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_target: Path) -> Path:
    """The folder of the tiny target as me/tiny, in a cache laid out as the hub's own client does it."""
    import huggingface_hub

    model = tmp_path / "models--me--tiny"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("0123abcd")
    shutil.copytree(tiny_target, model / "snapshots" / "0123abcd")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return model / "snapshots" / "0123abcd"


@pytest.fixture
def hashes_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], int]:
    """Return what counts how often bytes were hashed since the test began, alone or with others."""
    hashed: list[bytes] = []
    whole = hashlib.blake2b

    def blake2b(data: bytes = b"", **how: Any) -> Any:
        hashed.append(bytes(data))
        return whole(data, **how)

    monkeypatch.setattr(hashlib, "blake2b", blake2b)
    return lambda part: sum(part in data for data in hashed)
