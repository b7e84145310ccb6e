"""Thousands of robots on a cluster whose replicas die and drain: production's directory and controller on virtual time.

A robot is served, looks for a replica, or waits. What is declared: when a robot notices that its replica is gone (at
once where the process ended and its machine closes the connections, after its silence where the machine is gone), how
long a replica takes to start, and how long answers are, between which robots move. What a replica with so many robots
does comes from the single fleets that `fleet replicas --save` has simulated.
"""

from __future__ import annotations

import argparse
import heapq
import json
import logging
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from cloud_verifier.cluster.controller import Controller
from cloud_verifier.cluster.directory import Directory, Phase, Status
from cloud_verifier.cluster.gateway import BACK_S, RETRY_S
from cloud_verifier.cluster.scaling import Scaler, Scaling
from edge_drafter.link import LEAVE_S
from vlm_nav_evaluation.experiment.command import RESULTS
from vlm_nav_evaluation.tables import MS, Column, figures_table

KINDS = ("process", "machine", "drain")
TRIP_S = 0.05
"""From the gateway to a replica: a connection and a Hello."""
TURN_S, SAMPLE_S = 0.5, 1.0
"""How often the controller looks, and how often the loads of the replicas are noted."""
WARM_UP_S = 20.0
"""Robots come within the first half of it; then figures begin, and faults."""
FLEETS = RESULTS / "fleet_replicas.json"


@dataclass(frozen=True)
class Setting:
    """What happens. Times are seconds."""

    robots: int = 10_000
    replicas: int = 100
    seconds: float = 600.0
    every_s: float = 10.0
    """Mean time from one replica that dies or drains to the next."""
    calm_s: float = 0.0
    """Of the time, at its end, in which none does."""
    start_s: float = 60.0
    """Until a replica that is started is ready."""
    answer_s: float = 8.0
    """The longest that a robot which is to move goes on with its answer."""
    silence_s: float = 1.5
    """Until a robot notices that the machine of its replica is gone."""
    seed: int = 0


@dataclass(eq=False)
class _Robot:
    key: str
    replica: str = ""
    """That serves it, or has; its name is in the robot's ticket."""
    sent_at: float = -1e9
    """When the gateway last sent it on."""
    lost_at: float | None = 0.0
    """Since when it is served by nobody."""
    why: str = ""
    """What it lost its replica by."""


@dataclass(eq=False)
class _Replica:
    born: float
    ready: bool = False
    silent: bool = False
    """Whether its machine is gone."""
    draining: bool = False
    robots: dict[_Robot, None] = field(default_factory=dict)
    """In the order in which they came: a run is to repeat exactly."""


