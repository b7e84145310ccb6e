"""Computes how long an idle verifier waits for a robot's next draft: pure functions of what is expected of it.

A *deadline* is the longest wait. Of all that remembered delays suggest the one is best that is worth most, and a
deadline of 0 is going on at once. A draft that never comes counts as one more remembered delay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

_SLACK = 1e-9
"""Rounding of sums of tokens."""


class Part(NamedTuple):
    """A part is what a pass over the first `size` tokens of a draft, or over a draft so deep, brings and takes."""

    size: int
    tokens: float
    """Tokens E that it commits."""
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


Worth = Callable[[float], float]
"""What waiting until a deadline, in seconds from now, is worth."""


def over_drafting(own: Part, expected: Part, delays: Sequence[float], rate: float) -> Worth:
    """Return the worth of a deadline where a draft is made beside the target when it passes.

    A pass is worth its tokens, less what the session makes of the same seconds at its `rate` (average reward; Howard,
    1960). It verifies the `expected` draft where that comes in time, else the verifier's `own`.
    """
    verify, draft = (part.tokens - rate * part.seconds for part in (expected, own))

    def worth(deadline: float) -> float:
        waits = [min(delay, deadline) for delay in (*delays, math.inf)]
        came = sum(delay <= deadline for delay in delays)
        return (came * verify + (len(waits) - came) * draft - rate * sum(waits)) / len(waits)

    return worth


def over_decoding(
    alone: Part, expected: Part, gains: Sequence[float], delays: Sequence[float], price: float, decode_s: float
) -> Worth:
    """Return the worth of a deadline d where the step decodes, or verifies a hint, when it passes.

    A renewal-reward comparison: with P = P(X <= d) for the draft's remaining delay X, a cycle commits
    P E + (1 - P) G tokens in E[min(X, d)] + P T_v + (1 - P) H seconds and P + (1 - P) n passes, where going on
    alone commits G in H seconds and n passes (`_alone`). It is worth (tokens - price x passes) per second, but
    nothing where it is slower than decoding alone (`decode_s` a token), whatever the price. `gains` are the tokens that
    the first 0, 1, 2, ... levels of the expected draft commit.
    """
    cycle = _alone(alone, expected, gains)

    def worth(deadline: float) -> float:
        waits = [min(delay, deadline) for delay in (*delays, math.inf)]
        late = [delay - deadline for delay in (*delays, math.inf) if delay > deadline]
        came = 1.0 - len(late) / len(waits)
        reward, seconds, passes = (sum(column) / len(waits) for column in zip(*map(cycle, late), strict=True))
        reward += came * expected.tokens
        seconds += came * expected.seconds + sum(waits) / len(waits)
        if deadline and reward * decode_s < seconds * (1.0 - _SLACK):
            return -math.inf
        value: float = (reward - price * (passes + came)) / seconds
        return value

    return worth


def _alone(alone: Part, expected: Part, gains: Sequence[float]) -> Callable[[float], tuple[float, float, float]]:
    """Return a function of the draft's delay: tokens, seconds and passes of going on alone until it comes.

    With g tokens in T seconds it does so in n = ceil(delay/T) passes, after which the draft is still usable where its
    first n g tokens are right, with probability p: n g + p (1 + tokens accepted behind these) tokens in n T + p T_v
    seconds. A draft that comes too late for that does not count.
    """
    depth = len(gains) - 1
    cycles = []
    for count in range(1, int(depth / alone.tokens) + 1):
        passed = min(depth, round(count * alone.tokens))
        usable = gains[passed] - gains[passed - 1] if passed else 1.0
        tokens = count * alone.tokens + usable + gains[-1] - gains[passed]
        cycles.append((tokens, count * alone.seconds + usable * expected.seconds, count + usable))
    never = (alone.tokens, alone.seconds, 1.0)

    def cycle(delay: float) -> tuple[float, float, float]:
        passes = delay / alone.seconds
        return cycles[max(0, math.ceil(passes) - 1)] if passes <= len(cycles) else never

    return cycle
