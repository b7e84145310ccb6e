"""KvAdmission on a virtual clock: never above the memory, nobody waits for ever, and a share is a share."""

from __future__ import annotations

import heapq
import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.kv_admission import LEAST_WAIT_S, MOST_WAIT_S, KvAdmission, NoRoom

BLOCKS = 20


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, BLOCKS), st.floats(0.0, 3.0)), max_size=40), st.data())
def test_what_is_held_never_exceeds_the_memory(acts: list[tuple[int, int, float]], data: st.DataObject) -> None:
    """Any order of requests, grants and releases; who is evicted was idle, and is the first that could help."""
    memory, now = KvAdmission(BLOCKS), 0.0
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
        self.memory, self.dice = KvAdmission(BLOCKS, seed), random.Random(seed)
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


@pytest.mark.parametrize("decoding_s", [0.0, 1.0, 2.1, 5.0])
def test_who_was_refused_for_long_enough_gets_into_the_line_however_long_its_frame_takes(decoding_s: float) -> None:
    memory = KvAdmission(10)
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
