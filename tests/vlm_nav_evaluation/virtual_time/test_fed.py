"""A recorded fed head: what it puts out at which depth, what its forwards take, and when they may begin."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_drafter import Mode
from edge_drafter.protocols import FedModel
from speculation.fed.session import FedSession
from speculation.wire import ROOT
from tests.speculation.fed.heads import random_head, tiny_config
from vlm_nav_evaluation.virtual_time import Recording, Synthetic, Timings, decode, drafting, run_mode
from vlm_nav_evaluation.virtual_time.fed import RecordedFedModel

ORIN = Timings("orin", 0.072, 0.0, 0.015, one_way_s=0.01, fed_s=0.007)
FED = Synthetic(tokens=24, acceptance=0.9, second=0.4, sharpness=0.8, fed=(0.9, 0.8, 0.7, 0.6))
DRAFTING = [mode for mode in Mode if mode.drafts and mode is not Mode.EDGE]


def by_depth(tokens: int = 40, depths: int = 5) -> Recording:
    """Return a recording in which the head's first choice is always right, with 0.9 at depth 1, 0.8 at depth 2, ..."""
    recording = Synthetic(tokens=tokens, fed=(1.0,) * depths).draw(1)
    step = recording.steps[0]
    assert step.fed_tokens is not None and step.fed_probabilities is not None
    chances = np.zeros_like(step.fed_probabilities)
    chances[:, :, 0] = 0.9 - 0.1 * np.arange(depths)
    return replace(recording, steps=(replace(step, fed_probabilities=chances),))


def begun(recording: Recording) -> tuple[RecordedFedModel, list[float], tuple[int, ...]]:
    """Return a head behind its prompt, a list that grows by the seconds of every forward, and the answer."""
    slept: list[float] = []
    model = RecordedFedModel(recording, ORIN, slept.append)
    model.begin("p", recording.image(0))
    return model, slept, recording.steps[0].tokens


def feed(model: FedModel, answer: tuple[int, ...], count: int, prompt: int = 4) -> None:
    """Feed the prompt's end and `count` tokens of the answer."""
    model.feed([7] * prompt + list(answer[:count]), count, bytes(256 * (prompt + count)))


@settings(max_examples=40)
@given(data=st.data())
def test_forwards_and_nodes_are_counted_as_the_session_counts_them(data: st.DataObject) -> None:
    """The same random tree, commits and features, early, late or missing: the same nodes survive, the root is due at
    the same moments, and as many forwards run."""
    head = random_head(tiny_config(vocabulary=512, short_list=tuple(range(512))))
    session, levels = FedSession(head), list[int]()
    compute = session._compute
    session._compute = lambda slots: (levels.append(len(slots)), compute(slots))[1]  # type: ignore[method-assign]
    model, slept, answer = begun(by_depth())
    session.begin("p", b"")
    place, fed, nodes = 0, False, 0
    for _ in range(data.draw(st.integers(1, 8))):
        kind = data.draw(st.sampled_from(["feed", "grow", "root", "commit"]))
        if kind == "feed":
            known = data.draw(st.integers(0, place)) if fed else place
            session.feed([7] * 4 + list(answer[:known]), known, bytes(16 * (4 + known)))
            feed(model, answer, known)
            fed = True
        elif fed and kind == "root":
            session.root_logits()
            model.root_logits()
        elif fed and kind == "grow":
            count = data.draw(st.integers(1, 3))
            parents = [data.draw(st.integers(ROOT, nodes + n - 1)) for n in range(count)]
            tokens = data.draw(st.lists(st.integers(300, 310), min_size=count, max_size=count))
            session.extend(tokens, parents)
            model.extend(tokens, parents)
            nodes += count
        elif fed and kind == "commit" and place < 30:
            renamed = model.commit([], answer[place])
            assert session.commit([], answer[place]) == renamed
            nodes, place = len([node for node in renamed.values() if node != ROOT]), place + 1
        assert session.root_is_new == model.root_is_new
        assert len(levels) == len(slept)


@pytest.mark.parametrize("mode", DRAFTING)
def test_every_mode_answers_as_the_target_with_a_head(mode: Mode) -> None:
    for results in (run_mode(mode.value, FED.draw(2), ORIN, fed=True) for _ in range(2)):
        assert not any(each.stats.prefill_s for each in results) and results[0].stats.draft_forwards
    assert [each.stats for each in results] == [
        each.stats for each in run_mode(mode.value, FED.draw(2), ORIN, fed=True)
    ]


def test_sd_takes_what_features_drafting_and_verifying_take() -> None:
    """The first draft begins when the features are there, a way after the prefill; the draft model's needs its own
    prefill, which runs while the verifier's does."""
    recording = Synthetic(tokens=21, fed=(1.0,)).draw(1)
    timings = replace(ORIN, edge_prefill_s=0.5, cloud_prefill_s=0.2)
    (fed,) = run_mode("sd", recording, timings, fed=True, gamma=4)
    rounds = 4  # 4 drafts of 4 and the target's token each; the first token is the prefill's
    by_hand = 0.01 + 0.2 + 0.01 + rounds * (4 * 0.007 + 0.02 + 0.015)
    assert fed.stats.cloud_passes == rounds + 1
    assert fed.stats.total_s == pytest.approx(by_hand, abs=1e-9)


def test_features_take_their_bytes_on_the_link() -> None:
    recording = FED.draw(1)
    slow = replace(ORIN, down_bits_per_s=1e6)
    (fed,) = run_mode("sd", recording, ORIN, fed=True)
    (plain,) = run_mode("sd", recording, replace(ORIN, draft_s=0.007))
    more = fed.stats.bytes_down - plain.stats.bytes_down
    assert more == pytest.approx((32 + 24) * 256, rel=0.05), "other messages take the rest"
    (late,) = run_mode("sd", recording, slow, fed=True)
    assert late.stats.total_s - fed.stats.total_s == pytest.approx(fed.stats.bytes_down * 8 / 1e6, rel=0.05)


def test_a_head_and_its_time_are_needed() -> None:
    with pytest.raises(ValueError, match="no fed head"):
        run_mode("sd", Synthetic(tokens=4).draw(1), ORIN, fed=True)
    with pytest.raises(ValueError, match="fed_s"):
        decode(FED.draw(1), replace(ORIN, fed_s=0.0), drafting("sd", FED.draw(1)), fed=True)
