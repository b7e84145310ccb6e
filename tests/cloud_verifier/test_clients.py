"""Robots with keys: what a client's sessions, resume tokens and quotas are, on a virtual clock."""

from __future__ import annotations

import msgspec
import pytest

from cloud_verifier.sessions import SILENT_S
from speculation.wire import Busy, Hello, Idle, Ping, Pong, Welcome
from tests.cloud_verifier.bench import CONFIG, HELLO, JPEG, Bench, begin, draft, tokens_of
from tests.cloud_verifier.fake_target import greedy


def resuming(token: str) -> Hello:
    return msgspec.structs.replace(HELLO, resume=token)


def test_a_resume_token_works_with_its_own_key_only() -> None:
    bench = Bench(CONFIG.changed(max_sessions=3))
    bench.post.clients |= {b"a": "go2-7", b"thief": "go2-8", b"again": "go2-7"}
    token = bench.welcome(b"a").session
    bench.ask(b"a", begin(max_tokens=3, idle=Idle.DECODE))
    assert bench.welcome(b"thief", resuming(token)).session != token
    assert bench.ask(b"a", Ping(1)) == [Pong(1)], "the robot has its session still"
    assert bench.welcome(b"again", resuming(token)).session == token


def test_a_key_that_is_taken_back_ends_its_sessions() -> None:
    bench = Bench()
    bench.post.clients |= {b"a": "go2-7", b"b": "go2-8"}
    token = bench.welcome(b"a").session
    bench.welcome(b"b")
    bench.post.taken_back.append("go2-7")
    bench.turns(2)
    bench.post.clients[b"c"] = "go2-7"
    assert bench.welcome(b"c", resuming(token)).session != token
    assert bench.ask(b"b", Ping(1)) == [Pong(1)]


def test_one_client_cannot_take_all_places_and_its_dead_sessions_make_room() -> None:
    bench = Bench(CONFIG.changed(max_sessions=4, sessions_per_client=2))
    bench.post.clients |= {bytes([peer]): "go2-7" for peer in b"abcd"}
    bench.welcome(b"a")
    bench.welcome(b"b")
    (busy,) = bench.ask(b"c", HELLO)
    assert isinstance(busy, Busy) and "all 2 sessions of go2-7 are taken (--sessions-per-client)" in busy.message
    assert isinstance(bench.ask(b"x", HELLO)[0], Welcome), "without a key there is no such limit"
    bench.post.gone.add(b"a")
    assert bench.welcome(b"d") and bench.ask(b"b", Ping(1)) == [Pong(1)]
    bench.post.now += SILENT_S + 1.0
    assert bench.ask(b"b", Ping(2)) == [Pong(2)]
    assert bench.welcome(b"c"), "one of the two was silent"


@pytest.mark.parametrize("named", [True, False])
def test_more_steps_than_the_quota_allows_come_back_when_it_is_paid_off(named: bool) -> None:
    """Four seconds' worth at once. Another client's steps are its own; the answer is the target's all the same."""
    bench = Bench(CONFIG.changed(steps_per_s=0.5))
    if named:
        bench.post.clients |= {b"a": "go2-7", b"b": "go2-8"}
    bench.welcome(b"a")
    bench.welcome(b"b")
    truth = greedy("long", JPEG, 3)
    began = bench.post.now
    for step in (1, 2, 3):
        bench.post.now = began
        assert tokens_of(bench.ask(b"a", begin(step, max_tokens=3, idle=Idle.DECODE))) == truth
    bench.post.now = began
    (busy,) = bench.ask(b"a", begin(4, max_tokens=3, idle=Idle.DECODE))
    assert isinstance(busy, Busy) and busy.step == 4 and "0.5 steps a second is used up (--steps-per-s)" in busy.message
    assert 0.25 <= busy.retry_after_s <= 2.0
    assert tokens_of(bench.ask(b"b", begin(1, max_tokens=3, idle=Idle.DECODE))) == truth
    bench.post.now = began + busy.retry_after_s + 0.01
    assert tokens_of(bench.ask(b"a", begin(4, max_tokens=3, idle=Idle.DECODE))) == truth


def test_more_draft_tokens_than_the_quota_allows_end_the_step_until_it_is_paid_off() -> None:
    bench = Bench(CONFIG.changed(draft_tokens_per_s=1.0)).with_robots(b"a")
    truth = greedy("long", JPEG, 6)
    bench.send(b"a", begin(max_tokens=6))
    committed = tokens_of(bench.ask(b"a", draft([*truth[:2], *[1] * 30])))
    assert committed and committed == truth[: len(committed)]
    (busy,) = bench.ask(b"a", draft([1, 2], round=2))
    assert isinstance(busy, Busy) and busy.step == 1 and "1 draft tokens a second" in busy.message
    (still,) = bench.ask(b"a", begin(2, committed=committed, max_tokens=6, idle=Idle.DECODE))
    assert isinstance(still, Busy) and still.step == 2
    bench.post.now += still.retry_after_s
    rest = tokens_of(bench.ask(b"a", begin(2, committed=committed, max_tokens=6, idle=Idle.DECODE)))
    assert committed + rest == truth