class Churn:
    """One run; see `run`. It is the fleet of its own controller."""

    def __init__(self, setting: Setting, max_sessions: int) -> None:
        self.setting = setting
        self.now = 0.0
        self.directory = Directory()
        same = Scaling(setting.replicas, setting.replicas)
        self.controller = Controller(self.directory, Scaler(same), self, setting.replicas)
        self.resumed: dict[str, list[float]] = {kind: [] for kind in (*KINDS, "moved")}
        self.faults = dict.fromkeys(KINDS, 0)
        self.turned_away = 0
        self.loads: list[list[int]] = []
        """Robots on each replica that works, every SAMPLE_S."""
        self._max_sessions = max_sessions
        self._dice = random.Random(setting.seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._replicas: dict[str, _Replica] = {}
        self.robots = [_Robot(f"robot {number}") for number in range(setting.robots)]

    # --- the fleet, see `cloud_verifier.cluster.controller.Fleet`

    @property
    def names(self) -> Collection[str]:
        """Those that were started and have not ended."""
        return self._replicas

    def start(self, name: str) -> None:
        """Start a replica, which is ready a while later; at the very beginning at once."""
        replica = self._replicas[name] = _Replica(self.now)
        self._after(self.setting.start_s if self.now else 0.0, lambda: setattr(replica, "ready", True))

    def drain(self, name: str) -> None:
        """Let a replica's robots leave at the end of their answers."""
        replica = self._replicas[name]
        replica.draining = True
        self._send_away(replica, len(replica.robots), "drain")
        self._after(self.setting.answer_s + TURN_S, lambda: self._end(name, replica))

    def shed(self, name: str, robots: int) -> None:
        """Let some robots leave at the end of their answers."""
        self._send_away(self._replicas[name], robots, "moved")

    def kill(self, name: str) -> None:
        """End a replica, which is started again."""
        self._die(name, self._replicas[name])

    # --- what happens

    def run(self) -> None:
        """Let all robots come within the first seconds and then, now and then, a replica die or drain."""
        self.controller.turn(self.now)
        self._report()
        for robot in self.robots:
            begins = self._dice.uniform(0.0, WARM_UP_S / 2.0)
            robot.lost_at = begins
            self._after(begins, partial(self._seek, robot))
        self._after(WARM_UP_S + self._dice.expovariate(1.0 / self.setting.every_s), self._inject)
        self._after(0.0, self._turn)
        self._after(WARM_UP_S, self._sample)
        while self._events and self._events[0][0] <= self.setting.seconds:
            self.now, _, happen = heapq.heappop(self._events)
            happen()

    def served(self, robot: _Robot) -> bool:
        """Whether a replica serves a robot now."""
        return robot.lost_at is None

    def _inject(self) -> None:
        if self.now > self.setting.seconds - self.setting.calm_s:
            return
        kind = self._dice.choice(KINDS)
        ready = sorted(
            name for name, each in self._replicas.items() if each.ready and not (each.silent or each.draining)
        )
        if len(ready) > 1:
            name = self._dice.choice(ready)
            replica = self._replicas[name]
            self.faults[kind] += 1
            if kind == "drain":
                self.controller.drain(name)
            elif kind == "process":
                self._die(name, replica)
            else:
                replica.silent = True
                for robot in list(replica.robots):
                    self._lose(robot, replica, kind, self.setting.silence_s)
        self._after(self._dice.expovariate(1.0 / self.setting.every_s), self._inject)

    def _end(self, name: str, replica: _Replica) -> None:
        """Let a replica that was drained end for good."""
        if self._replicas.get(name) is replica:
            del self._replicas[name]
            self._leave_all(replica)
            self.controller.ended(name)

    def _die(self, name: str, replica: _Replica) -> None:
        """Let a replica's process die; it is started again at once."""
        self._leave_all(replica)
        self.controller.died(name)
        self.start(name)

    def _leave_all(self, replica: _Replica) -> None:
        for robot in list(replica.robots):
            self._lose(robot, replica, "process", LEAVE_S)

    def _send_away(self, replica: _Replica, robots: int, why: str) -> None:
        present = list(replica.robots)
        for robot in self._dice.sample(present, min(robots, len(present))):
            self._after(self._dice.uniform(0.0, self.setting.answer_s), partial(self._leave, robot, replica, why))

    def _leave(self, robot: _Robot, replica: _Replica, why: str) -> None:
        if robot in replica.robots:
            robot.replica = ""  # a robot that is sent away forgets its ticket
            self._lose(robot, replica, why, 0.0)

    def _lose(self, robot: _Robot, replica: _Replica, why: str, notices_s: float) -> None:
        replica.robots.pop(robot, None)
        robot.lost_at, robot.why = self.now, why
        self._after(notices_s, lambda: self._seek(robot))

    def _seek(self, robot: _Robot) -> None:
        """Ask the gateway, and go where it sends."""
        is_back = self.now - robot.sent_at < BACK_S
        known = ("", robot.replica) if is_back else (robot.replica, "")
        found = self.directory.choose(robot.key, self.now, b"", *known)
        if found is None:
            self.turned_away += 1
            self._after(RETRY_S * self._dice.uniform(0.5, 1.5), lambda: self._seek(robot))
            return
        robot.replica, robot.sent_at = found.name, self.now
        self._after(TRIP_S, lambda: self._arrive(robot, found))

    def _arrive(self, robot: _Robot, at: Status) -> None:
        replica = self._replicas.get(at.name)
        if replica is None or replica.born != at.born or replica.draining:
            self._after(LEAVE_S, lambda: self._seek(robot))
        elif replica.silent:
            self._after(self.setting.silence_s, lambda: self._seek(robot))
        elif len(replica.robots) >= self._max_sessions:
            self._after(RETRY_S, lambda: self._seek(robot))
        else:
            if robot.why and robot.lost_at is not None:
                self.resumed[robot.why].append(self.now - robot.lost_at)
            robot.lost_at, robot.why = None, ""
            replica.robots[robot] = None

    def _turn(self) -> None:
        self._report()
        self.controller.turn(self.now)
        self._after(TURN_S, self._turn)

    def _report(self) -> None:
        for name, each in list(self._replicas.items()):
            if each.ready and not each.silent:
                phase = Phase.DRAINING if each.draining else Phase.READY
                status = Status(name, phase, each.born, f"tcp://{name}:1", "", len(each.robots), self._max_sessions)
                self.controller.reported(status, self.now)

    def _sample(self) -> None:
        self.loads.append([len(each.robots) for each in self._replicas.values() if each.ready and not each.silent])
        self._after(SAMPLE_S, self._sample)

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), happen))


def figures_of(churn: Churn, fleets: Mapping[int, Mapping[str, float]]) -> dict[str, Any]:
    """Return what the robots got. `fleets`: goodput and violations by the robots on one replica.

    `goodput` is a share of what all replicas do with the robots spread evenly and nobody ever lost.
    """
    setting = churn.setting
    mean = setting.robots / setting.replicas
    ideal = setting.replicas * _does(mean, fleets, "goodput")
    goodput = [sum(_does(load, fleets, "goodput") for load in loads) / ideal for loads in churn.loads]
    late = [sum(load * _share(load, fleets, "violations") for load in loads) for loads in churn.loads]
    served = [sum(loads) / setting.robots for loads in churn.loads]
    fullest = [max(loads, default=0) / mean for loads in churn.loads]
    working = [len(loads) / setting.replicas for loads in churn.loads]
    return {
        "robots": setting.robots, "replicas": setting.replicas, "seconds": setting.seconds, "faults": churn.faults,
        "served": float(np.mean(served)), "served_least": min(served), "goodput": float(np.mean(goodput)),
        "goodput_least": min(goodput), "working": float(np.mean(working)),
        "late": float(np.sum(late) / sum(map(sum, churn.loads))),
        "fullest": float(np.mean(fullest)), "fullest_most": max(fullest), "turned_away": churn.turned_away,
        "waiting": sum(not churn.served(robot) for robot in churn.robots),
        "resume": {
            why: {
                "robots": len(times), "p50_s": float(np.percentile(times, 50)),
                "p95_s": float(np.percentile(times, 95)), "max_s": max(times),
            }
            for why, times in churn.resumed.items() if times
        },
    }  # fmt: skip


