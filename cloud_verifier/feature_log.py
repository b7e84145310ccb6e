"""The packed features of one step's tokens, by answer position: what its robot continues its drafts from.

The prompt's last tokens stand at negative positions. A token's entry is the feature of the token before it, see
`speculation.fed`; it is kept until the step is over, so that commits can be repeated and a robot that comes back gets
all of it again.
"""

from __future__ import annotations

from collections.abc import Sequence

from cloud_verifier.interfaces import RowFeatures
from speculation.wire import Features


class FeatureLog:
    """Of one step; `prompt_tokens` tokens at the prompt's end have features at most."""

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self._packed: dict[int, bytes] = {}
        self._prompt: dict[int, int] = {}

    def add(self, first: int, found: RowFeatures) -> None:
        """Enter the features of tokens from answer position `first` on; of the prompt, its last tokens alone."""
        if not found.tokens:
            return
        size = len(found.packed) // len(found.tokens)
        for place, token in enumerate(found.tokens):
            position = first + place
            if position >= -self.prompt_tokens:
                self._packed[position] = found.packed[place * size : (place + 1) * size]
                if position < 0:
                    self._prompt[position] = token

    def of(self, start: int, end: int) -> bytes:
        """Return the features of answer positions `start` to `end`, exclusive; empty where one of them is missing."""
        parts = [self._packed.get(position, b"") for position in range(start, end)]
        return b"".join(parts) if all(parts) else b""

    def message(self, step: int, answer: Sequence[int]) -> Features | None:
        """Return the features of the tokens up to the end of `answer`, as far back as they are there without a gap.

        None where there are none.
        """
        first = len(answer)
        while first - 1 in self._packed:
            first -= 1
        if first == len(answer):
            return None
        tokens = [*(self._prompt[position] for position in range(first, 0)), *answer[max(0, first) :]]
        return Features(step, len(answer), tokens, self.of(first, len(answer)))
