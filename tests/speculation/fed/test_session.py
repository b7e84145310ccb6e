"""A session against its slow twin: whatever is fed, drafted, committed and replaced, the outputs are the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speculation.cancellation import Abandoned
from speculation.features import pack
from speculation.fed.session import FedSession
from speculation.wire import ROOT
from tests.speculation.fed.heads import VOCABULARY, SlowSession, random_head, tiny_config

CONFIG = tiny_config()
HEAD = random_head(CONFIG)


def features(seed: int, count: int) -> bytes:
    return pack(np.random.default_rng(seed).normal(size=(count, CONFIG.size)).astype(np.float32))


def prompted(seed: int = 0, tokens: tuple[int, ...] = (1, 2, 3, 4)) -> FedSession:
    """Return a session that knows the end of a prompt."""
    session = FedSession(HEAD)
    session.begin("prompt", b"jpeg")
    session.feed(tokens, 0, features(seed, len(tokens)))
    return session


tokens = st.integers(0, VOCABULARY - 1)
commands = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), st.lists(st.tuples(tokens, st.integers(0, 30)), min_size=1, max_size=4)),
        st.tuples(st.just("root"), st.none()),
        st.tuples(st.just("commit"), st.tuples(st.integers(0, 30), tokens, st.booleans(), st.integers(0, 3))),
        st.tuples(st.just("feed"), st.tuples(st.integers(0, 9), st.integers(0, 9))),
    ),
    max_size=14,
)


@given(st.lists(tokens, max_size=3), commands)
@settings(max_examples=60)
def test_it_is_its_slow_twin(committed: list[int], todo: list[tuple[str, object]]) -> None:
    fast, slow = FedSession(HEAD), SlowSession(HEAD)
    for session in (fast, slow):
        session.begin("prompt", b"jpeg", committed)
        session.feed([9, 8, 7, *committed], len(committed), features(1, 3 + len(committed)))
    answer = [9, 8, 7, *committed]
    for number, (kind, what) in enumerate(todo):
        if kind == "extend":
            chosen: list[tuple[int, int]] = what  # type: ignore[assignment]
            count = len(slow.nodes)
            parents = [parent % (count + place + 1) - 1 for place, (_, parent) in enumerate(chosen)]
            one, other = (session.extend([token for token, _ in chosen], parents) for session in (fast, slow))
            np.testing.assert_allclose(one, other, atol=1e-9)
        elif kind == "root":
            np.testing.assert_allclose(fast.root_logits(), slow.root_logits(), atol=1e-9)
        elif kind == "commit":
            where, token, hits, fed = what  # type: ignore[misc]
            path, node = list[int](), where % (len(slow.nodes) + 1) - 1
            while node != ROOT:
                path.insert(0, node)
                node = slow.nodes[node][0]
            if hits and path:
                token = slow.nodes[path.pop()][1].token
            answer += [*(slow.nodes[each][1].token for each in path), token]
            assert fast.commit(path, token) == slow.commit(path, token)
            new = min(fed, len(path) + 1)
            for session in (fast, slow):
                if new:
                    session.feed(answer[-new:], len(answer) - 3, features(number, new))
        else:
            start, count = what  # type: ignore[misc]
            low = start % len(answer)
            part = answer[low : low + count + 1]
            for session in (fast, slow):
                session.feed(part, low + len(part) - 3, features(number, len(part)))
    np.testing.assert_allclose(fast.root_logits(), slow.root_logits(), atol=1e-9)


@pytest.mark.parametrize(
    ("tokens", "end", "size", "complaint"),
    [
        ([5, 6], 2, CONFIG.size + 1, "no multiple of the 16 bytes"),
        ([5, 7], 2, CONFIG.size, "other tokens than those committed"),
        ([5, 6, 1], 2, CONFIG.size, "2 features for 3 tokens"),
        ([1, 2], -9, CONFIG.size, "do not reach"),
        ([VOCABULARY] * 2, -4, CONFIG.size, f"token {VOCABULARY} is outside"),
    ],
)
def test_features_that_do_not_fit_change_nothing(tokens: list[int], end: int, size: int, complaint: str) -> None:
    session = prompted()
    session.commit([], 5)
    session.commit([], 6)
    before = session.root_logits()
    with pytest.raises(ValueError, match=complaint):
        session.feed(tokens, end, pack(np.ones((2, size), np.float32)))
    assert not session.root_is_new
    np.testing.assert_array_equal(session.root_logits(), before)


def test_without_anything_committed_there_is_no_root() -> None:
    session = FedSession(HEAD)
    session.begin("prompt", b"jpeg")
    with pytest.raises(RuntimeError, match="no root yet"):
        session.root_logits()
    with pytest.raises(RuntimeError, match="no root yet"):
        session.extend([1], [ROOT])


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_a_forward_that_is_given_up_leaves_no_trace(calls: int) -> None:
    """Three levels, given up before each of them."""
    session, other = prompted(), prompted()
    left = [calls]

    def stop() -> bool:
        left[0] -= 1
        return left[0] < 0

    with pytest.raises(Abandoned):
        session.extend([5, 6], [ROOT, 0], stop)
    for one in (session, other):
        one.extend([7, 9], [ROOT, 0])
    np.testing.assert_array_equal(session.extend([11], [1]), other.extend([11], [1]))


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_tokens_outside_the_vocabulary_are_refused(token: int) -> None:
    session = prompted()
    for call in (lambda: session.extend([token], [ROOT]), lambda: session.commit([], token),
                 lambda: session.begin("p", b"", [token])):  # fmt: skip
        with pytest.raises(ValueError, match=f"token {token} is outside"):
            call()


def test_a_long_answer_finds_room() -> None:
    session, other = prompted(), prompted()
    for place in range(300):
        session.commit([], place % VOCABULARY)
        other.commit([], place % VOCABULARY)
        session.feed([place % VOCABULARY], place + 1, features(place, 1))
    other.feed([place % VOCABULARY for place in range(300)], 300, b"".join(features(i, 1) for i in range(300)))
    np.testing.assert_allclose(session.root_logits(), other.root_logits(), atol=1e-9)
    assert torch.get_default_dtype() is torch.float32
