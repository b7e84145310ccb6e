"""Scheduler: whatever arrives in whatever order, the answer is the target's own; and the batch is a fair one."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.config import Limits, Scheduling
from cloud_verifier.policies import POLICIES
from cloud_verifier.scheduler import Refused, Scheduler
from speculation.language.grammar import Grammars
from speculation.sampling import Whole
from speculation.wire import (
    ROOT,
    BeginStep,
    Commit,
    Draft,
    FaultCode,
    Grammar,
    Idle,
    begin_digest,
    extend_digest,
)
from tests.cloud_verifier.fake_target import VOCABULARY, FakeEngine, greedy
from tests.cloud_verifier.scheduling import JPEG, Bench
from tests.models import tiny_tokenizer


class Edge:
    """One robot: takes commits as a real edge does, and drafts right, wrong or far ahead as the test chooses."""

    def __init__(self, row: int, max_tokens: int, idle: Idle, hints: list[list[int]]) -> None:
        prompt = f"robot {row}"
        self.truth = greedy(prompt, JPEG, max_tokens)
        self.begin = BeginStep(1, prompt, JPEG, max_tokens=max_tokens, idle=idle, hints=[self.truth, *hints][::-1])
        self.answer: list[int] = []
        self.done = False
        self.round = 0

    def take(self, commit: Commit) -> None:
        known = len(self.answer) - commit.start
        if known < 0:
            return
        assert commit.tokens[:known] == self.answer[commit.start : commit.start + len(commit.tokens)]
        self.answer += commit.tokens[known:]
        if known <= len(commit.tokens):
            self.done = self.done or commit.done
            assert commit.digest == self.digest(self.answer)
        assert self.answer == self.truth[: len(self.answer)]
        assert not self.done or self.answer == self.truth

    def digest(self, prefix: list[int]) -> bytes:
        return extend_digest(begin_digest(self.begin.prompt, JPEG), prefix)

    def draft(self, tokens: list[int], back: int, guess: list[int], parents: list[int] | None) -> Draft:
        """Draft behind the answer, `back` tokens before its end, or behind a `guess` of what comes next."""
        prefix = self.answer[: len(self.answer) - back] if back else self.answer + guess
        self.round += 1
        return Draft(1, self.round, len(prefix), self.digest(prefix), tokens, parents)


@st.composite
def drafts_of(draw: st.DrawFn, edge: Edge) -> Draft:
    back = draw(st.integers(0, min(3, len(edge.answer))))
    guess = edge.truth[len(edge.answer) :][: draw(st.integers(0, 4))]
    if draw(st.booleans()) and guess:
        guess[-1] = draw(st.integers(0, VOCABULARY - 1))
    start = len(edge.answer) - back if back else len(edge.answer) + len(guess)
    right = edge.truth[start:][: draw(st.integers(0, 6))]
    wrong = draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=3))
    tokens = right + wrong
    parents = None
    if draw(st.booleans()):
        parents = [draw(st.integers(ROOT, node - 1)) for node in range(len(tokens))]
    return edge.draft(tokens, back, guess, parents)


hints = st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=6), max_size=2)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_order_of_messages_commits_the_targets_own_answer(data: st.DataObject) -> None:
    """Drafts and commits are delayed, dropped, repeated and reordered; then the edges ask again until they are done."""
    count = data.draw(st.integers(1, 3))
    bench = Bench(max_batch=data.draw(st.integers(1, 3)), policy=data.draw(st.sampled_from(list(POLICIES))))
    edges = [
        Edge(row, data.draw(st.integers(1, 14)), data.draw(st.sampled_from(Idle)), data.draw(hints))
        for row in range(count)
    ]
    up: list[tuple[int, Draft | BeginStep]] = []
    down: list[tuple[int, Commit]] = []

    def deliver(row: int, message: Draft | BeginStep) -> None:
        if isinstance(message, BeginStep):
            down.extend((row, commit) for commit in bench.take(row, message))
            return
        try:
            down.extend((row, commit) for commit in bench.scheduler.offer(row, message, bench.now))
        except Refused as error:
            assert error.fault.code is FaultCode.NO_SESSION  # the draft overtook its BeginStep

    up += [(row, edge.begin) for row, edge in enumerate(edges)]
    for _ in range(data.draw(st.integers(0, 30))):
        match data.draw(st.sampled_from(["draft", "begin", "deliver", "take", "drop", "repeat", "turn"])):
            case "draft":
                row = data.draw(st.integers(0, count - 1))
                up.append((row, data.draw(drafts_of(edges[row]))))
            case "begin":
                row = data.draw(st.integers(0, count - 1))
                message = BeginStep(1, edges[row].begin.prompt, JPEG, list(edges[row].answer),
                                    edges[row].begin.max_tokens, edges[row].begin.idle)  # fmt: skip
                up.append((row, message))
            case "deliver" if up:
                deliver(*up.pop(data.draw(st.integers(0, len(up) - 1))))
            case "repeat" if up:
                deliver(*up[data.draw(st.integers(0, len(up) - 1))])
            case "take" if down:
                row, commit = down.pop(data.draw(st.integers(0, len(down) - 1)))
                edges[row].take(commit)
            case "drop" if up or down:
                bag: list = up if up and (not down or data.draw(st.booleans())) else down  # type: ignore[type-arg]
                bag.pop(data.draw(st.integers(0, len(bag) - 1)))
            case "turn":
                down += bench.turn().items()
    for _ in range(100):
        for row, edge in enumerate(edges):
            if not edge.done:
                deliver(row, BeginStep(1, edge.begin.prompt, JPEG, list(edge.answer), edge.begin.max_tokens, Idle.WAIT))
                deliver(row, edge.draft([], 0, [], None))
        for _ in range(2 * count):
            down += bench.turn().items()
        while down:
            row, commit = down.pop(0)
            edges[row].take(commit)
        if all(edge.done for edge in edges):
            break
    assert [edge.answer for edge in edges] == [edge.truth for edge in edges]


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        (Draft(2, 1, 0, bytes(8), [1]), FaultCode.NO_SESSION, "step 2 was not begun"),
        (Draft(1, 1, 0, bytes(8), [1]), FaultCode.NO_SESSION, "differ; begin the step again"),
        (Draft(1, 1, 0, begin_digest("long 0", JPEG), [1, 99]), FaultCode.MALFORMED, r"Draft.tokens\[1\] = 99"),
        (Draft(1, 1, 0, begin_digest("long 0", JPEG), [1] * 9), FaultCode.TOO_LARGE, "9 tokens, the limit is 8"),
    ],
)
def test_a_draft_that_cannot_be_judged_is_refused(message: Draft, code: FaultCode, words: str) -> None:
    bench = Bench(max_draft=8)
    bench.begin(0)
    with pytest.raises(Refused, match=words) as caught:
        bench.scheduler.offer(0, message, 0.0)
    assert caught.value.fault.code is code and caught.value.fault.step == message.step


def test_steps_only_go_forward() -> None:
    bench = Bench()
    bench.begin(0, step=5)
    with pytest.raises(Refused, match="step 4 comes before the current step 5"):
        bench.begin(0, step=4)
    with pytest.raises(Refused, match=r"BeginStep.committed\[0\] = 6"):
        bench.begin(0, step=6, committed=[VOCABULARY])
    with pytest.raises(Refused, match=r"BeginStep.hints\[1\]\[0\] = 6"):
        bench.begin(0, step=6, hints=[[1], [VOCABULARY]])


def test_a_right_draft_commits_itself_and_one_more() -> None:
    bench = Bench()
    bench.begin(0, max_tokens=20)
    truth = greedy("long 0", JPEG, 20)
    bench.scheduler.offer(0, Draft(1, 3, 0, begin_digest("long 0", JPEG), truth[:3]), bench.now)
    commit = bench.turn()[0]
    assert commit.tokens == truth[:4] and (commit.round, commit.passes) == (3, 1), "with the end of its prefill"
    assert (commit.queue_s, commit.compute_s, commit.prefill_s) == (0.0, 0.0, 0.25)
    bench.scheduler.offer(0, Draft(1, 4, 4, commit.digest, truth[4:6]), bench.now)
    commit = bench.turn()[0]
    assert commit.tokens == truth[4:7] and (commit.round, commit.passes) == (4, 1)
    assert (commit.queue_s, commit.compute_s, commit.prefill_s) == (1.0, 0.5, 0.0)


def test_the_first_token_comes_with_the_end_of_the_prefill_but_where_one_sampled_chain_is_judged() -> None:
    bench = Bench()
    bench.begin(0, idle=Idle.WAIT)
    assert bench.turn()[0].tokens == greedy("long 0", JPEG, 1)
    assert bench.engine.batches == [(0,)] and bench.engine.chunks == [{0: len("long 0") - 1}]
    bench = Bench()
    step = BeginStep(1, "long 0", JPEG, max_tokens=20, idle=Idle.WAIT)
    bench.take(0, step, Whole(1.0))
    assert bench.turn() == {} and not bench.step(0).pending


def test_a_grammar_that_cannot_be_kept_to_is_refused() -> None:
    asked = BeginStep(1, "find it", JPEG, grammar=Grammar.REASON_FIRST)
    with pytest.raises(Refused, match="REASON_FIRST: the target's tokenizer takes none") as caught:
        Bench().scheduler.begin(0, asked, 0.0)
    assert caught.value.fault.code is FaultCode.UNSUPPORTED_SAMPLING
    tokenizer = tiny_tokenizer()
    model = replace(FakeEngine().model, vocabulary=len(tokenizer), grammars=Grammars(tokenizer, len(tokenizer)))
    scheduler = Scheduler(model, Scheduling(), Limits())
    foreign = tokenizer("\nActive", add_special_tokens=False)["input_ids"]
    with pytest.raises(Refused, match="committed begins no answer of grammar REASON_FIRST") as caught:
        scheduler.begin(0, msgspec.structs.replace(asked, committed=foreign), 0.0)
    assert caught.value.fault.code is FaultCode.MALFORMED
    begun = tokenizer("I see it.\nAct", add_special_tokens=False)["input_ids"]
    assert scheduler.begin(0, msgspec.structs.replace(asked, committed=begun), 0.0) == []
