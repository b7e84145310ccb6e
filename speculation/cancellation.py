"""How a forward pass is given up between two layers: by the draft's policy, in any model."""

from __future__ import annotations

from collections.abc import Callable

Stop = Callable[[], bool]
"""Called between layers; True ends the forward there."""


class Abandoned(Exception):
    """A forward was given up between two layers because its `Stop` returned True; the model is as it was before."""
