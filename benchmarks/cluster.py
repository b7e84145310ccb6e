"""Replicas that die while robots ask: wrong tokens, lost steps, and how long robots are without a verifier.

A cluster of replica processes on this machine, on its own or on Ray's test cluster of a node a replica, and robots that
ask without a pause, or once in --every-s. Now and then something is killed at random; the next time is when all
replicas are ready again. With --minutes that goes on for so long, each kind of fault in turn.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

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
from speculation.progress import progress
from speculation.settings import fields_of, from_flags
from speculation.vlm.load import Vlm, load_vlm
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.alone import TargetAlone
from vlm_nav_evaluation.experiment.questions import in_words, text_flags, warmed_up
from vlm_nav_evaluation.experiment.run import Answer, Question
from vlm_nav_evaluation.experiment.sockets import edge_config
from vlm_nav_evaluation.setting import CONNECT_LIMIT_S, several
from vlm_nav_evaluation.tables import MS, Column, figures_table

REPLICAS, QUICK_REPLICAS = (1, 2, 4), (2,)
KILLS, QUICK_KILLS = 10, 2
READY_S = 300.0
HEAD_S = 3.0
PATIENCE_S = 60.0
"""Of a robot's step without a verifier: with one replica it waits for the next to load its model."""
LOCAL_FAULTS = ("kill", "freeze", "drain")
RAY_FAULTS = ("kill", "node", "directory", "head")
FAULTS = {
    "kill": "kill -9 of a replica",
    "freeze": "a replica stops answering (SIGSTOP) and is killed later",
    "drain": "a replica is drained",
    "node": "kill -9 of a Ray node with its replica",
    "directory": "kill -9 of the directory's actor",
    "head": f"kill -9 of the server of Ray's head, which is started again {HEAD_S:g} s later (its state on disk)",
}
OF_ALL = ("node", "directory", "head")
"""What is not known to be of certain robots."""
UNSEEN = ("directory", "head")
"""What leaves all replicas where they are."""
COLUMNS = (
    Column("faults", "faults", ".0f"),
    Column("answers", "answers", ".0f"),
    Column("wrong", "wrong", ".0f"),
    Column("lost", "lost", ".0f"),
    Column("resumed", "resumed", ".0f"),
    Column("p50 ms to resume", "resume_p50_s", ".0f", MS),
    Column("p95 ms to resume", "resume_p95_s", ".0f", MS),
    Column("longest", "resume_max_s", ".0f", MS),
    Column("load", "load", ".1f"),
)
ALL_COLUMNS = (
    Column("seconds", "seconds", ".0f"),
    Column("answers", "answers", ".0f"),
    Column("wrong", "wrong", ".0f"),
    Column("lost", "lost", ".0f"),
    Column("interruptions", "interruptions", ".0f"),
    Column("p50 s of an answer", "answer_p50_s", ".2f"),
    Column("p95", "answer_p95_s", ".2f"),
    Column("longest", "answer_max_s", ".2f"),
    Column("longest s away", "away_max_s", ".2f"),
)


