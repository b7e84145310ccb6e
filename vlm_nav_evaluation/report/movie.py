"""A recorded run as an animated GIF: what the robot saw beside a view from outside, with reasoning and action."""

from __future__ import annotations

import io
import math
import textwrap
from bisect import bisect_right
from collections.abc import Callable
from contextlib import ExitStack
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont, ImageOps

from speculation.progress import progress
from vlm_nav_evaluation.html_page import read_image
from vlm_nav_evaluation.report.plots import TARGET, plot_top
from vlm_nav_evaluation.report.run import Decision, Place, Run
from vlm_nav_simulation.scene import Scene
from vlm_nav_simulation.world import World

PANEL, STRIP, COLOURS = 272, 84, 192
MOVING_MS, READING_MS, LAST_MS = 120, 1400, 3000
MOST_MOVING = 90
STEP_S = 0.25
_GRID_PIXELS = 460
_SECOND_NS = 1_000_000_000
View = Callable[["Shot"], Image.Image]


class Shot(NamedTuple):
    """One image of the movie: when and where, the decision that is carried out, how long it stands, metres walked."""

    place: Place
    decision: Decision
    milliseconds: int
    walked: float = 0.0


def shots(run: Run) -> list[Shot]:
    """Return what to show: every decision long enough to read it, and the ways between them at about twice the pace.

    The robot stands while an answer is decoded, which is left out; long ways get fewer images a second.
    """
    times = [decision.at_ns for decision in run.decisions]
    moving = [place for place in run.path if times and place.at_ns >= times[0]]
    gaps = (after.at_ns - before.at_ns for before, after in pairwise(moving))
    seconds = sum(min(gap, _SECOND_NS // 5) for gap in gaps) / _SECOND_NS
    gap_ns = int(max(STEP_S, seconds / MOST_MOVING) * _SECOND_NS)
    found = [
        Shot(place._replace(at_ns=decision.at_ns), decision, READING_MS)
        for decision in run.decisions
        if (place := run.place_at(decision.at_ns)) is not None
    ]
    shown_at = -gap_ns
    for place in moving:
        if place.at_ns - shown_at >= gap_ns:
            found.append(Shot(place, run.decisions[bisect_right(times, place.at_ns) - 1], MOVING_MS))
            shown_at = place.at_ns
    found.sort(key=lambda shot: shot.place.at_ns)
    ways = [0.0, *(math.dist(before.place[1:3], shot.place[1:3]) for before, shot in pairwise(found))]
    return [shot._replace(walked=walked) for shot, walked in zip(found, accumulate(ways), strict=False)]


def write_movie(path: Path, run: Run, scene: Scene | None) -> Path | None:
    """Write the run as a GIF; None where there is nothing to show. Raises OSError."""
    chosen = shots(run)
    if not chosen:
        return None
    with ExitStack() as stack:
        outside = _on_grid(run) if scene is None else _in_room(stack.enter_context(World(scene)))
        frames = run.frames_at(shot.place.at_ns for shot in chosen)
        pairs = progress(zip(chosen, frames, strict=True), desc="movie", total=len(chosen), leave=False)
        images = [
            _compose(shot, read_image(frame), outside(shot)).quantize(
                # Median cut would drop the rare bright colours, and with them the object that is looked for.
                COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE,
            )
            for shot, frame in pairs
        ]  # fmt: skip
    times = [shot.milliseconds for shot in chosen[:-1]] + [LAST_MS]
    path.parent.mkdir(parents=True, exist_ok=True)
    images[0].save(path, "GIF", save_all=True, append_images=images[1:], duration=times, loop=0, optimize=False)
    return path


def _in_room(world: World) -> View:
    """The robot from behind in its simulated room; its legs move with the way it has walked."""

    def view(shot: Shot) -> Image.Image:
        world.set_pose(*shot.place[1:])
        world.set_gait(2 * math.pi * shot.walked / 0.25, 0.8)
        return Image.fromarray(world.render_third_person(PANEL, PANEL))

    return view


def _on_grid(run: Run) -> View:
    """The walked path from above with the robot on it."""
    figure = plot_top(run, None)
    figure.set_size_inches(_GRID_PIXELS / figure.dpi, _GRID_PIXELS / figure.dpi)
    figure.legends.clear()
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=figure.dpi)
    to_pixels, base = figure.axes[0].transData, Image.open(buffer).convert("RGB")

    def view(shot: Shot) -> Image.Image:
        shown, yaw = base.copy(), shot.place.yaw
        pen = ImageDraw.Draw(shown)
        x, above = to_pixels.transform(shot.place[1:3])
        y = _GRID_PIXELS - above
        pen.circle((x, y), 12, fill=TARGET)
        pen.line((x, y, x + 24 * math.cos(yaw), y - 24 * math.sin(yaw)), fill=TARGET, width=5)
        return shown.resize((PANEL, PANEL), Image.Resampling.BOX)

    return view


def _compose(shot: Shot, frame: Image.Image | None, outside: Image.Image) -> Image.Image:
    """Return both views side by side over the text; the frame as a whole, on grey where it is not square."""
    canvas = Image.new("RGB", (2 * PANEL + 4, PANEL + STRIP), "white")
    panel = frame or Image.new("RGB", (PANEL, PANEL), "#d1d5db")
    canvas.paste(ImageOps.pad(panel, (PANEL, PANEL), Image.Resampling.LANCZOS, "#d1d5db"), (0, 0))
    canvas.paste(outside, (PANEL + 4, 0))
    pen = ImageDraw.Draw(canvas)
    title = f"step {shot.decision.step}: {shot.decision.action}"
    pen.text((8, PANEL + 6), title, fill="#111827", font=_font("DejaVu Sans:bold", 17))
    reasoning = textwrap.fill(shot.decision.reasoning, 76, max_lines=3, placeholder=" ...")
    pen.multiline_text((8, PANEL + 30), reasoning, fill="#374151", font=_font("DejaVu Sans", 13), spacing=3)
    return canvas


def _font(pattern: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(font_manager.findfont(pattern), size)
