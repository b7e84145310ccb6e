"""Gives a forward pass up between two layers, in any model: by the draft's policy, or for a cancelled step."""

from __future__ import annotations

from collections.abc import Callable

Stop = Callable[[], bool]
"""Called between layers; True ends the forward there."""


class Abandoned(Exception):
    """A forward was given up between two layers because its `Stop` returned True.

    The model is as it was before; a prefill, which begins with an empty row, leaves it empty.
    """
