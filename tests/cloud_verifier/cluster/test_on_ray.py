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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest
import zmq.auth

from cloud_verifier.__main__ import main, parse
from cloud_verifier.cluster import controller, on_ray
from cloud_verifier.cluster.directory import Phase
from cloud_verifier.cluster.on_ray import DIRECTORY, NAMESPACE, RayCluster, stop
from cloud_verifier.cluster.scaling import Scaling
from cloud_verifier.cluster.settings import ClusterSettings
from cloud_verifier.config import ServerConfig
from cloud_verifier.monitoring.gateway_health import GatewayLoad
from cloud_verifier.openai_api.keys import add_key
from cloud_verifier.security import make_keys
from edge_drafter import LinkLost
from edge_drafter.link import Keys, LinkConfig, LinkState, ZmqLink
from speculation.language.thinking import reader
from speculation.settings import fields_of, from_flags
from speculation.vlm.load import load_vlm
from speculation.wire import BeginStep, Commit, Draft, Hello, begin_digest, extend_digest
from tests.cloud_verifier.openai_api.serving import address_in, as_robot, client
from tests.cloud_verifier.process import ANSWER, ROOT_FOLDER, Target, command, frontends_of, is_there
from tests.cloud_verifier.test_engine import PROMPTS, jpeg
from tests.edge_drafter.waiting import wait_for

ROBOTS = 3
LIMIT_S = 180.0
eventually = partial(wait_for, seconds=LIMIT_S)


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


@dataclass
class Running:
    """A cluster and the thread that turns it. `lock` is to be held to touch it."""

    cluster: RayCluster
    lock: threading.RLock = field(default_factory=threading.RLock)
    failure: list[Exception] = field(default_factory=list)
    ending: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.ending.is_set():
            with self.lock:
                try:
                    self.cluster.turn()
                except Exception as error:
                    self.failure.append(error)
                    return
            time.sleep(0.0005)  # lets others have the lock

    def ready(self) -> dict[str, str]:
        """Return the addresses of the replicas that are ready, by name."""
        assert not self.failure, self.failure
        with self.lock:
            return {each.name: each.address for each in self.cluster.view.directory.ready(time.monotonic())}


def connect(address: str, hello: Hello, keys: Keys | None = None, silent_s: float = LIMIT_S) -> ZmqLink:
    """Return a link that the test's machine, however busy, does not keep silent for so long."""
    return ZmqLink(LinkConfig(address, hello, keys, silent_s=silent_s))


def place_of(link: ZmqLink) -> str:
    """Return the address of the verifier that serves a robot."""
    return link.why.split()[3]


def answer(
    link: ZmqLink, number: int, truth: Sequence[int], step: int = 1, progress: Callable[[int], None] = lambda _: None
) -> tuple[list[int], int]:
    """Return an answer by drafts of one true token and a wrong one, and how often the link was lost meanwhile."""
    committed: list[int] = []
    losses = 0
    while True:
        assert link.wait_nominal(LIMIT_S), link.why
        try:
            link.send(BeginStep(step, PROMPTS[number], jpeg(number), list(committed), max_tokens=ANSWER))
            return _go_on(link, number, truth, step, committed, progress), losses
        except LinkLost:
            losses += 1
            step += 1


def _go_on(
    link: ZmqLink, number: int, truth: Sequence[int], step: int, committed: list[int], progress: Callable[[int], None]
) -> list[int]:
    digest, round, done = extend_digest(begin_digest(PROMPTS[number], jpeg(number)), committed), 0, False
    while not done:
        round += 1
        right = truth[len(committed) : len(committed) + 1]
        link.send(Draft(step, round, len(committed), digest, [*right, 5]))
        commit = None
        while not (isinstance(commit, Commit) and commit.step == step and commit.start == len(committed)):
            commit = link.receive(LIMIT_S)
            assert commit is not None, "no commit came"
        committed += commit.tokens
        digest, done = commit.digest, commit.done
        progress(len(committed))
    return committed


