"""Prefill: what of a step's images and prompt the models have read, and the features that its robot gets of them."""

from __future__ import annotations

from collections.abc import Sequence

from cloud_verifier.interfaces import RowFeatures
from speculation.pass_cost import Load
from speculation.wire import Features


class FeatureLog:
    """Keeps the packed features of one step's tokens, by answer position: its robot continues its drafts from them.

    The prompt's last tokens stand at negative positions. A token's entry is the feature of the token before it, see
    `speculation.fed`; it is kept until the step is over, so that commits can be repeated and a robot that comes back
    gets all of it again.
    """

    def __init__(self, prompt_tokens: int | None = None) -> None:
        """`prompt_tokens` at the prompt's end have features at most; None: the robot gets none."""
        self.is_wanted, self.prompt_tokens = prompt_tokens is not None, prompt_tokens or 0
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


class Prefill:
    """Prompt and committed tokens that the target is to be fed before a step's first pass, and how far that is."""

    def __init__(self, answered: int, features: FeatureLog) -> None:
        """`answered`: tokens of the answer that it begins with. `features`: takes those of the prompt's end."""
        self.done = False
        self.inputs: object = None
        """What the engine made of prompt and frames, until the prefill is done; None: nothing yet."""
        self.prompt_tokens = 0
        """Cache slots of images and prompt, from when the inputs are there."""
        self.left = 0
        """Tokens that are still to be fed; 0 before the inputs are there."""
        self.image_tokens = 0
        """Tokens that stand for images, from when the inputs are there."""
        self.encode_s = 0.0
        """Seconds that encoding the images is predicted to take."""
        self.encoded = False
        """Whether the images were encoded, or there are none: tokens may be fed."""
        self.cached = 0
        """Tokens in the cache."""
        self.draft_inputs: object = None
        """What the draft model beside the target made of prompt and frames, until it has read them; None: nothing."""
        self.drafts_here = False
        """Whether the draft model beside the target has read the prompt."""
        self._answered, self._features = answered, features

    def prepared(
        self,
        inputs: object,
        tokens: int = 0,
        prompt_tokens: int | None = None,
        image_tokens: int = 1,
        draft_inputs: object = None,
    ) -> None:
        """Take the inputs of target and draft model. Of the former so many tokens, of prompt and answer, are to be fed.

        They are fewer than those of the whole prompt where its row shares the beginning; None: it shares none.
        `image_tokens` of them stand for images; 0: there are none.
        """
        self.inputs, self.draft_inputs = inputs, draft_inputs
        self.image_tokens, self.encoded = image_tokens, not image_tokens
        self.left = tokens
        self.prompt_tokens = max(0, tokens + 1 - self._answered) if prompt_tokens is None else prompt_tokens
        self.cached = max(0, self.prompt_tokens + self._answered - 1 - tokens)

    def advance(self, tokens: int) -> bool:
        """Note that so many tokens more were fed; return whether the prefill is done."""
        self.cached += tokens
        self.left -= tokens
        if self.left == 0:
            self.done, self.inputs = True, None
        return self.done

    def load(self, tokens: int) -> Load:
        """Return what feeding so many tokens more computes."""
        return Load.row(tokens, self.cached)

    def wanted_features(self, tokens: int) -> int:
        """Return of how many of the next `tokens` features are wanted, the last ones of them."""
        if not self._features.is_wanted:
            return 0
        behind = self.left - tokens
        return min(tokens, max(0, self._features.prompt_tokens + self._answered - behind))

    def draft_ready(self, done: bool = True) -> None:
        """Note that the draft model beside the target has read prompt and frames or, not `done`, cannot take them."""
        self.draft_inputs, self.drafts_here = None, done
