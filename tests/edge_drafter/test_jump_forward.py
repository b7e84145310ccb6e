"""Drafts under a grammar: the draft model alone keeps to it, and settled text takes no forward on either side."""

from __future__ import annotations

import pytest

from edge_drafter import Drafter, DraftingConfig, Mode, StepRequest, sources_of
from edge_drafter.decoder import EdgeDecoder
from edge_drafter.settings import EdgeConfig
from speculation.language.grammar import CONSTRAINED
from speculation.language.prompts import parse_answer
from speculation.sampling import GREEDY, Coupled, SamplingScheme
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession
from tests.cloud_verifier.test_engine import PROMPTS, jpeg
from tests.edge_drafter.fakes import Weather
from tests.pair import CAPACITY, SERVER, Robot, run
from tests.test_exactness import alone, grammars

LIMIT = 24


@pytest.mark.parametrize("how", [GREEDY, Coupled(0.9)], ids=lambda how: how.name)
@pytest.mark.parametrize("order", [0, 1])
def test_the_draft_model_alone_answers_by_the_grammar(order: int, how: SamplingScheme, draft: Vlm) -> None:
    request = StepRequest(
        1, PROMPTS[0], jpeg(1), draft.eos, LIMIT, sampling=how, key=3, grammar=grammars(draft)[order]
    )  # fmt: skip
    found = {}
    for forced in (True, False):
        config = DraftingConfig.of(Mode.EDGE, forced=forced)
        drafter = Drafter(sources_of(config, VlmSession(draft, CAPACITY)), None, config)
        found[forced] = drafter.run(request)
        assert found[forced].tokens == alone(draft, request)
    assert not parse_answer(draft.tokenizer.decode(found[True].tokens, skip_special_tokens=True)).problem
    assert found[True].stats.draft_forwards < found[False].stats.draft_forwards == found[False].stats.tokens


@pytest.mark.parametrize("forced_tokens", [0, 8])
def test_settled_text_costs_the_verifier_no_pass(forced_tokens: int, target: Vlm) -> None:
    grammar = grammars(target)[0]
    request = StepRequest(1, PROMPTS[0], jpeg(2), target.eos, LIMIT, grammar=grammar)
    robot = Robot(target, DraftingConfig.of(Mode.CLOUD), [request], Weather())
    run(target, [robot], config=SERVER.changed(forced_tokens=forced_tokens))
    assert robot.answers == [alone(target, request)]
    passes, tokens = robot.stats.cloud_passes, robot.stats.tokens
    assert passes == tokens if forced_tokens == 0 else passes <= tokens - 2


def test_a_decoder_that_cannot_keep_to_the_grammar_does_not_start(draft: Vlm) -> None:
    short = EdgeConfig.flat(draft.folder, mode="edge", answers=CONSTRAINED, max_tokens=2)
    with pytest.raises(ValueError, match="at least"):
        EdgeDecoder(short, vlm=draft)
    with pytest.raises(ValueError, match="answers"):
        EdgeConfig.flat(draft.folder, mode="edge", answers="short")
