"""Sampled answers on virtual time: the overlap is the acceptance asked for, and what is drawn is accepted so often."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_drafter import DraftingConfig, Mode
from speculation.acceptance import expected_tokens
from speculation.sampling import Coupled, Distribution, SamplingScheme, Split, Whole
from vlm_nav_evaluation.virtual_time import Timings
from vlm_nav_evaluation.virtual_time.sampled import EOS, SILENT_S, SampledPair, sampled_answers

TIMINGS = Timings("fast", 0.001, verify_s=0.01)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.05, 0.95), st.integers(20, 400), st.booleans(), st.floats(0.0, 3.0))
def test_the_overlap_of_both_is_the_acceptance(alpha: float, vocabulary: int, top: bool, exponent: float) -> None:
    """Also of what is left of them by top-k."""
    pair = SampledPair(alpha, vocabulary, support=10 if top else 0, exponent=exponent)
    how = Split(1.0, top_k=10) if top else Split(1.0)
    target, draft = (Distribution.of(row, how).row for row in pair.logits)
    assert target.sum() == pytest.approx(1.0) and draft.sum() == pytest.approx(1.0)
    assert np.minimum(target, draft).sum() == pytest.approx(alpha, abs=1e-4)
    assert max(target[EOS], draft[EOS]) < 1e-20


@pytest.mark.parametrize(("scheme", "least"), [(Whole(1.0), 1.0), (Split(1.0), 1.0), (Coupled(1.0), 0.6)])
def test_so_many_drawn_tokens_are_accepted(scheme: SamplingScheme, least: float) -> None:
    """Coupled: at least (1 - TV) / (1 + TV) a token in place of 1 - TV (Daliri et al.). 4 sigma of some 500 rounds."""
    alpha, gamma = 0.6, 3
    config = DraftingConfig.of(Mode.SD, gamma=gamma, resend_s=SILENT_S, patience_s=SILENT_S)
    stats = [each.stats for each in sampled_answers(SampledPair(alpha, 64), TIMINGS, config, scheme, range(8))]
    tau = sum(each.tokens for each in stats) / sum(each.rounds for each in stats)
    bound = alpha if least == 1.0 else alpha / (2.0 - alpha)
    assert expected_tokens(bound, gamma) - 0.25 < tau < expected_tokens(alpha, gamma) + 0.25


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"acceptance": 1.0}, "acceptance"), ({"vocabulary": 3}, "vocabulary"), ({"support": 1}, "support"),
     ({"exponent": -1.0}, "exponent")],
)  # fmt: skip
def test_what_cannot_be_is_refused(changes: dict[str, float], field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} = "):
        SampledPair(**{"acceptance": 0.5, **changes})  # type: ignore[arg-type]
