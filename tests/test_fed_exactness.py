"""A head that the target feeds: whatever it drafts, and whatever becomes of its features, answers are the target's.

Production's edge and verifier with a real tiny target in float64 and random heads.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from edge_drafter import DraftingConfig, Mode, StepRequest
from speculation.fed.encoder import FeatureEncoder
from speculation.fed.files import fingerprint
from speculation.fed.head import FedHead
from speculation.vlm.model import Vlm
from speculation.wire import jpeg_of
from tests.cloud_verifier.test_engine import PROMPTS, jpeg
from tests.edge_drafter.fakes import Weather
from tests.pair import SERVER, Robot, run
from tests.speculation.fed.heads import random_encoder, random_head, tiny_config
from tests.test_exactness import HOW, PENALTIES, alone, grammars

DRAFTING = [mode for mode in Mode if mode.drafts and mode is not Mode.EDGE]


@pytest.fixture(scope="module")
def fed(target: Vlm) -> tuple[FeatureEncoder, FedHead]:
    """A random bottleneck and head of the tiny target; every token but two is on its list."""
    config = tiny_config(
        target=target.fingerprint, tokenizer=target.tokenizer_fingerprint, vocabulary=target.vocabulary,
        hidden=target.hidden_size, short_list=tuple(range(target.vocabulary - 2)),
    )  # fmt: skip
    encoder = random_encoder(config)
    encoder.config = config = msgspec.structs.replace(config, features=fingerprint(encoder))
    return encoder, random_head(config, scale=2.0)


@settings(
    deadline=None, max_examples=8, phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(data=st.data())
def test_every_answer_is_the_targets_own(
    target: Vlm, draft: Vlm, fed: tuple[FeatureEncoder, FedHead], data: st.DataObject
) -> None:
    """A fed edge, alone or beside one with a draft model, in any mode that drafts, over any link."""
    encoder, head = fed
    how, seed = data.draw(st.sampled_from(HOW)), data.draw(st.integers(0, 99))
    grammar = data.draw(st.sampled_from([None, *grammars(target)]))
    request = StepRequest(1, PROMPTS[seed % 3], jpeg(seed), target.eos, 14, sampling=how, key=seed, grammar=grammar)
    edges = []
    for number in range(data.draw(st.integers(1, 2))):
        weather = Weather(
            one_way_s=data.draw(st.sampled_from([0.0, 0.05])), jitter_s=data.draw(st.sampled_from([0.0, 0.2])),
            duplicates=data.draw(st.sampled_from([0.0, 0.3])), losses=data.draw(st.sampled_from([0.0, 0.1])),
            cut_after=data.draw(st.one_of(st.none(), st.integers(1, 10))), seed=seed,
        )  # fmt: skip
        config = DraftingConfig.of(data.draw(st.sampled_from(DRAFTING)), max_nodes=data.draw(st.integers(1, 40)))
        requests = [request, replace(request, jpeg=jpeg(seed + 1))]
        resumes = data.draw(st.booleans())
        edges.append(Robot(draft, config, requests, weather, 0.02, resumes, head=head if number == 0 else None,
                           rtt_s=data.draw(st.sampled_from([None, 0.1, 1.0]))))  # fmt: skip
    target = replace(target, repetition_penalty=data.draw(PENALTIES))
    run(target, edges, verify_s=data.draw(st.sampled_from([0.02, 0.2])), encoder=encoder)
    for edge in edges:
        assert edge.answers == [alone(target, request) for request in edge.requests]


@pytest.mark.parametrize("mode", [Mode.SD, Mode.FULL])
def test_a_short_list_without_an_allowed_token_proposes_nothing(
    mode: Mode, target: Vlm, draft: Vlm, fed: tuple[FeatureEncoder, FedHead]
) -> None:
    """An answer begins with its action, and the head knows no token that the first line may hold."""
    grammar = grammars(target)[1]
    state = grammar.start(14)
    first = frozenset[int]()
    for _ in range(grammar.least_tokens):
        mask = grammar.allowed(state).mask
        first |= frozenset(np.flatnonzero(mask).tolist())
        after = grammar.next(state, int(np.flatnonzero(mask)[-1]))
        assert after is not None
        state = after
    encoder, _ = fed
    config = msgspec.structs.replace(
        encoder.config, short_list=tuple(token for token in range(target.vocabulary - 2) if token not in first)
    )
    encoder.config = config = msgspec.structs.replace(config, features=fingerprint(encoder))
    request = StepRequest(1, PROMPTS[0], jpeg(0), target.eos, 14, grammar=grammar)
    config_of_mode = DraftingConfig.of(mode, forced=False)
    robot = Robot(draft, config_of_mode, [request], Weather(one_way_s=0.05), head=random_head(config, scale=2.0))
    run(target, [robot], encoder=encoder)
    assert robot.answers == [alone(target, request)]
    assert robot.stats.draft_forwards > 0


@pytest.mark.parametrize("mode", [Mode.SD, Mode.FULL])
def test_a_fed_edge_drafts_without_a_prefill(
    mode: Mode, target: Vlm, draft: Vlm, fed: tuple[FeatureEncoder, FedHead]
) -> None:
    encoder, head = fed
    request = StepRequest(1, PROMPTS[0], jpeg(0), target.eos, 14)
    robot = Robot(draft, DraftingConfig.of(mode), [request], Weather(one_way_s=0.05), head=head)
    run(target, [robot], encoder=encoder)
    assert robot.answers == [alone(target, request)]
    assert robot.stats.draft_forwards > 0 and robot.stats.drafted > 0
    assert robot.stats.prefill_s == 0.0 and robot.stats.resent == 0


@pytest.mark.parametrize("count", [2, 3])
def test_a_fed_edge_is_exact_about_several_frames(
    count: int, target: Vlm, draft: Vlm, fed: tuple[FeatureEncoder, FedHead]
) -> None:
    encoder, head = fed
    frames = tuple(jpeg(seed) for seed in range(count))
    several = StepRequest(1, PROMPTS[1], frames, target.eos, 14, sampling=HOW[1], key=3)
    requests = [several, replace(several, jpeg=jpeg_of(frames[1:]))]
    weather = Weather(one_way_s=0.05, cut_after=4)
    robot = Robot(draft, DraftingConfig.of(Mode.FULL), requests, weather, head=head)
    run(target, [robot], encoder=encoder, config=SERVER.changed(frames=count))
    assert robot.answers == [alone(target, request) for request in requests]
    assert robot.stats.draft_forwards > 0 and robot.stats.interruptions > 0
