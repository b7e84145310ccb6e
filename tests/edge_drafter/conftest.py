"""Robots and verifiers over real sockets, which end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from edge_drafter.decoder import EdgeDecoder
    from speculation.vlm.model import Vlm
    from tests.cloud_verifier.process import Verifier

Robot = Callable[..., "EdgeDecoder"]
Serve = Callable[..., "Verifier"]


@pytest.fixture
def robot(draft: Vlm) -> Iterator[Robot]:
    """Makes the decoder of a robot that looks for a verifier at `address`, with `changes` of its settings.

    With the tiny draft, which is loaded already, or with the one in a `folder`.
    """
    from edge_drafter.decoder import EdgeDecoder
    from tests.edge_drafter.test_decoder import config

    made: list[EdgeDecoder] = []

    def make(address: str = "", folder: Path | None = None, **changes: object) -> EdgeDecoder:
        settings = config(folder or draft.folder, address, **{"resume_s": 20.0, **changes})
        made.append(EdgeDecoder(settings, vlm=None if folder else draft))
        return made[-1]

    yield make
    for each in reversed(made):
        each.close()


@pytest.fixture(scope="session")
def exits(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untrained exits of the tiny target: wrong often enough to matter, and they stream."""
    from speculation.exits import ExitHeads, Reliability
    from speculation.vlm.load import load_vlm

    folder = tmp_path_factory.mktemp("edge-exits")
    heads = ExitHeads(load_vlm(tiny_target), (1, 2), 4)
    heads.set_reliability({layer: Reliability((0.0, 1.0), (0.5,)) for layer in (1, 2)})
    heads.save(folder)
    return folder


@pytest.fixture(scope="session")
def verifier(tiny_target: Path, exits: Path) -> Iterator[Verifier]:
    """A verifier of the tiny target for all tests that end none."""
    from tests.cloud_verifier.process import start

    running = start(tiny_target, "--dtype", "float64", "--exits", str(exits), "--frames", "3")
    yield running
    running.stop()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a verifier with a model and flags."""
    from tests.cloud_verifier.process import start

    started: list[Verifier] = []

    def begin(folder: Path, *flags: str) -> Verifier:
        started.append(start(folder, "--dtype", "float64", *flags))
        return started[-1]

    yield begin
    for each in started:
        each.stop()
