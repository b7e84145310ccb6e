"""Whatever is drafted, lost, repeated, overtaken or cut off, an answer is the target's own, to the last token.

Production's edge and verifier with real tiny models in float64, held against the target decoding alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cloud_verifier.policies import POLICIES
from edge_drafter import DraftingConfig, Mode, StepRequest
from speculation.exits import ExitHeads, Reliability
from speculation.language.grammar import Automaton, Grammars, actions_of
from speculation.language.prompts import parse_answer
from speculation.sampling import GREEDY, MAX_KEY, Coupled
from speculation.vlm.load import load_vlm
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession
from speculation.wire import Grammar
from tests.cloud_verifier.test_engine import PROMPTS, jpeg
from tests.edge_drafter.fakes import Weather
from tests.models import HYBRID_TEMPLATE, THINKING_TEMPLATE, tiny_model
from tests.pair import CAPACITY, SERVER, Robot, run

LINKED = [mode for mode in Mode if mode is not Mode.EDGE]
ALONE = (Mode.CLOUD, Mode.SERVER_SD)
"""Modes in which the edge says nothing: what is lost stays lost until the link breaks, so nothing may be lost."""
HOW = (GREEDY, Coupled(0.7), Coupled(1.0, 20), Coupled(1.3, 0, 0.9))
PENALTIES = st.sampled_from([1.0, 1.05, 1.3, 0.9])


def near(folder: Path, noise: float) -> Vlm:
    """Return a model whose weights are another one's, stirred: a draft that is often right."""
    vlm = load_vlm(folder, dtype="float64")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in vlm.model.parameters():
            if weight.ndim > 1:
                scale = noise * weight.std() * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
                weight += scale
    return vlm


@dataclass(frozen=True)
class Pair:
    """A target with drafts from seldom to always right."""

    target: Vlm = field(repr=False)
    drafts: tuple[Vlm, ...] = field(repr=False)


@pytest.fixture(scope="module")
def pairs(target: Vlm, draft: Vlm, tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Pair]:
    folder = tiny_model(
        tmp_path_factory.mktemp("other"), layers=3, hidden=32, seed=5, family="qwen2_5_vl", dtype=torch.float32
    )
    other = load_vlm(folder, dtype="float64")
    deep = tiny_model(
        tmp_path_factory.mktemp("deep"), layers=3, hidden=32, seed=6, family="qwen3_vl", dtype=torch.float32
    )
    return [
        Pair(target, (draft, near(tiny_target, 0.05), target)),
        Pair(other, (near(folder, 0.2), near(folder, 0.05))),
        Pair(load_vlm(deep, dtype="float64"), (near(deep, 0.2), near(deep, 0.05))),
        *thinking_pairs(tmp_path_factory),
    ]


def thinking_pairs(tmp_path_factory: pytest.TempPathFactory) -> list[Pair]:
    """Return a pair whose chat begins to think, and one that begins it itself now and then."""
    found = []
    for seed, template in ((0, THINKING_TEMPLATE), (8, HYBRID_TEMPLATE)):
        folder = tiny_model(
            tmp_path_factory.mktemp("thinks"), layers=3, hidden=32, seed=seed, template=template, special=seed == 0,
            dtype=torch.float32,
        )  # fmt: skip
        target = load_vlm(folder, dtype="float64")
        assert target.thinking is not None and target.thinking.opened == (seed == 0)
        found.append(Pair(target, (near(folder, 0.2), near(folder, 0.05), target)))
    return found


def noisy_exits(target: Vlm, sureness: float) -> ExitHeads:
    """Return untrained exits: sometimes right, and as sure as they are told to be."""
    heads = ExitHeads(target, range(target.num_layers - 1), rank=4)
    heads.set_reliability({layer: Reliability((0.0, 1.0), (sureness,)) for layer in heads.layers})
    return heads


MOST_SEEDS = 16
"""So many robots are tried until every technique of a mode has happened; four always are."""


