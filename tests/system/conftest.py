"""Real processes in a ROS domain of the test's own, on this machine only."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="no ROS 2 here; run through scripts/with_env")
pytest.importorskip("spec_vlm_nav_interfaces", reason="the workspace is not built; run scripts/setup.sh")

from tests.forked import SUBPROCESS

DOMAINS = range(1, 100)
LIMIT_S = 120.0


def reserved() -> tuple[socket.socket, int]:
    """Return a domain that no other run on this machine has, and what keeps it until it is closed or the run ends."""
    for place in range(len(DOMAINS)):
        domain = DOMAINS[(os.getpid() + place) % len(DOMAINS)]
        keeper = socket.socket(socket.AF_UNIX)
        try:
            keeper.bind(f"\0spec_vlm_nav.tests.domain.{domain}")
        except OSError:
            keeper.close()
        else:
            return keeper, domain
    raise RuntimeError("all ROS domains of the tests are taken")


@pytest.fixture(scope="session", autouse=True)
def own_domain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep several runs of the tests on one machine from hearing each other, and from going on with others' goals."""
    keeper, domain = reserved()
    with keeper, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROS_DOMAIN_ID", str(domain))
        patch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("ROS_HOME", str(tmp_path_factory.mktemp("ros")))
        yield


class Lines:
    """The output of all processes; printed when the test fails, as pytest captures it."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def __call__(self, name: str, line: str) -> None:
        with self._lock:
            self._lines.append((name, line))

    def text(self, name: str) -> str:
        """Return what a process has said in this test."""
        with self._lock:
            return "\n".join(line for who, line in self._lines if who == name)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._lines.clear()


@pytest.fixture(scope="module")
def all_lines() -> Lines:
    """Where processes print to that the tests of a file share."""
    return Lines()


@pytest.fixture
def lines(all_lines: Lines) -> Iterator[Lines]:
    """The processes' output during one test."""
    all_lines.clear()
    yield all_lines
    for name, line in all_lines._lines:
        print(f"[{name}] {line}")


def until(condition: Callable[[], bool], what: str, limit: float = LIMIT_S) -> None:
    """Wait for something that must come; the limit only ends a test that has failed already."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"{what}: not within {limit:g} s")
        time.sleep(0.02)


def _grants_priority() -> bool:
    with ThreadPoolExecutor(1) as pool:  # Linux keeps the niceness of a thread, so that this process has its own still.
        asked = pool.submit(os.setpriority, os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 1)
        return not isinstance(asked.exception(), OSError)


PRIORITY = _grants_priority()
"""Whether a process here may run before others, as one of root may outside of most containers."""


@pytest.fixture
def ros() -> Iterator[None]:
    """Have rclpy initialised in this process."""
    import rclpy

    rclpy.init()
    yield
    rclpy.shutdown()


@pytest.fixture(scope="module", autouse=True)
def forked_nodes() -> Iterator[None]:
    """A graph that is started in this process forks its nodes, which take long to import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spec_vlm_nav.runner.subprocess", SUBPROCESS)
        yield


@pytest.fixture(scope="session")
def turning_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model that always answers 'turn left small'."""
    from tests.system.parrot import TURN_LEFT, parrot

    return parrot(tmp_path_factory.mktemp("turning"), TURN_LEFT)


@pytest.fixture(scope="session")
def stopping_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model that always answers 'stop'."""
    from tests.system.parrot import STOP, parrot

    return parrot(tmp_path_factory.mktemp("stopping"), STOP)
