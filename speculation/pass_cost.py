"""Models what one target forward computes, and what that costs, as a sum (WISP, Sec. 4.4, Eq. 18 and 19).

No torch: a scheduler predicts with it, virtual time waits for it, a command measures it. What `adapters_training
profile-verifier` measured of a target is a file beside the model, the `CostProfile`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import add, sub
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Load(NamedTuple):
    """What a pass computes, summed over its rows."""

    rows: int = 0
    """Sessions that share it."""
    new: int = 0
    """Tokens that are fed: N_linear = sum of L_new."""
    interactions: int = 0
    """Query-key pairs: N_interactions = sum of L_total x L_new, L_total = L_cached + L_new."""
    cached: int = 0
    """Tokens whose keys and values are read: N_cached = sum of L_cached."""
    scored: int = 0
    """Those of the interactions that causal attention scores: sum of L_new x (L_cached + (L_new + 1) / 2)."""

    @classmethod
    def row(cls, new: int, cached: int = 0) -> Load:
        """Return the load of one session that feeds `new` tokens behind `cached` ones."""
        return cls(1, new, (cached + new) * new, cached, new * (2 * cached + new + 1) // 2)

    @classmethod
    def total(cls, loads: Iterable[Load]) -> Load:
        """Return the load of a pass over all of these."""
        return cls(*map(sum, zip(*loads, strict=True)))

    @property
    def mean(self) -> Load:
        """One row of the mean size, rounded down."""
        return Load(*(part // self.rows for part in self))

    def __add__(self, other: Load) -> Load:  # type: ignore[override]
        """Return the load of both in one pass."""
        return Load(*map(add, self, other))

    def __sub__(self, other: Load) -> Load:
        """Return what else is in a pass with this load."""
        return Load(*map(sub, self, other))


NO_LOAD = Load()
COEFFICIENTS = ("token_s", "interaction_s", "cached_s", "constant_s")


@dataclass(frozen=True)
class PassCost:
    """Seconds of a pass: a N_linear + b_c N_interactions + b_r N_cached + c.

    Raises ValueError, naming the coefficient, for one that is negative or not finite.
    """

    token_s: float
    """a, seconds a fed token."""
    interaction_s: float
    """b_compute, seconds a query-key pair; of which pairs, see `causal`."""
    cached_s: float
    """b_read, seconds a cached token."""
    constant_s: float
    """c, seconds a pass."""
    causal: bool = False
    """Pairs are those that causal attention scores, `Load.scored`; else all of Eq. 18, `Load.interactions`."""

    def __post_init__(self) -> None:
        for name in COEFFICIENTS:
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"{name} = {value} s must be finite and not negative")

    def seconds(self, load: Load) -> float:
        """Return the predicted seconds of a pass."""
        return (
            self.token_s * load.new
            + self.interaction_s * (load.scored if self.causal else load.interactions)
            + self.cached_s * load.cached
            + self.constant_s
        )

    def scaled(self, factor: float, more_s: float = 0.0) -> PassCost:
        """Return the cost of passes that take `factor` times as long, and `more_s` each."""
        return PassCost(
            factor * self.token_s,
            factor * self.interaction_s,
            factor * self.cached_s,
            factor * self.constant_s + more_s,
            self.causal,
        )

    @classmethod
    def fit(cls, loads: Sequence[Load], seconds: Sequence[float] | Floats, causal: bool = True) -> PassCost:
        """Return the cost that these passes have, by non-negative least squares of the relative errors.

        Relative, unlike the paper's fit: a decode is hundreds of times shorter than a long prefill, and is what a
        scheduler predicts most. causal: see `PassCost`. Raises ValueError without any pass, or where one took no time.
        """
        times = np.asarray(seconds, dtype=np.float64)
        if not len(loads) or len(loads) != len(times) or times.min() <= 0.0:
            raise ValueError(f"{len(loads)} passes with {len(times)} times: give one or more, each above 0 s")
        columns = design(loads, causal) / times[:, None]
        return cls.of(nonnegative_least_squares(columns, np.ones(len(times))), causal)

    @classmethod
    def of(cls, coefficients: Floats, causal: bool) -> PassCost:
        """Return a cost by its coefficients [4], in the order of `COEFFICIENTS`."""
        token_s, interaction_s, cached_s, constant_s = coefficients.tolist()
        return cls(token_s, interaction_s, cached_s, constant_s, causal)


def design(loads: Sequence[Load], causal: bool) -> Floats:
    """Return the columns that the coefficients of `PassCost` multiply, in their order [n, 4]."""
    rows = [(load.new, load.scored if causal else load.interactions, load.cached, 1) for load in loads]
    return np.array(rows, dtype=np.float64)


def nonnegative_least_squares(columns: Floats, values: Floats) -> Floats:
    """Return x [k], none below 0, with the least |columns x - values|; columns [n, k], values [n].

    Exact for the few columns of a cost: the optimum solves the plain least squares of the columns that it uses, so the
    best of all subsets (at most 2^k) whose solution is not negative is it. A column of zeros gets 0.
    """
    norms = np.linalg.norm(columns, axis=0)
    used = np.flatnonzero(norms > 0.0)
    unit = columns[:, used] / norms[used]
    gram, target = unit.T @ unit, unit.T @ values
    best, best_error = np.zeros(len(used)), 0.0
    for size in range(len(used), 0, -1):
        for subset in combinations(range(len(used)), size):
            chosen = list(subset)
            part = np.linalg.lstsq(gram[np.ix_(chosen, chosen)], target[chosen], rcond=None)[0]
            error = -float(part @ target[chosen])
            if part.min() >= 0.0 and error < best_error:
                best, best_error = np.zeros(len(used)), error
                best[chosen] = part
        if size == len(used) and best_error < 0.0:
            break  # nothing was held at 0: no subset can be better
    found = np.zeros(columns.shape[1])
    found[used] = best / norms[used]
    return found


PAPER_COSTS = {
    "wisp-32b": PassCost(33.14e-6, 34.5e-9, 4.62e-6, 14.86e-3),
    "wisp-32b-main": PassCost(143.39e-6, 2.53e-9, 2.67e-6, 14.86e-3),
}
"""Qwen3-32B on an A100: WISP, Appendix C, Table 12; and the text of Sec. 4.4, which names no constant: that of Table 12
is taken."""

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
    """Holds what was measured with a frame of one size and a prompt. Times are in seconds."""

    height: int
    """Pixels."""
    width: int
    image_tokens: int
    prompt_tokens: int
    """Tokens of image and words."""
    encode_s: float
    """Is the time of the vision tower."""
    prefill_s: float
    """Is the time of image and words in the decoder, without the vision tower."""
    predicted_s: float
    """Is the time of the prefill as the fitted cost predicts it."""


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
    """Names the clock that seconds were counted by: that of the wall or of the processor."""
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
