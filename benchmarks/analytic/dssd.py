"""DSSD (ICML 2025 workshop): communication and time of a round, Eq. 3 to 13, for three ways to sample over a link, and
the paper's Tables 1 to 3. Bits and bits per second; NTT: what a round trip takes beside sending, seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from speculation.acceptance import expected_tokens

OPT_VOCABULARY = 50_272
"""Of the paper's models. The paper does not name it; its Table 1 takes 8 ms for one distribution, see `TABLE_1`."""


@dataclass(frozen=True)
class Link:
    """R_up and R_down in bits per second, T_NTT in seconds."""

    up_bps: float
    down_bps: float
    ntt_s: float = 0.0

    @classmethod
    def symmetric(cls, mbps: float, ntt_s: float = 0.0) -> Link:
        """Return a link with one rate, in Mbit/s, for both ways."""
        return cls(1e6 * mbps, 1e6 * mbps, ntt_s)


def comm_s(up_bits: float, down_bits: float, link: Link) -> float:
    """Return T_up + T_down + T_NTT, seconds of a round's communication (Eq. 1 to 3)."""
    return up_bits / link.up_bps + down_bits / link.down_bps + link.ntt_s


def dsd_bits(gamma: int, vocabulary: int, bits: int) -> float:
    """Return gamma |V| b: what goes up in a round, `bits` per probability (Eq. 4). Token ids are left out."""
    return float(gamma * vocabulary * bits)


def rejected(acceptance: float, gamma: int) -> float:
    """Return 1 - alpha^gamma, the chance that some token of a round is rejected (Table 1)."""
    return float(1.0 - acceptance**gamma)


def dssd_bits(vocabulary: int, bits: int) -> float:
    """Return |V| b: what comes down in a round with a rejection (Eq. 8, a = 1)."""
    return float(vocabulary * bits)


def sparse_bits(top: int, vocabulary: int, bits: int) -> float:
    """Return what comes down instead where the `top` likeliest are sent, each with its index (PicoSpec, Eq. 4).

    An index takes as many whole bits as the vocabulary asks for. The tail that makes this exact is not in it.
    """
    return float(top * (bits + (vocabulary - 1).bit_length()))


def dsd_comm_s(gamma: int, vocabulary: int, bits: int, link: Link) -> float:
    """Return the seconds of communication of a DSD round (Eq. 5)."""
    return comm_s(dsd_bits(gamma, vocabulary, bits), 0.0, link)


def dssd_comm_s(acceptance: float, gamma: int, vocabulary: int, bits: int, link: Link) -> float:
    """Return the expected seconds of communication of a DSSD round (Eq. 9)."""
    return comm_s(0.0, rejected(acceptance, gamma) * dssd_bits(vocabulary, bits), link)


def dssd_comm_bounds_s(vocabulary: int, bits: int, link: Link) -> tuple[float, float]:
    """Return T_NTT and T_down + T_NTT, seconds (Eq. 10): all is accepted (Eq. 12), or gamma is large (Eq. 11)."""
    return link.ntt_s, comm_s(0.0, dssd_bits(vocabulary, bits), link)


def round_s(gamma: int, draft_s: float, target_s: float, communication_s: float) -> float:
    """Return gamma T_SLM + T_comm + T_LLM, seconds (Eq. 6; with Eq. 5 it is Eq. 7, with Eq. 9 Eq. 13)."""
    return gamma * draft_s + communication_s + target_s


def speed_up(acceptance: float, gamma: int, c: float, target_s: float, communication_s: float) -> float:
    """Return the throughput over that of the target alone (Eq. 14 and 15), with T_SLM = c T_LLM.

    Tokens of a round are those of Leviathan et al. (arXiv 2211.17192, Eq. 1), on which the paper rests.
    """
    return expected_tokens(acceptance, gamma) * target_s / round_s(gamma, c * target_s, target_s, communication_s)


def target_s_for(speed_up: float, acceptance: float, gamma: int, c: float, communication_s: float) -> float:
    """Return the T_LLM, seconds, with which Eq. 13 gives this speed-up; negative where none does."""
    return speed_up * communication_s / (expected_tokens(acceptance, gamma) - speed_up * (1.0 + gamma * c))


