"""A recorded run as pictures and one HTML page: where it walked, what it saw and said, where the time went."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import matplotlib
import numpy as np
import numpy.typing as npt

from simulation.scene import Scene
from simulation.world import World
from spec_vlm_nav.bag import read
from spec_vlm_nav.messages import HOLD, to_action
from spec_vlm_nav.motion import yaw_of
from spec_vlm_nav.page import heading, paragraph, picture, preformatted, write_page
from speculation.drafting.stats import CLOUD_STAGES, EDGE_STAGES

matplotlib.use("Agg")
from matplotlib.figure import Figure

Image = npt.NDArray[np.uint8]
TOP_PIXELS = 600


@dataclass
class Recorded:
    """One decision of a recorded run; `stats` is None where no answer was decoded (HOLD)."""

    step: int
    action: str
    reasoning: str
    stamp_ns: int
    frame: bytes | None = None
    stats: Any = None


@dataclass
class Run:
    """A bag's run: decisions, the walked path [n, 2] in metres, and the heading at its end in radians."""

    decisions: list[Recorded] = field(default_factory=list)
    path: list[tuple[float, float]] = field(default_factory=list)
    heading: float = 0.0

    @property
    def length(self) -> float:
        """Metres walked, by odometry."""
        return sum(math.dist(a, b) for a, b in zip(self.path, self.path[1:], strict=False))


def load_run(bag: Path) -> Run:
    """Read a bag. Raises ValueError if `bag` is none."""
    run, frames, stats, seen = Run(), {}, {}, set()
    for topic, _, message in read(bag):
        if topic.endswith("camera/image/compressed"):
            frames[_stamp(message)] = message.data.tobytes()
        elif topic.endswith("odom"):
            place, turn = message.pose.pose.position, message.pose.pose.orientation
            run.heading = yaw_of(turn.x, turn.y, turn.z, turn.w)
            if not run.path or math.dist(run.path[-1], (place.x, place.y)) > 0.005:
                run.path.append((place.x, place.y))
        elif topic.endswith("decoding_stats"):
            stats[message.goal, message.step] = message
        elif topic.endswith("navigation_action") and (message.goal, message.step) not in seen:
            seen.add((message.goal, message.step))
            action = to_action(message.kind, message.size)
            text = "HOLD" if message.kind == HOLD or action is None else action.text
            run.decisions.append(Recorded(message.step, text, message.reasoning, _stamp(message)))
            run.decisions[-1].stats = (message.goal, message.step)
    for decision in run.decisions:
        decision.stats = stats.get(decision.stats)
        decision.frame = frames.get(decision.stamp_ns)
    return run


def draw_top(run: Run, scene: Scene) -> Image:
    """Return the room from above with start, path and target marked, RGB [TOP_PIXELS, TOP_PIXELS, 3]."""
    with World(scene) as world:
        if run.path:
            world.set_pose(*run.path[-1], run.heading)
        picture = np.ascontiguousarray(world.render_top(TOP_PIXELS, TOP_PIXELS))
    # The camera of `render_top`: above the centre at 2.2 times the longer half side, 55 degrees of view.
    reach = 2.2 * max(scene.half_x, scene.half_y) * math.tan(math.radians(27.5))

    def pixel(x: float, y: float) -> tuple[int, int]:
        half = TOP_PIXELS / 2
        return round(half + x / reach * half), round(half - y / reach * half)

    points = np.array([pixel(x, y) for x, y in run.path], np.int32).reshape(-1, 1, 2)
    if len(points) > 1:
        cv2.polylines(picture, [points], False, (255, 140, 0), 3, cv2.LINE_AA)
    cv2.circle(picture, pixel(scene.start.x, scene.start.y), 7, (0, 90, 255), 2, cv2.LINE_AA)
    goal = scene.objects[scene.target_index]
    cv2.circle(picture, pixel(goal.x, goal.y), 14, (220, 0, 0), 2, cv2.LINE_AA)
    return picture


def draw_contact_sheet(run: Run, columns: int = 4) -> Figure:
    """Return every decision's frame with what the model said and did."""
    shown = [decision for decision in run.decisions if decision.frame is not None]
    columns = max(1, min(columns, len(shown)))
    rows = max(1, math.ceil(len(shown) / columns))
    figure = Figure(figsize=(3.2 * columns, 3.9 * rows), layout="constrained")
    for index, decision in enumerate(shown):
        axes = figure.add_subplot(rows, columns, index + 1)
        data = cv2.imdecode(np.frombuffer(decision.frame or b"", np.uint8), cv2.IMREAD_COLOR)
        if data is not None:
            axes.imshow(cv2.cvtColor(data, cv2.COLOR_BGR2RGB))
        axes.set_title(f"{decision.step}: {decision.action}", fontsize=10, fontweight="bold")
        axes.set_xlabel(_wrapped(decision.reasoning), fontsize=8)
        axes.set_xticks([])
        axes.set_yticks([])
    return figure


def draw_latency(run: Run) -> Figure:
    """Return bars of the answers' times by stage: the edge's own above, the verifier's below (they overlap in time)."""
    decoded = [decision for decision in run.decisions if decision.stats is not None]
    figure = Figure(figsize=(9, 6), layout="constrained")
    for row, (stages, title) in enumerate(((EDGE_STAGES, "edge"), (CLOUD_STAGES, "verifier"))):
        axes = figure.add_subplot(2, 1, row + 1)
        bottom = np.zeros(len(decoded))
        for stage in stages:
            heights = np.array([1e3 * getattr(decision.stats, stage) for decision in decoded])
            axes.bar(range(len(decoded)), heights, bottom=bottom, label=stage.removesuffix("_s").replace("_", " "))
            bottom += heights
        if row == 0:
            totals = [1e3 * decision.stats.total_s for decision in decoded]
            axes.plot(range(len(decoded)), totals, "k.", label="whole answer")
        axes.set_ylabel(f"{title}, ms")
        axes.legend(fontsize=8, ncols=5)
    figure.axes[-1].set_xlabel("step")
    return figure


def write_report(folder: Path, bag: Path, scene: Scene, headline: str, table: str) -> Path:
    """Write report.html with its PNGs into `folder` and return it. `table` is text with aligned columns."""
    folder.mkdir(parents=True, exist_ok=True)
    run = load_run(bag)
    top = cv2.cvtColor(draw_top(run, scene), cv2.COLOR_RGB2BGR)
    cv2.imwrite(str(folder / "top.png"), top)
    draw_contact_sheet(run).savefig(folder / "steps.png", dpi=80, bbox_inches="tight")
    draw_latency(run).savefig(folder / "latency.png", dpi=90, bbox_inches="tight")
    walked = f"Walked {run.length:.2f} m in {len(run.decisions)} decisions; blue: start, red: target, orange: path."
    return write_page(
        folder / "report.html",
        headline,
        [
            paragraph(walked),
            picture("top.png", "room from above with the path"),
            heading("Decoding"),
            preformatted(table),
            heading("What it saw, said and did"),
            picture("steps.png", "frames with reasoning and action"),
            heading("Where the time of each answer went"),
            picture("latency.png", "latency by stage"),
            paragraph(f"Recorded in {bag.name} (mcap; ros2 bag play {bag})."),
        ],
    )


def _stamp(message: Any) -> int:
    return int(message.header.stamp.sec) * 1_000_000_000 + int(message.header.stamp.nanosec)


def _wrapped(text: str, width: int = 42) -> str:
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) >= width:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "\n".join([*lines, line])
