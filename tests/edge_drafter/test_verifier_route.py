"""Where the verifier is looked for next: the list's places in turn, and where a verifier sends the robot."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_drafter.verifier_route import HOPS_S, KEY_CHARS, MOST_HOPS, Place, RedirectRefused, Route
from speculation.wire import Redirect

KEY, OTHER = "k" * KEY_CHARS, "o" * KEY_CHARS
DOORS = ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
REPLICA = Redirect("tcp://127.0.0.1:7", ticket=b"ticket")


def visited(route: Route, leaves: int) -> list[str]:
    """Return the last digits of the places that are tried while nobody answers."""
    places = [route.place.address]
    for _ in range(leaves):
        route.leave()
        places.append(route.place.address)
    return [address[-1] for address in places]


def test_when_no_door_answers_the_last_verifier_is_tried_once_a_round() -> None:
    route = Route(DOORS)
    route.follow(REPLICA, 0.0)
    route.arrived()
    assert visited(route, 6) == list("7127127")
    route.follow(REPLICA, 1.0)
    route.arrived()
    assert visited(route, 3)[0] == "7"


@settings(max_examples=40)
@given(st.lists(st.floats(0.0, 0.5), min_size=MOST_HOPS + 1, max_size=60))
def test_no_more_than_so_many_redirects_are_followed_in_a_while(gaps: list[float]) -> None:
    route, now, times = Route(DOORS), 0.0, list[float]()
    for gap in gaps:
        free = len(times) < MOST_HOPS or now + gap >= times[-MOST_HOPS] + HOPS_S
        now, asked = route.follow(REPLICA, now + gap), now + gap
        assert (now == asked) is free
        times.append(now)
    assert all(later - first >= HOPS_S - 1e-9 for first, later in zip(times, times[MOST_HOPS:], strict=False))


@pytest.mark.parametrize(
    ("server_key", "allow_plain", "redirect", "why"),
    [
        (KEY, False, Redirect("tcp://127.0.0.1:7"), "would be plain text"),
        (KEY, True, Redirect("tcp://10.0.0.7:7"), "would be plain text"),
        (KEY, False, Redirect("tcp://10.0.0.7:7", KEY[1:]), "a key of 39 characters"),
        ("", False, Redirect("tcp://10.0.0.7:7"), "neither encrypted nor authenticated"),
        ("", True, Redirect("tcp://10.0.0.7:7", OTHER), "this robot has no keys"),
        ("", True, Redirect("somewhere"), "is no address"),
        ("", True, Redirect("ipc:///tmp/socket"), "is no tcp://HOST:PORT"),
        ("", True, Redirect("tcp://127.0.0.1:7,tcp://127.0.0.1:8"), "is no address"),
        ("", True, Redirect("tcp://127.0.0.1:*"), "is no address"),
    ],
)
def test_what_must_not_be_trusted_is_not_followed(
    server_key: str, allow_plain: bool, redirect: Redirect, why: str
) -> None:
    route = Route(DOORS, server_key.encode(), allow_plain)
    with pytest.raises(RedirectRefused, match=why):
        route.follow(redirect, 0.0)
    assert route.place == Place(DOORS[1], server_key.encode()) and route.ticket == b""
