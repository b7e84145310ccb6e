"""How many guesses of the token behind each prefix of a draft are worth a pre-draft (SSD, arXiv 2603.03251).

A verdict accepts k of K draft tokens and adds one of its own. With acceptance a that happens with probability
a^k (1 - a), and a^K for all of them. Where F guesses of the added token miss it with probability F^-r, a budget of
guesses misses least with F_k proportional to the (1 + r)th root of these: a geometric series with a longer last term.
"""

from __future__ import annotations

DECAY = 1.3
"""r: the embedded draft's one to four guesses behind a token that was rejected miss in 29, 12, 7 and 5 %."""


def fan_out(budget: int, acceptance: float, length: int) -> list[int]:
    """Return F_0 to F_K for a draft of `length` = K tokens: `budget` in all, none where that is 0.

    What rounding down leaves goes to the largest remainders. Raises ValueError for an acceptance outside 0 to 1.
    """
    if not 0.0 <= acceptance <= 1.0:
        raise ValueError(f"acceptance is {acceptance}; give 0 to 1")
    chances = [acceptance**k * (1.0 - acceptance) for k in range(length)] + [acceptance**length]
    weights = [chance ** (1.0 / (1.0 + DECAY)) for chance in chances]
    shares = [budget * weight / sum(weights) for weight in weights]
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(length + 1), key=lambda k: counts[k] - shares[k])
    for k in by_remainder[: budget - sum(counts)]:
        counts[k] += 1
    return counts
