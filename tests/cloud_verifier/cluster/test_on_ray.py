"""A cluster on Ray: whatever is killed, no token is wrong and no step is lost; and what its command does here alone."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import zmq.auth

from cloud_verifier.__main__ import main
from cloud_verifier.cluster.on_ray import DIRECTORY, NAMESPACE, RayCluster, stop
from cloud_verifier.openai_api.keys import add_key
from cloud_verifier.security import make_keys
from edge_drafter.link import Keys, LinkState, ZmqLink
from speculation.language.thinking import reader
from speculation.vlm.load import load_vlm
from tests.cloud_verifier.cluster.running import (
    LIMIT_S,
    Running,
    answer,
    connect,
    eventually,
    place_of,
    settings_of,
    turning,
)
from tests.cloud_verifier.openai_api.serving import address_in, as_robot, client
from tests.cloud_verifier.process import ANSWER, ROOT_FOLDER, Target, command, frontends_of

ROBOTS = 3


def test_without_ray_the_command_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(ROOT_FOLDER)
    assert main(["cluster", "--model", "models/target"]) == 2
    printed = capsys.readouterr().err
    assert "cluster needs Ray" in printed and "install spec-vlm-nav-core[cluster]" in printed
    assert len(printed.strip().splitlines()) == 1


ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Keys]]:
    """The folder, and one pair for each robot."""
    folder = tmp_path_factory.mktemp("keys") / "keys"
    for number in range(ROBOTS):
        make_keys(folder, f"robot-{number}")
    server, _ = zmq.auth.load_certificate(folder / "server.key")
    pairs = [zmq.auth.load_certificate(folder / f"robot-{number}.key_secret") for number in range(ROBOTS)]
    return folder, [Keys(server, public, secret or b"") for public, secret in pairs]


class Nodes:
    """Ray's test cluster: a head for the directory, and a node for each of two replicas."""

    def __init__(self, state: Path) -> None:
        """state: where Ray's head keeps what it knows."""
        from ray.cluster_utils import Cluster

        os.environ |= {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(state)}
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 80 << 20})
        self._workers = [self._add(), self._add()]
        ray.init(address=self._cluster.address, namespace=NAMESPACE)

    def kill(self, replica: str) -> None:
        """Kill the node of a replica, and add another one."""
        place = state_of(replica)["Address"]["NodeID"]
        worker = next(each for each in self._workers if each.node_id == place)
        self._workers.remove(worker)
        self._cluster.remove_node(worker, allow_graceful=False)
        self._workers.append(self._add())

    def restart_head(self) -> None:
        """Kill the server of Ray's head, and start it again a while later."""
        head = self._cluster.head_node
        head.kill_gcs_server()
        time.sleep(3.0)
        head.start_gcs_server()

    def close(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()
        for name in ("RAY_gcs_storage", "RAY_gcs_storage_path"):
            del os.environ[name]

    def _add(self) -> Any:
        return self._cluster.add_node(num_cpus=1, object_store_memory=80 << 20)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path_factory.mktemp("ray") / "gcs")
    yield nodes
    nodes.close()


@pytest.fixture(scope="module")
def serving(nodes: Nodes, served: Target, keys: tuple[Path, list[Keys]]) -> Iterator[Running]:
    """Two replicas with keys, each on its node."""
    flags = (
        "--model", str(served.folder), "--dtype", "float64", "--capacity", "192", "--max-sessions", "16",
        "--replicas", "2", "--cpus-per-replica", "1", "--keys", str(keys[0]), "--drain-s", "5",
    )  # fmt: skip
    with turning(RayCluster(*settings_of(*flags))) as running:
        yield running
    stop(0.0)
    assert not ray.util.list_named_actors(all_namespaces=True)


@pytest.fixture
def cluster(serving: Running) -> Running:
    eventually(lambda: len(serving.ready()) == 2, "two replicas were not ready")
    return serving


@pytest.fixture
def robots(
    request: pytest.FixtureRequest, cluster: Running, served: Target, keys: tuple[Path, list[Keys]]
) -> Iterator[list[ZmqLink]]:
    """Robots that give a silent verifier up; where they must notice nothing, a busy machine is not taken for one."""
    silent_s = LIMIT_S if "notice_nothing" in request.node.name else 3.0
    robots = [connect(cluster.cluster.address, served.hello, pair, silent_s) for pair in keys[1]]
    yield robots
    for robot in robots:
        robot.close()


