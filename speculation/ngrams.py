"""Earlier answers: what followed there may follow again (prompt lookup), and costs no forward."""

from __future__ import annotations

from collections.abc import Sequence

from speculation.wire import MAX_DRAFT_TOKENS

KEPT_ANSWERS = 8
SHORTEST, LONGEST = 2, 8
START_ACCEPTANCE, WEIGHT = 0.5, 0.05
_BEGIN = -1
"""Stands in front of an answer, so that its first token is found by where it stands."""


class Ngrams:
    """The last `KEPT_ANSWERS` different answers, indexed by their n-grams of `SHORTEST` to `LONGEST` tokens."""

    def __init__(self) -> None:
        self._answers: list[tuple[int, ...]] = []
        self._places: dict[tuple[int, ...], tuple[tuple[int, ...], int]] = {}
        self.acceptance = START_ACCEPTANCE
        """How often a proposed token was right, lately; half the time before the first."""

    def judged(self, right: bool) -> None:
        """Take the verdict on one proposed token whose ancestors stood."""
        self.acceptance += WEIGHT * (float(right) - self.acceptance)

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
        for end in range(1, len(marked)):
            for size in range(1, LONGEST + 1):
                key = marked[max(0, end - size) : end]
                if len(key) >= SHORTEST or key == (_BEGIN,):
                    self._places[key] = (marked, end)
        if len(self._answers) > KEPT_ANSWERS:
            # Newer answers overwrite older ones, so removing the oldest uncovers nothing.
            oldest = self._answers.pop(0)
            self._places = {key: place for key, place in self._places.items() if place[0] is not oldest}

    def lookup(self, prefix: Sequence[int], limit: int) -> list[int]:
        """Return at most `limit` tokens that followed the longest known ending of `prefix`; none for none."""
        marked = (_BEGIN, *prefix[-LONGEST:]) if len(prefix) < LONGEST else tuple(prefix[-LONGEST:])
        for start in range(len(marked)):
            place = self._places.get(marked[start:])
            if place is not None:
                answer, end = place
                return list(answer[end : end + limit])
        return []
