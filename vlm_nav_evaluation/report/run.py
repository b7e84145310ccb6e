"""A recorded run read from its bag: decisions, walked path, figures. Frames are read when they are wanted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from adapters_training.sources.rosbag2 import unseen_videos
from spec_vlm_nav.messages import HOLD, AskedPrompt, to_action
from spec_vlm_nav.motion import yaw_of
from spec_vlm_nav.navigator_interfaces import State
from spec_vlm_nav.simulated_go2 import scene_of
from speculation.images import COMPRESSED, RAW, to_jpeg
from speculation.language.prompts import NOT_HERE, STOP
from vlm_nav_evaluation.bags.files import BagReader, header_stamp
from vlm_nav_evaluation.bags.frames import PROMPT, TEXT, is_depth
from vlm_nav_evaluation.bags.playback import ODOMETRY
from vlm_nav_simulation.episode import SUCCESS_GAP
from vlm_nav_simulation.scene import Scene

_MOVED_M, _TURNED, _TOGETHER_NS = 0.005, 0.02, 1_000_000_000
HELD = "HOLD"
HOLDING = f"{State.HOLDING.value}: "
DECISION = "spec_vlm_nav_interfaces/msg/NavigationAction"
STATS = "spec_vlm_nav_interfaces/msg/DecodingStats"


class Place(NamedTuple):
    """Where the base was when, by odometry: nanoseconds of the bag's clock, metres, radians."""

    at_ns: int
    x: float
    y: float
    yaw: float


@dataclass
class Decision:
    """One decision."""

    goal: int
    step: int
    action: str
    reasoning: str
    """What the model said; of a HOLD, why the robot stood."""
    stamp_ns: int
    """When its camera frame was taken."""
    at_ns: int
    """When it was recorded, by the bag's clock."""
    place: Place | None = None
    frame: bytes | None = None
    """The JPEG that it was made from."""
    stats: Any = None
    """`DecodingStats` message; None where no answer was decoded (HOLD)."""


@dataclass
class Run:
    """What a bag holds of a run."""

    bag: Path
    decisions: list[Decision] = field(default_factory=list)
    path: list[Place] = field(default_factory=list)
    """An entry wherever the robot moved."""
    instructions: list[str] = field(default_factory=list)
    understood: str = ""
    """What the model was asked to find for the last instruction; empty where the bag holds no prompts."""
    truth: dict[str, Any] = field(default_factory=dict)
    """The simulator's last ground truth, empty for a real robot."""
    camera: str = ""
    """Topic of the frames that the decisions were made from; empty where the bag has none of these."""
    problems: list[str] = field(default_factory=list)
    """What of a damaged bag is not in here, a sentence each."""

    @property
    def length(self) -> float:
        """Return the metres walked, by odometry."""
        return sum(math.dist(a[1:3], b[1:3]) for a, b in zip(self.path, self.path[1:], strict=False))

    @property
    def stats(self) -> list[Any]:
        """Return the figures of the answers, in order."""
        return [decision.stats for decision in self.decisions if decision.stats is not None]

    def scene(self) -> Scene | None:
        """Return the simulated room that the run was in; None for a real one. Raises ValueError for an unknown one."""
        room = self.truth.get("room")
        try:
            return scene_of(**room) if room else None
        except TypeError:
            raise ValueError(f"{self.bag}: this version's simulator cannot make the room {room}") from None

    def headline(self) -> str:
        """Return how the run went, in a line: by ground truth where there is one, else by the last decision."""
        name = f'"{self.instructions[-1]}"' if self.instructions else "a run"
        if not self.decisions:
            return f"{name}: nothing was decided"
        count, last = f"{len(self.decisions)} decisions", self.decisions[-1].action
        if not self.truth:
            return f"{name}: {count}, the last {last}"
        target, distance, visible = (self.truth[key] for key in ("target", "distance", "visible"))
        if visible and float(distance) <= SUCCESS_GAP and last == STOP.text:
            return f"FOUND the {target} after {count}"
        view = "in view" if visible else "out of view"
        if last == NOT_HERE.text:
            return f"NOT HERE was the answer after {count}; the {target} is {distance} m away, {view}"
        return f"NOT FOUND the {target} after {count}, the last {last}; {distance} m away, {view}"


def load_run(bag: Path) -> Run:
    """Read a bag's run; the topics' names do not matter, their types do. Raises ValueError if `bag` is none.

    Of a bag that is damaged or was cut off it is what can be read, with `problems`.
    """
    run = Run(bag)
    with BagReader(bag) as reader:
        run.problems += reader.problems
        _read_run(run, reader)
    return run


