"""Rejection sampling by itself: draws, heads with tails, and what a draft must carry."""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.sampling import GREEDY, Coupled, Distribution, SamplingScheme, Split, Whole
from speculation.sampling.masses import head, pack, unpack
from speculation.sampling.rejection import Drawn, Purpose, Rejection, draw_rest, uniform
from speculation.sampling.sparse import draw_from_head
from speculation.wire import Draft, Masses, decode, encode

SPLIT = Split(1.0)
DIGEST = bytes(range(8))
SIZES = st.integers(2, 24)


@st.composite
def pairs_of_distributions(draw: st.DrawFn) -> tuple[Distribution, Distribution]:
    """A target's and a draft's, from alike to strangers, with tokens that cannot be drawn."""
    size, seed = draw(SIZES), draw(st.integers(0, 2**32 - 1))
    dice = np.random.default_rng(seed)
    logits = dice.normal(0.0, draw(st.sampled_from([0.1, 2.0, 8.0])), size)
    other = logits + dice.normal(0.0, draw(st.sampled_from([0.0, 0.5, 4.0])), size)
    how = Coupled(1.0, draw(st.sampled_from([0, 2, 5])))
    return Distribution.of(logits, how), Distribution.of(other, how)


@given(pairs_of_distributions(), st.integers(1, 30), st.binary(min_size=8, max_size=8))
def test_a_head_draws_what_the_whole_draws_or_nothing(
    pair: tuple[Distribution, Distribution], keep: int, digest: bytes
) -> None:
    target, draft = pair
    masses = pack(target, keep)
    told = unpack(masses, len(target.weights)) if not masses.tail else None
    wanted = draw_rest(target, draft, digest, keep)
    if told is not None:
        assert draw_rest(told, draft, digest, keep) == wanted
    else:
        assert draw_from_head(masses, draft, digest) in (None, wanted)


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


@given(pairs_of_distributions(), st.integers(0, 30))
def test_a_distribution_travels_to_the_last_bit(pair: tuple[Distribution, Distribution], keep: int) -> None:
    target, _ = pair
    masses = msgspec.msgpack.decode(msgspec.msgpack.encode(pack(target, keep)), type=Masses)
    if masses.tail:
        assert 0.0 < masses.tail < 1.0 and len(masses.weights) == 4 * len(head(target, keep))
    else:
        assert (unpack(masses, len(target.weights)).row == target.row).all()


@given(pairs_of_distributions(), st.integers(1, 30))
def test_the_head_is_the_likeliest_tokens_of_equals_the_lower(
    pair: tuple[Distribution, Distribution], keep: int
) -> None:
    weights = np.round(pair[0].weights, 1)
    order = np.argsort(-weights, kind="stable")[:keep]
    assert head(Distribution(weights, 1.0), keep).tolist() == sorted(order[weights[order] > 0.0].tolist())


def test_random_numbers_are_the_prefixs_own() -> None:
    assert uniform(DIGEST, Purpose.ACCEPT) == uniform(DIGEST, Purpose.ACCEPT)
    numbers = {uniform(digest, purpose) for digest in (DIGEST, bytes(8)) for purpose in Purpose}
    assert len(numbers) == 8
    assert uniform(DIGEST, Purpose.ACCEPT) == pytest.approx(0.8506325064, abs=1e-9)


@pytest.mark.parametrize("likely", [True, False])
def test_a_token_stands_as_often_as_the_target_has_it(likely: bool) -> None:
    """One place, q(x) = 0.5: p(x) = 0.8 always stands, p(x) = 0.2 in two of five cases."""
    chance = 0.8 if likely else 0.2
    logits = np.log([[chance, 1.0 - chance], [0.5, 0.5]])
    stood = 0
    for key in range(2000):
        rule = Rejection(SPLIT, struct.pack("<Q", key), (Drawn(0.5),), guesses=True)
        verdict = rule.judge([0], [-1], logits)
        stood += verdict.path == (0,)
        if not verdict.path:
            assert verdict.rest is not None and verdict.token == 1
    assert stood == 2000 if likely else abs(stood / 2000 - 0.4) < 0.03


