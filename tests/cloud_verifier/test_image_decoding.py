"""Frames are decoded beside the loop, one job a session, the newest; nobody waits for another's frame."""

from __future__ import annotations

import threading

import pytest

from cloud_verifier.image_decoding import ImageDecoding, Prepared
from cloud_verifier.step import Step
from speculation.wire import BeginStep
from tests.cloud_verifier.steps import step_of

LIMIT_S = 20.0


def step(index: int, number: int, prompt: str = "p") -> tuple[Step, BeginStep]:
    begin = BeginStep(number, prompt, b"jpeg")
    return step_of(begin, index=index), begin


class Gate:
    """A `prepare` that waits for prompt "slow" until it is opened, and keeps what it did."""

    def __init__(self, threads: int) -> None:
        self.open, self.entered = threading.Event(), threading.Event()
        self.finished = threading.Semaphore(0)
        self.prepared: list[str] = []
        self.preparation = ImageDecoding(self._prepare, lambda: self.finished.release(), threads)

    def _prepare(self, begin: BeginStep) -> str:
        if begin.prompt == "slow":
            self.entered.set()
            assert self.open.wait(LIMIT_S)
        if begin.prompt == "bad":
            raise ValueError("no image")
        self.prepared.append(f"{begin.prompt} {begin.step}")
        return f"inputs of {begin.step}"

    def collect(self, count: int) -> list[Prepared[str]]:
        """Wait for so many jobs and return them."""
        for _ in range(count):
            assert self.finished.acquire(timeout=LIMIT_S)
        return self.preparation.collect()


@pytest.mark.parametrize("threads", [0, 2])
def test_inputs_or_the_reason_why_not(threads: int) -> None:
    gate = Gate(threads)
    for row, prompt in enumerate(("p", "bad")):
        gate.preparation.submit(*step(row, row, prompt))
    good, bad = sorted(gate.collect(2), key=lambda ready: ready.step.index)
    assert (good.inputs, good.error) == ("inputs of 0", None)
    assert bad.inputs is None and isinstance(bad.error, ValueError) and gate.preparation.collect() == []
    gate.preparation.close()


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
