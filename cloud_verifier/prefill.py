"""Prefill: what of a step's images and prompt the models have read."""

from __future__ import annotations

from cloud_verifier.feature_log import FeatureLog
from speculation.pass_cost import Load


class Prefill:
    """Prompt and committed tokens that the target is to be fed before a step's first pass, and how far that is."""

    def __init__(self, answered: int, features: FeatureLog | None = None) -> None:
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
        self, inputs: object, tokens: int = 0, prompt_tokens: int | None = None, image_tokens: int = 1
    ) -> None:
        """Take the inputs, of which so many tokens, of prompt and answer, are to be fed.

        They are fewer than those of the whole prompt where its row shares the beginning; None: it shares none.
        `image_tokens` of them stand for images; 0: there are none.
        """
        self.inputs = inputs
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
        if self._features is None:
            return 0
        behind = self.left - tokens
        return min(tokens, max(0, self._features.prompt_tokens + self._answered - behind))

    def draft_ready(self, done: bool = True) -> None:
        """Note that the draft model beside the target has read prompt and frames or, not `done`, cannot take them."""
        self.draft_inputs, self.drafts_here = None, done
