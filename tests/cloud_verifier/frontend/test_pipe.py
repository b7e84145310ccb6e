"""The pipe between frontend and engine: whole messages in their order, whatever the stream does; never waiting."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.frontend.messages import Arrived, Deliver, FromFrontend, ToFrontend
from cloud_verifier.frontend.pipe import MOST_BYTES, Closed, Pipe


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    first, second = socket.socketpair()
    yield first, second
    first.close()
    second.close()


@given(st.lists(st.integers(0, 400_000), max_size=12), st.randoms(use_true_random=False))
def test_messages_arrive_whole_and_in_order(sizes: list[int], rng: object) -> None:
    """Sizes far below and above what the stream takes at once; both sides take turns as it comes."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        engine: Pipe[FromFrontend] = Pipe(ours, FromFrontend)
        frontend: Pipe[ToFrontend] = Pipe(theirs, ToFrontend)
        left = [Arrived(b"%d" % number, "go2-7", [bytes(size)]) for number, size in enumerate(sizes)]
        sent, got = list(left), list[FromFrontend]()
        while len(got) < len(sent):
            if left and rng.random() < 0.5:  # type: ignore[attr-defined]
                frontend.put(left.pop(0))
            frontend.flush()
            got += engine.get()
        assert got == sent and frontend.backlog == 0 and not engine.in_the_middle


def test_an_end_that_is_gone_is_noticed(ends: tuple[socket.socket, socket.socket]) -> None:
    pipe: Pipe[FromFrontend] = Pipe(ends[0], FromFrontend)
    ends[1].close()
    with pytest.raises(Closed):
        list(pipe.get())
    with pytest.raises(Closed):
        pipe.put(Deliver(b"peer", b"", False))


@pytest.mark.parametrize("data", [struct.pack(">I", MOST_BYTES + 1), struct.pack(">I", 2) + b"\x92\x7f"])
def test_what_is_no_message_is_refused(ends: tuple[socket.socket, socket.socket], data: bytes) -> None:
    pipe: Pipe[FromFrontend] = Pipe(ends[0], FromFrontend)
    ends[1].send(data)
    with pytest.raises(ValueError, match="limit is|Invalid value"):
        list(pipe.get())
