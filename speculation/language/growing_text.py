"""Reads the text of an answer whose tokens come a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from speculation.language.thinking import LONGEST_MARK

HALF = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer reads the first bytes of a character as while its last ones are missing."""


class GrowingText:
    """The text of tokens that come a few at a time, in whole characters; only the newest tokens are read each time.

    They are read behind those before, because a tokenizer may read a text's first token in its own way, and because a
    mark of thinking may be spelled by several (`speculation.language.thinking.reader`).
    """

    def __init__(self, read: Callable[[list[int]], str]) -> None:
        """`read` returns the text of tokens."""
        self._read = read
        self._window: list[int] = []
        self._old = 0
        """How many tokens of the window are not needed once those behind them spell a mark's length."""
        self._shown = 0
        """How many characters of the window's text are in `text`."""
        self.text = ""

    def add(self, tokens: Sequence[int]) -> None:
        """Append tokens; what ends within a character waits for the rest of it."""
        self._window += tokens
        text = self._read(self._window)
        if len(text) <= self._shown or text.endswith(HALF):
            return
        self.text += text[self._shown :]
        self._shown = len(text)
        newest = self._window[self._old :]
        if len(behind := self._read(newest)) >= LONGEST_MARK:
            self._window, self._old, self._shown = newest, len(newest), len(behind)

    def behind(self, tokens: Sequence[int]) -> str:
        """Return the text that `tokens` would add."""
        return self._read([*self._window, *tokens])[self._shown :].rstrip(HALF)

    def end(self) -> str:
        """Return the whole text, also where it ends within a character, as the tokens read all at once."""
        return self.text + self._read(self._window)[self._shown :]
