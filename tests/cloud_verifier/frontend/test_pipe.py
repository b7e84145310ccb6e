"""The pipe between frontend and engine: whole messages in their order, whatever the stream does; never waiting."""

from __future__ import annotations

import socket

from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.frontend.messages import Arrived, FromFrontend, ToFrontend
from cloud_verifier.frontend.pipe import Pipe


@settings(max_examples=40)
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