def test_a_short_list_judges_its_own_tokens() -> None:
    """Columns are tokens 3 and 7; token 5, which the list lacks, cannot stand."""
    ids = np.array([3, 7])
    logits = np.log([[0.9, 0.1], [0.2, 0.8]])
    verdict = Rejection(SPLIT, DIGEST, (Drawn(0.1),), guesses=True).judge([3], [-1], logits, ids=ids)
    assert verdict.path == (0,) and verdict.token in (3, 7)
    assert Rejection(SPLIT, DIGEST, (Drawn(0.1),), guesses=True).judge([5], [-1], logits, ids=ids).path == ()


def test_trees_and_drafts_that_were_not_drawn_are_refused() -> None:
    logits = np.zeros((3, 4))
    with pytest.raises(ValueError, match="judges chains"):
        Rejection(SPLIT, DIGEST, (Drawn(1.0), Drawn(1.0))).judge([1, 2], [-1, -1], logits)
    with pytest.raises(ValueError, match="judges chains of drawn tokens"):
        Rejection(SPLIT, DIGEST).judge([1, 2], [-1, 0], logits)


def draft(**fields: object) -> Draft:
    return Draft(**{"step": 1, "round": 1, "start": 0, "digest": bytes(8), "tokens": [1, 2], **fields})  # type: ignore[arg-type]


WEIGHTS = struct.pack("<4f", 1.0, 1.0, 0.0, 2.0)


@pytest.mark.parametrize(
    ("scheme", "fields", "message"),
    [
        (Coupled(1.0), {"chosen": [0.5, 0.5]}, "are for rejection sampling, not for coupled"),
        (Split(1.0), {}, "Draft.chosen has 0 entries for 2 tokens; split needs each"),
        (Split(1.0), {"chosen": [0.5, 0.0]}, "Draft.chosen gives a token no probability"),
        (Split(1.0), {"chosen": [0.5, 0.5], "parents": [-1, -1]}, "judges chains, not trees"),
        (Whole(1.0), {"chosen": [0.5, 0.5]}, "Draft.whole has 0 entries"),
        (Split(1.0), {"chosen": [0.5, 0.5], "whole": [Masses(WEIGHTS, 4.0)]}, "needs each, and no Draft.whole"),
        (Whole(1.0), {"whole": [Masses(WEIGHTS, 4.0)] * 2}, "Draft.whole gives a token no probability"),
        (Whole(1.0), {"whole": [Masses(WEIGHTS[:8], 4.0)] * 2}, "2 tokens are no part of a vocabulary of 4"),
        (Whole(1.0), {"whole": [Masses(WEIGHTS, 4.0, b"", 0.5)] * 2}, "Masses.tail is 0.5"),
        (Whole(1.0), {"whole": [Masses(struct.pack("<4f", 1, -1, 0, 0), 4.0)] * 2}, "finite and not negative"),
        (Whole(1.0), {"whole": [Masses(WEIGHTS, 4.0, struct.pack("<4I", 0, 1, 2, 9))] * 2}, "a vocabulary of 4"),
    ],
)
def test_a_draft_without_what_its_scheme_needs_is_refused(
    scheme: SamplingScheme, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        scheme.read(draft(**fields), 4)


def test_a_draft_says_how_its_tokens_were_drawn() -> None:
    assert GREEDY.read(draft(), 4) == ()
    assert [each.chance for each in SPLIT.read(draft(chosen=[0.25, 0.5]), 4)] == [0.25, 0.5]
    whole = draft(tokens=[1, 3], whole=[Masses(WEIGHTS, 4.0)] * 2)
    found = Whole(1.0).read(decode(encode(whole)), 4)  # type: ignore[arg-type]
    assert [each.chance for each in found] == [0.25, 0.5] and all(each.source is not None for each in found)
