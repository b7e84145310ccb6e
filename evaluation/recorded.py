"""A recorded run read from its bag: decisions, walked path, figures. Frames are read when they are wanted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from evaluation.bag import read
from simulation.episode import SUCCESS_GAP
from simulation.scene import Scene
from spec_vlm_nav.messages import HOLD, to_action
from spec_vlm_nav.motion import yaw_of
from spec_vlm_nav.navigator import State
from spec_vlm_nav.simulated_go2 import scene_of
from speculation.prompts import STOP

_MOVED_M, _TURNED, _TOGETHER_NS = 0.005, 0.02, 1_000_000_000
HELD = "HOLD"
HOLDING = f"{State.HOLDING.value}: "
IMAGE = "sensor_msgs/msg/CompressedImage"
ODOMETRY = "nav_msgs/msg/Odometry"
DECISION = "spec_vlm_nav_interfaces/msg/NavigationAction"
STATS = "spec_vlm_nav_interfaces/msg/DecodingStats"
TEXT = "std_msgs/msg/String"


class Place(NamedTuple):
    """Where the base was when, by odometry: nanoseconds of the bag's clock, metres, radians."""

    at_ns: int
    x: float
    y: float
    yaw: float


@dataclass
class Recorded:
    """One decision. `frame` is the JPEG that it was made from; `stats` is None where no answer was decoded (HOLD).

    `reasoning` is what the model said; of a HOLD it is why the robot stood.
    """

    goal: int
    step: int
    action: str
    reasoning: str
    stamp_ns: int
    at_ns: int
    place: Place | None = None
    frame: bytes | None = None
    stats: Any = None


@dataclass
class Run:
    """What a bag holds of a run. `path` has an entry wherever the robot moved; `truth` is the simulator's last word."""

    bag: Path
    decisions: list[Recorded] = field(default_factory=list)
    path: list[Place] = field(default_factory=list)
    instructions: list[str] = field(default_factory=list)
    truth: dict[str, Any] = field(default_factory=dict)

    @property
    def length(self) -> float:
        """Metres walked, by odometry."""
        return sum(math.dist(a[1:3], b[1:3]) for a, b in zip(self.path, self.path[1:], strict=False))

    @property
    def stats(self) -> list[Any]:
        """The figures of the answers, in order."""
        return [decision.stats for decision in self.decisions if decision.stats is not None]

    def place_at(self, at_ns: int) -> Place | None:
        """Return where the robot was at a time of the bag's clock; its first place for earlier times."""
        before = [place for place in self.path if place.at_ns <= at_ns]
        return before[-1] if before else next(iter(self.path), None)

    def scene(self) -> Scene | None:
        """Return the simulated room that the run was in; None for a real one. Raises ValueError for an unknown one."""
        room = self.truth.get("room")
        try:
            return scene_of(**room) if room else None
        except TypeError:
            raise ValueError(f"{self.bag}: this version's simulator does not know the room {room}") from None

    def headline(self) -> str:
        """Return how the run went, in a line: by ground truth where there is one, else by the last decision."""
        told = f'"{self.instructions[-1]}"' if self.instructions else "a run"
        count = f"{len(self.decisions)} decisions"
        if not self.decisions:
            return f"{told}: nothing was decided"
        last = self.decisions[-1].action
        if not self.truth:
            return f"{told}: {count}, the last {last}"
        near = bool(self.truth["visible"]) and float(self.truth["distance"]) <= SUCCESS_GAP
        if near and last == STOP.text:
            return f"FOUND the {self.truth['target']} after {count}"
        away = f"{self.truth['distance']} m away, " + ("in view" if self.truth["visible"] else "out of view")
        return f"NOT FOUND the {self.truth['target']} after {count}, the last {last}; {away}"


def load_run(bag: Path) -> Run:
    """Read a bag's run; the topics' names do not matter, their types do. Raises ValueError if `bag` is none."""
    run, stats, known = Run(bag), {}, {}
    held: list[tuple[int, str]] = []
    odometry = ""
    for topic, at_ns, message in read(bag, (ODOMETRY, DECISION, STATS, TEXT)):
        kind = message.__msgtype__
        if kind == ODOMETRY:
            odometry = odometry or topic
            if topic == odometry:
                _walk(run.path, at_ns, message.pose.pose)
        elif kind == STATS:
            stats[message.goal, message.step] = message
        elif kind == DECISION and (message.goal, message.step) not in known:
            place = run.path[-1] if run.path else None
            known[message.goal, message.step] = _decision(message, at_ns, place)
        elif topic.endswith("ground_truth"):
            run.truth = json.loads(message.data)
        elif topic.endswith("instruction"):
            run.instructions.append(message.data)
        elif topic.endswith("navigation_state") and message.data.startswith(HOLDING):
            held.append((at_ns, message.data.removeprefix(HOLDING)))
    run.decisions = list(known.values())
    wanted = {decision.stamp_ns for decision in run.decisions}
    images = ((_stamp(image), image) for _, _, image in read(bag, (IMAGE,)))
    frames = {stamp: image.data.tobytes() for stamp, image in images if stamp in wanted}
    for decision in run.decisions:
        decision.frame = frames.get(decision.stamp_ns)
        decision.stats = stats.get((decision.goal, decision.step))
        # A HOLD and its reason go out on two topics at about the same time.
        reasons = [(abs(at_ns - decision.at_ns), why) for at_ns, why in held]
        if decision.action == HELD and reasons and min(reasons)[0] < _TOGETHER_NS:
            decision.reasoning = min(reasons)[1]
    return run


def frames_at(bag: Path, moments_ns: Iterable[int]) -> Iterator[bytes | None]:
    """Yield for each moment, in order of time, the newest frame recorded by then; None before the first."""
    images = read(bag, (IMAGE,))
    frame: bytes | None = None
    coming = next(images, None)
    for moment in sorted(moments_ns):
        newest = None
        while coming is not None and coming[1] <= moment:
            newest, coming = coming, next(images, None)
        frame = newest[2].data.tobytes() if newest is not None else frame
        yield frame


def _decision(message: Any, at_ns: int, place: Place | None) -> Recorded:
    action = to_action(message.kind, message.size)
    text = HELD if message.kind == HOLD or action is None else action.text
    reasoning = " ".join(message.reasoning.split())
    return Recorded(message.goal, message.step, text, reasoning, _stamp(message), at_ns, place)


def _walk(path: list[Place], at_ns: int, pose: Any) -> None:
    turn = pose.orientation
    place = Place(at_ns, pose.position.x, pose.position.y, yaw_of(turn.x, turn.y, turn.z, turn.w))
    if not all(map(math.isfinite, place[1:])):
        return
    if path:
        turned = abs(math.remainder(place.yaw - path[-1].yaw, 2 * math.pi))
        if math.dist(path[-1][1:3], place[1:3]) <= _MOVED_M and turned <= _TURNED:
            return
    path.append(place)


def _stamp(message: Any) -> int:
    return int(message.header.stamp.sec) * 1_000_000_000 + int(message.header.stamp.nanosec)
