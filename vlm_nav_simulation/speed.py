"""How fast the simulator is on this machine: images by GL and by rays, steps, the oracle's episodes."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from speculation.progress import progress
from vlm_nav_simulation.camera import CameraKind
from vlm_nav_simulation.episode import oracle_policy, run_episode
from vlm_nav_simulation.gl import mujoco
from vlm_nav_simulation.scene import Difficulty, make_scene
from vlm_nav_simulation.walking import TICK, WalkingGo2
from vlm_nav_simulation.world import World

SEED = 7
_REPEATS = 7


@dataclass(frozen=True)
class Rate:
    """How often a second something was done, once for each of several stretches of time.

    `values` are by the clock on the wall, `processor` by the time that this process was let run, all its threads added
    up: that is what other programs on the machine hardly change.
    """

    name: str
    unit: str
    values: tuple[float, ...]
    processor: tuple[float, ...] = ()
    note: str = ""


def processor() -> str:
    """Return the processor's name."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return name


def host() -> str:
    """Return the processor, its cores and the load of the last minute, in words."""
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "?"
    return f"{processor()}, {os.cpu_count()} cores, load {load}"


def machine() -> str:
    """Return the machine in words: processor, cores, load, versions."""
    backend = os.environ.get("MUJOCO_GL", "")
    return f"{host()}, MuJoCo {mujoco.__version__}, GL backend {backend}"


def measure(seconds: float = 1.0, size: int = 224) -> list[Rate]:
    """Measure everything that works here, each for seven stretches of `seconds`."""
    return list(progress(_rates(seconds, size), total=7, unit="rate"))


def _rates(seconds: float, size: int) -> Iterator[Rate]:
    scene = make_scene(SEED, Difficulty.MIDDLE)
    for kind in CameraKind:
        try:
            world = World(scene, size, camera=kind)
        except RuntimeError as error:
            yield Rate(f"frames, {kind.value}", "frames/s", (), note=str(error))
            continue
        with world:
            yield _rate(f"frames, {kind.value}, {size} px", "frames/s", world.render, seconds)
            yield _rate(f"segmentation, {kind.value}, {size} px", "frames/s", world.segmentation, seconds)
            if kind is CameraKind.RAY:
                # in a small circle, so that it never stands at a wall
                yield _rate("steps, kinematic, 50 ms", "steps/s", partial(world.move, 0.2, 0.0, 1.2, 0.05), seconds)
    yield _episodes(seconds)
    try:
        robot = WalkingGo2(scene)
    except ValueError as error:
        yield Rate("steps, physics", "steps/s", (), note=str(error))
        return
    robot.place(*scene.start, standing=True)
    ticks = _rate("", "", lambda: robot.tick((0.3, 0.0, 0.6)), seconds)
    wall, processor = (tuple(value * TICK for value in values) for values in (ticks.values, ticks.processor))
    yield Rate("walking physics", "times real time", wall, processor)


def _episodes(seconds: float) -> Rate:
    seeds = iter(range(600, 999))

    def episode() -> None:
        scene = make_scene(next(seeds), Difficulty.MIDDLE)
        run_episode(scene, oracle_policy(scene))

    return _rate("episodes of the oracle, room, middle", "episodes/s", episode, max(seconds, 1.0))


def _rate(name: str, unit: str, do: Callable[[], object], seconds: float) -> Rate:
    do()
    wall, processor = [], []
    for _ in range(_REPEATS):
        count, start, worked = 0, time.perf_counter(), time.process_time()
        while (passed := time.perf_counter() - start) < seconds or not count:
            do()
            count += 1
        wall.append(count / passed)
        processor.append(count / max(time.process_time() - worked, 1e-9))
    return Rate(name, unit, tuple(wall), tuple(processor))


def table(rates: list[Rate]) -> str:
    """Return the rates as a Markdown table: minimum, median, maximum, and the median by processor time."""
    lines = ["| | min | median | max | by processor time | |", "|---|---|---|---|---|---|"]
    for rate in rates:
        if not rate.values:
            lines.append(f"| {rate.name} | - | - | - | - | {rate.note} |")
            continue
        low, middle, high = min(rate.values), statistics.median(rate.values), max(rate.values)
        four = " | ".join(map(_number, (low, middle, high, statistics.median(rate.processor))))
        lines.append(f"| {rate.name} | {four} | {rate.unit} |")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
