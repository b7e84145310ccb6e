"""Forwards of a server: prefills and prompts of a draft model between them hold nobody up for long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.interfaces import Row
from cloud_verifier.tree import Tree
from speculation import wire
from speculation.cancellation import Stop
from speculation.wire import Commit, EndStep, Idle
from tests.cloud_verifier.bench import CONFIG, JPEG, Bench, FakePost, begin, faults, tokens_of
from tests.cloud_verifier.fake_target import LAYERS, FakeEngine, FakeSelfDraft, greedy


class Timed(FakeEngine):
    """A forward takes 0.1 s and 0.01 s a token, an image 0.3 s, on the clock of `post`."""

    post: FakePost

    def encode(self, index, stop=None):  # type: ignore[no-untyped-def]
        self.post.now += 0.3
        super().encode(index, stop)

    def verify(self, rows):  # type: ignore[no-untyped-def]
        for output in super().verify(rows):
            self.post.now += (0.1 + 0.01 * sum(row.load.new for row in rows)) / LAYERS
            yield output


def timed(**settings: object) -> Bench:
    engine = Timed()
    bench = Bench(CONFIG.changed(max_sessions=3, **settings), engine=engine)
    engine.post = bench.post
    return bench


class TimedDraft(FakeSelfDraft):
    """An image takes 0.2 s, a forward over a prompt 0.02 s and 0.005 s a token, one that drafts 0.02 s."""

    post: FakePost

    def encode(self, index: int, stop: Stop | None = None) -> None:
        self.post.now += 0.2
        super().encode(index, stop)

    def feed(self, index: int, tokens: int, stop: Stop | None = None) -> None:
        self.post.now += 0.02 + 0.005 * tokens
        super().feed(index, tokens, stop)

    def draft(self, rows: Sequence[Row]) -> Iterator[Mapping[int, Tree]]:
        for drafts in super().draft(rows):
            self.post.now += 0.02
            yield drafts


def timed_beside() -> Bench:
    engine, drafts = Timed(), TimedDraft(wrong=0)
    bench = Bench(CONFIG.changed(max_sessions=3), engine=engine, self_draft=drafts)
    engine.post = drafts.post = bench.post
    return bench


def gaps(bench: Bench, peer: bytes) -> list[float]:
    """Return the seconds between the commits that a peer got."""
    times = [at for at, who, message in bench.post.sent if who == peer and isinstance(message, Commit)]
    return [later - earlier for earlier, later in pairwise(times)]


@settings(deadline=None, max_examples=8)
@given(length=st.integers(100, 500), gamma=st.sampled_from([0, 3]), after=st.floats(0.5, 2.0))
def test_a_prompt_that_the_draft_model_reads_holds_no_other_up(length: int, gamma: int, after: float) -> None:
    """A robot that decodes waits for an image, or for a chunk about as long as its own token, but never for a prompt.

    Of the other robots one begins to be drafted for, and one may be where its ledger so chooses.
    """
    bench = timed_beside()
    prompts = {b"a": "long", b"b": "long b".ljust(length), b"c": "long c".ljust(length)}
    for peer in prompts:
        bench.welcome(peer)
    bench.send(b"a", begin(max_tokens=150, idle=Idle.DECODE))
    bench.send(b"b", begin(prompt=prompts[b"b"], max_tokens=40, self_draft=gamma, idle=Idle.LEDGER), after=after)
    bench.send(b"c", begin(prompt=prompts[b"c"], max_tokens=40, idle=Idle.LEDGER), after=after)
    bench.turns(1200)
    for peer, prompt in prompts.items():
        assert tokens_of(bench.received(peer)) == greedy(prompt, JPEG, 150 if peer == b"a" else 40)
    drafts = bench.machine.draft_engine
    assert isinstance(drafts, TimedDraft)
    read = {index: sum(tokens for row, tokens in drafts.chunks if row == index) for index in (0, 1)}
    assert read[1] == length - 1 and len(drafts.chunks) > 4, "it was read, in pieces"
    # One token of three robots, a chunk of the target's beside them, and drafting 3 tokens.
    longest_forward = 0.1 + 0.01 * (3 + 4 + max(16, 11)) + 0.02 * max(3, gamma)
    assert max(gaps(bench, b"a")) <= 0.3 + longest_forward + 1e-6


@pytest.mark.parametrize("then", [EndStep(1, "cancelled"), begin(2, "long again", max_tokens=3, idle=Idle.DECODE)])
def test_a_prefill_that_ends_in_a_forward_changes_nothing_for_the_others_of_it(then: wire.AnyMessage) -> None:
    bench = timed(prefill_chunk=16).with_robots(b"a", b"b")
    bench.send(b"a", begin(max_tokens=20, idle=Idle.DECODE))
    bench.send(b"b", begin(prompt="long".ljust(100), max_tokens=3, idle=Idle.DECODE))
    while bench.engine.chunks[-1:] != [{1: 16}]:
        bench.turns(1)
    bench.send(b"b", then, after=0.05)
    bench.turns(60)
    assert tokens_of(bench.received(b"a")) == greedy("long", JPEG, 20) and max(gaps(bench, b"a")[1:]) < 0.61
    assert tokens_of(bench.received(b"b")) == ([] if isinstance(then, EndStep) else greedy("long again", JPEG, 3))
    assert faults(bench.received(b"a")) == faults(bench.received(b"b")) == []
