"""The greedy rule against a twin that tries every chain of a tree, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.acceptance import AcceptanceRule, Coupled, Greedy, Logits, Verdict, rule_of
from speculation.sampling import SamplingSettings, StepDraws, perturbed

VOCABULARY = 4


@st.composite
def judged_drafts(draw: st.DrawFn) -> tuple[list[int], list[int], Logits]:
    """A random tree over a tiny vocabulary and logits of few levels, so that ties and doubled siblings happen."""
    count = draw(st.integers(0, 9))
    tokens = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=count, max_size=count))
    parents = [draw(st.integers(-1, node - 1)) for node in range(count)]
    level = st.integers(-2, 2).map(float)
    rows = draw(
        st.lists(st.lists(level, min_size=VOCABULARY, max_size=VOCABULARY), min_size=count + 1, max_size=count + 1)
    )
    return tokens, parents, np.array(rows)


def enumerated_verdict(tokens: list[int], parents: list[int], logits: Logits) -> Verdict:
    """Enumerate every chain from the root, keep those that greedy decoding alone would have said, take the longest."""

    def first_best(row: Logits) -> int:
        return min(token for token in range(VOCABULARY) if row[token] == max(row))

    def chance(row: Logits, token: int) -> float:
        return math.exp(row[token]) / sum(math.exp(value) for value in row)

    def chains(node: int) -> list[list[int]]:
        below = [child for child in range(len(tokens)) if parents[child] == node]
        return [[]] + [[child, *rest] for child in below for rest in chains(child)]

    def said(chain: list[int]) -> bool:
        firsts = [
            next(s for s in range(node + 1) if (parents[s], tokens[s]) == (parents[node], tokens[node]))
            for node in chain
        ]
        before = [-1, *chain[:-1]] if chain else []
        right = all(tokens[node] == first_best(logits[b + 1]) for node, b in zip(chain, before, strict=True))
        return right and firsts == chain

    path = max((chain for chain in chains(-1) if said(chain)), key=len)
    end = path[-1] if path else -1
    token = first_best(logits[end + 1])
    confidence = chance(logits[end + 1], token)
    for before, node in zip([-1, *path[:-1]], path, strict=False):
        confidence *= chance(logits[before + 1], tokens[node])
    return Verdict(tuple(path), token, confidence)


@given(judged_drafts())
def test_equals_enumeration(draft: tuple[list[int], list[int], Logits]) -> None:
    rule: AcceptanceRule = Greedy()
    verdict, expected = rule.judge(*draft), enumerated_verdict(*draft)
    assert (verdict.path, verdict.token) == (expected.path, expected.token)
    assert verdict.confidence == pytest.approx(expected.confidence, rel=1e-12)


def test_chain_is_accepted_up_to_the_first_difference() -> None:
    logits = np.log(np.array([[0.1, 0.9], [0.6, 0.4], [0.5, 0.5], [0.2, 0.8]], dtype=np.float32))
    verdict = Greedy().judge([1, 1, 0], [-1, 0, 1], logits)
    assert (verdict.path, verdict.token) == ((0,), 0)
    assert verdict.confidence == pytest.approx(0.9 * 0.6, rel=1e-6)
    assert Greedy().name == "greedy"


def test_no_draft_decodes_one_token() -> None:
    assert Greedy().judge([], [], np.array([[0.0, 1.0]])).token == 1


def test_huge_logits_do_not_overflow() -> None:
    assert Greedy().judge([], [], np.array([[1e5, -1e5]], dtype=np.float32)).confidence == 1.0


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_refused(broken: float) -> None:
    logits = np.array([[0.0, 1.0], [0.0, broken]])
    with pytest.raises(ValueError, match="logits after node 0 are not finite"):
        Greedy().judge([1], [-1], logits)
    assert Greedy().judge([0], [-1], logits).path == ()  # the broken row is never asked


@pytest.mark.parametrize(
    ("tokens", "parents", "rows", "sentence"),
    [
        ([1], [-1], 1, "are no draft tree"),
        ([1], [], 2, "are no draft tree"),
        ([1, 1], [-1, 1], 3, "parent 1 of node 1 must be in -1..0"),
        ([1], [-2], 2, "parent -2 of node 0"),
    ],
)
def test_malformed_trees_are_refused(tokens: list[int], parents: list[int], rows: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Greedy().judge(tokens, parents, np.zeros((rows, 2)))


KEYS = st.integers(0, 2**63 - 1)
SETTINGS = st.builds(SamplingSettings, st.floats(0.01, 4.0), st.integers(0, 4), st.floats(0.1, 1.0))


def drawn(row: Logits, settings: SamplingSettings, draws: StepDraws) -> int:
    return int(np.argmax(perturbed(row, settings, draws)))


@given(judged_drafts(), SETTINGS, KEYS, st.integers(0, 500))
def test_coupled_accepts_what_the_target_draws_at_each_depth(
    draft: tuple[list[int], list[int], Logits], settings: SamplingSettings, key: int, position: int
) -> None:
    """Row by row: a twin perturbs every row with the noise of its own answer position and is greedy after that."""
    tokens, parents, logits = draft
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent == -1 else depths[parent] + 1)
    rows = [
        perturbed(row, settings, StepDraws(key, position + depth))
        for row, depth in zip(logits, [0, *depths], strict=True)
    ]
    verdict = Coupled(settings).judge(tokens, parents, logits, StepDraws(key, position))
    twin = Greedy().judge(tokens, parents, np.stack(rows))
    assert (verdict.path, verdict.token) == (twin.path, twin.token)
    assert verdict.confidence == pytest.approx(twin.confidence, rel=1e-9)


@given(judged_drafts(), SETTINGS, KEYS)
def test_the_draft_does_not_change_the_sample(
    draft: tuple[list[int], list[int], Logits], settings: SamplingSettings, key: int
) -> None:
    """With logits that depend on the depth alone, every draft leads along the same answer."""
    tokens, parents, logits = draft
    verdict = Coupled(settings).judge(tokens, parents, np.repeat(logits[:1], len(logits), 0), StepDraws(key, 4))
    said = [*(tokens[node] for node in verdict.path), verdict.token]
    assert said == [drawn(logits[0], settings, StepDraws(key, 4 + depth)) for depth in range(len(said))]


@given(judged_drafts(), KEYS)
def test_coupled_at_temperature_nought_is_greedy(draft: tuple[list[int], list[int], Logits], key: int) -> None:
    greedy = Greedy().judge(*draft)
    assert Coupled(SamplingSettings(0.0)).judge(*draft, StepDraws(key, 3)) == greedy
    assert isinstance(rule_of(SamplingSettings()), Greedy)
    assert rule_of(SamplingSettings(0.5, 7)).name == "coupled(temperature=0.5,top_k=7)"


@given(judged_drafts(), SETTINGS, KEYS, st.sets(st.integers(0, 300), min_size=VOCABULARY, max_size=VOCABULARY))
def test_columns_of_a_list_are_drawn_by_their_tokens(
    draft: tuple[list[int], list[int], Logits], settings: SamplingSettings, key: int, listed: set[int]
) -> None:
    """The same rows as part of a vocabulary whose other tokens cannot come."""
    tokens, parents, logits = draft
    ids = np.array(sorted(listed))
    named = [int(ids[token]) for token in tokens]
    whole = np.full((len(logits), 301), -np.inf)
    whole[:, ids] = logits
    for rule in (Greedy(), Coupled(SamplingSettings(settings.temperature, settings.top_k))):
        part = rule.judge(named, parents, logits, StepDraws(key, 2), ids)
        entire = rule.judge(named, parents, whole, StepDraws(key, 2))
        assert (part.path, part.token) == (entire.path, entire.token) and part.token in listed
        assert part.confidence == pytest.approx(entire.confidence)


def test_broken_logits_are_refused_by_both_rules() -> None:
    with pytest.raises(ValueError, match="logits after node -1 are not finite"):
        Coupled(SamplingSettings(1.0)).judge([], [], np.array([[0.0, np.nan]]))
