"""Admission on a virtual clock: never above the memory, nobody waits for ever, and a share is a share."""

from __future__ import annotations

import heapq
import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.memory import LEAST_WAIT_S, MOST_WAIT_S, Admission, NoRoom

BLOCKS = 20


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, BLOCKS), st.floats(0.0, 3.0)), max_size=40), st.data())
def test_what_is_held_never_exceeds_the_memory(acts: list[tuple[int, int, float]], data: st.DataObject) -> None:
    """Any order of requests, grants and releases; who is evicted was idle, and is the first that could help."""
    memory, now = Admission(BLOCKS), 0.0
    held, asked = dict[int, int](), dict[int, int]()
    for index, blocks, passes in acts:
        now += passes
        if not blocks or index in held:
            memory.release(index, now)
            held.pop(index, None)
            asked.pop(index, None)
        else:
            try:
                memory.ask(index, blocks, now)
                asked[index] = blocks
            except NoRoom as refused:
                assert LEAST_WAIT_S <= refused.retry_after_s <= MOST_WAIT_S
                assert asked.keys() - {index}, "refused while nobody waits"
        idle = data.draw(st.permutations(sorted(held)))[: data.draw(st.integers(0, 3))]
        line = memory.line
        granted, evicted = memory.grant(now, idle)
        assert granted == list(line[: len(granted)]), "the line is not overtaken"
        assert evicted == idle[: len(evicted)], "the least recently used go first"
        for row in evicted:
            del held[row]
        for row in granted:
            held[row] = asked.pop(row)
        assert {row: memory.held(row) for row in range(6) if memory.held(row)} == held
        assert 0 <= memory.free == BLOCKS - sum(held.values())
        assert set(memory.line) == set(asked)
        if asked and not idle:
            assert asked[memory.line[0]] > memory.free, "the first of the line waits for nothing"


class Robots:
    """Robots that begin a step when the last one is done, each of so many blocks and seconds, and obey Busy."""

    def __init__(self, needs: list[tuple[int, float]], seed: int = 0, pause: float = 0.5) -> None:
        self.memory, self.dice = Admission(BLOCKS, seed), random.Random(seed)
        self.needs, self.pause = needs, pause
        self.block_seconds: dict[int, float] = defaultdict(float)
        self.steps: dict[int, int] = defaultdict(int)
        self.longest = 0.0
        self.refusals = 0

    def run(self, seconds: float) -> None:
        events = [(self.dice.random(), index, False) for index in range(len(self.needs))]
        asked: dict[int, float] = {}
        heapq.heapify(events)
        while events[0][0] < seconds:
            now, index, ends = heapq.heappop(events)
            if ends:
                self.memory.release(index, now)
                blocks, lasts = self.needs[index]
                self.block_seconds[index] += blocks * lasts
                self.steps[index] += 1
                heapq.heappush(events, (now + self.pause * self.dice.random(), index, False))
            else:
                asked.setdefault(index, now)
                try:
                    self.memory.ask(index, self.needs[index][0], now)
                except NoRoom as refused:
                    self.refusals += 1
                    heapq.heappush(events, (now + refused.retry_after_s, index, False))
            for each in self.memory.grant(now)[0]:
                self.longest = max(self.longest, now - asked.pop(each))
                heapq.heappush(events, (now + self.needs[each][1], each, True))


@pytest.mark.parametrize("seed", range(3))
def test_at_ten_times_what_fits_nobody_starves_and_the_memory_is_used(seed: int) -> None:
    """Forty robots where four fit, one of them needs all the memory at once."""
    robots = Robots([(BLOCKS, 1.0), *[(5, 1.0)] * 39], seed)
    robots.run(600.0)
    assert min(robots.steps[index] for index in range(40)) >= 10
    assert robots.longest < 2 * MOST_WAIT_S
    assert sum(robots.block_seconds.values()) > 0.9 * BLOCKS * 600.0


def test_robot_with_large_steps_gets_no_more_memory_than_the_others() -> None:
    """One asks for twelve blocks at once and again and again, eight for five: memory times time is about equal."""
    robots = Robots([(12, 1.0), *[(5, 1.0)] * 8])
    robots.run(600.0)
    shares = sorted(robots.block_seconds[index] for index in range(1, 9))
    assert 0.5 * shares[-1] <= robots.block_seconds[0] <= 1.5 * shares[0]


def test_where_there_is_room_nobody_is_refused() -> None:
    robots = Robots([(6, 1.0), (6, 2.0), (8, 0.2)], pause=0.0)
    robots.run(60.0)
    assert robots.refusals == 0 and robots.longest == 0.0


def full(blocks: int = BLOCKS) -> Admission:
    """Return a memory that is taken, with a line as long as it."""
    memory = Admission(BLOCKS)
    for index in (100, 101):
        memory.ask(index, blocks, 0.0)
        memory.grant(0.0)
    return memory


def test_refused_robots_do_not_return_together() -> None:
    memory, waits = full(), []
    for index in range(20):
        with pytest.raises(NoRoom, match="1 others wait") as refused:
            memory.ask(index, 1, 0.0)
        waits.append(refused.value.retry_after_s)
    assert len(set(waits)) == len(waits)


