"""Predicts whether the target accepts a draft token: a tiny network on features of its logits (numpy, no torch).

The edge stops drafting where it answers no, and takes its probability for the reach of a node: WISP, Sec. 4.1 and
Appendix B. `python -m adapters_training predictor` makes the two files that are loaded here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from speculation.distributions import Distributions, products
from speculation.file_modes import share
from speculation.settings import expanded
from speculation.text import first_line

CONFIG_FILE = "predictor.json"
WEIGHTS_FILE = "predictor.safetensors"
FORMAT: Final = 1
FEATURES = ("confidence", "entropy", "margin", "deviation", "depth")
AUTO, OFF = "auto", "off"
LARGEST_MARGIN = 50.0
"""Nats; only a vocabulary of one token has more."""
_REMEDY = "train one with `python -m adapters_training predictor`, or turn it off"

Features = npt.NDArray[np.float64]
Layer = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


def features(rows: Distributions, depths: Sequence[int]) -> Features:
    """Return the features of each row's likeliest token [n, 5], in the order of `FEATURES`, of the draft's logits.

    Confidence: that token's probability. Entropy of the distribution, nats. Margin: its logit less the second one's.
    Deviation: the logits' standard deviation. Depth: its place behind the last committed token, from 1. The five of
    WISP, Appendix B; the paper leaves open what its margin is a difference of: probabilities lose it near 1. Tokens of
    logit -inf, which sampling rules out, do not count. A draft forward waits for these, so they take few passes.
    """
    sums: list[float] = np.add.reduce(rows.shifted, axis=1).tolist()
    if -math.inf in sums:
        counted = [Distributions(row[~np.isneginf(row)][None]) for row in rows.logits]
        return np.concatenate([features(row, [depth]) for row, depth in zip(counted, depths, strict=True)])
    size = rows.size
    second = rows.rank(1)[1] if size > 1 else [0.0] * len(sums)
    least = math.exp(-LARGEST_MARGIN)
    listed = [
        (
            1.0 / total,
            math.log(total) - weighted / total,
            -math.log(max(weight, least)),
            math.sqrt(max(0.0, square / size - (sum_ / size) ** 2)),
            float(depth),
        )
        for total, weighted, weight, square, sum_, depth in zip(
            rows.totals, products(rows.weights, rows.shifted), second, products(rows.shifted, rows.shifted), sums,
            depths, strict=True,
        )
    ]  # fmt: skip
    return np.array(listed)


class PredictorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of predictor.json; the fields are those of `Predictor`, `layers` their widths."""

    format: Literal[1]
    draft: str
    target: str
    features: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    layers: tuple[int, ...]
    threshold: float
    max_depth: int
    notes: dict[str, Any] = {}
    """How it was made and how good it is."""


