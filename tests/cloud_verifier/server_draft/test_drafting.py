"""The draft model beside the target: what it drafts is what it would draft alone, whatever shares its forwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cloud_verifier.config import StartError
from cloud_verifier.interfaces import Row
from cloud_verifier.server_draft import drafting
from cloud_verifier.server_draft.drafting import ServerDraft, check_pair
from cloud_verifier.tree import Tree
from speculation.cancellation import Abandoned
from speculation.sampling import GREEDY, Coupled, DraftSampler, Prefix, StepDraws, choose
from speculation.vlm.cache import KVCache
from speculation.vlm.forward import Chunk, LayerOutput, forward_layers
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession
from speculation.wire import ROOT
from tests.cloud_verifier.test_engine import CAPACITY, PROMPTS, jpeg
from tests.models import tiny_model

ANSWER = 20


def alone(vlm: Vlm, row: int, answer: Sequence[int], count: int, ends: Sequence[int] = ()) -> tuple[int, ...]:
    """Return what a model drafts behind an answer, computed anew."""
    session = VlmSession(vlm, CAPACITY)
    session.begin(PROMPTS[row], jpeg(row), answer)
    tokens: list[int] = []
    while len(tokens) < count and not (tokens and tokens[-1] in ends):
        tokens.append(int(np.argmax(session.root_logits())))
        session.commit((), tokens[-1])
    return tuple(tokens)


def beside(vlm: Vlm, ends: Sequence[int] = (), capacity: int = CAPACITY) -> ServerDraft:
    drafts = ServerDraft(vlm, len(PROMPTS), capacity, ends, max_draft=16)
    for row, prompt in enumerate(PROMPTS):
        read(drafts, row, prompt, ANSWER)
    return drafts


def read(drafts: ServerDraft, row: int, prompt: str, max_tokens: int) -> None:
    """Let the model read a row's frame and prompt, all at once."""
    tokens = drafts.begin(row, drafts.prepare(prompt, jpeg(row)), max_tokens)
    drafts.encode(row)
    drafts.feed(row, tokens)


def asking(index: int, answer: tuple[int, ...], count: int) -> Row:
    return Row(index, self_draft=count, answer=answer)


def drafted(drafts: ServerDraft, *rows: Row) -> dict[int, tuple[int, ...]]:
    """Return the tokens of what are chains."""
    trees = grown(drafts, *rows)
    assert all(tree.parents == tuple(range(-1, len(tree.tokens) - 1)) for tree in trees.values())
    return {index: tree.tokens for index, tree in trees.items()}


def grown(drafts: ServerDraft, *rows: Row) -> dict[int, Tree]:
    *_, last = drafts.draft(rows)
    return dict(last)


def tree_alone(
    vlm: Vlm, row: int, answer: Sequence[int], size: int, depth: int, sampler: DraftSampler | None = None
) -> dict[tuple[int, ...], float]:
    """Return the paths of the best tree with their probabilities: the slow way, every prefix computed anew."""
    session, found, level = VlmSession(vlm, CAPACITY), dict[tuple[int, ...], float](), [((), 1.0)]
    for _ in range(depth):
        for path, chance in level:
            session.begin(PROMPTS[row], jpeg(row), [*answer, *path])
            logits = session.root_logits()
            if sampler is not None:
                logits = sampler.rank(logits, Prefix(len(answer) + len(path), b""))
            shares = np.exp(logits - logits.max())
            found |= {(*path, token): chance * float(share) for token, share in enumerate(shares / shares.sum())}
        before = {path for path, _ in level}
        found = dict(sorted(found.items(), key=lambda each: -each[1])[:size])
        level = [(path, chance) for path, chance in found.items() if path[:-1] in before]
    return found


def paths_of(tree: Tree) -> dict[tuple[int, ...], float]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((token,) if parent == ROOT else (*paths[parent], token))
    return dict(zip(paths, tree.reach, strict=True))


def test_a_long_answer_that_is_taken_up_again_is_fed_in_pieces(draft: Vlm, monkeypatch: pytest.MonkeyPatch) -> None:
    most, fed = 8, list[int]()

    def counted(vlm: Vlm, cache: KVCache, chunks: Sequence[Chunk]) -> Iterator[LayerOutput]:
        fed.extend(len(chunk.tokens) for chunk in chunks)
        return forward_layers(vlm, cache, chunks)

    answers = [tuple(5 + (row + place) % 300 for place in range(length)) for row, length in enumerate((19, 7, 8))]
    rows = [asking(row, answer, 3) for row, answer in enumerate(answers)]
    drafts, longer = beside(draft), [(*answer, 9) for answer in answers]
    monkeypatch.setattr(drafting, "MOST_PENDING", most)
    monkeypatch.setattr(drafting, "forward_layers", counted)
    for asked in (rows, [asking(row, answer, 3) for row, answer in enumerate(longer)]):
        expected = {row.index: alone(draft, row.index, row.answer, 3) for row in asked}
        assert drafted(drafts, *asked) == expected
    assert max(fed) == most


