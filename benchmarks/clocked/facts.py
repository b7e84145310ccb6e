"""Facts: what target, draft and exits say about an answer, token by token, given what comes before it in that answer.

They are all that virtual time needs of the models. Off the answer's own path nothing is known and nothing can ever be
committed: there, tokens are a hash, with the confidences that were recorded for the same place.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

FORMAT = 1
_ID_BYTES = 8

Numbers = npt.NDArray[np.floating]
Tokens = npt.NDArray[np.integer]


@dataclass(frozen=True)
class Facts:
    """One step whose answer has n tokens.

    draft_tokens, draft_chances: the draft's k likeliest tokens at each place and their probabilities [n, k], likeliest
    first. chances: the probability that its likeliest one is accepted, by depth from 1 [n, depths]; the last column
    counts for everything deeper. exit_tokens, exit_chances: each exit's likeliest token and its probability [n, exits].
    agrees, confidences: instead of these, whether an exit's verdict is the target's where the verification's root
    stands before place p, and what it says of itself [n, exits]. wrongs: which of all wrong verdicts it names where it
    is wrong [n, exits]; None: all the same.
    """

    prompt: str
    image_bytes: int
    tokens: tuple[int, ...]
    draft_tokens: Tokens
    draft_chances: Numbers
    chances: Numbers
    exit_tokens: Tokens | None = None
    exit_chances: Numbers | None = None
    agrees: npt.NDArray[np.bool_] | None = None
    confidences: Numbers | None = None
    wrongs: Tokens | None = None


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
    """Steps of one pair of models. `exit_layers` count from 0.

    stop_below: drafts end with the first token whose chance is below (0: never). reliability: of each exit, where it
    was measured. short_list: the tokens that exits can say; None for all. notes: where all this comes from.
    """

    steps: tuple[Facts, ...]
    vocabulary: int
    eos: tuple[int, ...]
    layers: int
    exit_layers: tuple[int, ...]
    max_tokens: int
    stop_below: float = 0.0
    reliability: Mapping[int, Table] = field(default_factory=dict)
    short_list: frozenset[int] | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("a recording needs at least one step")

    def image(self, step: int) -> bytes:
        """Return bytes that stand for a step's JPEG: as many, and they name the step."""
        size = max(_ID_BYTES, self.steps[step].image_bytes)
        return step.to_bytes(_ID_BYTES, "big") + bytes(size - _ID_BYTES)

    def of_image(self, image: bytes) -> Facts:
        """Return the step that `image` names. Raises ValueError for an image that is none of these."""
        number = int.from_bytes(image[:_ID_BYTES], "big")
        if number >= len(self.steps):
            raise ValueError(f"the image names step {number}, the recording has {len(self.steps)}")
        return self.steps[number]

    def save(self, path: Path) -> None:
        """Write one .npz file. Raises OSError, and ValueError for steps with drawn exits: draw them again instead."""
        if any(step.exit_tokens is None or step.exit_chances is None for step in self.steps):
            raise ValueError("only recorded facts are saved; a synthetic source is drawn again from its settings")
        head = {
            "format": FORMAT,
            "prompts": [step.prompt for step in self.steps],
            "image_bytes": [step.image_bytes for step in self.steps],
            "lengths": [len(step.tokens) for step in self.steps],
            "vocabulary": self.vocabulary,
            "eos": self.eos,
            "layers": self.layers,
            "exit_layers": self.exit_layers,
            "max_tokens": self.max_tokens,
            "stop_below": self.stop_below,
            "reliability": {str(layer): [t.edges, t.agreement] for layer, t in self.reliability.items()},
            "short_list": sorted(self.short_list) if self.short_list is not None else None,
            "notes": dict(self.notes),
        }
        arrays: dict[str, Any] = {
            name: np.concatenate([getattr(step, name) for step in self.steps]) for name in _ARRAYS
        }
        arrays["tokens"] = np.concatenate([np.asarray(step.tokens, dtype=np.int32) for step in self.steps])
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(path.name + ".part")
        with unfinished.open("wb") as sink:
            np.savez_compressed(sink, head=np.array(json.dumps(head)), **arrays)
        unfinished.replace(path)

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read what `save` wrote. Raises ValueError, in one sentence, for any other file."""
        try:
            with np.load(path, allow_pickle=False) as data:
                head = json.loads(str(data["head"]))
                arrays = {name: data[name] for name in (*_ARRAYS, "tokens")}
            if head["format"] != FORMAT:
                raise ValueError(f"it has format {head['format']}, this program reads {FORMAT}")
            return _recording(head, arrays)
        except OSError as error:
            raise ValueError(f"facts {path}: {error.strerror or error}") from None
        except (KeyError, ValueError, TypeError, EOFError, BadZipFile) as error:
            raise ValueError(
                f"{path} holds no facts ({error}); `python -m benchmarks.clocked record` writes them"
            ) from None


_ARRAYS = ("draft_tokens", "draft_chances", "chances", "exit_tokens", "exit_chances")


def _recording(head: dict[str, Any], arrays: dict[str, Any]) -> Recording:
    ends = np.cumsum(head["lengths"])[:-1]
    parts = {name: np.split(array, ends) for name, array in arrays.items()}
    steps = tuple(
        Facts(prompt, size, tuple(parts["tokens"][i].tolist()), **{name: parts[name][i] for name in _ARRAYS})
        for i, (prompt, size) in enumerate(zip(head["prompts"], head["image_bytes"], strict=True))
    )
    return Recording(
        steps,
        head["vocabulary"],
        tuple(head["eos"]),
        head["layers"],
        tuple(head["exit_layers"]),
        head["max_tokens"],
        head["stop_below"],
        {int(layer): Table(tuple(edges), tuple(rates)) for layer, (edges, rates) in head["reliability"].items()},
        frozenset(head["short_list"]) if head["short_list"] is not None else None,
        head["notes"],
    )