def test_waits_follow_how_long_steps_last() -> None:
    def wait(lasts: float) -> float:
        memory = Admission(BLOCKS)
        for step in range(50):
            memory.ask(0, BLOCKS, step * lasts)
            memory.grant(step * lasts)
            memory.release(0, (step + 1) * lasts)
        for index in range(2):
            memory.ask(index, BLOCKS, 1000.0)
            memory.grant(1000.0)
        with pytest.raises(NoRoom) as refused:
            memory.ask(2, BLOCKS, 1000.0)
        return refused.value.retry_after_s

    assert wait(2.0) == pytest.approx(4 * wait(0.5), rel=0.05)


def test_who_was_refused_for_long_may_wait_in_line() -> None:
    memory, now = full(), 0.0
    while now < MOST_WAIT_S:
        with pytest.raises(NoRoom) as refused:
            memory.ask(1, 3, now)
        now += refused.value.retry_after_s
    memory.ask(1, 3, now)
    assert memory.line == (101, 1)


def test_a_session_does_not_inherit_what_the_one_before_on_its_row_has_used() -> None:
    memory = Admission(BLOCKS)
    for _ in range(20):
        for index in (0, 1):
            memory.ask(index, BLOCKS // 2, 0.0)
        memory.grant(0.0)
        for index in (0, 1):
            memory.release(index, 0.1)
            if index:
                memory.forget(index)
    for index in (2, 3, 4):
        memory.ask(index, BLOCKS // 2, 0.2)
        memory.grant(0.2)
    with pytest.raises(NoRoom, match="had its share"):
        memory.ask(0, 1, 0.2)
    memory.ask(1, 1, 0.2)
    assert memory.line == (4, 1)


def test_a_refusal_counts_as_long_as_its_robot_is_expected_back() -> None:
    """Whoever stays away has no age when it comes again, and the waits of others do not grow by it."""

    def refused(memory: Admission, index: int, now: float) -> float:
        with pytest.raises(NoRoom) as error:
            memory.ask(index, 1, now)
        return error.value.retry_after_s

    crowded, left = full(), full()
    for index in range(20):
        refused(crowded, index, 0.0)
        refused(left, index, 0.0)
    for index in range(20):
        refused(crowded, index, 90.0)
    assert refused(left, 0, 100.0) < 0.5 * refused(crowded, 30, 90.0)


def test_a_turn_is_put_off_by_the_longest_wait_at_most() -> None:
    """Whatever a robot has used: after that time nobody who asks later goes before it."""
    memory = Admission(BLOCKS)
    for now in range(200):
        memory.ask(1, 1, float(now))
        memory.ask(0, BLOCKS - 1, float(now))
        memory.grant(float(now))
        memory.release(0, now + 0.9)
        memory.release(1, now + 0.9)
    now = 200.0 + MOST_WAIT_S
    memory.ask(2, BLOCKS, now)
    memory.grant(now)
    memory.ask(0, 1, now)
    memory.ask(3, 1, now + 0.1)
    assert memory.line == (0, 3)


def test_wrong_requests_are_refused_by_name() -> None:
    memory = full()
    for blocks in (0, BLOCKS + 1):
        with pytest.raises(ValueError, match=f"a step of {blocks} blocks: the memory has 20"):
            memory.ask(0, blocks, 0.0)
    with pytest.raises(ValueError, match="row 100 holds 20 blocks already"):
        memory.ask(100, 1, 0.0)


def test_prefill_time_has_shares_while_others_wait() -> None:
    memory, now, used = Admission(BLOCKS), 0.0, 0.0
    while now < 60.0:  # row 0 begins prefills of 0.2 s one after the other; three others wait
        try:
            memory.check_prefill(0, now, others=(1, 2, 3))
        except NoRoom as refused:
            assert LEAST_WAIT_S <= refused.retry_after_s <= MOST_WAIT_S and "are its share" in str(refused)
            now += refused.retry_after_s
        else:
            now += 0.2
            used += 0.2
            memory.prefilled(0, 0.2, now)
    assert 0.15 * now < used < 0.35 * now
    memory.check_prefill(0, now, others=())
    memory.check_prefill(1, now, others=(0,))
    memory.forget(0)
    memory.check_prefill(0, now, others=(1, 2, 3))


@pytest.mark.parametrize("decoding_s", [0.0, 1.0, 2.1, 5.0])
def test_who_was_refused_for_long_enough_gets_into_the_line_however_long_its_frame_takes(decoding_s: float) -> None:
    memory = Admission(10)
    for index in (0, 1):
        memory.ask(index, 10, 0.0)
        memory.grant(0.0)
    now = 0.0
    while now < 3 * MOST_WAIT_S:
        try:
            memory.check(2, now)
            now += decoding_s
            memory.ask(2, 5, now)
            break
        except NoRoom as refused:
            now += refused.retry_after_s
    assert 2 in memory.line and now <= 2 * MOST_WAIT_S + decoding_s