def _read_run(run: Run, reader: BagReader) -> None:
    stats: dict[tuple[int, int], Any] = {}
    decisions: dict[tuple[int, int], Decision] = {}
    holds: list[tuple[int, str]] = []
    odometry = ""
    wanted = [topic.name for topic in reader.topics.values() if topic.kind in (ODOMETRY, DECISION, STATS, TEXT)]
    for topic, at_ns, message in _messages(reader, wanted, run.problems):
        kind = message.__msgtype__
        if kind == ODOMETRY:
            odometry = odometry or topic
            if topic == odometry:
                _walk(run.path, at_ns, message.pose.pose)
        elif kind == STATS:
            stats[message.goal, message.step] = message
        elif kind == DECISION:
            action = to_action(message.kind, message.size)
            text = HELD if message.kind == HOLD or action is None else action.text
            reasoning, stamp = " ".join(message.reasoning.split()), header_stamp(message)
            place = run.path[-1] if run.path else None
            decision = Decision(message.goal, message.step, text, reasoning, stamp, at_ns, place)
            known = decisions.setdefault((message.goal, message.step), decision)
            if getattr(message, "complete", True):
                # A motion may have begun before its size and reasons were known; when it began counts.
                known.action, known.reasoning = text, reasoning
        elif topic.endswith("ground_truth"):
            run.truth = json.loads(message.data)
        elif topic.endswith("instruction"):
            run.instructions.append(message.data)
            run.understood = ""
        elif topic.rpartition("/")[2] == PROMPT:
            run.understood = _understood(message.data)
        elif topic.endswith("navigation_state") and message.data.startswith(HOLDING):
            holds.append((at_ns, message.data.removeprefix(HOLDING)))
    run.decisions = list(decisions.values())
    frames = _frames(run, reader)
    for key, decision in decisions.items():
        decision.frame = frames.get(decision.stamp_ns)
        decision.stats = stats.get(key)
        # A HOLD and its reason go out on two topics at about the same time.
        reasons = [(abs(at_ns - decision.at_ns), reason) for at_ns, reason in holds]
        if decision.action == HELD and reasons and min(reasons)[0] < _TOGETHER_NS:
            decision.reasoning = min(reasons)[1]
    if decisions and not frames:
        run.problems += unseen_videos(reader)


def _messages(bag: BagReader, topics: Sequence[str], problems: list[str]) -> Iterator[tuple[str, int, Any]]:
    """Yield the messages of topics in order of time up to where the bag is damaged, which is noted once."""
    try:
        yield from bag.decoded(topics)
    except ValueError as error:
        problem = f"{error}; what comes after is left out"
        if problem not in problems:
            problems.append(problem)


def _frames(run: Run, reader: BagReader) -> dict[int, bytes]:
    """Return the decisions' frames by their stamps, of the one camera that has most of them."""
    wanted = {decision.stamp_ns for decision in run.decisions}
    pictures = [topic for topic in reader.topics.values() if topic.kind in (RAW, COMPRESSED)]
    cameras = [topic.name for topic in pictures if not is_depth(reader, topic)]
    found: dict[str, dict[int, bytes]] = {}
    for topic, _, image in _messages(reader, cameras, run.problems):
        stamp_ns = header_stamp(image)
        if stamp_ns in wanted and (jpeg := _jpeg(image)) is not None:
            found.setdefault(topic, {})[stamp_ns] = jpeg
    run.camera = max(found, key=lambda topic: len(found[topic]), default="")
    return found.get(run.camera, {})


def _jpeg(image: Any) -> bytes | None:
    """Return the JPEG of an image message, None where it is no picture."""
    try:
        return to_jpeg(image, image.__msgtype__)
    except ValueError:
        return None


def _understood(prompt: str) -> str:
    """Return what a recorded prompt asks to find; empty for what is no prompt."""
    try:
        return AskedPrompt.from_json(prompt).instruction
    except ValueError:
        return ""


def _walk(path: list[Place], at_ns: int, pose: Any) -> None:
    """Append a place unless the robot stands."""
    turn = pose.orientation
    place = Place(at_ns, pose.position.x, pose.position.y, yaw_of(turn.x, turn.y, turn.z, turn.w))
    if not all(map(math.isfinite, place[1:])):
        return
    turned = abs(math.remainder(place.yaw - path[-1].yaw, 2 * math.pi)) if path else math.inf
    if turned > _TURNED or math.dist(path[-1][1:3], place[1:3]) > _MOVED_M:
        path.append(place)
