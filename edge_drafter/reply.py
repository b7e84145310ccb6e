"""What a question to the edge's decoder ends in: an answer with its figures, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from edge_drafter.stats import DecodingStats


class VerifierLost(RuntimeError):
    """No answer, because the verifier cannot be reached or refuses; the message gives the reason."""


class VerifierRefused(VerifierLost):
    """The verifier answers and does not accept this robot: waiting does not help."""


class AnswerLate(RuntimeError):
    """No answer within the time that a step may take."""


class Cancelled(RuntimeError):
    """No answer, because it is not wanted any more: its question was cancelled, or a newer one took its place."""


@dataclass(frozen=True)
class Reply:
    """An answer's text, what decoding it took, and how the link was then (round trip in s, negative if unknown)."""

    text: str
    stats: DecodingStats
    profile: str = ""
    link: str = ""
    link_rtt_s: float = -1.0
