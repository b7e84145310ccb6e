"""What a relaying door costs: round trips of a step's messages to a verifier that answers at once, with and without it.

Real sockets on this machine: the robot's link, the door and the verifier, each in a thread of one process, and the
sockets of the latter two in processes of their own. Ways take turns, message by message. A relayed message passes one
connection and one pair of local sockets more each way.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from cloud_verifier.cluster.directory import Directory, Phase, Status
from cloud_verifier.cluster.door import ClusterDoor
from cloud_verifier.cluster.post import open_post
from cloud_verifier.cluster.relay import Relay
from cloud_verifier.cluster.tickets import SECRET_BYTES, Tickets
from cloud_verifier.config import Link
from cloud_verifier.door.supervisor import Door
from edge_drafter.link import LinkConfig, ZmqLink
from speculation import wire
from speculation.progress import progress
from speculation.wire import BeginStep, Commit, Hello, Ping, Pong, Welcome
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.figures import spread
from vlm_nav_evaluation.setting import machine
from vlm_nav_evaluation.tables import figures_table, spread_columns

SIZES = {"50 bytes": 50, "12 kB": 12_000, "100 kB": 100_000}
"""Frames of a step."""
ANY_PORT = Link("tcp://127.0.0.1:*")
LIMIT_S = 10.0
US = 1e6


@contextmanager
def turning(turn: Any) -> Iterator[None]:
    """Call something again and again in a thread."""
    ending = threading.Event()

    def run() -> None:
        while not ending.is_set():
            turn()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def answer(mailbox: Door) -> None:
    """Answer what robots have sent, as a verifier that needs no time."""
    mailbox.wait(0.05)
    while (received := mailbox.receive()) is not None:
        peer, (payload, *_) = received
        message = wire.decode(payload)
        if isinstance(message, Hello):
            mailbox.admit(peer)
            mailbox.send(peer, Welcome("session", "model", "tokenizer", 100, 4, [], [9]))
        elif isinstance(message, Ping):
            mailbox.send(peer, Pong(message.nonce))
        elif isinstance(message, BeginStep):
            mailbox.send(peer, Commit(message.step, 0, 0, [7], bytes(8), False))


def trip(link: ZmqLink, step: int, size: int) -> float:
    """Return the seconds from a step's frame to the commit that answers it. Raises RuntimeError where none comes."""
    began = time.perf_counter()
    link.send(BeginStep(step, "find it", bytes(size)))
    if link.receive(LIMIT_S) is None:
        raise RuntimeError(f"no commit within {LIMIT_S:g} s")
    return time.perf_counter() - began


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command.command_line("benchmarks.relay", __doc__)
    line.add_argument("--count", type=int, default=300, help="messages of each size and way (default: %(default)s)")
    command.add_save(line)
    return line


def run(options: argparse.Namespace) -> None:
    """Run the benchmark. Raises ValueError for no messages, RuntimeError where a verifier is silent."""
    if options.count < 1:
        raise ValueError(f"--count {options.count}: give at least 1")
    tickets, directory = Tickets(os.urandom(SECRET_BYTES)), Directory()
    with ExitStack() as ends:
        replica, mailbox = open_post(ANY_PORT), open_post(ANY_PORT)
        ends.callback(replica.close)
        ends.callback(mailbox.close)
        relay = Relay(mailbox, None, time.monotonic)
        ends.callback(relay.stop)
        door = ClusterDoor(mailbox, directory, tickets, relay=relay)

        def turn() -> None:
            directory.report(Status("a", Phase.READY, 1.0, replica.address, max_sessions=8), time.monotonic())
            door.turn(0.05)

        ends.enter_context(turning(partial(answer, replica)))
        ends.enter_context(turning(turn))
        addresses = {"direct": replica.address, "relayed": mailbox.address}
        links = {way: ZmqLink(LinkConfig(each, Hello("tokenizer", 100))) for way, each in addresses.items()}
        for link in links.values():
            ends.callback(link.close)
            if not link.wait_nominal(LIMIT_S):
                raise RuntimeError(link.why)
        times: dict[str, list[float]] = {f"{size}, {way}": [] for size in SIZES for way in links}
        for step in progress(range(options.count)):
            for size, octets in SIZES.items():
                for way, link in links.items():
                    times[f"{size}, {way}"].append(trip(link, step, octets))
    rows = {name: {"trip_s": spread(each)} for name, each in times.items()}
    print(figures_table("round trip", rows, spread_columns("trip_s", "us", ".0f", US)))
    print(measured_on := machine())
    if options.save:
        settings = command.settings_of(options)
        command.write_result("relay", {"settings": settings, "machine": measured_on, "trips": rows})


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