class Nodes:
    """Ray's test cluster: a head for the directory, and a node for each of two replicas."""

    def __init__(self, state: Path) -> None:
        """state: where Ray's head keeps what it knows."""
        from ray.cluster_utils import Cluster

        self._environment = {
            "RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(state),
            # A node that refuses five calls in a row is gone: in 1 s and not in 15.
            "RAY_health_check_period_ms": "200",
        }  # fmt: skip
        os.environ |= self._environment
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 80 << 20})
        self.head: Any = self._cluster.head_node
        self._workers = [self._add(), self._add()]
        ray.init(address=self._cluster.address, namespace=NAMESPACE)

    def kill(self, replica: str) -> None:
        """Kill the node of a replica, and add another one."""
        place = state_of(replica)["Address"]["NodeID"]
        worker = next(each for each in self._workers if each.node_id == place)
        self._workers.remove(worker)
        self._cluster.remove_node(worker, allow_graceful=False)
        self._workers.append(self._add())

    def close(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()
        for name in self._environment:
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

    class Directory(on_ray.DirectoryActor):
        async def end_silent_after(self, seconds: float) -> None:
            controller.HUNG_S = seconds

    options = parse([
        "cluster", "--bind", "tcp://127.0.0.1:*", "--model", str(served.folder), "--dtype", "float64",
        "--capacity", "192", "--max-sessions", "16", "--replicas", "2", "--cpus-per-replica", "1",
        "--keys", str(keys[0]), "--drain-s", "5",
    ])  # fmt: skip
    config = ServerConfig.of(**{field.name: options[field.name] for field in fields_of(ServerConfig)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_ray, "DirectoryActor", Directory)
        running = Running(RayCluster(config, from_flags(ClusterSettings, options), Scaling()))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    yield running
    running.ending.set()
    thread.join()
    running.cluster.close()
    stop(0.0)
    assert not ray.util.list_named_actors(all_namespaces=True)


@pytest.fixture
def cluster(serving: Running) -> Running:
    eventually(lambda: len(serving.ready()) == 2)
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
    fault: Callable[[str], object],
    ready: Callable[[], dict[str, str]],
    robots: list[ZmqLink],
    served: Target,
    comes_anew: bool = True,
) -> list[int]:
    """Let all robots answer, do `fault` to the replica of the first in the middle of that, and check the answers.

    Returns how often each lost its verifier. ready: the replicas' addresses by name. comes_anew: whether to wait for
    another process in the replica's place.
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
        eventually(lambda: under_way.n_waiting == len(robots))
        place = place_of(robots[0])
        name = next(name for name, address in ready().items() if address == place)
        fault(name)
        under_way.wait()
        found = [each.result(2 * LIMIT_S) for each in asked]
    assert [tokens for tokens, _ in found] == served.truths[: len(robots)]
    if comes_anew:
        eventually(lambda: ready().get(name) not in (None, place))
    return [losses for _, losses in found]


@pytest.mark.ray
def test_when_a_replica_is_frozen_its_robots_go_on_elsewhere_and_it_comes_back(
    cluster: Running, robots: list[ZmqLink], served: Target
) -> None:
    directory, frozen = ray.get_actor(DIRECTORY, NAMESPACE), list[int]()

    def freeze(name: str) -> None:
        frozen.append(process_of(name))
        os.kill(frozen[0], signal.SIGSTOP)

    ray.get(directory.end_silent_after.remote(4.0), timeout=LIMIT_S)
    try:
        assert losses_while(freeze, cluster.ready, robots, served)[0] >= 1
    finally:
        ray.get(directory.end_silent_after.remote(controller.HUNG_S), timeout=LIMIT_S)
    eventually(lambda: not is_there(frozen[0]))


@pytest.mark.ray
def test_when_a_node_is_killed_with_its_replica_robots_go_on_elsewhere(
    nodes: Nodes, cluster: Running, robots: list[ZmqLink], served: Target
) -> None:
    assert losses_while(nodes.kill, cluster.ready, robots, served)[0] >= 1


@pytest.mark.ray
def test_when_the_directory_is_killed_robots_notice_nothing(
    cluster: Running, robots: list[ZmqLink], served: Target
) -> None:
    directory = ray.get_actor(DIRECTORY, NAMESPACE)
    before = {name: process_of(name) for name in cluster.ready()}

    def kill(_: str) -> None:
        ray.kill(directory, no_restart=False)

    assert losses_while(kill, cluster.ready, robots, served, comes_anew=False) == [0] * ROBOTS
    assert ray.get(directory.secret.remote(), timeout=LIMIT_S)
    assert {name: process_of(name) for name in before} == before


@pytest.mark.ray
def test_when_rays_head_is_killed_robots_notice_nothing(
    nodes: Nodes, cluster: Running, robots: list[ZmqLink], served: Target
) -> None:
    before = {name: process_of(name) for name in cluster.ready()}

    def kill(_: str) -> None:
        nodes.head.kill_gcs_server()

    try:
        assert losses_while(kill, cluster.ready, robots, served, comes_anew=False) == [0] * ROBOTS
    finally:
        nodes.head.start_gcs_server()
    eventually(lambda: len(cluster.ready()) == 2)
    assert ray.get(ray.get_actor(DIRECTORY, NAMESPACE).secret.remote(), timeout=LIMIT_S)
    assert {name: process_of(name) for name in before} == before


@pytest.mark.ray
def test_when_the_sockets_of_a_replica_and_of_the_gateway_die_both_live_on(
    cluster: Running, robots: list[ZmqLink], served: Target
) -> None:
    before = {name: process_of(name) for name in cluster.ready()}

    def kill_sockets(name: str) -> None:
        for pid in (*frontends_of(before[name]), cluster.cluster.frontend.pid):
            os.kill(pid, signal.SIGKILL)

    assert losses_while(kill_sockets, cluster.ready, robots, served, comes_anew=False)[0] >= 1
    assert {name: process_of(name) for name in before} == before
    with contextlib.closing(connect(cluster.cluster.address, served.hello, robots[0].config.keys)) as robot:
        eventually(lambda: robot.state is LinkState.NOMINAL)


@pytest.mark.ray
def test_a_robot_without_a_ticket_is_sent_back_to_the_gateway(
    cluster: Running, served: Target, keys: tuple[Path, list[Keys]]
) -> None:
    with contextlib.closing(connect(next(iter(cluster.ready().values())), served.hello, keys[1][0])) as robot:
        eventually(lambda: "robots from its cluster's gateway only" in robot.why)


@pytest.mark.ray
def test_when_a_replica_drains_its_robots_go_on_elsewhere_and_another_one_takes_its_place(
    cluster: Running, robots: list[ZmqLink], served: Target
) -> None:
    """This test is the last of the cluster's: it does not wait until the other one has loaded its model."""
    drained: dict[str, int] = {}

    def drain(name: str) -> None:
        drained[name] = process_of(name)
        os.kill(drained[name], signal.SIGTERM)

    def is_followed() -> bool:
        ((name, pid),) = drained.items()
        with contextlib.suppress(ValueError):  # no actor has the name for a moment
            return not is_there(pid) and is_there(process_of(name))
        return False

    losses_while(drain, cluster.ready, robots, served, comes_anew=False)
    eventually(is_followed)


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

    @property
    def chat_api(self) -> str:
        """Return the chat API's address, beside the gateway's pages."""
        return address_in(self.log.splitlines())

    def ready(self) -> dict[str, str]:
        """Return the addresses of the replicas that are ready, by name."""
        with urlopen(self.chat_api.replace("/v1", "/load"), timeout=LIMIT_S) as reply:
            load = msgspec.json.decode(reply.read(), type=GatewayLoad)
        return {each.name: each.address for each in load.replicas if each.phase is Phase.READY}

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
    """One replica is killed while robots draft and requests stream: each answer goes on at the other; it comes back."""
    file = tmp_path / "api_keys"
    key, vlm = add_key(file, "robot-0"), load_vlm(served.folder, dtype="float64")
    texts = [reader(vlm.processor.tokenizer)(tokens) for tokens in served.truths]
    alive: list[str] = []
    killed: list[str] = []
    answers: list[str] = []
    started = Command(
        "--model", str(served.folder), "--dtype", "float64", "--capacity", "192", "--replicas", "2", "--http", "0",
        "--keys", str(keys[0]), "--api-keys", str(file), "--max-sessions", "16", "--sessions-per-client", "16",
    )  # fmt: skip
    with contextlib.ExitStack() as ends:
        ends.callback(started.process.kill)
        lines = ("OpenAI chat API of", "replica-1 starts as process", "replica-2 starts as process")
        eventually(lambda: all(line in started.log for line in lines) and len(started.ready()) == 2)
        gateway = re.search(r"cluster of 2 to 2 replicas, its gateway at (\S+)\n", started.log)
        assert gateway
        robots = [connect(gateway[1], served.hello, pair, 3.0) for pair in keys[1]]
        for robot in robots:
            ends.callback(robot.close)
        asking = client(started.chat_api, key)
        pids = dict(re.findall(r"replica (\S+) starts as process (\d+)", started.log))

        def ask(number: int) -> str:
            how = {"model": "target", "temperature": 0, "max_tokens": ANSWER, "stream": True}
            chunks = asking.chat.completions.create(messages=as_robot(number), **how)  # type: ignore[call-overload]
            parts = []
            for chunk in chunks:
                parts.append(chunk.choices[0].delta.content or "")
                with contextlib.suppress(IndexError):
                    os.kill(int(pids[alive.pop()]), signal.SIGKILL)
            return "".join(parts)

        def ask_and_kill(replica: str) -> None:
            """Ask, and kill the first robot's replica, where requests of its key are served too, amid a stream."""
            # Several at once: the other replica may take the first while the robots of this one are counted twice.
            with ThreadPoolExecutor(4) as pool:
                assert list(pool.map(ask, [0] * 4)) == texts[:1] * 4
            opened = re.compile(rf" {replica}: session \d+ \(robot-0\) opened: class=batch")
            eventually(lambda: opened.search(started.log))
            alive.append(replica)
            killed.append(replica)
            with ThreadPoolExecutor(4) as pool:
                answers.extend(pool.map(ask, [number % len(texts) for number in range(12)]))

        assert losses_while(ask_and_kill, started.ready, robots, served, comes_anew=False)[0] >= 1
        assert not alive and answers == [texts[number % len(texts)] for number in range(12)]
        eventually(lambda: started.log.count(f"replica {killed[0]} starts as process") == 2)
        os.killpg(started.process.pid, signal.SIGINT)  # a Ctrl-C reaches the whole group
        assert started.end() == 0
    for line in (r"gateway closed: [1-9]\d* robots sent to replicas", "all replicas have ended"):
        assert re.search(line, started.log)
    assert "Traceback" not in started.log
