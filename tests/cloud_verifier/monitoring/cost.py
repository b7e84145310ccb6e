"""What counting and showing figures costs: python -m tests.cloud_verifier.monitoring.cost [--robots N]

Times of the calls alone, in the thread that makes them, beside 64 sessions that are being answered.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from pathlib import Path

from cloud_verifier.choice import Act
from cloud_verifier.config import ServerConfig
from cloud_verifier.monitoring import series
from cloud_verifier.monitoring.exposition import pages_of
from cloud_verifier.monitoring.health import Watched
from cloud_verifier.tree import Tree
from speculation.acceptance import Verdict
from speculation.profiles import DeviceProfile
from speculation.wire import BeginStep, Commit, Idle
from tests.cloud_verifier.bench import HELLO, Bench, begin
from tests.cloud_verifier.steps import step_of

TOKENS = (1, 2, 3, 4)


def timed(what: str, call: Callable[[], object], times: int) -> None:
    """Print the median, the 95th percentile and the longest of so many calls."""
    gc.collect()
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        taken.append(1e6 * (time.perf_counter() - started))
    taken.sort()
    print(
        f"{what:55s} median {taken[times // 2]:8.1f} us   95 % {taken[int(0.95 * times)]:8.1f}   max {taken[-1]:8.1f}"
    )


def main() -> None:
    """Print the table."""
    line = argparse.ArgumentParser(description=__doc__)
    line.add_argument("--robots", type=int, default=64)
    robots = line.parse_args().robots
    bench = Bench(ServerConfig.of(Path("m"), max_sessions=robots), DeviceProfile("some", verify_s=0.02))
    for number in range(robots):
        bench.send(b"%d" % number, HELLO)
        bench.send(b"%d" % number, begin(max_tokens=512, idle=Idle.LEDGER))
    server, figures = bench.server, bench.server.figures
    while figures.latest.value(series.ROBOTS, "running") < robots:
        bench.turns(1)
        server._publish(bench.post.now)
    timed(f"publish, {robots} sessions (once a second)", lambda: server._publish(bench.post.now), 1000)
    step = step_of(BeginStep(1, "p", b"j", max_tokens=400), [99999], index=robots)
    figures.begun(step, robots, "go2", b"", 0.0)
    step.tree, step.act = Tree.chain(TOKENS), Act.VERIFY
    step.usage.passes, verdict = 2, Verdict((0, 1, 2), 5, 0.5)
    message = Commit(1, 1, 0, [1, 2, 3, 5], b"x" * 8, False)

    def commit() -> None:
        figures.early(step, 1, verdict)
        figures.early(step, 2, verdict)
        figures.committed(step, verdict, message, 0.0, 0.01, 1.0)

    timed("commit: two exits, four draft tokens, three accepted", commit, 20_000)
    timed("forward", lambda: figures.passed(10, 0.01, True), 20_000)
    pages = pages_of(Watched(figures, bench.post.clock, 60.0))
    for path in ("/metrics", "/load", "/ready"):
        timed(f"{path}, {len(pages[path]('')[1])} bytes (in a thread of its own)", lambda at=path: pages[at](""), 300)  # type: ignore[misc]


if __name__ == "__main__":
    main()
