"""Replicas that die while robots ask: wrong tokens, lost steps, and how long robots are without a verifier.

A cluster of replica processes on this machine, on its own or on Ray's test cluster of a node a replica, and robots that
ask without a pause. Now and then something is killed at random; the next time is when all replicas are ready again.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from tqdm import tqdm

from benchmarks.robots import counts
from cloud_verifier.__main__ import parse
from cloud_verifier.cluster.directory import Directory
from cloud_verifier.cluster.local import LocalCluster
from cloud_verifier.cluster.scaling import Scaling
from cloud_verifier.cluster.settings import ClusterSettings
from cloud_verifier.config import ServerConfig
from edge_drafter import Mode
from edge_drafter.decoder import EdgeDecoder
from edge_drafter.link import LinkState
from edge_drafter.reply import AnswerLate, VerifierLost
from evaluation.experiment import command
from evaluation.experiment.alone import TargetAlone
from evaluation.experiment.questions import in_words, text_flags, warmed_up
from evaluation.experiment.run import Answer, Question
from evaluation.experiment.sockets import edge_config
from evaluation.setting import CONNECT_LIMIT_S, several
from evaluation.tables import MS, Column, figures_table
from speculation.settings import fields_of, from_flags
from speculation.vlm.load import Vlm, load_vlm

REPLICAS, QUICK_REPLICAS = (1, 2, 4), (2,)
KILLS, QUICK_KILLS = 10, 2
READY_S = 300.0
LOCAL_FAULTS = ("kill", "freeze", "drain")
RAY_FAULTS = ("kill", "node", "directory")
FAULTS = {
    "kill": "kill -9 of a replica",
    "freeze": "a replica stops answering (SIGSTOP) and is killed later",
    "drain": "a replica is drained",
    "node": "kill -9 of a Ray node with its replica",
    "directory": "kill -9 of the directory's actor",
}
COLUMNS = (
    Column("faults", "faults", ".0f"),
    Column("answers", "answers", ".0f"),
    Column("wrong", "wrong", ".0f"),
    Column("lost", "lost", ".0f"),
    Column("resumed", "resumed", ".0f"),
    Column("p50 ms to resume", "resume_p50_s", ".0f", MS),
    Column("p95 ms to resume", "resume_p95_s", ".0f", MS),
    Column("longest", "resume_max_s", ".0f", MS),
)


@dataclass
class Robot:
    """One robot: its links' states, by time, and what became of its questions."""

    states: list[tuple[float, LinkState, str]] = field(default_factory=list)
    answers: int = 0
    wrong: int = 0
    lost: list[str] = field(default_factory=list)

    def became(self, state: LinkState, why: str) -> None:
        """Enter a state of the link."""
        self.states.append((time.monotonic(), state, why))

    def is_at(self, address: str) -> bool:
        """Whether it is served there now."""
        return bool(self.states) and self.states[-1][1] is LinkState.NOMINAL and f" {address} " in self.states[-1][2]

    def resumed_after(self, when: float, from_loss: bool) -> float | None:
        """Return for how many seconds it was without a verifier, None where it never was since then.

        from_loss: from when it was sent away; else from `when` on, which it notices later.
        """
        later = [(at, state) for at, state, _ in self.states if at >= when]
        lost = next((at for at, state in later if state is not LinkState.NOMINAL), None)
        if lost is None:
            return None
        began = lost if from_loss else when
        return next((at - began for at, state in later if at > lost and state is LinkState.NOMINAL), None)


class Cluster(Protocol):
    """A cluster that turns in a thread of its own."""

    address: str

    def ready(self) -> dict[str, str]:
        """Return the addresses of the replicas that are ready, by name."""

    def inject(self, how: str, name: str) -> None:
        """Do it to a replica, to its node, or to what stands above all."""


class Turning:
    """Turns a cluster in a thread. `lock` is held while it turns."""

    def __init__(self, cluster: Any, directory: Directory) -> None:
        self.cluster, self.directory, self.address = cluster, directory, str(cluster.address)
        self.lock = threading.RLock()
        self.failure: Exception | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def ready(self) -> dict[str, str]:
        """See `Cluster`. Raises what ended the cluster."""
        if self.failure is not None:
            raise self.failure
        with self.lock:
            return {each.name: each.address for each in self.directory.ready(time.monotonic())}

    def close(self) -> None:
        """End the thread and the cluster."""
        self._ending.set()
        self._thread.join()
        self.cluster.close()

    def _run(self) -> None:
        while not self._ending.is_set():
            with self.lock:
                try:
                    self.cluster.turn()
                except Exception as error:
                    self.failure = error
                    return
            time.sleep(0.0005)  # lets others have the lock


