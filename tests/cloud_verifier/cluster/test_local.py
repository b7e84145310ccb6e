"""A cluster of real replica processes on this machine: robots go on when one drains, and when one is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zmq.auth

from cloud_verifier.config import StartError
from cloud_verifier.security import make_keys
from edge_drafter.link import Keys, LinkState, ZmqLink
from tests.cloud_verifier.cluster.running import Running, answer, connect, eventually, place_of, running
from tests.cloud_verifier.process import Target, doors_of, make_target

ROBOTS = 3


@pytest.fixture(scope="module")
def target(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Target:
    return make_target(tiny_target, tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> list[Keys]:
    """One pair for each robot."""
    folder = tmp_path_factory.mktemp("keys") / "keys"
    for number in range(ROBOTS):
        make_keys(folder, f"robot-{number}")
    server, _ = zmq.auth.load_certificate(folder / "server.key")
    pairs = [zmq.auth.load_certificate(folder / f"robot-{number}.key_secret") for number in range(ROBOTS)]
    return [Keys(server, public, secret or b"") for public, secret in pairs]


@pytest.fixture(scope="module")
def cluster(target: Target, keys: list[Keys], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two replicas with keys."""
    flags = (
        "--model", str(target.folder), "--dtype", "float64", "--capacity", "192", "--max-sessions", "16",
        "--replicas", "2", "--keys", str(tmp_path_factory.getbasetemp() / "keys0" / "keys"), "--drain-s", "5",
    )  # fmt: skip
    with running(*flags, log=tmp_path_factory.mktemp("log") / "replicas.log") as cluster:
        eventually(lambda: len(cluster.ready()) == 2, "two replicas were not ready")
        yield cluster


@pytest.fixture
def robots(cluster: Running, target: Target, keys: list[Keys]) -> Iterator[list[ZmqLink]]:
    robots = [connect(cluster.cluster.address, target.hello, pair) for pair in keys]
    yield robots
    for robot in robots:
        robot.close()


def answers_while(
    robots: list[ZmqLink], target: Target, fault: Callable[[str], None], cluster: Running
) -> tuple[list[list[int]], list[int]]:
    """Let all robots answer; once each has some tokens, `fault` is injected into the replica of the first."""
    under_way = threading.Barrier(len(robots) + 1, timeout=60.0)

    def ask(number: int) -> tuple[list[int], int]:
        def progress(tokens: int) -> None:
            if tokens >= 4 and not waited:
                waited.append(tokens)
                under_way.wait()

        waited: list[int] = []
        return answer(robots[number], number, target.truths[number], progress=progress)

    with ThreadPoolExecutor(len(robots)) as pool:
        asked = [pool.submit(ask, number) for number in range(len(robots))]
        names = {address: name for name, address in cluster.ready().items()}
        eventually(lambda: under_way.n_waiting == len(robots), "the answers' middle")
        fault(names[place_of(robots[0])])
        under_way.wait()
        found = [each.result(120.0) for each in asked]
    return [tokens for tokens, _ in found], [losses for _, losses in found]


def test_when_a_replica_is_killed_its_robots_go_on_elsewhere_and_it_comes_back(
    cluster: Running, robots: list[ZmqLink], target: Target
) -> None:
    answers, losses = answers_while(robots, target, cluster.kill, cluster)
    assert answers == target.truths[:ROBOTS]
    assert losses[0] >= 1
    eventually(lambda: len(cluster.ready()) == 2, "the replica did not come back")


def test_when_a_replica_drains_its_robots_go_on_elsewhere(
    cluster: Running, robots: list[ZmqLink], target: Target
) -> None:
    eventually(lambda: len(cluster.ready()) == 2)
    answers, _ = answers_while(robots, target, cluster.drain, cluster)
    assert answers == target.truths[:ROBOTS]
    eventually(lambda: len(cluster.ready()) == 2, "another replica did not take its place")


def test_when_the_sockets_of_a_replica_and_of_the_cluster_die_both_live_on(
    cluster: Running, robots: list[ZmqLink], target: Target
) -> None:
    eventually(lambda: len(cluster.ready()) == 2)
    with cluster.lock:
        before = dict(cluster.cluster.supervisor.running)

    def kill_sockets(name: str) -> None:
        for pid in (*doors_of(before[name]), cluster.cluster.socket_pid):
            os.kill(pid, signal.SIGKILL)

    answers, losses = answers_while(robots, target, kill_sockets, cluster)
    assert answers == target.truths[:ROBOTS] and losses[0] >= 1
    with cluster.lock:
        assert cluster.cluster.supervisor.running == before
    robot = connect(cluster.cluster.address, target.hello, robots[0].config.keys)
    try:
        eventually(lambda: robot.state is LinkState.NOMINAL)
    finally:
        robot.close()


def test_a_robot_with_another_ones_ticket_and_one_without_are_sent_back_to_the_door(
    cluster: Running, target: Target, keys: list[Keys]
) -> None:
    eventually(lambda: len(cluster.ready()) == 2)
    robot = connect(next(iter(cluster.ready().values())), target.hello, keys[0])
    try:
        eventually(lambda: "robots from its cluster's door only" in robot.why)
    finally:
        robot.close()


def test_a_replica_that_is_stopped_by_hand_drains(cluster: Running, robots: list[ZmqLink], target: Target) -> None:
    eventually(lambda: len(cluster.ready()) == 2)
    answers, _ = answers_while(robots, target, lambda name: cluster.kill(name, signal.SIGTERM), cluster)
    assert answers == target.truths[:ROBOTS]


def test_settings_with_which_no_replica_starts_end_the_cluster(target: Target, tmp_path: Path) -> None:
    flags = ("--model", str(target.folder), "--device", "nonsense", "--replicas", "1")
    with running(*flags, log=tmp_path / "log") as cluster:
        eventually(lambda: bool(cluster.failure))
    assert isinstance(cluster.failure[0], StartError) and "replica-1 cannot start" in str(cluster.failure[0])
    assert "device nonsense: " in (tmp_path / "log").read_text(encoding="utf-8")
