"""The papers' latency formulas, and the systems that Early Exits prints times for. Seconds throughout.

    cloud        2 T_c + n T_q                                              Early Exits, Table 4
    sd           n/tau (2 T_c + gamma T_p + T_q)                            Table 4
    fsd          n/tau (2 T_c + r gamma T_p + (1 - r) T_r + T_q)            Table 4
    layer_split  n (2 T_c + T_q (s k + 1 - s))                              SpecEdge, Sec. 5.3

n tokens in an answer, gamma tokens in a draft, tau tokens a verification, r miss rate, s share of the layers on an edge
that is k times slower. Where the papers' own figures part from these formulas: docs/papers.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from speculation.acceptance import expected_tokens

GAMMA = 4
"""gamma of Early Exits' experiments (Sec. 4)."""


class Times(Protocol):
    """T_p, T_q, T_c one way and T_r of a system (Early Exits, Table 3)."""

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
    """A system as Early Exits prints it: times of Table 5 or 8(a), what was measured with them in Table 6 or 8(b)."""

    label: str
    draft_s: float
    verify_s: float
    one_way_s: float
    threads: int
    layers: int
    """Of the target."""
    ar_to_sd: float
    """Measured: how many times faster SD is than cloud decoding."""
    sd_to_fsd: float
    tau: float
    miss: float
    """r, as a share."""
    mean_exit: float
    sync_s: float = 0.0

    @classmethod
    def printed(
        cls, label: str, gamma_draft_ms: float, verify_ms: float, way_ms: float, threads: int, layers: int,
        ar_to_sd: float, sd_to_fsd: float, tau: float, miss_percent: float, mean_exit: float,
    ) -> System:  # fmt: skip
        """Return a system from the columns of the tables; gamma_draft_ms: drafting 4 tokens."""
        times = (gamma_draft_ms / (1e3 * GAMMA), verify_ms / 1e3, way_ms / 1e3)
        return cls(label, *times, threads, layers, ar_to_sd, sd_to_fsd, tau, miss_percent / 100.0, mean_exit)


SYSTEMS: Mapping[str, System] = {
    # Table 8: Qwen2-VL-2B on the Go2's Jetson Orin, Qwen2-VL-7B on an A100.
    "go2": System.printed("Go2 (Orin), Qwen2-VL 2B/7B", 288, 620, 120, 6, 28, 0.90, 1.34, 2.92, 55.63, 8),
    # Tables 5 and 6 (averages), by client (Jetson Nano, RTX 2080 Ti) and pair of models; the server is an A100.
    "jetson_vicuna_7b": System.printed("Jetson, Vicuna 68M/7B", 334, 497, 95, 15, 32, 0.69, 1.04, 2.15, 65.61, 8),
    "rtx_vicuna_7b": System.printed("RTX, Vicuna 68M/7B", 102, 442, 42, 30, 32, 1.20, 1.06, 2.10, 19.59, 14),
    "jetson_vicuna_13b": System.printed("Jetson, Vicuna 160M/13B", 1596, 616, 91, 7, 40, 0.42, 1.05, 2.25, 62.05, 8),
    "rtx_vicuna_13b": System.printed("RTX, Vicuna 160M/13B", 555, 618, 46, 15, 40, 0.94, 1.10, 2.40, 27.95, 14),
    "jetson_llama2_7b": System.printed("Jetson, 68M/Llama2-7B", 301, 522, 96, 15, 32, 1.35, 1.11, 4.03, 39.94, 9),
    "rtx_llama2_7b": System.printed("RTX, 68M/Llama2-7B", 99, 467, 47, 30, 32, 1.94, 1.06, 3.54, 9.63, 9),
}


def cloud_s(times: Times, tokens: float) -> float:
    """Return the seconds of an answer of n = `tokens` (Early Exits, Table 4, Cloud AR)."""
    return 2.0 * times.one_way_s + tokens * times.verify_s


def sd_s(times: Times, tokens: float, gamma: int, tau: float) -> float:
    """Return the seconds of an answer (Table 4, Edge-Cloud SD)."""
    return tokens / tau * (2.0 * times.one_way_s + gamma * times.draft_s + times.verify_s)


def fsd_s(times: Times, tokens: float, gamma: int, tau: float, miss: float) -> float:
    """Return the seconds of an answer at miss rate r = `miss` (Table 4, Edge-Cloud FSD)."""
    drafting = miss * gamma * times.draft_s + (1.0 - miss) * times.sync_s
    return tokens / tau * (2.0 * times.one_way_s + drafting + times.verify_s)


def layer_split_s(times: Times, tokens: float, share: float, slowdown: float) -> float:
    """Return the seconds of an answer with one round trip a token, on a link without limits (SpecEdge, Sec. 5.3)."""
    return tokens * (2.0 * times.one_way_s + times.verify_s * (share * slowdown + 1.0 - share))


def acceptance_for(tau: float, gamma: int) -> float:
    """Return the acceptance a with E(gamma) = tau (Leviathan et al., arXiv 2211.17192, Eq. 1).

    Raises ValueError for a tau outside 1 to gamma + 1.
    """
    if not 1.0 <= tau <= gamma + 1.0:
        raise ValueError(f"{tau:g} tokens a round are outside 1 to {gamma + 1}")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if expected_tokens(middle, gamma) < tau else (low, middle)
    return (low + high) / 2.0
