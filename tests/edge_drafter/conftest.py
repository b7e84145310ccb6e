"""Robots and verifiers over real sockets, which end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from edge_drafter.decoder import EdgeDecoder
    from speculation.links import LinkConditions
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

    def make(
        address: str = "", folder: Path | None = None, conditions: LinkConditions | None = None, **changes: object
    ) -> EdgeDecoder:
        settings = config(folder or draft.folder, address, **{"resume_s": 20.0, **changes})
        made.append(EdgeDecoder(settings, vlm=None if folder else draft, conditions=conditions))
        return made[-1]

    yield make
    for each in reversed(made):
        each.close()


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