def grammars(target: Vlm) -> list[Automaton]:
    """Return grammars of a target's answers: both orders, and one of fewer actions."""
    of = Grammars(target.tokenizer, target.vocabulary).of
    names = (Grammar.REASON_FIRST, Grammar.ACTION_FIRST, Grammar.REASON_FIRST_NO_FORWARD_LEFT)
    return [of(name, target.eos, target.thinking) for name in names]


def alone(target: Vlm, request: StepRequest) -> tuple[int, ...]:
    """Return what the target says by itself."""
    session = VlmSession(target, CAPACITY)
    how = (request.max_tokens, request.sampling, request.key, request.grammar)
    return tuple(token for token, _ in session.sampled(request.prompt, request.jpeg, *how))


def same(grammar: Automaton, target: Vlm) -> Automaton | None:
    """Return the same grammar for a target with other end tokens; None where these are needed to spell an answer."""
    try:
        return Grammars(target.tokenizer, target.vocabulary).of(grammar.name, target.eos, target.thinking)
    except ValueError:
        return None


@st.composite
def robots(draw: st.DrawFn, pair: Pair) -> Robot:
    mode = draw(st.sampled_from(LINKED))
    how, key = draw(st.sampled_from(HOW)), draw(st.integers(0, MAX_KEY))
    prompt = "find " + draw(st.text(st.characters(codec="utf-8"), max_size=12))
    request = StepRequest(
        1, prompt, jpeg(draw(st.integers(0, 99))), pair.target.eos, draw(st.integers(1, 20)), sampling=how, key=key,
        grammar=draw(st.sampled_from([None, *grammars(pair.target)])),
    )  # fmt: skip
    config = DraftingConfig.of(
        mode,
        gamma=draw(st.one_of(st.integers(0, 6), st.just("auto"))),
        max_nodes=draw(st.integers(1, 60)),
        stop_below=draw(st.sampled_from([0.0, 0.2])),
    )
    weather = Weather(
        one_way_s=draw(st.sampled_from([0.0, 0.02, 0.2])),
        jitter_s=draw(st.sampled_from([0.0, 0.1, 0.4])),
        duplicates=draw(st.sampled_from([0.0, 0.3])),
        losses=0.0 if mode in ALONE else draw(st.sampled_from([0.0, 0.1])),
        cut_after=draw(st.one_of(st.none(), st.integers(1, 20))),
        seed=draw(st.integers(0, 999)),
    )
    again = draw(st.booleans())  # the second time the first answer proposes what may come
    draft = pair.drafts[draw(st.integers(0, len(pair.drafts) - 1))]
    return Robot(
        draft, config, [request, replace(request, step=2)][: 1 + again], weather,
        draft_s=draw(st.sampled_from([0.01, 0.05, 0.2])), resumes=draw(st.booleans()), is_old=draw(st.booleans()),
    )  # fmt: skip


