"""A server whose memory holds few of its robots: what it refuses, evicts and takes up again, on a virtual clock."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from cloud_verifier.config import ServerConfig
from cloud_verifier.scheduler import WAITED_S
from cloud_verifier.sessions import SILENT_S
from speculation.profiles import DeviceProfile
from speculation.vlm.blocks import blocks_for
from speculation.wire import Busy, EndStep, Fault, FaultCode, Idle, Ping, Stage, Working
from tests.cloud_verifier.bench import HELLO, JPEG, Bench, Robot, begin, draft, faults, tokens_of
from tests.cloud_verifier.fake_target import FakeEngine, greedy

MAX_DRAFT, TOKENS = 8, 20
SLOW = DeviceProfile("slow", verify_s=0.05)
CONFIG = ServerConfig.of(Path("model"), max_sessions=64, max_draft=MAX_DRAFT, early_rate=1000.0)
STEP = blocks_for(len("long") + TOKENS + MAX_DRAFT)
"""Blocks of a step."""


def bench_of(steps: float, config: ServerConfig = CONFIG) -> Bench:
    """Return a server with memory for so many steps."""
    return Bench(config, SLOW, FakeEngine(memory=int(steps * STEP)))


def robot_of(bench: Bench, name: str) -> Robot:
    """Return a robot in mode cloud."""
    return Robot(bench, name, begin(max_tokens=TOKENS), greedy("long", JPEG, TOKENS))


def crowd_of(robots: int, policy: str, seconds: float) -> list[Robot]:
    """Let so many robots ask a server, whose memory holds two steps, for so long."""
    bench = bench_of(2, CONFIG.changed(policy=policy))
    crowd = [robot_of(bench, f"robot {number}") for number in range(robots)]
    while bench.post.now < seconds:
        bench.turns(1)
        for robot in crowd:
            robot.turn()
        assert bench.server._memory.free >= 0
        assert len(bench.engine.rows) <= 2
    return crowd


@pytest.mark.parametrize("policy", ["full_budget", "wisp"])
def test_every_token_is_right_and_goodput_stays_at_ten_times_what_fits(policy: str) -> None:
    goodput = {}
    for robots in (2, 20):
        crowd = crowd_of(robots, policy, seconds=45.0)  # by then each has had its turn, see MOST_WAIT_S
        assert all(robot.answers for robot in crowd)
        goodput[robots] = sum(robot.tokens for robot in crowd)
        assert (sum(robot.refused for robot in crowd) > 0) == (robots > 2)
    assert goodput[20] > 0.9 * goodput[2]


def test_a_step_that_finds_no_room_waits_in_line_and_a_third_is_told_when() -> None:
    bench = bench_of(1).with_robots(b"a", b"b", b"c")
    bench.ask(b"a", begin(max_tokens=TOKENS))
    waiting = bench.ask(b"b", begin(max_tokens=TOKENS, idle=Idle.DECODE))
    assert waiting and set(waiting) == {Working(1, Stage.QUEUED)}
    (busy,) = bench.ask(b"c", begin(max_tokens=TOKENS))
    assert isinstance(busy, Busy) and busy.step == 1 and "others wait for theirs" in busy.message
    assert bench.ask(b"c", draft([1])) == [], "a draft that crossed it needs no answer"
    bench.ask(b"a", EndStep(1, "enough"))
    assert tokens_of(bench.received(b"b")) == greedy("long", JPEG, TOKENS)


def test_idle_steps_make_room_and_go_on_where_they_stood() -> None:
    bench = bench_of(1)
    truth = greedy("long", JPEG, TOKENS)
    for peer in (b"a", b"b"):
        bench.welcome(peer)
    assert tokens_of(bench.ask(b"a", begin(max_tokens=TOKENS), draft(truth[:3]))) == truth[:4]
    bench.ask(b"b", begin(max_tokens=TOKENS, idle=Idle.DECODE))
    assert not tokens_of(bench.received(b"b")), "a has its memory as long as it is not idle"
    bench.send(b"a", Ping(1), after=WAITED_S)
    bench.post.now += WAITED_S + 1.0
    bench.turns()
    assert tokens_of(bench.received(b"b")) == truth
    assert faults(bench.received(b"a")) == [FaultCode.NO_SESSION]
    again = bench.ask(b"a", begin(max_tokens=TOKENS, committed=truth[:4], idle=Idle.DECODE))
    assert tokens_of(again) == truth[4:]


def test_the_step_of_a_robot_that_is_gone_is_the_first_to_go() -> None:
    bench = bench_of(2)
    truth = greedy("long", JPEG, TOKENS)
    token = ""
    for peer in (b"stays", b"goes"):
        token = bench.welcome(peer).session
        bench.ask(peer, begin(max_tokens=TOKENS), draft(truth[:3]))
    bench.post.gone.add(b"goes")
    bench.send(b"goes", draft(truth[:2], round=2))
    bench.turns()
    bench.welcome(b"new")
    bench.ask(b"stays", Ping(1))
    assert tokens_of(bench.ask(b"new", begin(max_tokens=TOKENS, idle=Idle.DECODE))) == truth
    assert faults(bench.received(b"stays")) == []
    bench.welcome(b"back", msgspec.structs.replace(HELLO, resume=token))
    again = bench.ask(b"back", begin(max_tokens=TOKENS, committed=truth[:2], idle=Idle.DECODE))
    assert tokens_of(again) == truth[2:]


def test_a_step_that_never_fits_is_refused_by_name() -> None:
    bench = bench_of(1).with_robots(b"a")
    (fault,) = bench.ask(b"a", begin(max_tokens=200))
    assert isinstance(fault, Fault) and fault.code is FaultCode.TOO_LARGE and "more --memory" in fault.message


def test_random_storms_leave_the_books_right() -> None:
    """Begin, draft, end, vanish, come back, in any order: what rows hold is what is admitted, and nothing is lost."""
    dice = random.Random(5)
    bench = bench_of(3.5)
    peers = [f"p{number}".encode() for number in range(8)]
    steps = dict.fromkeys(peers, 0)
    for peer in peers:
        bench.welcome(peer)
    for _ in range(600):
        peer = dice.choice(peers)
        act = dice.random()
        if act < 0.5:
            steps[peer] += 1
            bench.send(
                peer, begin(steps[peer], max_tokens=dice.choice([4, TOKENS, 40]), idle=Idle(dice.choice([0, 1])))
            )
        elif act < 0.7:
            bench.send(peer, EndStep(steps[peer], "enough"))
        elif act < 0.9:
            bench.send(peer, draft([1, 2], step=max(1, steps[peer])))
        else:
            bench.post.now += dice.random() * 8.0
        bench.turns(dice.randrange(1, 4))
        memory = bench.server._memory
        assert memory.free >= 0
        assert all(memory.held(index) > 0 for index in bench.engine.rows), "a row holds what was not admitted"
    for peer in peers:
        bench.send(peer, EndStep(steps[peer], "enough"))
    bench.turns(3)
    assert bench.engine.rows == {} and bench.server._memory.free == bench.engine.blocks


def test_an_edge_whose_mail_is_not_read_yet_is_not_silent() -> None:
    """While the verifier was held up nobody's pings were read."""
    bench = bench_of(2)
    for peer in (b"a", b"b"):
        bench.welcome(peer)
        bench.ask(peer, begin(max_tokens=TOKENS))
    now = bench.post.now = bench.post.now + SILENT_S + 1.0
    for index in (0, 1):
        bench.server._scheduler.step(index).since = now  # type: ignore[union-attr]
    bench.send(b"b", Ping(1))
    assert bench.server._admission.idle(now) == [0]
