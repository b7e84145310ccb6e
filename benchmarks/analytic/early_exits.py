"""Early Exits (arXiv 2505.21594): its latency formulas, and the tables that they can be held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Protocol

GAMMA = 4
TOKENS = 200
"""gamma and n of the paper's experiments (Sec. 4)."""
LARGER_C = 0.3
"""T_p / T_q that the paper estimates for OPT-66B and Llama-65B on a Jetson (App. B, the yellow line of Fig. 6)."""


class Times(Protocol):
    """What the formulas need of a system, in seconds (Table 3): T_p, T_q, T_c one way, T_r."""

    @property
    def draft_s(self) -> float: ...
    @property
    def verify_s(self) -> float: ...
    @property
    def one_way_s(self) -> float: ...
    @property
    def sync_s(self) -> float: ...


@dataclass(frozen=True)
class System:
    """A column of Table 5, or Table 8(a), as printed; milliseconds. `c`: the printed T_p / T_q.

    layers: of the target; Table 2 has one exit less.
    """

    name: str
    label: str
    gamma_draft_ms: float
    verify_ms: float
    one_way_ms: float
    c: float
    threads: int
    layers: int
    sync_s: float = 0.0

    @property
    def draft_s(self) -> float:
        """T_p; the printed drafting latency is that of 4 tokens."""
        return self.gamma_draft_ms / (1e3 * GAMMA)

    @property
    def verify_s(self) -> float:
        """T_q."""
        return self.verify_ms / 1e3

    @property
    def one_way_s(self) -> float:
        """T_c."""
        return self.one_way_ms / 1e3


@dataclass(frozen=True)
class Measured:
    """Speed-ups, tau, cache miss rate in per cent and mean exit of one system, as printed (Table 6 or 8(b))."""

    ar_to_sd: float
    sd_to_fsd: float
    tau: float
    miss_percent: float
    mean_exit: float

    @property
    def miss(self) -> float:
        """r, as a share."""
        return self.miss_percent / 100.0


SYSTEMS: Mapping[str, System] = {
    each.name: each
    for each in (
        # Table 8(a): Qwen2-VL-2B on the Go2's Jetson Orin, Qwen2-VL-7B on an A100.
        System("go2", "Go2 (Orin), Qwen2-VL 2B/7B", 288.0, 620.0, 120.0, 0.11, 6, 28),
        # Table 5, by client device (Jetson Nano, RTX 2080 Ti) and pair of models; the server is an A100.
        System("jetson_vicuna_7b", "Jetson, Vicuna 68M/7B", 334.0, 497.0, 95.0, 0.17, 15, 32),
        System("rtx_vicuna_7b", "RTX, Vicuna 68M/7B", 102.0, 442.0, 42.0, 0.06, 30, 32),
        System("jetson_vicuna_13b", "Jetson, Vicuna 160M/13B", 1596.0, 616.0, 91.0, 0.65, 7, 40),
        System("rtx_vicuna_13b", "RTX, Vicuna 160M/13B", 555.0, 618.0, 46.0, 0.22, 15, 40),
        System("jetson_llama2_7b", "Jetson, 68M/Llama2-7B", 301.0, 522.0, 96.0, 0.14, 15, 32),
        System("rtx_llama2_7b", "RTX, 68M/Llama2-7B", 99.0, 467.0, 47.0, 0.05, 30, 32),
    )
}

COSTS: Mapping[str, tuple[float, float, float]] = {
    "Qwen1.5-0.5B/72B": (540.0, 360.0, 270.0),
    "llama-3.1-8b/405b": (540.0, 312.0, 270.0),
    "llama3-8b/70b": (454.0, 286.0, 217.0),
    "Qwen-2-VL-7B/72B": (420.0, 390.0, 210.0),
}
"""Table 1: dollars of a million requests by cloud AR, cloud SD and edge-cloud SD, at tau 2.5."""

THREADS = (3, 5, 10)
QUEUES: Mapping[tuple[str, str], tuple[float, float, float]] = {
    ("priority", "priority"): (79.85, 62.93, 27.57),
    ("priority", "fifo"): (80.40, 63.48, 27.73),
    ("random", "priority"): (82.32, 63.25, 26.92),
    ("random", "fifo"): (84.56, 65.36, 27.68),
    ("fifo", "priority"): (82.61, 64.43, 27.69),
    ("fifo", "fifo"): (85.43, 65.67, 27.84),
}
"""Table 7: (edge queue, server queue) -> cache miss rate in percent with 3, 5 and 10 threads."""

BATCHES: Mapping[int, float] = {1: 7.76, 2: 8.02, 3: 7.57, 4: 7.87, 8: 8.97, 12: 9.71, 16: 10.63, 32: 14.49}
"""Table 9: milliseconds of a client's forward (Vicuna-68M, Jetson) over its batch."""
SERVER_BATCHES: Mapping[int, float] = {
    1: 17.94, 2: 21.75, 3: 24.35, 4: 24.63, 8: 30.73, 12: 44.52, 16: 45.79, 32: 96.94,
}  # fmt: skip
"""Table 9: milliseconds of the server's forward (Vicuna-7B, A100) over its batch."""

_COLUMNS = tuple(name for name in SYSTEMS if name != "go2")


def _row(*entries: tuple[float, float, float, float, float]) -> dict[str, Measured]:
    return {name: Measured(*entry) for name, entry in zip(_COLUMNS, entries, strict=True)}