def process_of(name: str) -> int:
    return int(state_of(name)["Pid"])


def state_of(name: str) -> dict[str, Any]:
    """Return what Ray knows of an actor."""
    from ray._private.state import actors

    found: dict[str, Any] = actors(ray.get_actor(name, NAMESPACE)._actor_id.hex())
    return found


def losses_while(
    fault: Callable[[str], object], cluster: Running, robots: list[ZmqLink], served: Target, comes_anew: bool = True
) -> list[int]:
    """Let all robots answer, do `fault` to the replica of the first in the middle of that, and check the answers.

    Returns how often each lost its verifier. comes_anew: whether to wait for another process in the replica's place.
    """
    under_way = threading.Barrier(len(robots) + 1, timeout=LIMIT_S)

    def ask(number: int) -> tuple[list[int], int]:
        def progress(tokens: int) -> None:
            if tokens >= 4 and not waited:
                waited.append(tokens)
                under_way.wait()

        waited: list[int] = []
        return answer(robots[number], number, served.truths[number], progress=progress)

    with ThreadPoolExecutor(len(robots)) as pool:
        asked = [pool.submit(ask, number) for number in range(len(robots))]
        names = {address: name for name, address in cluster.ready().items()}
        eventually(lambda: under_way.n_waiting == len(robots), "the answers' middle")
        place = place_of(robots[0])
        fault(names[place])
        under_way.wait()
        found = [each.result(2 * LIMIT_S) for each in asked]
    assert [tokens for tokens, _ in found] == served.truths[: len(robots)]
    if comes_anew:
        eventually(lambda: cluster.ready().get(names[place]) not in (None, place), "another one did not come")
    return [losses for _, losses in found]


@pytest.mark.ray
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_when_a_replica_is_killed_or_frozen_its_robots_go_on_elsewhere_and_it_comes_back(
    number: signal.Signals, cluster: Running, robots: list[ZmqLink], served: Target
) -> None:
    killed: list[int] = []

    def fault(name: str) -> None:
        killed.append(process_of(name))
        os.kill(killed[0], number)

    assert losses_while(fault, cluster, robots, served)[0] >= 1
    eventually(lambda: not Path(f"/proc/{killed[0]}").exists(), "the killed process did not go")


@pytest.mark.ray
def test_when_a_replica_drains_its_robots_go_on_elsewhere_and_another_one_takes_its_place(
    cluster: Running, robots: list[ZmqLink], served: Target
) -> None:
    drained: list[int] = []

    def drain(name: str) -> None:
        drained.append(process_of(name))
        os.kill(drained[0], signal.SIGTERM)

    losses_while(drain, cluster, robots, served)
    eventually(lambda: not Path(f"/proc/{drained[0]}").exists(), "the drained process did not go")


@pytest.mark.ray
def test_when_a_node_is_killed_with_its_replica_robots_go_on_elsewhere(
    nodes: Nodes, cluster: Running, robots: list[ZmqLink], served: Target
) -> None:
    assert losses_while(nodes.kill, cluster, robots, served)[0] >= 1


@pytest.mark.ray
def test_when_the_directory_is_killed_robots_notice_nothing(
    cluster: Running, robots: list[ZmqLink], served: Target
) -> None:
    directory = ray.get_actor(DIRECTORY, NAMESPACE)
    before = {name: process_of(name) for name in cluster.ready()}

    def kill(_: str) -> None:
        ray.kill(directory, no_restart=False)

    assert losses_while(kill, cluster, robots, served, comes_anew=False) == [0] * ROBOTS
    assert ray.get(directory.secret.remote(), timeout=LIMIT_S)
    assert {name: process_of(name) for name in before} == before


@pytest.mark.ray
def test_when_rays_head_is_killed_robots_notice_nothing(
    nodes: Nodes, cluster: Running, robots: list[ZmqLink], served: Target
) -> None:
    def restart(_: str) -> None:
        nodes.restart_head()

    assert losses_while(restart, cluster, robots, served, comes_anew=False) == [0] * ROBOTS
    eventually(lambda: len(cluster.ready()) == 2)
    assert ray.get(ray.get_actor(DIRECTORY, NAMESPACE).secret.remote(), timeout=LIMIT_S)