def test_a_batch_grows_the_likeliest_trees_as_each_row_would_alone(draft: Vlm) -> None:
    """Beside a chain, over answers that follow a path of the tree, leave it, or jump; rows that skip a turn."""
    drafts, dice = beside(draft), np.random.default_rng(2)
    answers: list[list[int]] = [[], [7, 9], []]
    for turn in range(5):
        sizes = {index: (1 + int(dice.integers(16)), int(dice.integers(1, 6))) for index in range(2)}
        rows = [
            Row(index, self_draft=size, self_depth=depth, answer=tuple(answers[index]))
            for index, (size, depth) in sizes.items()
            if (turn + index) % 3 or not turn
        ]
        given = grown(drafts, *rows, asking(2, tuple(answers[2]), 3))
        assert given.pop(2).tokens == alone(draft, 2, answers[2], 3)
        for row in rows:
            paths = paths_of(given[row.index])
            expected = tree_alone(draft, row.index, row.answer, *sizes[row.index])
            assert list(paths) == sorted(paths, key=lambda path: -paths[path]) and len(paths) <= row.self_draft
            assert paths == pytest.approx(expected, rel=1e-9)
            longest = max(paths, key=len)
            answers[row.index] += [*longest[: dice.integers(len(longest) + 1)], int(dice.integers(draft.vocabulary))]
        answers[2] += [1]


def test_drafts_get_the_targets_penalty_and_not_their_own(draft: Vlm) -> None:
    """Behind prompt, answer and path, as the draft model would alone if the penalty were its own."""
    own = replace(draft, repetition_penalty=1.3)
    drafts = ServerDraft(replace(draft, repetition_penalty=9.0), 1, CAPACITY, (), repetition_penalty=1.3)
    read(drafts, 0, PROMPTS[0], 20)
    for answer in ((), (7, 9), (7, 9, 11, 7)):
        session = VlmSession(own, CAPACITY)
        expected = list(session.sampled(PROMPTS[0], jpeg(0), len(answer) + 6, GREEDY, committed=answer))
        assert drafted(drafts, asking(0, answer, 6))[0] == tuple(token for token, _ in expected)


def test_a_tree_is_ranked_as_the_targets_tokens_are_drawn(target: Vlm) -> None:
    settings = Coupled(temperature=1.5)
    row = Row(0, sampling=settings, draws=StepDraws(7, 2), self_draft=12, self_depth=3, answer=(3, 4))
    expected = tree_alone(target, 0, (3, 4), 12, 3, settings.sampler(7))
    assert paths_of(grown(beside(target), row)[0]) == pytest.approx(expected, rel=1e-9)


def test_a_draft_is_drawn_as_the_targets_tokens_are(target: Vlm) -> None:
    """The target drafting for itself draws what it will be judged by; without the draws it is often wrong."""
    settings = Coupled(temperature=1.5)
    draws = StepDraws(key=7, position=3)
    session = VlmSession(target, CAPACITY)
    session.begin(PROMPTS[0], jpeg(0), (3, 4, 5))
    truth: list[int] = []
    for depth in range(8):
        token, _ = choose(session.root_logits(), settings, draws.ahead(depth))
        truth.append(token)
        session.commit((), token)
    coupled = Row(0, sampling=settings, draws=draws, self_draft=8, answer=(3, 4, 5))
    plain = asking(1, (3, 4, 5), 8)
    given = drafted(beside(target), coupled, plain)
    assert list(given[0]) == truth != list(alone(target, 0, (3, 4, 5), 8))
    assert given[1] == alone(target, 1, (3, 4, 5), 8)


def test_a_prompt_may_be_read_in_any_chunks_between_the_drafts_of_others(draft: Vlm) -> None:
    drafts, dice = beside(draft), np.random.default_rng(3)
    for _ in range(4):
        inputs = drafts.prepare(PROMPTS[1], jpeg(1))
        left = drafts.begin(1, inputs, ANSWER)
        with pytest.raises(ValueError, match="are to be fed before it was encoded"):
            drafts.feed(1, left)
        drafts.encode(1)
        while left:
            with pytest.raises(Abandoned):
                drafts.feed(1, left, stop=lambda: True)
            size = int(dice.integers(1, left + 1))
            drafts.feed(1, size)
            left -= size
            assert drafted(drafts, asking(0, (3,), 3))[0] == alone(draft, 0, (3,), 3)
        assert drafted(drafts, asking(1, (), 4))[1] == alone(draft, 1, (), 4)


def test_a_draft_of_another_tokenizer_is_refused_before_it_is_loaded(
    tiny_target: Path, tiny_draft: Path, tmp_path: Path
) -> None:
    check_pair(tiny_target, tiny_draft)
    stranger = tiny_model(tmp_path / "stranger", layers=1, vocabulary=300)
    with pytest.raises(StartError, match="--draft-model .*stranger: its tokenizer .* is not the target's"):
        check_pair(tiny_target, stranger)
