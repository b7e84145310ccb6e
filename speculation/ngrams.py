"""Earlier answers: what followed there may follow again (prompt lookup), and costs no forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from speculation.wire import MAX_DRAFT_TOKENS

KEPT_ANSWERS = 8
INDEXED_TOKENS = 512
"""The newest tokens of an answer that are found; a model that thinks may write thousands, each with seven n-grams."""
SHORTEST, LONGEST = 2, 8
START_ACCEPTANCE, WEIGHT = 0.5, 0.05
LONGER = LONGEST + 1
"""Length of all n-grams that have grown beyond what is looked for."""
PRIOR, KEPT = 4.0, 0.98
"""The acceptance over all lengths counts as so many verdicts at one; a verdict leaves so much of older ones."""
_BEGIN = -1
"""Stands in front of an answer, so that its first token is found by where it stands."""


class Ngrams:
    """The last `KEPT_ANSWERS` different answers, indexed by their n-grams of `SHORTEST` to `LONGEST` tokens.

    Of a longer answer only what stands in front of its last `INDEXED_TOKENS` tokens is indexed.
    """

    def __init__(self) -> None:
        self._answers: list[tuple[int, ...]] = []
        self._places: dict[tuple[int, ...], tuple[tuple[int, ...], int]] = {}
        self.acceptance = START_ACCEPTANCE
        """How often a proposed token was right, lately; half the time before the first."""
        self._right, self._judged = [0.0] * (LONGER + 1), [0.0] * (LONGER + 1)
        """Verdicts by the length of the n-gram that the token followed."""

    def chance(self, length: int) -> float:
        """Return how likely a token is right that followed an n-gram of `length` tokens.

        What was learned at that length, with the acceptance over all lengths as the prior: on the embedded pair's walk
        68 % of what follows five tokens is right, 92 % of what follows eight.
        """
        return (self._right[length] + PRIOR * self.acceptance) / (self._judged[length] + PRIOR)

    def judged(self, length: int, right: bool) -> None:
        """Take the verdict on one token that followed an n-gram of `length` tokens and whose ancestors stood."""
        self.acceptance += WEIGHT * (float(right) - self.acceptance)
        self._right[length] = KEPT * self._right[length] + right
        self._judged[length] = KEPT * self._judged[length] + 1.0

    @property
    def hints(self) -> list[list[int]]:
        """The answers, the newest first, each cut to what a message may carry."""
        return [list(answer[1 : MAX_DRAFT_TOKENS + 1]) for answer in reversed(self._answers)]

    def remember(self, answer: Sequence[int]) -> None:
        """Keep an answer; of two places with the same n-gram the newer one counts."""
        marked = (_BEGIN, *answer)
        if marked in self._answers:
            self._answers.remove(marked)
        self._answers.append(marked)
        for key, end in _keys(marked):
            self._places[key] = (marked, end)
        if len(self._answers) > KEPT_ANSWERS:
            # Newer answers overwrite older ones, so removing the oldest uncovers nothing.
            oldest = self._answers.pop(0)
            for key, _ in _keys(oldest):
                if key in self._places and self._places[key][0] is oldest:
                    del self._places[key]

    def lookup(self, prefix: Sequence[int], limit: int) -> list[int]:
        """Return at most `limit` tokens that followed the longest known ending of `prefix`; none for none."""
        return self.proposals(prefix, limit)[0]

    def proposals(self, prefix: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
        """Return what `lookup` does, and behind how long a known n-gram each token stands, `LONGER` at most.

        A token lengthens the n-gram of the next.
        """
        marked = (_BEGIN, *prefix[-LONGEST:]) if len(prefix) < LONGEST else tuple(prefix[-LONGEST:])
        for start in range(len(marked)):
            place = self._places.get(marked[start:])
            if place is not None:
                answer, end = place
                tokens, size = list(answer[end : end + limit]), len(marked) - start
                return tokens, [min(size + ahead, LONGER) for ahead in range(len(tokens))]
        return [], []


def _keys(marked: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield an answer's n-grams that are looked for, each with the place of the token behind it."""
    for end in range(max(1, len(marked) - INDEXED_TOKENS), len(marked)):
        for size in range(1, LONGEST + 1):
            key = marked[max(0, end - size) : end]
            if len(key) >= SHORTEST or key == (_BEGIN,):
                yield key, end