TABLE_1_LINK = Link.symmetric(100.0, 0.020)
TABLE_1_BITS = 800_000
"""Table 1 names neither link nor model. Its times are 20 ms + 8.00 ms x (1 - alpha^gamma), to the last printed digit:
800,000 bits at 100 Mbit/s, 50,000 probabilities of 16 bits. OPT's own 50,272 would give 8.04 ms."""

TABLE_1: Mapping[tuple[int, float], tuple[float, float]] = {
    (gamma, alpha): entry
    for gamma, row in {
        2: ((0.75, 26.00), (0.64, 25.12), (0.51, 24.08), (0.36, 22.88), (0.19, 21.52), (0.02, 20.16)),
        4: ((0.94, 27.50), (0.87, 26.96), (0.76, 26.08), (0.59, 24.72), (0.34, 22.75), (0.04, 20.32)),
        6: ((0.98, 27.88), (0.95, 27.63), (0.88, 27.06), (0.74, 25.90), (0.47, 23.75), (0.06, 20.47)),
        8: ((1.00, 27.97), (0.98, 27.87), (0.94, 27.54), (0.83, 26.66), (0.57, 24.56), (0.08, 20.62)),
    }.items()
    for alpha, entry in zip((0.5, 0.6, 0.7, 0.8, 0.9, 0.99), row, strict=True)
}
"""(gamma, alpha): the printed 1 - alpha^gamma, and T_comm in milliseconds."""

TABLE_2_TOKENS, TABLE_2_ALPHA, TABLE_2_ALPHA_13B = 128, 0.61, 0.53
DSD_ROUND_BYTES, DSSD_ROUND_BYTES = 61_269, 50
"""What a round of DSD uploads, and the most that one of DSSD does (Sec. 4.1)."""


@dataclass(frozen=True)
class Homogeneous:
    """A row of Table 2: T_com in seconds over 128 tokens, and speed-up; DSD and DSSD with OPT-6.7B, DSSD with 13B."""

    ntt_ms: float
    mbps: float
    gamma: int
    dsd: tuple[float, float]
    dssd: tuple[float, float]
    dssd_13b: tuple[float, float]


TABLE_2 = (
    Homogeneous(0, 100, 8, (3.91, 1.51), (0.01, 2.28), (1.40, 1.67)),
    Homogeneous(20, 100, 8, (4.60, 1.41), (0.62, 2.31), (9.21, 1.72)),
    Homogeneous(50, 10, 8, (41.44, 0.43), (1.55, 2.19), (2.30, 1.62)),
    Homogeneous(20, 50, 8, (8.59, 1.24), (0.62, 2.22), (0.92, 1.77)),
    Homogeneous(50, 50, 8, (9.52, 1.08), (1.55, 1.97), (2.30, 1.70)),
    Homogeneous(50, 10, 6, (8.12, 1.16), (0.40, 1.57), (2.01, 1.97)),
)

C_6_7B, C_13B = 0.1, 0.05
"""T_SLM / T_LLM of the heterogeneous experiment (Sec. 4.2: A6000 against H800); no T_LLM is printed."""


@dataclass(frozen=True)
class Heterogeneous:
    """A row of Table 3: speed-ups. said_*: what Sec. 4.2 says of the same setting in words, where it does."""

    ntt_ms: float
    mbps: float
    gamma: int
    dsd: float
    dssd: float
    dssd_13b: float
    said: float | None = None
    said_13b: float | None = None


TABLE_3 = (
    Heterogeneous(0, 100, 8, 0.88, 0.98, 1.17),
    Heterogeneous(20, 100, 8, 0.85, 0.92, 1.13, 0.87, 1.14),
    Heterogeneous(20, 50, 8, 0.72, 0.92, 1.12),
    Heterogeneous(20, 100, 4, 1.10, 1.11, 1.44, 0.82, 1.37),
    Heterogeneous(20, 100, 6, 1.12, 1.14, 1.58, 0.92, 1.75),
    Heterogeneous(20, 100, 8, 0.93, 1.04, 1.30, 0.87, 1.14),
)
"""The second and the last row name the same setting with different figures."""
