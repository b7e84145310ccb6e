"""What the draft model reads: in pieces that fit between forwards, charged in all with what they took."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.estimator import Costs, DraftCosts, Estimator
from cloud_verifier.ledger import Ledger
from cloud_verifier.policies.row_policy import LEAST
from cloud_verifier.server_draft.prefill import DraftPrefills
from cloud_verifier.step import Step
from speculation.cancellation import Stop
from speculation.pass_cost import PassCost
from speculation.wire import BeginStep, Idle
from tests.cloud_verifier.fake_target import FakeSelfDraft
from tests.cloud_verifier.steps import step_of

DECODE_S = 0.05


class Timed(FakeSelfDraft):
    """An image takes 0.03 s, a chunk 0.01 s and 1 ms a token."""

    now = 0.0

    def encode(self, index: int, stop: Stop | None = None) -> None:
        self.now += 0.03
        super().encode(index, stop)

    def feed(self, index: int, tokens: int, stop: Stop | None = None) -> None:
        self.now += 0.01 + 0.001 * tokens
        super().feed(index, tokens, stop)


def begun(index: int, tokens: int) -> Step:
    """Return a step, being answered, whose prompt the draft model is to read."""
    message = BeginStep(1, "p".ljust(tokens + 1), b"jpeg", idle=Idle.LEDGER)
    ledger = Ledger(Costs(Estimator(PassCost(0.0, 0.0, 0.0, DECODE_S))))
    step = step_of(message, index=index, ledger=ledger)
    step.prefill.prepared((), image_tokens=0)
    step.prefilled(0, 0.0)
    step.prefill.draft_inputs = (message.prompt, message.jpeg)
    return step


@settings(max_examples=40)
@given(tokens=st.integers(0, 400), limit_s=st.floats(0.0, 0.5), charged_s=st.none() | st.floats(0.0, 1.0))
def test_pieces_keep_their_limit_and_the_account_pays_what_they_took(
    tokens: int, limit_s: float, charged_s: float | None
) -> None:
    model, costs = Timed(), DraftCosts()
    readings, step, other = (
        DraftPrefills(model, costs, lambda step: True, lambda: model.now),
        begun(0, tokens),
        begun(1, 30),
    )
    readings.begin(other)
    while readings.under_way(other):
        readings.read(other, limit_s)
    assert [size for _, size in model.chunks] == [0, LEAST, 30 - LEAST], "nothing is known of the first chunk"
    before, began = step.ledger.credit(0.0), model.now
    readings.begin(step, charged_s)
    while readings.under_way(step):
        assert readings.next() is step and not step.prefill.drafts_here
        piece = model.now
        readings.read(step, limit_s)
        assert model.now - piece <= max(0.03, limit_s, 0.01 + 0.001 * LEAST) + 1e-9
    assert step.prefill.drafts_here and model.left[0] == 0
    taken = model.now - began
    paid = 0.0 if charged_s is None else taken
    assert before - step.ledger.credit(0.0) == pytest.approx(paid / DECODE_S, abs=1e-9)
