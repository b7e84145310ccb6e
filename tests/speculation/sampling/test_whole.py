"""Rejection sampling with whole distributions: their size, and that nothing is left to the edge."""

from __future__ import annotations

import numpy as np
import pytest

from speculation.sampling import Distribution, Prefix, Split, Whole
from speculation.wire import MAX_DRAFT_TOKENS, MAX_IMAGE_BYTES, Draft, Masses, encode

WHOLE = Whole(1.0)


def test_a_draft_is_as_long_as_its_distributions_fit_a_message() -> None:
    assert WHOLE.draft_limit(100) == MAX_DRAFT_TOKENS == Split(1.0).draft_limit(151_936)
    most = WHOLE.draft_limit(151_936)
    assert 4 * 151_936 * most <= MAX_IMAGE_BYTES < 4 * 151_936 * (most + 1)
    assert WHOLE.draft_limit(2**22) == 1


def test_distributions_that_no_message_takes_are_refused() -> None:
    source = Distribution(np.ones(2**20, dtype=np.float32), 2.0**20)
    assert len(encode(WHOLE.prove(Draft(1, 1, 0, bytes(8), [5]), [source]))) > 4 * 2**20
    with pytest.raises(ValueError, match=r"2 draft tokens take 8.4 MB, the limit is 4.2 MB; draft fewer tokens"):
        WHOLE.prove(Draft(1, 1, 0, bytes(8), [5, 6]), [source] * 2)


def test_the_verifier_samples_what_follows_a_rejection() -> None:
    sampler, prefix = WHOLE.sampler(0), Prefix(0, bytes(8))
    logits = np.log([0.5, 0.25, 0.25])
    token = int(np.argmax(sampler.rank(logits, prefix)))
    draft = sampler.attach(Draft(1, 1, 0, prefix.digest, [token]))
    never = np.log(np.where(np.arange(3) == token, 1e-9, 0.5))
    verdict = WHOLE.rule(draft.digest, WHOLE.read(draft, 3)).judge(draft.tokens, [-1], np.stack([never, never]))
    assert verdict.path == () and verdict.token != token and verdict.rest is None
    with pytest.raises(ValueError, match="sampling whole leaves no token to the edge"):
        sampler.finish(prefix.digest, Masses(np.ones(3, dtype="<f4").tobytes(), 3.0))
