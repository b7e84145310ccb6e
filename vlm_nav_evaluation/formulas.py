"""The papers' latency formulas, and the systems that Early Exits prints times for. Seconds throughout.

    cloud        2 T_c + n T_q                                              Early Exits, Table 4
    sd           n/tau (2 T_c + gamma T_p + T_q)                            Table 4
    fsd          n/tau (2 T_c + r gamma T_p + (1 - r) T_r + T_q)            Table 4
    pipelined    (a^gamma max(D, R + T_q) + (1 - a^gamma) (D + R + T_q)) / (1 + a + ... + a^(gamma - 1))   PicoSpec
    dsd          gamma V b / rate + NTT; dssd: (1 - a^gamma) V b / rate + NTT, a round's communication    DSSD
    layer_split  n (2 T_c + T_q (s k + 1 - s))                              SpecEdge, Sec. 5.3

n tokens in an answer, gamma tokens in a draft, tau tokens a verification, r miss rate, a acceptance, D = gamma T_p,
R = 2 T_c, s share of the layers on an edge that is k times slower. Where the papers' own figures part from these
formulas: docs/papers.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from speculation.acceptance import expected_tokens

GAMMA, TOKENS = 4, 200
"""gamma and n of Early Exits' experiments (Sec. 4)."""


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


def pipelined_round_s(times: Times, gamma: int, acceptance: float) -> float:
    """Return the mean seconds of a round with the next draft made during a check (PicoSpec, Eq. 8 and 9).

    With chance a^gamma all of a draft is accepted, and the next one was not drafted in vain.
    """
    drafting, around = gamma * times.draft_s, 2.0 * times.one_way_s + times.verify_s
    hit = float(acceptance**gamma)
    return hit * max(drafting, around) + (1.0 - hit) * (drafting + around)


def pipelined_s(times: Times, tokens: float, gamma: int, acceptance: float) -> float:
    """Return the seconds of an answer with the next draft made during a check (PicoSpec, Eq. 5 to 9).

    The next draft goes on behind the last draft token, so a round whose draft is accepted whole commits gamma tokens:
    the target's extra one is left out. Any other round commits one token more than it accepts. Together that is
    1 + a + ... + a^(gamma - 1), and on average the printed accepted tokens plus the share of rounds with a rejection.
    """
    return tokens * pipelined_round_s(times, gamma, acceptance) / expected_tokens(acceptance, gamma - 1)


@dataclass(frozen=True)
class Pipeline:
    """A row of PicoSpec's Tables 2 to 4 with all its parts, seconds and tokens a second.

    The text that was used has lost the heads of two columns. The last one grows by the same 24 ms a draft token:
    it is `drafting_s`. The other one is what is left of a stop-and-wait round, `around_s`.
    """

    label: str
    gamma: int
    accepted: float
    """Printed average acceptance length: draft tokens, without the target's own."""
    rate: float
    round_s: float
    """Printed as time per output token; times the rate it is a round's tokens."""
    drafting_s: float
    around_s: float
    """T_rtt + T_verify, printed for the whole system."""
    serial_around_s: float
    """The same without parallel drafting (Tables 2 and 3), where nothing hides a part of it."""
    cloud_rate: float
    """Of plain cloud decoding: one token stands for T_verify, of which the paper prints nothing."""

    @classmethod
    def printed(
        cls, label: str, gamma: int, accepted: float, rate: float, times_ms: tuple[float, float, float, float],
        cloud_rate: float,
    ) -> Pipeline:  # fmt: skip
        """Return a row; times_ms: round, drafting, the other column, that column without parallel drafting."""
        whole, drafting, around, serial = (each / 1e3 for each in times_ms)
        return cls(label, gamma, accepted, rate, whole, drafting, around, serial, cloud_rate)

    @property
    def tokens(self) -> float:
        """Tokens a round by the printed rate and round."""
        return self.rate * self.round_s

    @property
    def acceptance(self) -> float:
        """The a with a + ... + a^gamma = `accepted`; nan where a draft of gamma has not so many tokens."""
        fits = self.accepted <= self.gamma
        return acceptance_for(self.accepted + 1.0, self.gamma) if fits else float("nan")

    @property
    def gamma_of_both(self) -> int:
        """The draft length at which printed length, rate and round agree best: accepted + 1 - a^gamma = `tokens`."""

        def apart(gamma: int) -> float:
            return abs(expected_tokens(replace(self, gamma=gamma).acceptance, gamma - 1) - self.tokens)

        return min(range(math.ceil(self.accepted), 17), key=apart)


PICOSPEC: Sequence[Pipeline] = (
    Pipeline.printed("Qwen3 0.6B/32B, GSM8K, 3", 3, 2.03, 19.06, (129.15, 73.41, 82.11, 119.81), 13.89),
    Pipeline.printed("Qwen3 0.6B/32B, GSM8K, 4", 4, 2.50, 20.19, (148.84, 97.46, 87.35, 119.81), 13.89),
    Pipeline.printed("Qwen3 0.6B/32B, GSM8K, 5", 5, 2.84, 18.12, (189.17, 121.40, 88.76, 119.81), 13.89),
    Pipeline.printed("Qwen3 0.6B/32B, GSM8K, 6", 6, 3.10, 17.12, (219.28, 145.40, 88.07, 119.81), 13.89),
    Pipeline.printed("Qwen3 0.6B/32B, HumanEval, 4", 4, 1.88, 16.04, (160.88, 97.17, 78.04, 119.03), 14.18),
    Pipeline.printed("Llama 1B/70B, GSM8K, 4", 4, 4.29, 17.22, (272.89, 171.05, 166.46, 194.68), 6.87),
    Pipeline.printed("Llama 1B/70B, HumanEval, 4", 4, 4.90, 19.88, (272.93, 172.41, 182.96, 186.60), 6.86),
)
"""Pair, task and draft length (Tables 1 to 4). For 3, 5 and 6 draft tokens no stop-and-wait round is printed: that of 4
stands for it."""


def layer_split_s(times: Times, tokens: float, share: float, slowdown: float) -> float:
    """Return the seconds of an answer with one round trip a token, on a link without limits (SpecEdge, Sec. 5.3)."""
    return tokens * (2.0 * times.one_way_s + times.verify_s * (share * slowdown + 1.0 - share))


def dsd_s(gamma: int, bits_per_s: float, around_s: float, vocabulary: int, bits: int = 16) -> float:
    """Return the seconds of communication of a round in which gamma distributions go up (DSSD, Eq. 3 to 5).

    bits: of a probability. around_s: the network's delay both ways, NTT.
    """
    return gamma * vocabulary * bits / bits_per_s + around_s


def dssd_s(gamma: int, acceptance: float, bits_per_s: float, around_s: float, vocabulary: int, bits: int = 16) -> float:
    """Return the same where one distribution comes down in the rounds that reject a token (DSSD, Eq. 9)."""
    return float((1.0 - acceptance**gamma) * vocabulary * bits / bits_per_s + around_s)


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
