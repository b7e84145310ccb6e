"""A cluster on Ray's own test cluster: two nodes, one replica on each, and one of them is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cloud_verifier.cluster import on_ray
from cloud_verifier.cluster.on_ray import DIRECTORY, NAMESPACE, RayCluster, stop
from speculation.early_end import SIGNALS
from tests.cloud_verifier.cluster.running import answer, connect, eventually, place_of, settings_of, turning
from tests.cloud_verifier.process import make_target

ray = pytest.importorskip("ray")


def process_of(name: str) -> int | None:
    """Return the process of a replica; None while its actor does not answer, or has none."""
    try:
        found: int | None = ray.get(ray.get_actor(name, NAMESPACE).process.remote(), timeout=5.0)
    except Exception:
        return None
    return found


def test_a_signal_ends_it_at_once_while_it_looks_for_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    while_waiting, while_serving = {}, {}

    def init(**_: object) -> None:
        while_waiting.update({number: signal.getsignal(number) for number in SIGNALS})

    def stopped(_: float) -> None:
        while_serving.update({number: signal.getsignal(number) for number in SIGNALS})

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(on_ray, "stop", stopped)
    try:
        on_ray.serve(*settings_of("--on", "ray", "--model", "m", "--address", "10.0.0.1:6379", "--stop"))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert while_waiting == before
    assert all(while_serving[number] not in (before[number], None) for number in SIGNALS)


@pytest.mark.ray
def test_a_robot_goes_on_when_its_replica_and_when_the_directory_are_killed(tiny_target: Path, tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    target = make_target(tiny_target, tmp_path)
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80 << 20})
    nodes.add_node(num_cpus=1, object_store_memory=80 << 20)
    ray.init(address=nodes.address, namespace=NAMESPACE)
    try:
        flags = ("--model", str(target.folder), "--dtype", "float64", "--capacity", "192", "--replicas", "2")
        with turning(RayCluster(*settings_of(*flags))) as cluster:
            eventually(lambda: len(cluster.ready()) == 2, "two replicas were not ready")
            link = connect(cluster.cluster.address, target.hello)
            killed: list[tuple[str, int]] = []

            def fault(tokens: int) -> None:
                if tokens >= 4 and not killed:
                    names = {address: name for name, address in cluster.ready().items()}
                    name = names[place_of(link)]
                    process = process_of(name)
                    assert process is not None
                    killed.append((name, process))
                    os.kill(process, signal.SIGKILL)

            try:
                tokens, losses = answer(link, 0, target.truths[0], progress=fault)
                assert tokens == target.truths[0] and losses >= 1
                ray.kill(ray.get_actor(DIRECTORY, NAMESPACE), no_restart=False)
                assert answer(link, 1, target.truths[1], 100) == (target.truths[1], 0)
                name, process = killed[0]
                eventually(lambda: process_of(name) not in (None, process), "the replica was not started again")
            finally:
                link.close()
        stop(0.0)
        assert not ray.util.list_named_actors(all_namespaces=True)
    finally:
        ray.shutdown()
        nodes.shutdown()