@settings(
    deadline=None,
    max_examples=25,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a failing world is small enough
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_every_answer_is_the_targets_own(pairs: list[Pair], data: st.DataObject) -> None:
    """One edge or two at one verifier, each in its own mode, weather and kind of sampling."""
    pair = pairs[data.draw(st.integers(0, len(pairs) - 1), label="pair")]
    target = pair.target
    edges = [data.draw(robots(pair)) for _ in range(data.draw(st.integers(1, 2)))]
    asked = edges[0].requests[0]
    if data.draw(st.booleans(), label="an end token inside"):
        ends = (data.draw(st.sampled_from(alone(target, asked))),)
        target = replace(target, eos=ends)
        for edge in edges:
            edge.requests = [
                replace(request, eos=ends, grammar=request.grammar and same(request.grammar, target))
                for request in edge.requests
            ]
    target = replace(target, repetition_penalty=data.draw(PENALTIES, label="penalty"))
    chunk, collect_s = data.draw(st.sampled_from([0, 1, 30])), data.draw(st.sampled_from([0.0, 0.05]))
    schedule = data.draw(st.sampled_from(list(POLICIES)))
    config = SERVER.changed(policy=schedule, collect_s=collect_s, prefill_chunk=chunk)
    run(
        target, edges, verify_s=data.draw(st.sampled_from([0.02, 0.2, 0.6])), config=config,
        exits=noisy_exits(target, data.draw(st.sampled_from([0.1, 0.9]))), self_draft=pair.drafts[0],
    )  # fmt: skip
    for edge in edges:
        assert edge.answers == [alone(target, request) for request in edge.requests]


HAPPENS: dict[Mode, tuple[str, ...]] = {
    Mode.CLOUD: ("interruptions",),
    Mode.SERVER_SD: ("interruptions",),
    Mode.SD: ("interruptions", "resent", "accepted", "misses"),
    Mode.FSD: ("interruptions", "resent", "accepted", "misses", "hits", "early_hits"),
    Mode.PROACTIVE: ("interruptions", "resent", "accepted", "misses", "hits"),
    Mode.PIPELINED: ("interruptions", "resent", "accepted", "misses", "hits", "sent_ahead", "ahead_hits", "abandoned"),
    Mode.FULL: (
        "interruptions", "accepted", "misses", "hits", "early_hits", "sent_ahead", "ahead_hits", "abandoned",
    ),
}  # fmt: skip
"""What a mode must have lived through before its exactness says anything."""


@pytest.mark.parametrize(
    ("mode", "constrained"), [*((mode, False) for mode in LINKED), (Mode.PIPELINED, True), (Mode.FULL, True)]
)
def test_a_mode_is_exact_while_its_techniques_are_at_work(mode: Mode, constrained: bool, pairs: list[Pair]) -> None:
    target, draft = pairs[0].target, pairs[0].drafts[1]
    lived: Counter[str] = Counter()
    for seed in range(MOST_SEEDS):
        kind = seed % 4
        if seed >= 4 and all(lived[name] for name in HAPPENS[mode]):
            break
        weather = Weather(
            one_way_s=0.05, jitter_s=0.15 if kind < 3 else 0.0, duplicates=0.1, losses=0.0 if mode in ALONE else 0.05,
            cut_after=None if seed % 2 else 6, seed=seed,
        )  # fmt: skip
        how = HOW[kind]
        grammar = grammars(target)[seed % 2] if constrained else None
        first = StepRequest(
            1, PROMPTS[seed % 3], jpeg(seed), target.eos, 18, sampling=how, key=seed, grammar=grammar
        )  # fmt: skip
        requests = [first, replace(first, jpeg=jpeg(seed + 9), key=seed + 1)]
        robot = Robot(
            draft,
            # With all effort, so that what is seldom worth it happens, too.
            DraftingConfig.of(mode, effort=1.0, exit_gain=0.0),
            requests,
            weather,
            draft_s=(0.05, 0.02, 0.1, 0.01)[kind],
            resumes=kind < 2,
        )
        run(target, [robot], exits=noisy_exits(target, 0.6), self_draft=draft)
        assert robot.answers == [alone(target, request) for request in requests]
        for name in HAPPENS[mode]:
            figure = getattr(robot.stats, name)
            lived[name] += sum(figure.values()) if isinstance(figure, dict) else figure
    assert {name for name in HAPPENS[mode] if not lived[name]} == set(), lived


@pytest.mark.parametrize("mode", LINKED)
def test_answers_behind_thinking_are_the_targets_own(mode: Mode, pairs: list[Pair]) -> None:
    """Also where links break within the thinking, and it is closed because no room is left."""
    interruptions, thought = 0, Counter[bool]()
    for number, pair in enumerate(pairs[3:]):
        target, marks = pair.target, pair.target.thinking
        assert marks is not None
        for grammar in (*grammars(target)[: number + 1], None):
            request = StepRequest(
                1, PROMPTS[0], jpeg(number), target.eos, 48, sampling=HOW[number], key=2 * number, grammar=grammar
            )  # fmt: skip
            requests = [request, replace(request, jpeg=jpeg(number + 2), max_tokens=16)]
            weather = Weather(one_way_s=0.05, jitter_s=0.1, duplicates=0.1, cut_after=5, seed=number)
            config = DraftingConfig.of(mode, effort=1.0, exit_gain=0.0)
            robot = Robot(pair.drafts[1], config, requests, weather, resumes=grammar is None)
            run(target, [robot], exits=noisy_exits(target, 0.6), self_draft=pair.drafts[0])
            assert robot.answers == [alone(target, each) for each in requests]
            interruptions += robot.stats.interruptions
            for answer in robot.answers if grammar is not None else ():
                thinks = marks.opened or answer[0] == marks.opens
                thought[thinks] += 1
                assert not thinks or marks.closes in answer
                assert grammar is not None and parse_answer(target.read(answer)).action in actions_of(grammar.name)
    assert interruptions > 0 and thought[True] > 1 and thought[False] > 0


@pytest.mark.parametrize("mode", LINKED)
def test_a_repetition_penalty_is_part_of_every_answer(mode: Mode, pairs: list[Pair]) -> None:
    """The link breaks in mid-answer; the verifier knows the answer so far, or gets it anew, and the edge's drafts are
    penalised as well, or not: it may know nothing of the target's penalty."""
    for number, (pair, how) in enumerate(zip(pairs, (GREEDY, Coupled(0.7)), strict=False)):
        target = replace(pair.target, repetition_penalty=(1.3, 1.05)[number])
        grammar = grammars(target)[number] if number else None
        asked = [
            StepRequest(1, prompt, jpeg(seed), target.eos, 18, sampling=how, key=seed, grammar=grammar)
            for seed, prompt in enumerate(PROMPTS[:2])
        ]
        weather = Weather(one_way_s=0.05, jitter_s=0.1, duplicates=0.1, cut_after=4, seed=number)
        robots = [
            Robot(pair.drafts[1], DraftingConfig.of(mode, effort=1.0, exit_gain=0.0), asked, weather,
                  resumes=resumes, is_old=resumes)
            for resumes in (False, True)
        ]  # fmt: skip
        run(target, robots, exits=noisy_exits(target, 0.6), self_draft=pair.drafts[1])
        for robot in robots:
            assert robot.answers == [alone(target, request) for request in asked]
            assert robot.stats.interruptions > 0
        if number == 0:
            assert robots[0].answers != [alone(pair.target, request) for request in asked], "it shows nothing"


@pytest.mark.parametrize(
    ("mode", "count", "constrained", "numbers"),
    [
        (Mode.CLOUD, 2, False, (0,)),
        (Mode.SD, 3, True, (1,)),
        (Mode.FULL, 2, True, (2,)),
        (Mode.FULL, 3, False, (0, 1, 2)),
    ],
)
def test_answers_about_several_frames_are_the_targets_own(
    mode: Mode, count: int, constrained: bool, numbers: tuple[int, ...], pairs: list[Pair]
) -> None:
    """Their prompt is fed in pieces that end within an image, links break, and another robot asks about one frame."""
    for number in numbers:
        pair = pairs[number]
        frames = tuple(jpeg(seed) for seed in range(count))
        grammar = grammars(pair.target)[number] if constrained else None
        several = StepRequest(
            1, PROMPTS[0], frames, pair.target.eos, 18, sampling=HOW[number], key=number, grammar=grammar
        )  # fmt: skip
        asked = [several, replace(several, jpeg=frames[::-1])]
        weather = Weather(one_way_s=0.05, jitter_s=0.1, duplicates=0.1, cut_after=4, seed=count)
        config = DraftingConfig.of(mode, effort=1.0, exit_gain=0.0)
        robot = Robot(pair.drafts[1], config, asked, weather, resumes=number == 0)
        other = Robot(pair.drafts[0], DraftingConfig.of(Mode.SD), [replace(several, jpeg=frames[0])], Weather())
        server = SERVER.changed(frames=count, prefill_chunk=(3, 0, 7)[number])
        run(pair.target, [robot, other], config=server, exits=noisy_exits(pair.target, 0.6), self_draft=pair.drafts[0])
        assert robot.answers == [alone(pair.target, request) for request in asked]
        assert other.answers == [alone(pair.target, replace(several, jpeg=frames[0]))]
        if not constrained:  # a grammar may leave these models one answer
            assert robot.answers[0] != other.answers[0] != robot.answers[1], "the frames before it matter"
        assert robot.stats.interruptions > 0
