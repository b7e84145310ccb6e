"""A session's tree survives commits exactly, computes nothing twice, and alone it is transformers' greedy generate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from edge_drafter.protocols import DraftModel
from speculation.cancellation import Abandoned, Stop
from speculation.language.grammar import Grammars, grammar_for
from speculation.sampling import GREEDY, Coupled, SamplingScheme
from speculation.vlm import session as session_module
from speculation.vlm.cache import CacheFull, KVCache
from speculation.vlm.forward import Chunk, Logits, forward
from speculation.vlm.inputs import prepare
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession
from speculation.wire import ROOT
from tests.models import frame, scratch_logits

EXACT = 1e-9
PROMPT = "find the silver bottle"


def greedy(session: DraftModel, count: int) -> list[int]:
    answer = []
    for _ in range(count):
        token = int(session.root_logits().argmax())
        answer.append(token)
        session.commit([], token)
    return answer


@pytest.fixture
def session(target: Vlm) -> VlmSession:
    session = VlmSession(target, 128)
    session.begin(PROMPT, frame(0))
    return session


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tokens fed by each forward."""
    counts: list[int] = []

    def counting(vlm: Vlm, cache: KVCache, chunks: Sequence[Chunk], stop: Stop | None = None) -> list[Logits]:
        counts.append(len(chunks[0].tokens))
        return forward(vlm, cache, chunks, stop)

    monkeypatch.setattr(session_module, "forward", counting)
    return counts


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("scheme", [GREEDY, Coupled(0.8)])
def test_an_answer_goes_on_behind_what_is_committed_as_it_went_on_alone(
    target: Vlm, scheme: SamplingScheme, constrained: bool
) -> None:
    grammar = Grammars(target.tokenizer, target.vocabulary).of(grammar_for(PROMPT), target.eos) if constrained else None
    session = VlmSession(target, 256)
    whole = [token for token, _ in session.sampled(PROMPT, frame(0), 40, scheme, 7, grammar)]
    assert len(whole) > 6
    for cut in (1, 6, len(whole) - 1):
        rest = session.sampled(PROMPT, frame(0), 40, scheme, 7, grammar, whole[:cut])
        assert [token for token, _ in rest] == whole[cut:]


def test_predrafted_subtree_survives_without_a_forward(session: VlmSession, forwards: list[int]) -> None:
    #             0   1   2  3  4  5
    logits = session.extend([11, 12, 13, 14, 15, 16], [ROOT, 0, 0, 2, 1, 3])
    assert forwards == [7]  # the root rode in front
    assert session.commit([0], 13) == {2: ROOT, 3: 0, 5: 1}
    np.testing.assert_array_equal(session.root_logits(), logits[2])
    assert session.commit([0], 16) == {1: ROOT}
    np.testing.assert_array_equal(session.root_logits(), logits[5])
    assert forwards == [7]
    inputs = prepare(session.vlm, PROMPT, frame(0))
    (expected,) = scratch_logits(session.vlm, inputs, [11, 13, 14, 16, 99])[-1:]
    np.testing.assert_allclose(session.extend([99], [ROOT])[0], expected, rtol=0, atol=EXACT)


def test_commits_of_unfed_tokens_wait_for_one_forward(session: VlmSession, forwards: list[int]) -> None:
    session.extend([11, 12], [ROOT, 0])
    assert session.commit([0], 50) == {}
    assert session.commit([], 51) == {}
    assert session.node_count == 0
    logits = session.extend([60, 61], [ROOT, ROOT])
    assert forwards == [3, 4]
    inputs = prepare(session.vlm, PROMPT, frame(0))
    expected = scratch_logits(session.vlm, inputs, [11, 50, 51, 61])
    np.testing.assert_allclose(session.root_logits(), expected[-2], rtol=0, atol=EXACT)
    np.testing.assert_allclose(logits[1], expected[-1], rtol=0, atol=EXACT)
    assert forwards == [3, 4]


def test_refusals_change_nothing(session: VlmSession) -> None:
    session.extend([11, 12], [ROOT, 0])
    vocabulary = session.vlm.vocabulary
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: session.extend([1], [2]), r"parent 2 of node 2 must be in -1\.\.1"),
        (lambda: session.extend([1], []), "1 tokens but 0 parents"),
        (lambda: session.extend([vocabulary], [0]), "outside the vocabulary"),
        (lambda: session.commit([1], 5), "node 1 does not follow node -1"),
        (lambda: session.commit([0], vocabulary), "outside the vocabulary"),
        (lambda: session.begin(PROMPT, b"no jpeg"), "does not decode as JPEG"),
        (lambda: session.begin(PROMPT, frame(0), [vocabulary]), "outside the vocabulary"),
    ]
    for call, sentence in refused:
        with pytest.raises(ValueError, match=sentence):
            call()
    with pytest.raises(CacheFull):
        session.extend([1] * 200, [ROOT] * 200)
    assert session.node_count == 2
    assert session.commit([0], 12) == {1: ROOT}


