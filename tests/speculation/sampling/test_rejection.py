"""Rejection sampling by itself: random numbers, the acceptance of a chain, and what a draft must carry."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from speculation.sampling import Coupled, Distribution, Prefix, SamplingScheme, Sparse, Split, Whole
from speculation.sampling.masses import pack
from speculation.sampling.rejection import Drawn, Purpose, Rejection, RejectionScheme, uniform
from speculation.wire import Draft, Masses, decode, encode

SPLIT = Split(1.0)
DIGEST = bytes(range(8))


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
    for key in range(1000):
        rule = Rejection(SPLIT, struct.pack("<Q", key), (Drawn(0.5),), guesses=True)
        verdict = rule.judge([0], [-1], logits)
        stood += verdict.path == (0,)
        if not verdict.path:
            assert verdict.rest is not None and verdict.token == 1
    assert stood == 1000 if likely else abs(stood / 1000 - 0.4) < 0.04


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


@pytest.mark.parametrize("scheme", [Whole(0.9, 6), Split(0.9), Sparse(0.9, keep=2)], ids=lambda scheme: scheme.name)
def test_what_a_draft_half_samples_is_what_the_verdict_half_reads(scheme: RejectionScheme) -> None:
    """Through the wire: probabilities as they were, to the last bit, and one token for one prefix."""
    dice = np.random.default_rng(4)
    sampler, prefix, rows, tokens = scheme.sampler(3), Prefix(2, DIGEST), dice.normal(0.0, 2.0, (4, 9)), []
    chances = []
    for row in rows:
        assert (sampler.rank(row, prefix) == sampler.rank(row.copy(), prefix)).all()
        tokens.append(int(np.argmax(sampler.rank(row, prefix))))
        chances.append(float(Distribution.of(row, scheme).row[tokens[-1]]))
        prefix = prefix.after(tokens[-1])
    sent = decode(encode(sampler.attach(draft(start=2, digest=DIGEST, tokens=tokens))))
    assert isinstance(sent, Draft) and sent.drawn is None
    assert [each.chance for each in scheme.read(sent, 9)] == chances


def test_a_place_that_the_answer_has_left_is_forgotten() -> None:
    sampler, root = SPLIT.sampler(0), Prefix(0, DIGEST)
    sampler.rank(np.zeros(4), root)
    sampler.rank(np.zeros(4), root.after(1))
    sampler.forget_all_but([root.after(1)])
    sampler.attach(draft(digest=root.after(1).digest, tokens=[2]))
    with pytest.raises(ValueError, match="a place where nothing was drafted"):
        sampler.finish(DIGEST, pack(Distribution.of(np.zeros(4), SPLIT)))


def test_a_token_that_was_not_sampled_is_not_sent_as_if_it_were() -> None:
    sampler, root = SPLIT.sampler(0), Prefix(0, DIGEST)
    sampler.rank(np.zeros(4), root)
    with pytest.raises(ValueError, match="token 1 of the draft was named by an exit, not sampled"):
        sampler.attach(draft(digest=DIGEST, tokens=[2, 3]))


def test_the_next_draft_brings_the_token_that_the_edge_sampled() -> None:
    sampler, root = SPLIT.sampler(0), Prefix(0, DIGEST)
    sampler.rank(np.zeros(4), root)
    token = sampler.finish(DIGEST, pack(Distribution.of(np.array([0.0, 2.0, 1.0, 0.0]), SPLIT)))
    assert token is not None
    after = root.after(token)
    sampler.rank(np.zeros(4), after)
    assert sampler.attach(draft(start=1, digest=after.digest, tokens=[2])).drawn == token
    assert sampler.attach(draft(start=1, digest=after.digest, tokens=[])).drawn == token
    assert sampler.attach(draft(digest=DIGEST, tokens=[])).drawn is None