@dataclass(frozen=True)
class Predictor:
    """A trained network: standardised features in, the calibrated probability that the token is accepted out.

    Raises ValueError for shapes that do not fit together.
    """

    draft: str
    """Fingerprint of the draft model of the training."""
    target: str
    """Fingerprint of the target of the training."""
    mean: Features = field(repr=False)
    scale: Features = field(repr=False)
    """Mean and standard deviation of each feature [5] in training, float64."""
    layers: tuple[Layer, ...] = field(repr=False)
    """Weights [in, out] and biases [out], float32; a ReLU stands between two layers."""
    threshold: float
    """A token is predicted to be rejected where its probability is below."""
    max_depth: int
    """Deepest token of the training; deeper ones count as that deep."""

    def __post_init__(self) -> None:
        width = len(FEATURES)
        if self.mean.shape != (width,) or self.scale.shape != (width,) or not (self.scale > 0.0).all():
            raise ValueError(f"mean and scale must be {width} numbers each, scale above 0")
        for number, (weight, bias) in enumerate(self.layers):
            if weight.ndim != 2 or weight.shape[0] != width or bias.shape != (weight.shape[1],):
                raise ValueError(f"layer {number} has weights {weight.shape} and biases {bias.shape} behind {width}")
            width = weight.shape[1]
        if not self.layers or width != 1:
            raise ValueError("the last layer must have one output")
        numbers: list[npt.NDArray[Any]] = [self.mean, self.scale, *(part for layer in self.layers for part in layer)]
        if not all(np.isfinite(part).all() for part in numbers):
            raise ValueError("weights are not finite")
        if not 0.0 <= self.threshold <= 1.0:
            raise ValueError(f"threshold is {self.threshold}; give 0 to 1")
        if self.max_depth < 1:
            raise ValueError(f"max_depth is {self.max_depth}; give at least 1")

    def chances(self, rows: Distributions, depths: Sequence[int]) -> list[float]:
        """Return the probability that the draft's likeliest token after each row of logits is accepted.

        Given that everything before it is. `depths` as in `features`.
        """
        found: list[float] = self.probabilities(features(rows, depths)).tolist()
        return found

    def probabilities(self, rows: Features) -> Features:
        """Return the probabilities [n] for rows of features [n, 5]."""
        limited = np.minimum(rows, self._most)
        # A product for each row: a product of matrices would round by their size.
        hidden: npt.NDArray[Any] = ((limited - self.mean) / self.scale)[:, None]
        for weight, bias in self.layers[:-1]:
            hidden = np.maximum(hidden @ weight + bias, 0.0)
        weight, bias = self.layers[-1]
        score = np.clip((hidden @ weight + bias)[:, 0, 0], -60.0, 60.0)
        probabilities: Features = 1.0 / (1.0 + np.exp(-score))
        return probabilities

    @cached_property
    def _most(self) -> Features:
        """The largest features that count: the depth is bounded, the others are not."""
        return np.array([*[np.inf] * (len(FEATURES) - 1), self.max_depth])

    def save(self, folder: Path, notes: dict[str, Any] | None = None) -> None:
        """Write predictor.safetensors and predictor.json; `notes` document how it was made and how good it is."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {f"{kind}{i}": np.ascontiguousarray(part) for i, layer in enumerate(self.layers)
                   for kind, part in zip(("weight", "bias"), layer, strict=True)}  # fmt: skip
        config = PredictorConfig(
            format=FORMAT,
            draft=self.draft,
            target=self.target,
            features=FEATURES,
            mean=tuple(self.mean.tolist()),
            scale=tuple(self.scale.tolist()),
            layers=(len(FEATURES), *(weight.shape[1] for weight, _ in self.layers)),
            threshold=self.threshold,
            max_depth=self.max_depth,
            notes=notes or {},
        )
        save_file(tensors, str(folder / WEIGHTS_FILE))
        share(folder / WEIGHTS_FILE)
        (folder / CONFIG_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(config), indent=1) + b"\n")

    @classmethod
    def load(cls, folder: Path, draft: str) -> Predictor:
        """Read a predictor of the model with fingerprint `draft`. Raises ValueError, in one sentence, for any other."""
        config = _read_config(folder)
        if config.draft != draft:
            raise ValueError(
                f"the predictor in {folder} belongs to draft {config.draft}, the loaded draft is {draft}; {_REMEDY}"
            )
        if config.features != FEATURES:
            raise ValueError(f"the predictor in {folder} wants features {', '.join(config.features)}; {_REMEDY}")
        try:
            tensors = load_file(str(folder / WEIGHTS_FILE))
            layers = tuple((tensors[f"weight{i}"], tensors[f"bias{i}"]) for i in range(len(config.layers) - 1))
            mean, scale = np.array(config.mean), np.array(config.scale)
            return cls(draft, config.target, mean, scale, layers, config.threshold, config.max_depth)
        except (KeyError, ValueError, OSError, SafetensorError) as error:
            raise ValueError(f"the predictor in {folder} does not load ({first_line(error)}); {_REMEDY}") from None


def find(choice: str, draft_folder: Path) -> Path | None:
    """Return the predictor's folder for a setting: "auto" (the draft's folder, if one is there), "off", or a path.

    `draft_folder` is the folder of the draft model, e.g. `Vlm.folder`: a hub name is no folder and holds nothing.
    """
    if choice == OFF:
        return None
    if choice == AUTO:
        return draft_folder if (draft_folder / CONFIG_FILE).is_file() else None
    return expanded(choice)


def name(choice: str, draft_folder: Path) -> str:
    """Return what results call a setting's predictor: a digest of its files, or "off". ValueError without files."""
    folder = find(choice, draft_folder)
    if folder is None:
        return OFF
    _read_config(folder)
    data = b"".join((folder / part).read_bytes() for part in (CONFIG_FILE, WEIGHTS_FILE))
    return hashlib.blake2b(data, digest_size=4).hexdigest()


def _read_config(folder: Path) -> PredictorConfig:
    for part in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / part).is_file():
            raise ValueError(f"predictor folder {folder} has no {part}; {_REMEDY}")
    try:
        return msgspec.json.decode((folder / CONFIG_FILE).read_bytes(), type=PredictorConfig)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the predictor in {folder}: {CONFIG_FILE}: {error}; {_REMEDY}") from None