class OnThisMachine(Turning):
    """Replica processes without Ray."""

    def __init__(self, words: Sequence[str]) -> None:
        cluster = LocalCluster(*settings_of(words))
        super().__init__(cluster, cluster.directory)

    def inject(self, how: str, name: str) -> None:
        """See `Cluster`."""
        with self.lock:
            process = self.cluster.supervisor.running[name]
            if how == "drain":
                self.cluster.manager.drain(name)
            else:
                os.kill(process, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        if how == "freeze":
            threading.Timer(5.0, os.kill, (process, signal.SIGKILL)).start()


class OnRay(Turning):
    """Ray's test cluster: a head for the directory, and a node for each replica."""

    def __init__(self, words: Sequence[str], replicas: int) -> None:
        import ray
        from ray.cluster_utils import Cluster as Nodes

        from cloud_verifier.cluster.on_ray import NAMESPACE, RayCluster

        self._ray = ray
        self._nodes: Any = Nodes(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 80 << 20})
        self._workers = [self._add() for _ in range(replicas)]
        ray.init(address=self._nodes.address, namespace=NAMESPACE)
        cluster = RayCluster(*settings_of(words))
        super().__init__(cluster, cluster.view.directory)

    def inject(self, how: str, name: str) -> None:
        """See `Cluster`. A node that is killed is replaced by another one."""
        from cloud_verifier.cluster.on_ray import DIRECTORY, NAMESPACE

        if how == "directory":
            self._ray.kill(self._ray.get_actor(DIRECTORY, NAMESPACE), no_restart=False)
        elif how == "kill":
            actor = self._ray.get_actor(name, NAMESPACE)
            os.kill(self._ray.get(actor.process.remote()), signal.SIGKILL)
        else:
            self._nodes.remove_node(self._workers.pop(0), allow_graceful=False)
            self._workers.append(self._add())

    def close(self) -> None:
        """See `Turning`; Ray ends too."""
        from cloud_verifier.cluster.on_ray import stop

        super().close()
        stop(0.0)
        self._ray.shutdown()
        self._nodes.shutdown()

    def _add(self) -> Any:
        return self._nodes.add_node(num_cpus=1, object_store_memory=80 << 20)


def settings_of(words: Sequence[str]) -> tuple[dict[str, Any], ServerConfig, ClusterSettings, Scaling]:
    """Return what a command line of `cloud_verifier cluster` means."""
    options = parse(["cluster", "--bind", "tcp://127.0.0.1:*", *words])
    values = {field.name: options[field.name] for field in fields_of(ServerConfig)}
    return options, ServerConfig.of(**values), from_flags(ClusterSettings, options), Scaling()


@contextmanager
def asking(
    edges: Sequence[EdgeDecoder], robots: Sequence[Robot], asked: Sequence[Question], truths: Sequence[Answer]
) -> Iterator[Callable[[], None]]:
    """Let every robot ask without a pause; yields what raises once a robot's thread has failed."""
    over = threading.Event()
    failures: list[Exception] = []

    def ask(index: int) -> None:
        robot, place = robots[index], index
        while not over.is_set():
            place = (place + 1) % len(asked)
            try:
                result = edges[index].decode(asked[place].prompt, asked[place].jpeg)
            except (VerifierLost, AnswerLate) as error:
                robot.lost.append(str(error))
            except Exception as error:
                failures.append(error)
                return
            else:
                robot.answers += 1
                robot.wrong += result.tokens != truths[place].tokens

    def check() -> None:
        if failures:
            raise failures[0]

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(edges))]
    for thread in threads:
        thread.start()
    try:
        yield check
    finally:
        over.set()
        for thread in threads:
            thread.join()
    check()


def wait_ready(cluster: Cluster, count: int, check: Callable[[], None] = lambda: None) -> None:
    """Wait until so many replicas are ready. Raises RuntimeError where that takes too long."""
    until = time.monotonic() + READY_S
    while len(cluster.ready()) < count:
        check()
        if time.monotonic() > until:
            raise RuntimeError(f"{count} replicas are not ready after {READY_S:g} s")
        time.sleep(0.02)