TABLE_6: Mapping[str, Mapping[str, Measured]] = {
    "MT-bench": _row(
        (0.70, 1.04, 2.30, 60.92, 8), (1.30, 1.04, 2.01, 20.07, 13), (0.42, 1.05, 2.28, 62.49, 9),
        (0.97, 1.09, 2.98, 16.40, 15), (1.34, 1.07, 4.12, 36.73, 9), (2.01, 1.02, 3.48, 13.38, 11),
    ),
    "HumanEval": _row(
        (0.79, 1.04, 2.04, 64.73, 7), (1.42, 1.03, 2.66, 15.79, 16), (0.47, 1.06, 2.14, 57.64, 8),
        (0.85, 1.15, 2.04, 25.16, 14), (1.53, 1.22, 4.16, 17.60, 4), (2.09, 1.07, 3.83, 1.75, 3),
    ),
    "GSM8K": _row(
        (0.63, 1.04, 2.08, 61.21, 8), (1.11, 1.08, 1.96, 12.40, 13), (0.40, 1.06, 2.23, 58.04, 9),
        (0.77, 1.13, 2.29, 18.37, 14), (1.15, 1.07, 3.48, 41.87, 7), (1.69, 1.06, 3.29, 9.55, 10),
    ),
    "Alpaca": _row(
        (0.63, 1.04, 2.09, 64.60, 8), (1.06, 1.07, 1.96, 19.29, 14), (0.42, 1.05, 2.32, 60.94, 8),
        (0.74, 1.12, 2.36, 25.45, 14), (1.42, 1.10, 4.29, 36.60, 9), (1.99, 1.18, 3.62, 4.28, 2),
    ),
    "CNN/DM": _row(
        (0.72, 1.03, 2.32, 70.70, 10), (1.20, 1.07, 1.95, 29.40, 15), (0.38, 1.03, 2.08, 69.92, 8),
        (0.73, 1.07, 2.10, 38.09, 16), (1.41, 1.07, 4.32, 47.13, 14), (1.91, 1.04, 3.43, 13.97, 13),
    ),
    # The fourth speed-up from SD to FSD is printed as "1.12%".
    "NQ": _row(
        (0.65, 1.02, 2.08, 71.50, 8), (1.10, 1.06, 2.05, 22.59, 14), (0.46, 1.04, 2.44, 63.25, 8),
        (0.82, 1.12, 2.62, 30.25, 15), (1.26, 1.05, 3.83, 57.11, 13), (1.93, 1.01, 3.62, 14.88, 14),
    ),
}  # fmt: skip
"""Table 6, by benchmark and column of Table 5."""

TABLE_6_AVERAGE: Mapping[str, Measured] = _row(
    (0.69, 1.04, 2.15, 65.61, 8), (1.20, 1.06, 2.10, 19.59, 14), (0.42, 1.05, 2.25, 62.05, 8),
    (0.94, 1.10, 2.40, 27.95, 14), (1.35, 1.11, 4.03, 39.94, 9), (1.94, 1.06, 3.54, 9.63, 9),
)  # fmt: skip
"""Table 6, last block: its own averages, as printed."""

MEASURED: Mapping[str, Measured] = {"go2": Measured(0.90, 1.34, 2.92, 55.63, 8), **TABLE_6_AVERAGE}
"""Each system's printed summary: Table 8(b) and the averages of Table 6."""


def averages(system: str) -> Measured:
    """Return the means of a column of Table 6 over its six benchmarks, to hold against the printed ones."""
    rows = [entries[system] for entries in TABLE_6.values()]
    return Measured(
        mean(row.ar_to_sd for row in rows),
        mean(row.sd_to_fsd for row in rows),
        mean(row.tau for row in rows),
        mean(row.miss_percent for row in rows),
        mean(row.mean_exit for row in rows),
    )


def cloud_s(times: Times, tokens: float) -> float:
    """Return 2 T_c + n T_q, seconds (Table 4, Cloud AR)."""
    return 2.0 * times.one_way_s + tokens * times.verify_s


def sd_s(times: Times, tokens: float, gamma: int, tau: float) -> float:
    """Return n / tau (2 T_c + gamma T_p + T_q), seconds (Table 4, Edge-Cloud SD)."""
    return tokens / tau * (2.0 * times.one_way_s + gamma * times.draft_s + times.verify_s)


def fsd_s(times: Times, tokens: float, gamma: int, tau: float, miss: float) -> float:
    """Return n / tau (2 T_c + r gamma T_p + (1 - r) T_r + T_q), seconds (Table 4, Edge-Cloud FSD)."""
    drafting = miss * gamma * times.draft_s + (1.0 - miss) * times.sync_s
    return tokens / tau * (2.0 * times.one_way_s + drafting + times.verify_s)


def fsd_gain(gamma: int, c: float, miss: float) -> float:
    """Return (gamma c + 1) / (r gamma c + 1): SD's time over FSD's where T_c and T_r are nothing (Eq. 9)."""
    return (gamma * c + 1.0) / (miss * gamma * c + 1.0)


def miss_for(gain: float, gamma: int, c: float) -> float:
    """Return the miss rate at which Eq. 9 gives this gain; negative where no miss rate does."""
    return ((gamma * c + 1.0) / gain - 1.0) / (gamma * c)


def decode_s_for(ar_to_sd: float, times: Times, tokens: float, gamma: int, tau: float) -> float:
    """Return the seconds of one plain decode with which Table 4 gives this speed-up of SD over cloud decoding.

    T_q counts for the verification only. Where it is not T_q, the printed speed-up and Table 4 disagree.
    """
    return (ar_to_sd * sd_s(times, tokens, gamma, tau) - 2.0 * times.one_way_s) / tokens


def sync_s_for(sd_to_fsd: float, times: Times, gamma: int, miss: float) -> float:
    """Return the T_r, seconds, with which Table 4 gives this speed-up; a negative one cannot be."""
    around = 2.0 * times.one_way_s + times.verify_s
    drafting = gamma * times.draft_s
    return ((around + drafting) / sd_to_fsd - around - miss * drafting) / (1.0 - miss)
