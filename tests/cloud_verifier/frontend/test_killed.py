"""The frontend of a real verifier is killed amid answers: no step is lost, every token is the target's own."""

from __future__ import annotations

import os
import random
import signal
import threading
from functools import partial
from pathlib import Path

from edge_drafter.decoder import EdgeDecoder
from edge_drafter.protocols import Link
from edge_drafter.step import StepResult
from tests.cloud_verifier.process import Verifier, frontends_of, is_there, start
from tests.cloud_verifier.test_engine import jpeg
from tests.edge_drafter.test_decoder import PROMPT, config, greedy
from tests.edge_drafter.waiting import LIMIT_S, wait_for

KILLS = 2


def received(link: Link, size: int) -> bool:
    """Return whether so many bytes of answers have come."""
    return link.bytes_down >= size


def logged(verifier: Verifier, words: str, times: int) -> bool:
    """Return whether so many lines of the log have these words."""
    return sum(words in line for line in verifier.log) >= times


def test_kills_during_answers_cost_time_and_no_step(tiny_target: Path, tiny_draft: Path) -> None:
    verifier = start(tiny_target, "--dtype", "float64", "--profile", "go2_a100_scaled")
    edge = EdgeDecoder(config(tiny_draft, verifier.address, profile="go2_a100_scaled", resume_s=60.0, silence_s=1.5))
    images = [jpeg(number) for number in range(2)]
    truths = greedy(tiny_target, images)
    results: list[StepResult] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set() or len(results) % 2:
            results.append(edge.decode(PROMPT, images[len(results) % 2], 120.0, ("cloud", "sd")[len(results) // 2 % 2]))

    thread = threading.Thread(target=ask)
    link, rng = edge.link, random.Random(18)
    assert link is not None
    try:
        assert link.wait_nominal(LIMIT_S)
        thread.start()
        for kill in range(1, KILLS + 1):
            wait_for(partial(received, link, link.bytes_down + rng.randrange(1, 200)))
            (frontend,) = frontends_of(verifier.process.pid)
            os.kill(frontend, signal.SIGKILL)
            wait_for(partial(logged, verifier, "starting another", kill))
            wait_for(partial(logged, verifier, "resumed", kill))
        over.set()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        assert [list(result.tokens) for result in results] == [truths[n % 2] for n in range(len(results))]
        assert sum(result.stats.interruptions for result in results) >= 1
        opened = [line for line in verifier.log if "opened" in line]
        assert len(opened) == 1, "the session itself goes on"
        (frontend,) = frontends_of(verifier.process.pid)
        assert verifier.stop(signal.SIGKILL) != 0
        wait_for(lambda: not is_there(frontend))
    finally:
        over.set()
        thread.join(60.0)
        edge.close()
        verifier.stop(signal.SIGKILL)
