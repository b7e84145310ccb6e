"""The emulated way on made-up times: what must hold whatever is sent, and the shipped links."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.links import IDEAL, Blackout, EmulatedWay, LinkConditions, WayConditions, load_link, load_links

TINY = 1e-6
times = st.floats(0.0, 5.0)
blackouts = st.builds(
    lambda start, seconds, gap: Blackout(start, seconds, seconds + gap if gap else 0.0),
    start=times,
    seconds=st.floats(0.01, 2.0),
    gap=st.none() | st.floats(1.0, 3.0),
)
ways = st.builds(
    WayConditions,
    delay_s=st.floats(0.0, 0.5),
    jitter_s=st.floats(0.0, 0.5),
    rate_bps=st.sampled_from([0.0, 1e3, 1e4, 1e7]),
    loss=st.sampled_from([0.0, 0.1, 0.5]),
    retransmit_s=st.sampled_from([0.0, 0.01, 0.2]),
    reorder=st.booleans(),
    blackouts=st.lists(blackouts, max_size=1).map(tuple),
)
traffic = st.lists(st.tuples(times, st.integers(0, 500)), min_size=1, max_size=12).map(sorted)


def carry(way: EmulatedWay[int], sent: list[tuple[float, int]], start: float = 0.0) -> list[tuple[float, int]]:
    """Send everything and return the arrivals (time, item) as somebody sees who takes each when it is due."""
    arrived: list[tuple[float, int]] = []

    def collect(until: float) -> None:
        while way.due <= until:
            due = way.due
            assert way.take(math.nextafter(due, -math.inf)) is None
            item = way.take(due)
            assert item is not None
            arrived.append((due, item))

    for item, (at, size) in enumerate(sent):
        collect(start + at)
        way.put(item, size, start + at)
    collect(1e9)
    assert way.due == math.inf
    return arrived


@given(ways, traffic, st.sampled_from([0.0, 1234.5]))
def test_nothing_is_lost_doubled_early_or_seen_in_the_dark(
    conditions: WayConditions, sent: list[tuple[float, int]], start: float
) -> None:
    way: EmulatedWay[int] = EmulatedWay(conditions, "seed", start)
    arrived = carry(way, sent, start)
    items = [item for _, item in arrived]
    assert len(set(items)) == len(items) == len(sent) - way.vanished
    if not conditions.loss or conditions.retransmit_s:
        assert way.vanished == 0
    if not conditions.reorder:
        assert items == sorted(items)
    assert [at for at, _ in arrived] == sorted(at for at, _ in arrived)
    for at, item in arrived:
        put, size = sent[item]
        assert at >= start + put + conditions.sending_s(size) + conditions.delay_s - TINY
        for blackout in conditions.blackouts:
            assert blackout.ends(at - start) - (at - start) < TINY


@given(ways.map(lambda way: replace(way, loss=0.0, reorder=False)), traffic)
def test_no_more_passes_than_the_rate_allows(conditions: WayConditions, sent: list[tuple[float, int]]) -> None:
    """From any message on, what follows needs at least its own sending times, one after the other."""
    arrived = carry(EmulatedWay(conditions), sent)
    assert len(arrived) == len(sent)
    for first in range(len(sent)):
        busy = 0.0
        for item in range(first, len(sent)):
            busy += conditions.sending_s(sent[item][1])
            assert arrived[item][0] >= sent[first][0] + busy + conditions.delay_s - TINY


def test_the_nth_message_has_the_nth_draws_whenever_it_leaves() -> None:
    conditions = WayConditions(jitter_s=1.0)

    def delays(way: EmulatedWay[int], gap: float) -> list[float]:
        return [at - gap * item for at, item in carry(way, [(gap * n, n) for n in range(20)])]

    slow, slower = (delays(EmulatedWay(conditions, "1/up"), gap) for gap in (2.0, 3.0))
    assert slow == pytest.approx(slower)
    assert slow != pytest.approx(delays(EmulatedWay(conditions, "1/down"), 2.0))
    up, down = LinkConditions(up=conditions, down=conditions, seed=1).ways(0.0)
    assert delays(up, 2.0) == slow and delays(down, 2.0) != pytest.approx(slow)  # type: ignore[arg-type]


def test_a_blackout_holds_what_is_under_way_and_interrupts_what_is_leaving() -> None:
    blackout = Blackout(2.0, 3.0, 10.0)
    plain: EmulatedWay[str] = EmulatedWay(WayConditions(delay_s=0.5, blackouts=(blackout,)), start=100.0)
    plain.put("before", 1, 101.0)
    plain.put("under way", 1, 101.9)
    plain.put("in it", 1, 103.0)
    plain.put("second turn", 1, 113.0)
    dues = []
    while plain.due < math.inf:
        dues.append((plain.due, plain.take(plain.due)))
    assert dues == [(101.5, "before"), (105.0, "under way"), (105.5, "in it"), (115.5, "second turn")]
    slow: EmulatedWay[str] = EmulatedWay(WayConditions(rate_bps=8e3, blackouts=(blackout,)))
    slow.put("frame", 2000, 1.0)
    assert slow.due == pytest.approx(6.0)


def test_the_shipped_links_say_that_they_are_declared() -> None:
    links = load_links()
    assert {"wifi", "lte", "congested", "blackout"} <= set(links)
    for name, link in links.items():
        assert link.name == name and "declared, not measured" in link.scale and link.longest_trip_s > 0.0
        # Over TCP nothing vanishes and nothing overtakes.
        assert all(way.retransmit_s > 0.0 and not way.reorder for way in (link.up, link.down))
    assert links["blackout"].up.blackouts and links["wifi"].up.rate_bps != links["wifi"].down.rate_bps
    assert load_link("") is IDEAL and load_link("lte") == links["lte"]
    with pytest.raises(ValueError, match=r"unknown link '5g'; links\.json has wifi, lte, congested, blackout"):
        load_link("5g")


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"both": {"delay_s": -1}}, "delay_s = -1 is outside 0 to 60 s"),
        ({"up": {"rate_bps": 0.5}}, "rate_bps = 0.5 is outside 1 to 1e"),
        ({"both": {"speed": 1}}, "speed"),
        (
            {"both": {"blackouts": [{"start_s": 0, "seconds": 2, "every_s": 1}]}},
            "blackout of 2 s every 1 s leaves no link",
        ),
        (
            {"both": {"blackouts": [{"start_s": s, "seconds": 5, "every_s": 10} for s in (0, 5)]}},
            "blackouts leave no link",
        ),
        (3, ""),
    ],
)
def test_a_bad_file_is_one_clear_sentence(tmp_path: Path, entry: object, complaint: str) -> None:
    path = tmp_path / "links.json"
    path.write_text(json.dumps({"mine": entry}))
    with pytest.raises(ValueError, match="links .*links.json: link 'mine': ") as caught:
        load_links(path)
    assert complaint in str(caught.value) and "\n" not in str(caught.value)