@pytest.mark.ray
def test_when_the_sockets_of_a_replica_and_of_the_gateway_die_both_live_on(
    cluster: Running, robots: list[ZmqLink], served: Target
) -> None:
    before = {name: process_of(name) for name in cluster.ready()}

    def kill_sockets(name: str) -> None:
        for pid in (*frontends_of(before[name]), cluster.cluster.frontend.pid):
            os.kill(pid, signal.SIGKILL)

    assert losses_while(kill_sockets, cluster, robots, served, comes_anew=False)[0] >= 1
    assert {name: process_of(name) for name in before} == before
    with contextlib.closing(connect(cluster.cluster.address, served.hello, robots[0].config.keys)) as robot:
        eventually(lambda: robot.state is LinkState.NOMINAL)


@pytest.mark.ray
def test_a_robot_without_a_ticket_is_sent_back_to_the_gateway(
    cluster: Running, served: Target, keys: tuple[Path, list[Keys]]
) -> None:
    with contextlib.closing(connect(next(iter(cluster.ready().values())), served.hello, keys[1][0])) as robot:
        eventually(lambda: "robots from its cluster's gateway only" in robot.why)


class Command:
    """`python -m cloud_verifier cluster` in a process group of its own, as in a terminal; `log` is what it writes."""

    def __init__(self, *arguments: str) -> None:
        words = command("cluster", "--bind", "tcp://127.0.0.1:*", *arguments)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.process = subprocess.Popen(
            words, cwd=ROOT_FOLDER, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.log = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log += line

    def end(self) -> int:
        """Return the exit code once all that has its output is gone."""
        code = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        assert not self._reader.is_alive(), "something outlives it"
        return code


@pytest.mark.ray
def test_on_this_machine_alone_it_serves_robots_and_the_chat_api_until_ctrl_c_ends_all(
    served: Target, keys: tuple[Path, list[Keys]], tmp_path: Path
) -> None:
    """One replica is killed while requests stream: each answer goes on at the other, where it stood."""
    file = tmp_path / "api_keys"
    key, vlm = add_key(file, "robot-0"), load_vlm(served.folder, dtype="float64")
    texts = [reader(vlm.processor.tokenizer)(tokens) for tokens in served.truths]
    started = Command(
        "--model", str(served.folder), "--dtype", "float64", "--capacity", "192", "--replicas", "2", "--http", "0",
        "--keys", str(keys[0]), "--api-keys", str(file),
    )  # fmt: skip
    try:
        eventually(lambda: started.log.count("is ready (0 robots)") == 2, "two replicas were not ready")
        pids = dict(re.findall(r"replica (\S+) starts as process (\d+)", started.log))
        gateway = re.compile(r"cluster of 2 to 2 replicas, its gateway at (\S+)\n")
        eventually(lambda: bool(gateway.search(started.log)), "the gateway's address")
        found = gateway.search(started.log)
        assert found
        with contextlib.closing(connect(found[1], served.hello, keys[1][1])) as robot:
            assert answer(robot, 0, served.truths[0]) == (served.truths[0], 0)
        opened = re.compile(r"(\S+): session \d+ \(robot-0\) opened: class=batch")
        alive: list[str] = []
        asking = client(address_in(started.log.splitlines()), key)

        def ask(number: int) -> str:
            how = {"model": "target", "temperature": 0, "max_tokens": ANSWER, "stream": True}
            chunks = asking.chat.completions.create(messages=as_robot(number), **how)  # type: ignore[call-overload]
            parts = []
            for chunk in chunks:
                parts.append(chunk.choices[0].delta.content or "")
                with contextlib.suppress(IndexError):
                    os.kill(int(pids[alive.pop()]), signal.SIGKILL)
            return "".join(parts)

        assert ask(0) == texts[0]
        eventually(lambda: bool(opened.search(started.log)), "a session")
        alive += opened.findall(started.log)[:1]
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(ask, [number % len(texts) for number in range(12)]))
        assert not alive and answers == [texts[number % len(texts)] for number in range(12)]
        os.killpg(started.process.pid, signal.SIGINT)  # a Ctrl-C reaches the whole group
        assert started.end() == 0
    finally:
        started.process.kill()
    for line in (r"gateway closed: [1-9]\d* robots sent to replicas", "all replicas have ended"):
        assert re.search(line, started.log)
    assert "Traceback" not in started.log
