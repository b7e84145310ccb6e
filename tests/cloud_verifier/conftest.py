"""The model that real verifiers serve."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cloud_verifier.process import Target


@pytest.fixture(scope="session")
def served(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Target:
    """The tiny model with exits beside it."""
    from tests.cloud_verifier.process import make_target

    return make_target(tiny_target, tmp_path_factory.mktemp("pair"))
