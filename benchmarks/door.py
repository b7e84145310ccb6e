"""What the door costs, and what its death costs.

First, round trips of a message between a robot's socket and a server: with the socket in the server's own process, and
behind a door; both take turns, block by block. Then robots ask a verifier whose door is killed (SIGKILL) at random
moments: every answer is compared with the target's own, and after every kill it is measured when each robot gets tokens
again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import zmq

from cloud_verifier.door.supervisor import Door
from cloud_verifier.mailbox import Mailbox
from edge_drafter.decoder import EdgeDecoder
from speculation.vlm.load import load_vlm
from speculation.wire import Ping
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.alone import TargetAlone
from vlm_nav_evaluation.experiment.questions import warmed_up
from vlm_nav_evaluation.experiment.run import Question
from vlm_nav_evaluation.experiment.sockets import edge_config
from vlm_nav_evaluation.figures import percentiles, spread
from vlm_nav_evaluation.setting import CONNECT_LIMIT_S, verifier

SIZES = (50, 12_000, 200_000)
"""Bytes of a message: a draft, a frame of the simulated Go2, a frame of a real camera."""
BLOCK, BLOCKS = 300, 20
IN_FLIGHT_S = 0.02
"""What a robot receives so soon after a kill was on its way before; no door opens so fast."""
LOOK_S = 0.002
STARTING_S = 1.0
"""A process has no command line yet when its parent goes on; on a busy machine that is seen."""
LIMIT_S = 60.0


class _Within:
    """A mailbox in the server's own process, used as a `Post`."""

    def __init__(self) -> None:
        self._mailbox = Mailbox("tcp://127.0.0.1:*")
        self.address = self._mailbox.address

    def wait(self, seconds: float) -> None:
        self._mailbox.wait(seconds)
        self._mailbox.move()

    def receive(self) -> tuple[bytes, list[bytes]] | None:
        return self._mailbox.receive()

    def admit(self, peer: bytes) -> None:
        self._mailbox.admit(peer)

    def send(self, peer: bytes, message: Any) -> None:
        self._mailbox.send(peer, b"x")

    def close(self) -> None:
        self._mailbox.close()


def _robot(addresses: Sequence[str], size: int, results: Any) -> None:
    """Measure round trips, in a process of its own; `results` gets a list of seconds for each address."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets = [context.socket(zmq.DEALER) for _ in addresses]
    for socket, address in zip(sockets, addresses, strict=True):
        socket.connect(address)
        socket.send(b"hello")
        socket.recv()
    found: list[list[float]] = [[] for _ in addresses]
    payload = bytes(size)
    for block in range(BLOCKS):
        for index in sorted(range(len(sockets)), reverse=bool(block % 2)):
            for _ in range(BLOCK):
                began = time.perf_counter()
                sockets[index].send(payload)
                sockets[index].recv()
                found[index].append(time.perf_counter() - began)
    results.send(found)


def hop(size: int) -> dict[str, dict[str, float]]:
    """Return the spread of a round trip's seconds for messages of `size` bytes, answered by a few bytes."""
    posts: dict[str, Any] = {"one process": _Within(), "door": Door("tcp://127.0.0.1:*")}
    over = threading.Event()

    def answer(post: Any) -> None:
        while not over.is_set():
            post.wait(0.05)
            while (mail := post.receive()) is not None:
                post.admit(mail[0])
                post.send(mail[0], Ping(1))

    servers = [threading.Thread(target=answer, args=(post,)) for post in posts.values()]
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    robot = spawn.Process(target=_robot, args=([post.address for post in posts.values()], size, theirs))
    try:
        for server in servers:
            server.start()
        robot.start()
        found: list[list[float]] = ours.recv()
    finally:
        over.set()
        robot.join()
        for server, post in zip(servers, posts.values(), strict=True):
            server.join()
            post.close()
    return {name: {**percentiles(times), **spread(times)} for name, times in zip(posts, found, strict=True)}


def door_of(address: str) -> int:
    """Return the process of the door at an address. Raises RuntimeError where there is none for `STARTING_S`."""
    until = time.monotonic() + STARTING_S
    while True:
        last = time.monotonic() >= until
        for folder in Path("/proc").iterdir():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if b"cloud_verifier.door" in words and json.loads(words[3])["address"] == address:
                    return int(folder.name)
            except (OSError, ValueError, IndexError, KeyError):
                continue
        if last:
            raise RuntimeError(f"no door at {address}")
        time.sleep(0.01)


