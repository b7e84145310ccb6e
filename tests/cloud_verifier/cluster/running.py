"""A cluster in a thread, whose replicas are real processes, and robots on real links that answer with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cloud_verifier.__main__ import parse
from cloud_verifier.cluster.on_ray import RayCluster
from cloud_verifier.cluster.scaling import Scaling
from cloud_verifier.cluster.settings import ClusterSettings
from cloud_verifier.config import ServerConfig
from edge_drafter import LinkLost
from edge_drafter.link import Keys, LinkConfig, ZmqLink
from speculation.settings import fields_of, from_flags
from speculation.wire import BeginStep, Commit, Draft, Hello, begin_digest, extend_digest
from tests.cloud_verifier.process import ANSWER
from tests.cloud_verifier.test_engine import PROMPTS, jpeg

LIMIT_S = 180.0


def eventually(condition: Callable[[], bool], what: str = "it") -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.01)


@dataclass
class Running:
    """A cluster and the thread that turns it. `lock` is to be held to touch it."""

    cluster: RayCluster
    lock: threading.RLock = field(default_factory=threading.RLock)
    failure: list[Exception] = field(default_factory=list)
    _ending: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self._ending.is_set():
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

    def close(self) -> None:
        self._ending.set()


def settings_of(*arguments: str) -> tuple[ServerConfig, ClusterSettings, Scaling]:
    """Return what a command line means."""
    options = parse(["cluster", "--bind", "tcp://127.0.0.1:*", *arguments])
    values = {name: options[name] for name in (field.name for field in fields_of(ServerConfig))}
    return ServerConfig.of(**values), from_flags(ClusterSettings, options), Scaling()


@contextmanager
def turning(cluster: RayCluster) -> Iterator[Running]:
    """Turn a cluster in a thread, and close it in the end."""
    running = Running(cluster)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        running.close()
        thread.join()
        cluster.close()


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
