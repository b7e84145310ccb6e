"""Fleets of robots on real sockets: every one asks its next question as soon as the last is answered, and what is
counted of their answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from edge_drafter import DecodingStats
from edge_drafter.decoder import EdgeDecoder
from vlm_nav_evaluation.experiment.run import Question


class Served(NamedTuple):
    """One answer that one robot got; times are seconds of one clock."""

    robot: int
    question: int
    began: float
    ended: float
    tokens: tuple[int, ...]
    stats: DecodingStats


def drive(edges: Sequence[EdgeDecoder], asked: Sequence[Question], before: Question, steps: int) -> list[Served]:
    """Let every edge answer questions in a thread of its own until one of them has answered `steps`.

    Each begins elsewhere among the questions. Raises what decoding raises, in any of the threads.
    """
    start, over = threading.Barrier(len(edges)), threading.Event()

    def robot(index: int, edge: EdgeDecoder) -> list[Served]:
        served: list[Served] = []
        try:
            edge.decode(before.prompt, before.jpeg)
            start.wait()
            while not (served and over.is_set()):
                place = (index * len(asked) // len(edges) + len(served)) % len(asked)
                began = time.perf_counter()
                result = edge.decode(asked[place].prompt, asked[place].jpeg)
                served.append(Served(index, place, began, time.perf_counter(), result.tokens, result.stats))
                if len(served) >= steps:
                    over.set()
        except Exception:
            over.set()
            start.abort()
            raise
        return served

    with ThreadPoolExecutor(len(edges)) as pool:
        futures = [pool.submit(robot, index, edge) for index, edge in enumerate(edges)]
    problems = [error for future in futures if (error := future.exception()) is not None]
    for error in problems:
        # The others only found the barrier broken.
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [each for future in futures for each in future.result()]


def window(served: Sequence[Served], steps: int) -> tuple[float, float]:
    """Return when the first robot began and when the first one had `steps` answers: in between, all were at work.

    Raises ValueError where no robot has so many.
    """
    answers: dict[int, list[Served]] = {}
    for each in sorted(served, key=lambda each: each.ended):
        answers.setdefault(each.robot, []).append(each)
    ends = [own[steps - 1].ended for own in answers.values() if len(own) >= steps]
    if not ends:
        raise ValueError(f"no robot has {steps} answers")
    return min(each.began for each in served), min(ends)


def tokens_within(served: Sequence[Served], until: float) -> float:
    """Return the tokens that came before a time; of an answer under way the share of its time that had passed."""
    return sum(
        len(each.tokens) * min(1.0, (until - each.began) / (each.ended - each.began))
        for each in served
        if each.began < until
    )


def figures(served: Sequence[Served], steps: int, truths: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """Return the figures of one fleet: rates within the `window`, times of the answers that began in it.

    A pass is one target forward as a robot sees it: one that several robots share counts for each of them.
    `least_share`: the tokens of the slowest robot over a fair share.
    """
    began, until = window(served, steps)
    seconds, inside = until - began, [each for each in served if each.began < until]
    robots = {each.robot for each in served}
    by_robot = [tokens_within([each for each in inside if each.robot == robot], until) for robot in robots]
    tokens = sum(len(each.tokens) for each in inside)
    stats = DecodingStats()
    for each in inside:
        stats.add(each.stats)
    times = [each.ended - each.began for each in inside]
    forwards = stats.draft_forwards
    return {
        "tokens_per_s": sum(by_robot) / seconds,
        "step_p50_s": float(np.percentile(times, 50)),
        "step_p95_s": float(np.percentile(times, 95)),
        "passes_per_token": stats.cloud_passes / tokens,
        "pass_s": stats.server_compute_s / stats.cloud_passes,
        "queue_s": stats.server_queue_s / stats.cloud_passes,
        "draft_forward_s": (stats.draft_s + stats.predraft_s) / forwards if forwards else None,
        "least_share": min(by_robot) * len(robots) / sum(by_robot),
        "busy": float(stats.busy),
        "wrong": float(sum(each.tokens != truths[each.question] for each in served)),
        "answers": float(len(served)),
    }