@dataclass
class Robot:
    """One robot: its links' states, by time, and what became of its questions."""

    states: list[tuple[float, LinkState, str]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """Of each answer."""
    wrong: int = 0
    interruptions: int = 0
    lost: list[str] = field(default_factory=list)

    @property
    def answers(self) -> int:
        """Answers so far."""
        return len(self.seconds)

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

    def away(self, now: float) -> list[float]:
        """Return the seconds of each time without a verifier since the first that served it; the last may go on."""
        found: list[float] = []
        lost: float | None = None
        served = list(itertools.dropwhile(lambda each: each[1] is not LinkState.NOMINAL, self.states))
        for at, state, _ in served:
            if state is LinkState.NOMINAL and lost is not None:
                found.append(at - lost)
            lost = None if state is LinkState.NOMINAL else at if lost is None else lost
        return found if lost is None else [*found, now - lost]


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


class Elsewhere:
    """A cluster that somebody else runs, and kills: nothing is done to it here."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ready(self) -> dict[str, str]:
        """See `Cluster`: nothing is known."""
        return {}

    def inject(self, how: str, name: str) -> None:
        """See `Cluster`: whoever runs it does that."""

    def close(self) -> None:
        """There is nothing to close."""


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
        self._storage = tempfile.TemporaryDirectory(prefix="ray")
        # Of its own, so that nobody takes it for the machine's cluster; and Ray's head keeps what it knows there, or
        # the cluster would end with it (RAY_gcs_storage=memory shows that).
        os.environ.setdefault("RAY_TMPDIR", self._storage.name)
        os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's own is 15, behind all else on the machine
        os.environ.setdefault("RAY_gcs_storage", "rocksdb")
        os.environ.setdefault("RAY_gcs_storage_path", f"{self._storage.name}/gcs")
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

        if how == "head":
            head = self._nodes.head_node
            head.kill_gcs_server()
            time.sleep(HEAD_S)
            head.start_gcs_server()
        elif how == "directory":
            self._ray.kill(self._ray.get_actor(DIRECTORY, NAMESPACE), no_restart=False)
        elif how == "kill":
            actor = self._ray.get_actor(name, NAMESPACE)
            os.kill(self._ray.get(actor.process.remote()), signal.SIGKILL)
        else:
            from ray._private.state import actors

            place = actors(self._ray.get_actor(name, NAMESPACE)._actor_id.hex())["Address"]["NodeID"]
            worker = next(each for each in self._workers if each.node_id == place)
            self._workers.remove(worker)
            self._nodes.remove_node(worker, allow_graceful=False)
            self._workers.append(self._add())

    def close(self) -> None:
        """See `Turning`; Ray ends too."""
        from cloud_verifier.cluster.on_ray import stop

        super().close()
        stop(0.0)
        self._ray.shutdown()
        self._nodes.shutdown()
        self._storage.cleanup()

    def _add(self) -> Any:
        return self._nodes.add_node(num_cpus=1, object_store_memory=80 << 20)


def settings_of(words: Sequence[str]) -> tuple[dict[str, Any], ServerConfig, ClusterSettings, Scaling]:
    """Return what a command line of `cloud_verifier cluster` means."""
    options = parse(["cluster", "--bind", "tcp://127.0.0.1:*", *words])
    values = {field.name: options[field.name] for field in fields_of(ServerConfig)}
    return options, ServerConfig.of(**values), from_flags(ClusterSettings, options), Scaling()


@contextmanager
def asking(
    edges: Sequence[EdgeDecoder], robots: Sequence[Robot], asked: Sequence[Question], truths: Sequence[Answer],
    every_s: float = 0.0,
) -> Iterator[Callable[[], None]]:  # fmt: skip
    """Let every robot ask, each `every_s` or without a pause; yields what raises once a robot's thread has failed."""
    over = threading.Event()
    failures: list[Exception] = []

    def ask(index: int) -> None:
        robot, place = robots[index], index
        due = time.monotonic() + every_s * index / len(edges)
        while not over.wait(max(0.0, due - time.monotonic())):
            place = (place + 1) % len(asked)
            due, began = max(due + every_s, time.monotonic()), time.monotonic()
            try:
                result = edges[index].decode(asked[place].prompt, asked[place].jpeg)
            except (VerifierLost, AnswerLate) as error:
                robot.lost.append(str(error))
            except Exception as error:
                failures.append(error)
                return
            else:
                robot.seconds.append(time.monotonic() - began)
                robot.wrong += result.tokens != truths[place].tokens
                robot.interruptions += result.stats.interruptions

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
) -> dict[str, Any]:  # fmt: skip
    """Return the figures of one cluster: by what was done to it, and of all answers."""
    dice = random.Random(f"{options.seed} {replicas}")
    robots = [Robot() for _ in range(options.robots)]
    kinds = {how: _Kind() for how in options.faults}
    with ExitStack() as stack:
        config = edge_config(options, cluster.address, mode=options.mode, silence_s=1.5, resume_s=PATIENCE_S)
        edges = [stack.enter_context(closing(EdgeDecoder(config, vlm=vlm, on_state=robot.became))) for robot in robots]
        for edge in edges:
            edge.connect(CONNECT_LIMIT_S)
        check = stack.enter_context(asking(edges, robots, asked, truths, options.every_s))
        began = time.monotonic()
        while options.at and time.monotonic() - began < 60.0 * options.minutes:
            check()
            time.sleep(0.1)
        for how in progress(_plan(options, began), desc=f"{replicas} replicas", total=_faults(options)):
            before = _totals(robots)
            wait_ready(cluster, replicas, check)
            time.sleep(dice.uniform(0.0, 2.0))
            found = sorted(cluster.ready().items())
            used = [each for each in found if any(robot.is_at(each[1]) for robot in robots)]
            name, address = dice.choice(used or found)
            theirs = [robot for robot in robots if robot.is_at(address)]
            when = time.monotonic()
            cluster.inject(how, name)
            until = when + READY_S
            while how not in UNSEEN and cluster.ready().get(name) == address and time.monotonic() < until:
                time.sleep(0.02)  # until it is noticed
            time.sleep(0.5)
            while any(robot.states[-1][1] is not LinkState.NOMINAL for robot in robots) and time.monotonic() < until:
                check()
                time.sleep(0.02)
            wait_ready(cluster, replicas, check)
            among = robots if how in OF_ALL else theirs
            times = [each for robot in among if (each := robot.resumed_after(when, how == "drain")) is not None]
            kinds[how].add(times, [b - a for a, b in zip(before, _totals(robots), strict=True)])
        seconds = time.monotonic() - began
    for robot in robots:
        for why in robot.lost:
            print(f"lost: {why}", file=sys.stderr)
    answers = [each for robot in robots for each in robot.seconds]
    away = [each for robot in robots for each in robot.away(began + seconds)]
    return {
        "faults": {how: kind.figures() for how, kind in kinds.items()},
        "all": {
            "seconds": seconds, "answers": len(answers), "wrong": sum(robot.wrong for robot in robots),
            "lost": sum(len(robot.lost) for robot in robots),
            "interruptions": sum(robot.interruptions for robot in robots),
            "answer_p50_s": float(np.percentile(answers, 50)), "answer_p95_s": float(np.percentile(answers, 95)),
            "answer_max_s": max(answers), "away": len(away), "away_max_s": max(away, default=0.0),
        },
    }  # fmt: skip