def test_without_a_step_there_is_nothing_to_do(target: Vlm) -> None:
    session = VlmSession(target, 32)
    with pytest.raises(RuntimeError, match="call begin first"):
        session.root_logits()
    with pytest.raises(RuntimeError, match="call begin first"):
        session.extend([1], [ROOT])


class SessionMachine(RuleBasedStateMachine):
    """Random extends and commits against a twin that only knows the committed tokens and a list of (token, parent)."""

    vlm: Vlm
    exact = EXACT

    @initialize(seed=st.integers(0, 2))
    def begin(self, seed: int) -> None:
        image = self.image(seed)
        self.session = self.new_session()
        self.session.begin(PROMPT, image)
        self.inputs = prepare(self.vlm, PROMPT, image)
        self.committed: list[int] = []
        self.nodes: list[tuple[int, int]] = []

    def new_session(self) -> Any:
        return VlmSession(self.vlm, 128)

    def image(self, seed: int) -> Any:
        return frame(seed)

    def chain(self, node: int) -> list[int]:
        return [] if node == ROOT else [*self.chain(self.nodes[node][1]), node]

    def expected(self, node: int) -> Logits:
        tokens = [self.nodes[each][0] for each in self.chain(node)]
        row: Logits = scratch_logits(self.vlm, self.inputs, [*self.committed, *tokens])[-1]
        return row

    @precondition(lambda self: len(self.nodes) < 16)
    @rule(data=st.data(), count=st.integers(1, 4))
    def extend(self, data: st.DataObject, count: int) -> None:
        first = len(self.nodes)
        new = [(data.draw(st.integers(10, 13)), data.draw(st.integers(ROOT, first + i - 1))) for i in range(count)]
        logits = self.session.extend([token for token, _ in new], [parent for _, parent in new])
        self.nodes += new
        for offset in range(count):
            np.testing.assert_allclose(logits[offset], self.expected(first + offset), rtol=0, atol=self.exact)

    @precondition(lambda self: len(self.committed) < 24)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        end = data.draw(st.integers(ROOT, len(self.nodes) - 1))
        token = data.draw(st.integers(10, 13))
        path = self.chain(end)
        root = next((n for n, (each, parent) in enumerate(self.nodes) if parent == end and each == token), None)
        below = [n for n in range(len(self.nodes)) if root is not None and root in self.chain(n)[:-1]]
        renamed = {} if root is None else {root: ROOT} | {node: index for index, node in enumerate(below)}
        assert self.session.commit(path, token) == renamed
        self.committed += [*(self.nodes[node][0] for node in path), token]
        self.nodes = [(self.nodes[node][0], renamed[self.nodes[node][1]]) for node in below]

    @rule()
    def ask_the_root(self) -> None:
        np.testing.assert_allclose(self.session.root_logits(), self.expected(ROOT), rtol=0, atol=self.exact)

    @invariant()
    def counts_agree(self) -> None:
        assert self.session.node_count == len(self.nodes)


def test_any_sequence_of_extends_and_commits_is_exact(target: Vlm) -> None:
    SessionMachine.vlm = target
    run_state_machine_as_test(SessionMachine, settings=settings(max_examples=25, stateful_step_count=8, deadline=None))


def test_a_long_answer_is_taken_up_in_pieces(target: Vlm, monkeypatch: pytest.MonkeyPatch) -> None:
    """No forward makes logits of thousands of tokens, and one that is abandoned in between goes on later."""
    committed, tree = list(range(5, 25)), ([7, 8, 9], [ROOT, 0, ROOT])
    whole, pieces = VlmSession(target, 128), VlmSession(target, 128)
    whole.begin(PROMPT, frame(0), committed)
    expected = whole.extend(*tree)
    monkeypatch.setattr(session_module, "MOST_PENDING", 6)
    pieces.begin(PROMPT, frame(0), committed)
    looks = iter([False] * 4)
    with pytest.raises(Abandoned):
        pieces.extend(*tree, lambda: next(looks, True))
    np.testing.assert_allclose(pieces.extend(*tree), expected, atol=EXACT)
    np.testing.assert_allclose(pieces.root_logits(), whole.root_logits(), atol=EXACT)


def test_a_prompt_that_leaves_no_room_for_the_answer_is_refused(target: Vlm) -> None:
    tokens = len(prepare(target, PROMPT, frame(0)).ids)
    VlmSession(target, tokens + 50, 50).begin(PROMPT, frame(0))
    with pytest.raises(ValueError, match=f"of {tokens} tokens and an answer of 50 do not fit .* raise capacity"):
        VlmSession(target, tokens + 49, 50).begin(PROMPT, frame(0))
