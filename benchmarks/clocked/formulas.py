"""The papers' latency formulas, to stand beside the engine's figures."""

from __future__ import annotations

from benchmarks.clocked.timings import Timings


def cloud_s(timings: Timings, tokens: int) -> float:
    """Return 2 T_c + n T_q, seconds (Early Exits, Table 4, Cloud AR)."""
    return 2.0 * timings.one_way_s + tokens * timings.verify_s


def sd_s(timings: Timings, tokens: int, gamma: int, tau: float) -> float:
    """Return n / tau (2 T_c + gamma T_p + T_q), seconds (Early Exits, Table 4, Edge-Cloud SD)."""
    return tokens / tau * (2.0 * timings.one_way_s + gamma * timings.draft_s + timings.verify_s)


def fsd_s(timings: Timings, tokens: int, gamma: int, tau: float, miss: float) -> float:
    """Return n / tau (2 T_c + r gamma T_p + (1 - r) T_r + T_q), seconds (Early Exits, Table 4, Edge-Cloud FSD)."""
    drafting = miss * gamma * timings.draft_s + (1.0 - miss) * timings.sync_s
    return tokens / tau * (2.0 * timings.one_way_s + drafting + timings.verify_s)


def layer_split_s(timings: Timings, tokens: int, share: float, slowdown: float) -> float:
    """Return n (2 T_c + T_q (s k + 1 - s)), seconds: share s of the layers on an edge that is k times slower.

    A link without limits is taken (SpecEdge, Sec. 5.3: one round trip a token).
    """
    return tokens * (2.0 * timings.one_way_s + timings.verify_s * (share * slowdown + 1.0 - share))