def measure(
    options: argparse.Namespace, cluster: Cluster, replicas: int, vlm: Vlm, asked: Sequence[Question],
    truths: Sequence[Answer],
) -> dict[str, dict[str, float | None]]:  # fmt: skip
    """Return the figures of one cluster, by what was done to it."""
    dice = random.Random(f"{options.seed} {replicas}")
    robots = [Robot() for _ in range(options.robots)]
    resumed: dict[str, list[float]] = {how: [] for how in options.faults}
    totals: dict[str, tuple[int, int, int]] = {}
    with ExitStack() as stack:
        config = edge_config(options, cluster.address, mode=options.mode, silence_s=1.5)
        edges = [stack.enter_context(closing(EdgeDecoder(config, vlm=vlm, on_state=robot.became))) for robot in robots]
        for edge in edges:
            edge.connect(CONNECT_LIMIT_S)
        check = stack.enter_context(asking(edges, robots, asked, truths))
        for how in tqdm([how for how in options.faults for _ in range(options.kills)], desc=f"{replicas} replicas"):
            before = _totals(robots)
            wait_ready(cluster, replicas, check)
            time.sleep(dice.uniform(0.0, 2.0))
            name, address = dice.choice(sorted(cluster.ready().items()))
            theirs = [robot for robot in robots if robot.is_at(address)]
            when = time.monotonic()
            cluster.inject(how, name)
            until = when + READY_S
            while how != "directory" and cluster.ready().get(name) == address:  # until it is noticed
                time.sleep(0.02)
            time.sleep(0.5)
            while any(robot.states[-1][1] is not LinkState.NOMINAL for robot in robots) and time.monotonic() < until:
                check()
                time.sleep(0.02)
            wait_ready(cluster, replicas, check)
            among = robots if how in ("node", "directory") else theirs
            resumed[how] += [each for robot in among if (each := robot.resumed_after(when, how == "drain")) is not None]
            after = _totals(robots)
            known = totals.get(how, (0, 0, 0))
            totals[how] = tuple(k + b - a for k, a, b in zip(known, before, after, strict=True))  # type: ignore[assignment]
    for robot in robots:
        for why in robot.lost:
            print(f"lost: {why}", file=sys.stderr)
    return {
        how: {
            "faults": options.kills, "answers": totals[how][0], "wrong": totals[how][1], "lost": totals[how][2],
            "resumed": len(times),
            "resume_p50_s": float(np.percentile(times, 50)) if times else None,
            "resume_p95_s": float(np.percentile(times, 95)) if times else None,
            "resume_max_s": max(times) if times else None,
        }
        for how, times in resumed.items()
    }  # fmt: skip


def _totals(robots: Sequence[Robot]) -> tuple[int, int, int]:
    return (
        sum(robot.answers for robot in robots),
        sum(robot.wrong for robot in robots),
        sum(len(robot.lost) for robot in robots),
    )


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command.experiment_line(
        "benchmarks.cluster", __doc__, 4, journal=False, drafting=True, predictor=True, profile="raw"
    )
    line.add_argument("--quick", action="store_true", help="two replicas, two of each")
    line.add_argument("--on", choices=("local", "ray"), default="local", help="(default: %(default)s)")
    line.add_argument("--replicas", type=counts, help="clusters, e.g. 1,4 (default: 1,2,4; --quick: 2)")
    line.add_argument("--robots", type=int, default=16, help="(default: %(default)s)")
    line.add_argument("--mode", default=Mode.CLOUD.value, help="of the robots (default: %(default)s)")
    line.add_argument("--kills", type=int, help=f"of each kind (default: {KILLS}, {QUICK_KILLS} with --quick)")
    shown = "; ".join(f"{name}: {what}" for name, what in FAULTS.items())
    line.add_argument("--faults", type=several(list(FAULTS)), help=f"{shown} (default: all that --on has)")
    return line


def run(options: argparse.Namespace) -> int:
    """Run the benchmark and return 1 where a token is wrong or a step lost, else 0. Raises ValueError, RuntimeError."""
    possible = LOCAL_FAULTS if options.on == "local" else RAY_FAULTS
    options.faults = options.faults or list(possible)
    options.kills = options.kills or (QUICK_KILLS if options.quick else KILLS)
    options.replicas = options.replicas or list(QUICK_REPLICAS if options.quick else REPLICAS)
    if not set(options.faults) <= set(possible):
        raise ValueError(f"--faults: --on {options.on} has {', '.join(possible)}")
    _, asked = warmed_up(options, options.steps, 1)
    target = TargetAlone(load_vlm(options.target_model, dtype=options.dtype, threads=1), options.max_tokens)
    truths = [target.decode(question) for question in asked]
    vlm = load_vlm(options.draft_model, dtype=options.dtype, threads=1)
    words = [
        "--model", str(options.target_model), "--dtype", options.dtype, "--threads", "1", "--on", options.on,
        "--max-sessions", str(2 * options.robots), "--cpus-per-replica", "1", *text_flags(in_words(options.frames)),
    ]  # fmt: skip
    print(f"{command.described(options)}; {options.robots} robots in mode {options.mode} on {options.on}")
    results: dict[str, Mapping[str, Mapping[str, float | None]]] = {}
    for replicas in options.replicas:
        own = [*words, "--replicas", str(replicas)]
        cluster = OnThisMachine(own) if options.on == "local" else OnRay(own, replicas)
        with closing(cluster):
            wait_ready(cluster, replicas)
            results[str(replicas)] = measure(options, cluster, replicas, vlm, asked, truths)
        print("\n" + figures_table(f"{replicas} replicas", results[str(replicas)], COLUMNS))
    command.finish(options, f"cluster_{options.on}", {"replicas": results})
    every = [row for rows in results.values() for row in rows.values()]
    return int(any(row["wrong"] or row["lost"] for row in every))


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
