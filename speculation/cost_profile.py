"""Reads and writes what `adapters_training profile-verifier` measured of a target, a file beside the model."""

from __future__ import annotations

from pathlib import Path

import msgspec

from speculation.pass_cost import PAPER_COSTS, PassCost

COST_FILE = "pass_cost.json"


class Quality(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How well predictions fit measured passes; the rows of WISP's Table 7."""

    samples: int
    r2: float
    adjusted_r2: float
    rmse_s: float
    mae_s: float
    mape: float
    """Mean of |predicted - measured| / measured."""
    max_error_s: float


class ImageRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A frame of one size, with a prompt."""

    height: int
    """Pixels."""
    width: int
    image_tokens: int
    prompt_tokens: int
    """Tokens of image and words."""
    encode_s: float
    """The vision tower."""
    prefill_s: float
    """Image and words through the decoder, without the vision tower."""
    predicted_s: float
    """What the fitted cost predicts of the prefill."""


class CostProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Cost of a target's passes on one machine, and how it was measured."""

    fingerprint: str
    name: str
    dtype: str
    device: str
    attention: str
    threads: int
    machine: str
    clock: str
    """Which seconds were counted: those of the wall or of the processor."""
    longest: int
    """Tokens of the longest row that was measured, cached ones included."""
    runs: int
    """Passes of every configuration, of which the median counts."""
    cost: PassCost
    train: Quality
    test: Quality
    encoding: PassCost | None = None
    """The vision tower over `Load.row(image tokens)`; None for a target that sees nothing."""
    images: tuple[ImageRow, ...] = ()

    def fits(self, fingerprint: str, dtype: str, device: str) -> str:
        """Return why the profile says nothing about a model as it is loaded; empty where it does.

        Speeds may differ: they are corrected on line. Shapes would not be: they differ by model, dtype and device.
        """
        for what, measured, loaded in (
            ("of model", self.fingerprint, fingerprint),
            ("in", self.dtype, dtype),
            ("on", _kind(self.device), _kind(device)),
        ):
            if measured != loaded:
                return f"it was measured {what} {measured}, the model is loaded {what} {loaded}"
        return ""

    def save(self, path: Path) -> None:
        """Write the file."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def load_cost_profile(path: Path) -> CostProfile:
    """Return a profile. Raises ValueError, naming file and field, for a file that cannot be read or holds none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=CostProfile)
    except OSError as error:
        raise ValueError(f"pass cost {path} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"pass cost {path}: {error}") from None


def load_cost(name: str) -> PassCost:
    """Return a paper's cost, or that of a profile's file or of the model folder that has one. Raises ValueError."""
    if name in PAPER_COSTS:
        return PAPER_COSTS[name]
    path = Path(name)
    if path.is_dir():
        path /= COST_FILE
    if not path.is_file():
        raise ValueError(f"pass cost {name!r} is none of {', '.join(PAPER_COSTS)}, and no file of profile-verifier")
    return load_cost_profile(path).cost


def _kind(device: str) -> str:
    return device.partition(":")[0]
