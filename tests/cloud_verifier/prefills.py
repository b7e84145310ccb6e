"""A prefill without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cloud_verifier.interfaces import Engine, Row


def prefill_at_once(engine: Engine, index: int, inputs: Any, committed: Sequence[int], max_tokens: int) -> None:
    """Prefill a row of an engine, image and all, in one forward. Raises as `Engine.begin`."""
    tokens = engine.begin(index, inputs, committed, max_tokens)
    engine.encode(index)
    if tokens:
        for _ in engine.verify([Row(index, chunk=tokens)]):
            pass
