"""PicoSpec (arXiv 2603.19133): its throughput model, Eq. 5 to 10, and the tables that it can be held against.

The text at hand has lost the symbols of its formulas and the heads of two columns; what stands here is what its words
say. Of the two columns the last grows by the same 24 ms with each draft token, so it is T_draft, and the other one is
what a stop-and-wait round has left: T_rtt + T_verify (119.81 + 123.91 ms of a round of 251.76 ms, Table 2 without
parallel drafting).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from speculation.acceptance import expected_tokens

GAMMA = 4


@dataclass(frozen=True)
class Pair:
    """A pair of models on one benchmark (Tables 1 to 3): Jetson AGX against A100s over a wide-area network.

    ar_rate: tokens per second of cloud decoding. vanilla, pico: times faster than that. accepted: "average acceptance
    length". serial_*: the row without parallel drafting, which is stop-and-wait; the others are the full system's.
    Seconds per round; *_cloud_s: T_rtt + T_verify.
    """

    label: str
    ar_rate: float
    vanilla: float
    pico: float
    accepted: float
    serial_rate: float
    serial_round_s: float
    serial_cloud_s: float
    serial_drafting_s: float
    rate: float
    round_s: float
    cloud_s: float
    drafting_s: float

    @property
    def decode_s(self) -> float:
        """One token of cloud decoding, which stands for T_verify, of which the paper prints nothing."""
        return 1.0 / self.ar_rate

    @property
    def draft_s(self) -> float:
        """T_p: drafting time of 4 tokens over 4; Table 4's times for 3 to 6 tokens give the same, 24 ms for Qwen."""
        return self.drafting_s / GAMMA

    @property
    def one_way_s(self) -> float:
        """T_c: half of what the stop-and-wait round waits beyond one decode. Derived; both pairs give the same."""
        return (self.serial_cloud_s - self.decode_s) / 2.0


PAIRS: Mapping[str, Pair] = {
    "qwen_gsm8k": Pair(
        "Qwen3 0.6B/32B, GSM8K", 13.89, 0.58, 1.45, 2.50, 11.92, 0.25176, 0.11981, 0.12391, 20.19, 0.14884, 0.08735,
        0.09746,
    ),
    "qwen_humaneval": Pair(
        "Qwen3 0.6B/32B, HumanEval", 14.18, 0.44, 1.13, 1.88, 10.25, 0.25292, 0.11903, 0.12408, 16.04, 0.16088, 0.07804,
        0.09717,
    ),
    "llama_gsm8k": Pair(
        "Llama 1B/70B, GSM8K", 6.87, 1.35, 2.51, 4.29, 12.51, 0.39035, 0.19468, 0.19056, 17.22, 0.27289, 0.16646,
        0.17105,
    ),
    "llama_humaneval": Pair(
        "Llama 1B/70B, HumanEval", 6.86, 1.45, 2.90, 4.90, 13.60, 0.38089, 0.18660, 0.18968, 19.88, 0.27293, 0.18296,
        0.17241,
    ),
}  # fmt: skip


def serial_s(drafting_s: float, rtt_s: float, verify_s: float) -> float:
    """Return T_draft + T_rtt + T_verify, seconds of a stop-and-wait round (Eq. 1 and 6).

    drafting_s is that of all tokens of the round.
    """
    return drafting_s + rtt_s + verify_s


def serial_rate(acceptance: float, gamma: int, drafting_s: float, rtt_s: float, verify_s: float) -> float:
    """Return E(gamma) / T, tokens per second of stop-and-wait (Eq. 5 to 7)."""
    return expected_tokens(acceptance, gamma) / serial_s(drafting_s, rtt_s, verify_s)


def hit(acceptance: float, gamma: int) -> float:
    """Return alpha^gamma, the chance of a full hit (Sec. 3.4).

    A draft made on the guess that all is accepted must also have guessed the token that the target adds, which the
    paper leaves out.
    """
    return float(acceptance**gamma)


def pipelined_s(acceptance: float, gamma: int, drafting_s: float, rtt_s: float, verify_s: float) -> float:
    """Return the expected seconds of a pipelined round (Eq. 8 and 9).

    A full hit takes max(T_draft, T_rtt + T_verify), anything else the whole stop-and-wait round.
    """
    chance = hit(acceptance, gamma)
    best = max(drafting_s, rtt_s + verify_s)
    return chance * best + (1.0 - chance) * serial_s(drafting_s, rtt_s, verify_s)


def pipelined_rate(acceptance: float, gamma: int, drafting_s: float, rtt_s: float, verify_s: float) -> float:
    """Return the tokens per second of the pipeline: E(gamma) over Eq. 9."""
    return expected_tokens(acceptance, gamma) / pipelined_s(acceptance, gamma, drafting_s, rtt_s, verify_s)


def largest_gain(drafting_s: float, rtt_s: float, verify_s: float) -> float:
    """Return 1 + (T_rtt + T_verify) / T_draft, the bound on the gain over stop-and-wait (Eq. 10).

    It holds for an acceptance of 1 where drafting takes longer than round trip and verification.
    """
    return 1.0 + (rtt_s + verify_s) / drafting_s


def acceptance_for(tokens: float, gamma: int) -> float:
    """Return the acceptance with which Eq. 5 gives so many tokens a round. Raises ValueError outside 1 to gamma + 1."""
    if not 1.0 <= tokens <= gamma + 1.0:
        raise ValueError(f"{tokens:g} tokens a round are outside 1 to {gamma + 1}")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if expected_tokens(middle, gamma) < tokens else (low, middle)
    return (low + high) / 2.0
