"""Frames are decoded beside the loop, one job a session, the newest; nobody waits for another's frame."""

from __future__ import annotations

import threading

from cloud_verifier.image_decoding import ImageDecoding
from cloud_verifier.step import Step
from speculation.wire import BeginStep
from tests.cloud_verifier.steps import step_of

LIMIT_S = 20.0


def step(index: int, number: int, prompt: str = "p") -> tuple[Step, BeginStep]:
    begin = BeginStep(number, prompt, b"jpeg")
    return step_of(begin, index=index), begin


def test_who_used_the_threads_for_long_waits_for_those_who_did_not() -> None:
    """One session's frames are slow. While one is decoded, others come in: of what waits, its own next is the last."""
    now = 0.0
    order: list[int] = []
    gate, entered = threading.Event(), threading.Event()

    def prepare(begin: BeginStep) -> None:
        nonlocal now
        order.append(begin.step)
        if begin.prompt == "slow":
            entered.set()
            assert gate.wait(LIMIT_S)
            now += 1.0

    done = threading.Semaphore(0)
    preparation = ImageDecoding(prepare, lambda: done.release(), 1, lambda: now)
    preparation.submit(*step(0, 1, "slow"))
    assert entered.wait(LIMIT_S)
    preparation.submit(*step(0, 2))
    for row in (1, 2):
        preparation.submit(*step(row, 10 + row))
    gate.set()
    for _ in range(4):
        assert done.acquire(timeout=LIMIT_S)
    assert order == [1, 11, 12, 2]
    preparation.close()
