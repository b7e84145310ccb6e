"""SpecEdge (NeurIPS 2025): the gain of proactive drafting, its baseline of split layers, and what it prints.

Its rule for the draft depth (Sec. 4.3) lives where it is used: `edge_drafter.controller.balanced_gamma`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.analytic.early_exits import Times


@dataclass(frozen=True)
class Printed:
    """Sec. 5.1 and 5.2, Qwen3-32B on an A100 with Qwen3-1.7B on an RTX 4090; seconds. verify_s is that of a batch."""

    draft_s: float = 0.011
    verify_s: float = 0.0942
    rtt_s: float = 0.01407

    @property
    def one_way_s(self) -> float:
        """T_c."""
        return self.rtt_s / 2.0


PRINTED = Printed()

DEPTHS: Mapping[float, int] = {0.015: 7, 0.040: 5, 0.050: 4}
"""Draft depth by round trip in seconds (Sec. 5.2)."""

TAU: Mapping[str, float] = {"server only": 4.02, "SpecEdge": 4.5}
"""Tokens per verification, Qwen3 1.7B/32B (Sec. 5.2)."""

SPLIT_TOKEN_S: Mapping[float, float] = {0.015: 0.09963, 0.050: 0.13490}
"""Inter-token latency of split layers by round trip, both in seconds (Sec. 5.3, Qwen3-32B on SpecBench)."""

RENTS: Mapping[str, tuple[float, int, int, float]] = {
    "server only": (31.78, 1, 0, 28.25),
    "SpecEdge": (66.54, 1, 2, 50.60),
}
"""Table 1, Qwen3 14B/1.7B, multi-turn bench: tokens/s of the server, A100s, RTX 4090s, 1000 tokens/$."""


def proactive_gain(align: float, match: float, tokens: int, heads: int) -> float:
    """Return P_align P_match|align (T_draft / H_expan - 1), tokens expected to be saved (Eq. 1).

    tokens: drafted proactively in all. heads: leaves from which drafting went on. It is negative where each head gets
    less than one token. Raises ValueError for a chance outside 0 to 1, or no head.
    """
    if not (0.0 <= align <= 1.0 and 0.0 <= match <= 1.0) or heads < 1:
        raise ValueError(f"chances {align:g}, {match:g} must be 0 to 1, heads {heads} at least 1")
    return align * match * (tokens / heads - 1.0)


def layer_split_s(times: Times, tokens: float, share: float, slowdown: float) -> float:
    """Return n (2 T_c + T_q (s k + 1 - s)), seconds: share s of the layers on an edge that is k times slower.

    A link without limits is taken (Sec. 5.3: one round trip a token).
    """
    return tokens * (2.0 * times.one_way_s + times.verify_s * (share * slowdown + 1.0 - share))
