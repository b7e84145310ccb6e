"""How far to draft before sending: the length that commits most tokens per second, from on-line estimates."""

from __future__ import annotations

from dataclasses import dataclass

from edge_drafter.config import AUTO, BALANCE, GAMMA_RULES
from edge_drafter.stats import DecodingStats
from speculation.acceptance import expected_tokens

LEAST_ROUNDS = 3
PROBE_ROUNDS = 16
USUAL, SLOW = 0.9, 0.02
"""`Estimates.goes_on` before the first verdict, and the weight of one more token in it."""


def tokens_per_second(acceptance: float, gamma: int, fixed_s: float, draft_s: float) -> float:
    """Return E(gamma) / (F + c gamma): F seconds per round trip and verification, c per draft token."""
    return expected_tokens(acceptance, gamma) / (fixed_s + draft_s * gamma)


@dataclass
class Average:
    """An exponentially weighted mean that starts at its first sample."""

    weight: float
    value: float | None = None

    def add(self, sample: float) -> None:
        """Take one more sample."""
        self.value = sample if self.value is None else self.value + self.weight * (sample - self.value)


def balanced_gamma(verify_s: float, draft_s: float, rtt_s: float) -> float:
    """Return the draft depth at which drafting and round trip take as long as a verification (SpecEdge, Sec. 4.3)."""
    return (verify_s - rtt_s) / draft_s


@dataclass(frozen=True)
class Estimates:
    """What the edge has measured, in seconds; None before the first sample."""

    draft_s: float | None = None
    verify_s: float | None = None
    fixed_s: float | None = None
    """A round's time besides drafting: round trip, verification and the wait for it; measured where nothing else
    delayed it."""
    acceptance: float | None = None
    """Of a draft token whose ancestors were accepted."""
    goes_on: float | None = None
    """The same over more tokens, where the end of an answer behind an accepted one counts as a rejection."""
    rtt_s: float | None = None
    """Of `fixed_s`, both ways of the link and whatever waits there: the verifier's queue and its pass left out. Before
    such a round, the link's own measure."""


class Controller:
    """Estimates times and acceptance, and chooses gamma by a rule, or keeps it where `rule` is None.

    "auto" changes gamma only for a gain above `hysteresis`, and not before `LEAST_ROUNDS` rounds. Where drafting does
    not pay it chooses 0, but tries one token every `PROBE_ROUNDS` rounds: acceptance may have recovered. "balance"
    rounds `balanced_gamma` and moves only when that is further than `hysteresis` beyond the halfway point.
    """

    def __init__(
        self,
        rule: str | None = AUTO,
        start: int = 4,
        largest: int = 16,
        weight: float = 0.1,
        hysteresis: float = 0.03,
    ) -> None:
        if not 0 <= start <= largest:
            raise ValueError(f"start is {start}; give 0 to largest = {largest}")
        if rule not in (None, *GAMMA_RULES):
            raise ValueError(f"gamma's rule is {rule!r}; known are {', '.join(GAMMA_RULES)}")
        self._rule = rule
        self._gamma = start
        self._largest = largest
        self._hysteresis = hysteresis
        self._draft_s = Average(weight)
        self._verify_s = Average(weight)
        self._fixed_s = Average(weight)
        self._rtt_s = Average(weight)
        self._link_rtt_s: float | None = None
        self._acceptance = Average(weight)
        self._goes_on = Average(SLOW, USUAL)
        self._rounds = 0

    @property
    def gamma(self) -> int:
        """The number of draft tokens to send next."""
        if self._gamma == 0 and self._rule is not None and self._rounds % PROBE_ROUNDS == 0:
            return min(1, self._largest)
        return self._gamma

    @property
    def estimates(self) -> Estimates:
        """What has been measured so far."""
        return Estimates(
            self._draft_s.value,
            self._verify_s.value,
            self._fixed_s.value,
            self._acceptance.value,
            self._goes_on.value,
            self._link_rtt_s if self._rtt_s.value is None else self._rtt_s.value,
        )

    def write_to(self, stats: DecodingStats) -> None:
        """Write gamma and the estimates into a step's figures."""
        now = self.estimates
        stats.gamma = self.gamma
        stats.estimated_draft_s, stats.estimated_verify_s = now.draft_s, now.verify_s
        stats.estimated_rtt_s, stats.estimated_acceptance = now.rtt_s, now.acceptance

    def drafted(self, seconds: float) -> None:
        """Take the time of one draft forward."""
        self._draft_s.add(seconds)

    def verified(self, seconds: float) -> None:
        """Take the time of one target forward, by the verifier's own clock."""
        self._verify_s.add(seconds)

    def linked(self, rtt_s: float | None) -> None:
        """Take the link's own round trip, that of a ping; None where it has none yet.

        An edge that always sends ahead, to a verifier that never waits for it, has no round that is free of either.
        """
        self._link_rtt_s = rtt_s

    def judged(
        self,
        sent: int,
        accepted: int,
        seconds: float | None,
        queue_s: float = 0.0,
        verify_s: float = 0.0,
        ended: bool = False,
    ) -> None:
        """Take one verdict: of a draft `sent` tokens deep, `accepted` stood; `ended`: the answer is complete with it.

        `seconds` is how long after its sending, None where more than the round trip, the verifier's queue and its
        verification delayed it. Of that it waited `queue_s` in the verifier, and its pass took `verify_s`, by the
        verifier's clock: the rest is the round trip. Measured round by round, because passes of a shared verifier take
        as long as their batches, and no two of them need be alike.
        """
        self._rounds += 1
        if seconds is not None:
            self._fixed_s.add(seconds)
            self._rtt_s.add(max(0.0, seconds - queue_s - verify_s))
        for _ in range(accepted):
            self._acceptance.add(1.0)
            self._goes_on.add(1.0)
        if accepted < sent:
            self._acceptance.add(0.0)
        if accepted < sent or ended:
            self._goes_on.add(0.0)
        if self._rounds >= LEAST_ROUNDS:
            if self._rule == AUTO:
                self._maximise()
            elif self._rule == BALANCE:
                self._balance()

    def _maximise(self) -> None:
        now = self.estimates
        if not now.fixed_s or now.draft_s is None or now.acceptance is None:
            return
        rates = [
            tokens_per_second(now.acceptance, gamma, now.fixed_s, now.draft_s) for gamma in range(self._largest + 1)
        ]
        best = max(range(len(rates)), key=rates.__getitem__)
        if rates[best] > rates[self._gamma] * (1.0 + self._hysteresis):
            self._gamma = best

    def _balance(self) -> None:
        now = self.estimates
        if now.verify_s is None or now.rtt_s is None or not now.draft_s:
            return
        depth = balanced_gamma(now.verify_s, now.draft_s, now.rtt_s)
        if abs(depth - self._gamma) > 0.5 + self._hysteresis:
            self._gamma = max(1, min(self._largest, round(depth)))
