"""How far to draft before sending: the length that commits most tokens per second, from on-line estimates."""

from __future__ import annotations

from dataclasses import dataclass


def expected_tokens(acceptance: float, gamma: int) -> float:
    """Return E(gamma) = 1 + a + ... + a^gamma, tokens committed by verifying `gamma` (Leviathan et al., Eq. 1)."""
    return sum(acceptance**power for power in range(gamma + 1))


def tokens_per_second(acceptance: float, gamma: int, fixed_s: float, draft_s: float) -> float:
    """Return E(gamma) / (F + c gamma): F seconds per round trip and verification, c per draft token."""
    return expected_tokens(acceptance, gamma) / (fixed_s + draft_s * gamma)


@dataclass
class Average:
    """An exponentially weighted mean that starts at its first sample."""

    weight: float
    value: float | None = None
    samples: int = 0

    def add(self, sample: float) -> None:
        """Take one more sample."""
        self.value = sample if self.value is None else self.value + self.weight * (sample - self.value)
        self.samples += 1


class Controller:
    """Chooses gamma. Changes it only for a gain above `hysteresis`, and not before `least` rounds were seen.

    Where drafting does not pay it chooses 0, but tries one token every `probe` rounds: acceptance may have recovered.
    """

    def __init__(
        self,
        start: int = 4,
        largest: int = 16,
        weight: float = 0.1,
        hysteresis: float = 0.03,
        least: int = 3,
        probe: int = 16,
    ) -> None:
        if not 0 <= start <= largest:
            raise ValueError(f"start is {start}; give 0 to largest = {largest}")
        self._gamma = start
        self._largest = largest
        self._hysteresis = hysteresis
        self._least = least
        self._probe = probe
        self._draft_s = Average(weight)
        self._round_s = Average(weight)
        self._acceptance = Average(weight)

    @property
    def gamma(self) -> int:
        """The number of draft tokens to send next."""
        if self._gamma == 0 and self._round_s.samples % self._probe == 0:
            return min(1, self._largest)
        return self._gamma

    def drafted(self, seconds: float) -> None:
        """Take the time of one draft forward."""
        self._draft_s.add(seconds)

    def judged(self, sent: int, accepted: int, seconds: float) -> None:
        """Take one verdict: `accepted` of `sent` draft tokens stood, `seconds` after they were sent."""
        self._round_s.add(seconds)
        for _ in range(accepted):
            self._acceptance.add(1.0)
        if accepted < sent:
            self._acceptance.add(0.0)
        self._choose()

    def _choose(self) -> None:
        fixed, draft, acceptance = self._round_s.value, self._draft_s.value, self._acceptance.value
        if self._round_s.samples < self._least or fixed is None or draft is None or acceptance is None or fixed <= 0.0:
            return
        rates = [tokens_per_second(acceptance, gamma, fixed, draft) for gamma in range(self._largest + 1)]
        best = max(range(len(rates)), key=rates.__getitem__)
        if rates[best] > rates[self._gamma] * (1.0 + self._hysteresis):
            self._gamma = best