def _does(load: float, fleets: Mapping[int, Mapping[str, float]], name: str) -> float:
    """Return what a replica with so many robots does, each robot as in the fleets that are nearest in size."""
    known = sorted(fleets)
    return float(load * np.interp(load, known, [fleets[size][name] / size for size in known]))


def _share(load: float, fleets: Mapping[int, Mapping[str, float]], name: str) -> float:
    known = sorted(fleets)
    return float(np.interp(load, known, [fleets[size][name] for size in known]))


def add_options(line: argparse.ArgumentParser) -> None:
    """Register --churn-robots, --churn-replicas, --churn-s and --every-s."""
    line.add_argument("--churn-robots", type=int, help=f"churn: robots (default: {Setting.robots}, 1000 with --quick)")
    line.add_argument(
        "--churn-replicas", type=int, help=f"churn: replicas (default: {Setting.replicas}, 10 with --quick)"
    )
    line.add_argument("--churn-s", type=float, help=f"churn: seconds (default: {Setting.seconds:g}, 120 with --quick)")
    shown = "churn: mean seconds from one death or drain to the next (default: 5, 10 and 30)"
    line.add_argument("--every-s", type=float, nargs="+", default=[30.0, 10.0, 5.0], help=shown)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return figures by how often something happens. Raises ValueError for what is out of range or not there."""
    try:
        saved = json.loads(FLEETS.read_text(encoding="utf-8"))["fleets"]
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(
            f"{FLEETS} has no single fleets ({error}); run: python -m vlm_nav_evaluation fleet replicas --save"
        ) from None
    fleets = {int(size): each for size, each in saved.items()}
    robots = options.churn_robots or (1000 if options.quick else Setting.robots)
    replicas = options.churn_replicas or (10 if options.quick else Setting.replicas)
    if not (1 <= replicas <= 1000 and replicas <= robots <= max(fleets) * replicas):
        raise ValueError(f"--churn-robots {robots} on {replicas} replicas: give 1 to {max(fleets)} robots a replica")
    if min(options.every_s) <= 0.0 or (options.churn_s is not None and options.churn_s <= WARM_UP_S + SAMPLE_S):
        raise ValueError(f"give --every-s of more than 0, and --churn-s of more than {WARM_UP_S + SAMPLE_S:g}")
    rows = {}
    for every_s in options.every_s:
        seconds = options.churn_s or (120.0 if options.quick else Setting.seconds)
        churn = Churn(Setting(robots, replicas, seconds, every_s, seed=options.seed), max(fleets))
        with _quiet():
            churn.run()
        rows[f"{every_s:g}"] = figures_of(churn, fleets)
    return {"rows": rows}


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out the directory's lines of log: they are of replicas that are none."""
    log = logging.getLogger("cloud_verifier")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


COLUMNS = (
    Column("replicas that work %", "working", ".1f", 100.0),
    Column("robots served %", "served", ".3f", 100.0), Column("least", "served_least", ".2f", 100.0),
    Column("tokens/s, % of ideal", "goodput", ".2f", 100.0), Column("least", "goodput_least", ".2f", 100.0),
    Column("late %", "late", ".2f", 100.0), Column("fullest/mean", "fullest", ".2f"),
    Column("turned away", "turned_away", ".0f"), Column("waiting at the end", "waiting", ".0f"),
)  # fmt: skip
RESUME = (
    Column("robots", "robots", ".0f"), Column("p50 ms", "p50_s", ".0f", MS), Column("p95 ms", "p95_s", ".0f", MS),
    Column("longest", "max_s", ".0f", MS),
)  # fmt: skip


def report(data: Mapping[str, Any]) -> str:
    """Return the tables in words."""
    first = next(iter(data["rows"].values()))
    parts = [
        f"{first['robots']} robots on {first['replicas']} replicas for {first['seconds']:g} s, of which one dies (its "
        "process or its machine) or drains every so many seconds; ideal: all replicas, robots spread evenly",
        figures_table("every s", data["rows"], COLUMNS),
    ]
    for every_s, row in data["rows"].items():
        faults = ", ".join(f"{number} {kind}" for kind, number in row["faults"].items())
        parts.append(f"\n{figures_table(f'without a replica, every {every_s} s ({faults})', row['resume'], RESUME)}")
    return "\n".join(parts)
