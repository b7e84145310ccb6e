"""KvAdmission on a virtual clock: never above the memory, nobody waits for ever, and a share is a share."""

from __future__ import annotations

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
