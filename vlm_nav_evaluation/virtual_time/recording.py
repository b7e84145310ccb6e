"""Recorded model outputs: what target, draft and exits predict at every place of an answer, given the tokens before it.

They are all that virtual time needs of the models. Off the answer's own path nothing is recorded and nothing can ever
be committed: there, tokens are a hash, with the confidences that were recorded for the same place.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from speculation.wire import Jpegs, frames_of

FORMAT = 1
_ID_BYTES = 8

Numbers = npt.NDArray[np.floating]
Tokens = npt.NDArray[np.integer]


@dataclass(frozen=True)
class RecordedStep:
    """One step whose answer has n tokens. Its exits are either recorded or synthetic, two arrays each."""

    prompt: str
    image_bytes: int
    tokens: tuple[int, ...]
    draft_tokens: Tokens
    """The draft's k likeliest tokens at each place, likeliest first [n, k]."""
    draft_probabilities: Numbers
    """[n, k]"""
    acceptance: Numbers
    """The probability that the likeliest one is accepted, by depth from 1; the last column is for all deeper ones
    [n, depths]."""
    exit_tokens: Tokens | None = None
    """Recorded: each exit's likeliest token [n, exits]."""
    exit_probabilities: Numbers | None = None
    agrees: npt.NDArray[np.bool_] | None = None
    """Synthetic: whether an exit's verdict is the target's where the verification's root stands before place p
    [n, exits]."""
    confidences: Numbers | None = None
    """Synthetic: the confidence of that verdict."""


@dataclass(frozen=True)
class Table:
    """How often an exit of a given confidence agreed with the final verdict; see `speculation.exits.Reliability`."""

    edges: tuple[float, ...]
    agreement: tuple[float, ...]

    def rate(self, confidence: float) -> float:
        """Return the measured agreement at `confidence`."""
        return self.agreement[bisect_right(self.edges, confidence, 1, len(self.edges) - 1) - 1]


@dataclass(frozen=True)
class Recording:
    """Steps of one pair of models."""

    steps: tuple[RecordedStep, ...]
    vocabulary: int
    eos: tuple[int, ...]
    layers: int
    exit_layers: tuple[int, ...]
    """Counted from 0."""
    max_tokens: int
    stop_below: float = 0.0
    """Drafts end with the first token whose acceptance is below; 0: never."""
    reliability: Mapping[int, Table] = field(default_factory=dict)
    """How often each exit layer was right by its confidence, where that was measured."""
    short_list: frozenset[int] | None = None
    """The tokens that exits can predict; None for all."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Where all this comes from."""
    by_highest: bool = False
    """An exit is as confident as its most probable token on the way is (Early Exits, Algorithm 2: s = max q), not as
    the product of all of them."""

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("a recording needs at least one step")

    def image(self, step: int) -> bytes:
        """Return bytes in place of a step's JPEG: as many, and they name the step."""
        size = max(_ID_BYTES, self.steps[step].image_bytes)
        return step.to_bytes(_ID_BYTES, "big") + bytes(size - _ID_BYTES)

    def of_image(self, image: Jpegs) -> RecordedStep:
        """Return the step that `image` names. Raises ValueError for an image that is none of these."""
        number = int.from_bytes(frames_of(image)[-1][:_ID_BYTES], "big")
        if number >= len(self.steps):
            raise ValueError(f"the image names step {number}, the recording has {len(self.steps)}")
        return self.steps[number]

    def save(self, path: Path) -> None:
        """Write one .npz file. Raises OSError, and ValueError for synthetic steps: their settings give them again."""
        if any(step.exit_tokens is None or step.exit_probabilities is None for step in self.steps):
            raise ValueError("only recorded steps are saved; synthetic ones follow from their settings")
        head = {
            "format": FORMAT,
            "prompts": [step.prompt for step in self.steps],
            "image_bytes": [step.image_bytes for step in self.steps],
            "lengths": [len(step.tokens) for step in self.steps],
            **{name: getattr(self, name) for name in _HEAD},
            "reliability": {str(layer): [t.edges, t.agreement] for layer, t in self.reliability.items()},
            "short_list": sorted(self.short_list) if self.short_list is not None else None,
        }
        arrays: dict[str, Any] = {
            stored: np.concatenate([getattr(step, name) for step in self.steps]) for name, stored in _ARRAYS.items()
        }
        arrays["tokens"] = np.concatenate([np.asarray(step.tokens, dtype=np.int32) for step in self.steps])
        path.parent.mkdir(parents=True, exist_ok=True)
        # Two programs that run side by side may both find that it is missing.
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
        with unfinished.open("wb") as sink:
            np.savez_compressed(sink, head=np.array(json.dumps(head)), **arrays)
        unfinished.replace(path)

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read what `save` wrote. Raises ValueError, in one sentence, for any other file."""
        try:
            with np.load(path, allow_pickle=False) as data:
                head = json.loads(str(data["head"]))
                arrays = {name: data[name] for name in (*_ARRAYS.values(), "tokens")}
            if head["format"] != FORMAT:
                raise ValueError(f"it has format {head['format']}, this program reads {FORMAT}")
            return _recording(head, arrays)
        except OSError as error:
            raise ValueError(f"recording {path}: {error.strerror or error}") from None
        except (KeyError, ValueError, TypeError, EOFError, BadZipFile) as error:
            raise ValueError(
                f"{path} is no recording ({error}); `python -m benchmarks.recordings` writes them"
            ) from None


_ARRAYS = {
    "draft_tokens": "draft_tokens",
    "draft_probabilities": "draft_chances",
    "acceptance": "chances",
    "exit_tokens": "exit_tokens",
    "exit_probabilities": "exit_chances",
}
"""Fields of a step and their names in a file."""

_HEAD = ("vocabulary", "eos", "layers", "exit_layers", "max_tokens", "stop_below", "notes")
"""Fields of a recording that a file has as they are."""


def _recording(head: dict[str, Any], arrays: dict[str, Any]) -> Recording:
    """Return the recording of a file's head and arrays."""
    ends = np.cumsum(head["lengths"])[:-1]
    parts = {name: np.split(array, ends) for name, array in arrays.items()}
    steps = tuple(
        RecordedStep(prompt, size, tuple(parts["tokens"][i].tolist()), **{n: parts[s][i] for n, s in _ARRAYS.items()})
        for i, (prompt, size) in enumerate(zip(head["prompts"], head["image_bytes"], strict=True))
    )
    same: dict[str, Any] = {name: tuple(head[name]) if isinstance(head[name], list) else head[name] for name in _HEAD}
    tables = {int(layer): Table(tuple(edges), tuple(rates)) for layer, (edges, rates) in head["reliability"].items()}
    short = None if head["short_list"] is None else frozenset(head["short_list"])
    return Recording(steps, **same, reliability=tables, short_list=short)
