"""Decides when a source of drafts that does not pay is tried again."""

from __future__ import annotations

_SELDOM, _MOST = 16, 256


class DraftRetries:
    """Counts the drafts of one source that were left alone: what is never verified shows no recovery, so a try is due
    now and then, and more rarely after each one that failed."""

    def __init__(self) -> None:
        self._declined, self._interval = 0, _SELDOM

    @property
    def is_due(self) -> bool:
        """Whether so many drafts were left alone that one is to be tried."""
        return self._declined >= self._interval

    def judged(self, is_accepted: bool) -> None:
        """Enter a verdict, which accepted a token or none."""
        if is_accepted:
            self._interval = _SELDOM
        elif self.is_due:
            self._interval = min(2 * self._interval, _MOST)
        self._declined = 0

    def declined(self) -> None:
        """Enter that a draft was at hand and left alone."""
        self._declined += 1