@dataclass
class _Kind:
    """What one kind of fault came to."""

    faults: int = 0
    totals: list[int] = field(default_factory=lambda: [0, 0, 0])
    """Answers meanwhile, wrong ones, lost ones."""
    times: list[float] = field(default_factory=list)
    """Seconds that robots were without a verifier."""
    loads: list[float] = field(default_factory=list)

    def add(self, times: Sequence[float], more: Sequence[int]) -> None:
        """Enter one fault."""
        self.faults += 1
        self.times += times
        self.totals = [a + b for a, b in zip(self.totals, more, strict=True)]
        self.loads.append(os.getloadavg()[0])

    def figures(self) -> dict[str, Any]:
        """Return the row of a table, and every time."""
        answers, wrong, lost = self.totals
        return {
            "faults": self.faults, "answers": answers, "wrong": wrong, "lost": lost, "resumed": len(self.times),
            "resume_p50_s": float(np.percentile(self.times, 50)) if self.times else None,
            "resume_p95_s": float(np.percentile(self.times, 95)) if self.times else None,
            "resume_max_s": max(self.times, default=None),
            "load": float(np.mean(self.loads)) if self.loads else None,
            "resume_s": [round(each, 3) for each in self.times],
        }  # fmt: skip


def _plan(options: argparse.Namespace, began: float, clock: Callable[[], float] = time.monotonic) -> Iterator[str]:
    """Yield what is done next: every kind so often, or each in turn for so many minutes."""
    if options.at:
        return
    if options.minutes:
        for how in itertools.cycle(options.faults):
            if clock() - began >= 60.0 * options.minutes:
                return
            yield how
    else:
        for _ in range(options.kills):
            yield from options.faults


def _faults(options: argparse.Namespace) -> int | None:
    return None if options.minutes else options.kills * len(options.faults)


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
    line.add_argument(
        "--every-s", type=float, default=0.0, help="a robot asks once in so many seconds; 0: without a pause (default)"
    )
    line.add_argument(
        "--at", metavar="ADDRESS", default="", help="doors of a cluster that runs already: robots ask for --minutes"
    )
    line.add_argument("--name", help="of the file that --save writes, in place of cluster_ON")
    line.add_argument("--minutes", type=float, default=0.0, help="go on for so long, each kind of fault in turn")
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
    if options.at and not options.minutes:
        raise ValueError("--at: give --minutes too")
    if not set(options.faults) <= set(possible):
        raise ValueError(f"--faults: --on {options.on} has {', '.join(possible)}")
    _, asked = warmed_up(options, options.steps, 1)
    target = TargetAlone(load_vlm(options.target_model, dtype=options.dtype, threads=1), options.max_tokens)
    truths = [target.decode(question) for question in asked]
    vlm = load_vlm(options.draft_model, dtype=options.dtype, threads=1)
    print(f"{command.described(options)}; {options.robots} robots in mode {options.mode} on {options.on}")
    results: dict[str, dict[str, Any]] = {}
    for replicas in [0] if options.at else options.replicas:
        with closing(_cluster(options, replicas)) as cluster:
            wait_ready(cluster, replicas)
            results[str(replicas)] = measure(options, cluster, replicas, vlm, asked, truths)
        if not options.at:
            print("\n" + figures_table(f"{replicas} replicas", results[str(replicas)]["faults"], COLUMNS))
        print(figures_table("", {"all": results[str(replicas)]["all"]}, ALL_COLUMNS))
    command.finish(options, options.name or f"cluster_{options.on}", {"replicas": results})
    return int(any(each["all"]["wrong"] or each["all"]["lost"] for each in results.values()))


def words_of(options: argparse.Namespace, replicas: int) -> list[str]:
    """Return the flags with which the cluster is started."""
    return [
        "--model", str(options.target_model), "--dtype", options.dtype, "--threads", "1", "--on", options.on,
        "--max-sessions", str(2 * options.robots), "--replicas", str(replicas),
        *text_flags(in_words(options.frames)), *(["--cpus-per-replica", "1"] if options.on == "ray" else []),
    ]  # fmt: skip


def _cluster(options: argparse.Namespace, replicas: int) -> Any:
    if options.at:
        return Elsewhere(options.at)
    words = words_of(options, replicas)
    return OnRay(words, replicas) if options.on == "ray" else OnThisMachine(words)


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
