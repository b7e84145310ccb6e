"""What follows a rejection: distributions, and heads of them, as they travel, and what is sampled out of each."""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.sampling import Coupled, Distribution, Prefix, Sparse, Split, Whole
from speculation.sampling.masses import head, pack, unpack
from speculation.sampling.rejection import draw_rest
from speculation.sampling.sparse import draw_from_head
from speculation.wire import MAX_DRAFT_TOKENS, MAX_IMAGE_BYTES, Draft, Masses, encode
from tests.speculation.sampling.distributions import pairs_of_distributions

SPLIT, WHOLE = Split(1.0), Whole(1.0)


@given(pairs_of_distributions(), st.integers(0, 30), st.binary(min_size=8, max_size=8))
def test_a_head_draws_what_the_whole_draws_or_nothing(
    pair: tuple[Distribution, Distribution], keep: int, digest: bytes
) -> None:
    target, draft = pair
    scheme = Sparse(1.0, keep=keep) if keep else SPLIT
    rest, wanted = scheme.rest(target), draw_rest(target, draft, digest, keep)
    part, whole = (
        msgspec.msgpack.decode(msgspec.msgpack.encode(each), type=Masses) for each in (rest.part, rest.whole)
    )
    assert scheme.finish(part, draft, digest) in ((None, wanted) if part.tail else (wanted,))
    assert scheme.finish(whole, draft, digest) == wanted and rest.allows(wanted)
    assert (unpack(whole, len(target.weights)).row == target.row).all(), "it travels to the last bit"
    if part.tail:
        assert 0.0 < part.tail < 1.0 and len(part.weights) == 4 * len(head(target, keep))
        with pytest.raises(ValueError, match="this is a part of a distribution"):
            unpack(part, len(target.weights))
    else:
        assert (unpack(part, len(target.weights)).row == target.row).all()


@given(pairs_of_distributions(), st.integers(1, 30))
def test_the_head_is_the_likeliest_tokens_of_equals_the_lower(
    pair: tuple[Distribution, Distribution], keep: int
) -> None:
    weights = np.round(pair[0].weights, 1)
    order = np.argsort(-weights, kind="stable")[:keep]
    assert head(Distribution(weights, 1.0), keep).tolist() == sorted(order[weights[order] > 0.0].tolist())


def test_a_token_that_the_target_never_says_was_not_sampled() -> None:
    rest = SPLIT.rest(Distribution(np.array([0.5, 0.0, 0.5], dtype=np.float32), 1.0))
    assert [rest.allows(token) for token in range(3)] == [True, False, True]


def test_the_tail_is_seldom_needed() -> None:
    dice = np.random.default_rng(0)
    logits = dice.normal(0.0, 4.0, 200)
    target = Distribution.of(logits, SPLIT)
    draft = Distribution.of(logits + dice.normal(0.0, 0.5, 200), SPLIT)
    masses = pack(target, 32)
    found = [draw_from_head(masses, draft, struct.pack("<Q", key)) for key in range(500)]
    fetched = found.count(None) / len(found)
    rest = np.maximum(target.row - draft.row, 0.0)
    tail = rest.sum() - rest[head(target, 32)].sum()
    assert 0.0 < tail / rest.sum() <= fetched + 0.02
    assert fetched < masses.tail / rest[head(target, 32)].sum() + 0.05


def test_a_draft_with_whole_distributions_is_as_long_as_they_fit_a_message() -> None:
    assert WHOLE.draft_limit(100) == MAX_DRAFT_TOKENS == SPLIT.draft_limit(151_936)
    most = WHOLE.draft_limit(151_936)
    assert 4 * 151_936 * most <= MAX_IMAGE_BYTES < 4 * 151_936 * (most + 1)
    assert WHOLE.draft_limit(2**22) == 1
    source = Distribution(np.ones(2**20, dtype=np.float32), 2.0**20)
    assert len(encode(WHOLE.prove(Draft(1, 1, 0, bytes(8), [5]), [source]))) > 4 * 2**20
    with pytest.raises(ValueError, match=r"2 draft tokens take 8.4 MB, the limit is 4.2 MB; draft fewer tokens"):
        WHOLE.prove(Draft(1, 1, 0, bytes(8), [5, 6]), [source] * 2)


def test_of_whole_distributions_the_verifier_samples_what_follows_a_rejection() -> None:
    sampler, prefix = WHOLE.sampler(0), Prefix(0, bytes(8))
    logits = np.log([0.5, 0.25, 0.25])
    token = int(np.argmax(sampler.rank(logits, prefix)))
    draft = sampler.attach(Draft(1, 1, 0, prefix.digest, [token]))
    never = np.log(np.where(np.arange(3) == token, 1e-9, 0.5))
    verdict = WHOLE.rule(draft.digest, WHOLE.read(draft, 3)).judge(draft.tokens, [-1], np.stack([never, never]))
    assert verdict.path == () and verdict.token != token and verdict.rest is None
    with pytest.raises(ValueError, match="sampling whole leaves no token to the edge"):
        sampler.finish(prefix.digest, Masses(np.ones(3, dtype="<f4").tobytes(), 3.0))
    with pytest.raises(ValueError, match="leaves no token to the edge"):
        Coupled(1.0).sampler(0).finish(bytes(8), Masses(bytes(4), 1.0))