@dataclass
class Robot:
    """One robot that asks again and again."""

    edge: EdgeDecoder
    asked: Sequence[Question]
    truths: Sequence[tuple[int, ...]]
    answers: int = 0
    wrong: int = 0
    interruptions: int = 0
    failures: list[str] = field(default_factory=list)

    def ask(self, over: threading.Event, first: int) -> None:
        """Ask until `over`, beginning with question `first`."""
        place = first
        while not over.is_set():
            place = (place + 1) % len(self.asked)
            question = self.asked[place]
            try:
                result = self.edge.decode(question.prompt, question.jpeg, LIMIT_S)
            except (RuntimeError, ValueError, OSError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
                continue
            self.answers += 1
            self.wrong += result.tokens != self.truths[place]
            self.interruptions += result.stats.interruptions

    @property
    def received(self) -> int:
        """Bytes of steps that came so far."""
        return self.edge.link.bytes_down if self.edge.link is not None else 0


def kill_doors(address: str, robots: Sequence[Robot], kills: int, rng: random.Random) -> list[float]:
    """Kill the door so often, between answers' beginnings and ends as it comes; return the seconds until each robot
    had tokens again, every robot's of every kill."""
    times: list[float] = []
    for _ in range(kills):
        time.sleep(rng.uniform(0.2, 1.2))
        os.kill(door_of(address), signal.SIGKILL)
        killed = time.perf_counter()
        time.sleep(IN_FLIGHT_S)
        waiting = {index: robot.received for index, robot in enumerate(robots)}
        while waiting:
            now = time.perf_counter()
            if now - killed > LIMIT_S:
                raise RuntimeError(f"{len(waiting)} robots got nothing for {LIMIT_S:g} s after a kill")
            for index in [each for each, before in waiting.items() if robots[each].received > before]:
                del waiting[index]
                times.append(now - killed)
            time.sleep(LOOK_S)
    return times


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command.experiment_line(
        "benchmarks.door", __doc__, 4, journal=False, profile="go2_a100_scaled", drafting=True, predictor=True
    )
    line.add_argument("--kills", type=int, default=100, help="of the door; 0: only its cost (default: %(default)s)")
    line.add_argument("--robots", type=int, default=4, help="robots that ask meanwhile (default: %(default)s)")
    line.add_argument("--mode", default="full", help="how the robots decode (default: %(default)s)")
    return line


def run(options: argparse.Namespace) -> int:
    """Run the benchmark and return 1 where an answer is wrong or lost, else 0."""
    hops = {size: hop(size) for size in SIZES}
    for size, found in hops.items():
        shown = ", ".join(
            f"{name} {1e6 * each['min']:.0f} / {1e6 * each['median']:.0f} / {1e6 * each['p99']:.0f}"
            for name, each in found.items()
        )
        print(f"round trip of {size} bytes, us (min / median / p99): {shown}")
    data: dict[str, Any] = {"round_trip_s": {str(size): found for size, found in hops.items()}}
    failed = 0
    if options.kills:
        data["kills"] = kills = _killed(options)
        failed = kills["wrong"] + kills["lost"]
        print(
            f"{kills['kills']} kills, {kills['answers']} answers of {options.robots} robots, {kills['interruptions']} "
            f"interrupted: {kills['wrong']} wrong, {kills['lost']} lost; tokens again after "
            f"{kills['resume_s']['p50']:.2f} s (p50), {kills['p95']:.2f} (p95), {kills['resume_s']['max']:.2f} (max)"
        )
    command.finish(options, "door", data)
    return int(bool(failed))


def _killed(options: argparse.Namespace) -> dict[str, Any]:
    (_,), asked = warmed_up(options, options.steps, 1)
    target = TargetAlone(load_vlm(options.target_model, dtype=options.dtype, threads=1), options.max_tokens)
    truths = [target.decode(question).tokens for question in asked]
    vlm = load_vlm(options.draft_model, dtype=options.dtype, threads=1)
    flags = ("--profile", options.profile, "--dtype", options.dtype, "--threads", "1")
    over = threading.Event()
    with ExitStack() as stack:
        address = stack.enter_context(verifier(options.target_model, *flags, "--max-sessions", str(options.robots)))
        config = edge_config(options, address, mode=options.mode, profile=options.profile)
        robots = []
        for _ in range(options.robots):
            edge = stack.enter_context(closing(EdgeDecoder(config, vlm=vlm)))
            edge.connect(CONNECT_LIMIT_S)
            robots.append(Robot(edge, asked, truths))
        threads = [threading.Thread(target=robot.ask, args=(over, index)) for index, robot in enumerate(robots)]
        for thread in threads:
            thread.start()
        try:
            times = kill_doors(address, robots, options.kills, random.Random(options.seed))
        finally:
            over.set()
            for thread in threads:
                thread.join()
    for robot in robots:
        for failure in robot.failures:
            print(f"lost: {failure}")
    ranked = sorted(times)
    return {
        "kills": options.kills,
        "answers": sum(robot.answers for robot in robots),
        "interruptions": sum(robot.interruptions for robot in robots),
        "wrong": sum(robot.wrong for robot in robots),
        "lost": sum(len(robot.failures) for robot in robots),
        "resume_s": {**percentiles(times), **spread(times)},
        "p95": ranked[min(len(ranked) - 1, round(0.95 * len(ranked)))],
        "times_s": [round(each, 4) for each in times],
    }


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
