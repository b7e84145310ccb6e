"""A recorded run as an animated GIF: what the robot saw beside a view from outside, with what it said and did."""

from __future__ import annotations

import io
import math
import textwrap
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont
from tqdm import tqdm

from evaluation.page import Image as Pixels
from evaluation.recorded import Place, Recorded, Run, frames_at
from evaluation.run_plots import draw_top
from simulation.scene import Scene
from simulation.world import World

LIMIT_BYTES = 4_800_000
PANEL, STRIP, COLOURS = 272, 84, 192
MOVING_MS, READING_MS, LAST_MS = 120, 1400, 3000
MOST_MOVING = 90
_GRID_PIXELS = 460
_SECOND_NS = 1_000_000_000
View = Callable[[Place, float], Pixels]


@dataclass(frozen=True)
class Shot:
    """One picture of the movie: when and where, which decision is being carried out, how long it stands."""

    place: Place
    walked: float
    decision: Recorded | None
    milliseconds: int


def shots(run: Run, step_s: float = 0.25) -> list[Shot]:
    """Return what to show: every decision long enough to read it, and the ways between them at about twice the pace.

    The robot stands while it thinks, which nobody wants to watch; long ways get fewer pictures a second.
    """
    times = [decision.at_ns for decision in run.decisions]
    moving = [place for place in run.path if times and place.at_ns >= times[0]]
    gaps = (after.at_ns - before.at_ns for before, after in pairwise(moving))
    seconds = sum(min(gap, _SECOND_NS // 5) for gap in gaps) / _SECOND_NS
    gap_ns = int(max(step_s, seconds / MOST_MOVING) * _SECOND_NS)
    found = [
        Shot(place._replace(at_ns=decision.at_ns), 0.0, decision, READING_MS)
        for decision in run.decisions
        if (place := run.place_at(decision.at_ns)) is not None
    ]
    shown_at = -gap_ns
    for place in moving:
        if place.at_ns - shown_at >= gap_ns:
            decision = run.decisions[bisect_right(times, place.at_ns) - 1]
            found.append(Shot(place, 0.0, decision, MOVING_MS))
            shown_at = place.at_ns
    found.sort(key=lambda shot: shot.place.at_ns)
    return list(_with_distance(found))


def write_movie(path: Path, run: Run, scene: Scene | None, limit_bytes: int = LIMIT_BYTES) -> Path | None:
    """Write the run as a GIF of at most `limit_bytes`; None where there is nothing to show. Raises OSError."""
    chosen = shots(run)
    if not chosen:
        return None
    with ExitStack() as stack:
        outside = _on_grid(run) if scene is None else _in_room(stack.enter_context(World(scene)))
        frames = frames_at(run.bag, (shot.place.at_ns for shot in chosen))
        pairs = zip(chosen, frames, strict=True)
        pictures = [
            _compose(shot, frame, outside(shot.place, shot.walked))
            for shot, frame in tqdm(pairs, total=len(chosen), desc="movie", unit="picture", leave=False)
        ]
    durations = [shot.milliseconds for shot in chosen]
    durations[-1] = LAST_MS
    data = _gif(pictures, durations)
    while len(data) > limit_bytes and len(pictures) > 2:
        pictures, durations = _thinned(pictures, durations)
        data = _gif(pictures, durations)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _with_distance(found: list[Shot]) -> Iterator[Shot]:
    walked = 0.0
    before: Place | None = None
    for shot in found:
        walked += math.dist(before[1:3], shot.place[1:3]) if before is not None else 0.0
        before = shot.place
        yield Shot(shot.place, walked, shot.decision, shot.milliseconds)


def _in_room(world: World) -> View:
    """The robot from behind in its simulated room; its legs move with the way it has walked."""

    def view(place: Place, walked: float) -> Pixels:
        world.set_pose(*place[1:])
        world.set_gait(2 * math.pi * walked / 0.25, 0.8)
        return world.render_third_person(PANEL, PANEL)

    return view


def _on_grid(run: Run) -> View:
    """The walked path from above with the robot on it."""
    figure = draw_top(run, None)
    figure.set_size_inches(_GRID_PIXELS / figure.dpi, _GRID_PIXELS / figure.dpi)
    figure.legends.clear()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="rgba", dpi=figure.dpi)
    picture = np.frombuffer(buffer.getvalue(), np.uint8).reshape(_GRID_PIXELS, _GRID_PIXELS, 4)[..., :3]
    to_pixels = figure.axes[0].transData
    scale = PANEL / _GRID_PIXELS
    base = cv2.resize(np.ascontiguousarray(picture), (PANEL, PANEL), interpolation=cv2.INTER_AREA)

    def view(place: Place, walked: float) -> Pixels:
        x, y = to_pixels.transform(place[1:3])
        at = round(x * scale), round(PANEL - y * scale)
        ahead = round(at[0] + 14 * math.cos(place.yaw)), round(at[1] - 14 * math.sin(place.yaw))
        shown = base.copy()
        cv2.circle(shown, at, 7, (220, 38, 38), -1, cv2.LINE_AA)
        cv2.line(shown, at, ahead, (220, 38, 38), 3, cv2.LINE_AA)
        return np.asarray(shown, np.uint8)

    return view


def _compose(shot: Shot, frame: bytes | None, outside: Pixels) -> Image.Image:
    canvas = Image.new("RGB", (2 * PANEL + 4, PANEL + STRIP), "white")
    canvas.paste(_first_person(frame), (0, 0))
    canvas.paste(Image.fromarray(outside), (PANEL + 4, 0))
    if shot.decision is not None:
        draw = ImageDraw.Draw(canvas)
        title = f"step {shot.decision.step}: {shot.decision.action}"
        draw.text((8, PANEL + 6), title, fill="#111827", font=_font("DejaVu Sans:bold", 17))
        said = textwrap.fill(shot.decision.reasoning, 76, max_lines=3, placeholder=" ...")
        draw.multiline_text((8, PANEL + 30), said, fill="#374151", font=_font("DejaVu Sans", 13), spacing=3)
    return canvas


def _first_person(frame: bytes | None) -> Image.Image:
    """The frame as a whole, on grey where it is not square."""
    panel = Image.new("RGB", (PANEL, PANEL), "#d1d5db")
    data = cv2.imdecode(np.frombuffer(frame, np.uint8), cv2.IMREAD_COLOR) if frame else None
    if data is not None:
        picture = Image.fromarray(cv2.cvtColor(data, cv2.COLOR_BGR2RGB))
        scale = PANEL / max(picture.size)
        picture = picture.resize(
            (round(picture.width * scale), round(picture.height * scale)), Image.Resampling.LANCZOS
        )
        panel.paste(picture, ((PANEL - picture.width) // 2, (PANEL - picture.height) // 2))
    return panel


def _font(pattern: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(font_manager.findfont(pattern), size)


def _gif(pictures: list[Image.Image], durations: list[int]) -> bytes:
    # Median cut would drop the rare bright colours, and with them the object that is looked for.
    reduced = [picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE) for picture in pictures]
    buffer = io.BytesIO()
    reduced[0].save(buffer, "GIF", save_all=True, append_images=reduced[1:], duration=durations, loop=0, optimize=False)
    return buffer.getvalue()


def _thinned(pictures: list[Image.Image], durations: list[int]) -> tuple[list[Image.Image], list[int]]:
    """Leave out every other picture of a way, and show the one before it longer; if there is none, every other."""
    ways = [i for i, duration in enumerate(durations) if duration < READING_MS and i > 0]
    dropped = set(ways[::2] or range(1, len(pictures), 2))
    kept: list[Image.Image] = []
    times: list[int] = []
    for index, picture in enumerate(pictures):
        if index in dropped:
            times[-1] += durations[index]
        else:
            kept.append(picture)
            times.append(durations[index])
    return kept, times
