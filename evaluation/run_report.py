"""A recorded run as one self-contained HTML page: where it walked, what it saw and said, where the time went.

python -m evaluation.run_report BAG [--trace FILE] [--out DIR] [--no-movie]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from evaluation import page
from evaluation.movie import write_movie
from evaluation.recorded import HELD, Recorded, Run, load_run
from evaluation.run_plots import draw_contact_sheet, draw_latency, draw_top
from evaluation.summary import decoding_rows
from evaluation.timeline import Step, draw_step, median_step, steps
from simulation.scene import Scene
from speculation.trace import load

PAGE, TRACE, LOG, MOVIE = "report.html", "trace.json", "log.txt", "run.gif"
HOW_TO_READ = (
    "The answer of median duration. The edge drafts, the cloud verifies; lines between them are messages, ticks are "
    "early tokens of the target's exit layers. Green on a shaded band is drafting that a verification hides: where a "
    "commit lands on it (hit), the next draft leaves at once. Blue is drafting that the cloud waits for."
)
FILES = {
    "bag": "mcap; Foxglove opens it, ros2 bag play plays it",
    TRACE: "every answer's spans; open ui.perfetto.dev and drop the file there",
    LOG: "what all processes said",
    MOVIE: "first person, and the robot from outside",
}


def write_report(folder: Path, bag: Path, *, headline: str = "", trace: Path | None = None, movie: bool = True) -> Path:
    """Write a bag's page, with its pictures as files of their own too, into `folder`, and return the page.

    Raises ValueError, in one sentence, if `bag` or `trace` is none; OSError if `folder` cannot be written.
    """
    run = load_run(bag)
    answers = steps(load(trace)) if trace is not None else []
    top, scene, why = _top(run)
    pictures = {"top.png": top, **_pictures(run, answers)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in pictures.items():
        (folder / name).write_bytes(data)
    film = write_movie(folder / MOVIE, run, scene) if movie else None
    shown = {name: page.image(data, _ALT[name]) for name, data in pictures.items()}
    if film is not None:
        shown[MOVIE] = page.image(film.read_bytes(), _ALT[MOVIE])
    listed = {"bag": bag, TRACE: trace, LOG: folder / LOG, MOVIE: film}
    parts = [
        page.paragraph(_lead(run)),
        page.section(
            "Where it walked",
            page.grid([shown[name] for name in ("top.png", MOVIE) if name in shown], "pair"),
            note=why,
        ),
        *_decoding(run, shown),
        page.section("What it saw, said and did", page.grid(_card(entry) for entry in run.decisions)),
        _files(folder, {name: path for name, path in listed.items() if path is not None and path.exists()}),
    ]
    return page.write_page(folder / PAGE, headline or run.headline(), parts)


_ALT = {
    "top.png": "the run from above",
    "steps.png": "frames with reasoning and action",
    "latency.png": "time of each answer by stage",
    "timeline.png": "time line of one answer: edge, link and cloud",
    MOVIE: "the run: first person, and from outside",
}


def _top(run: Run) -> tuple[bytes, Scene | None, str]:
    """Return the view from above, the room if it can be drawn, and a sentence where it cannot."""
    scene = run.scene()
    why = "Odometry alone: the bag does not say in which room the robot was."
    if scene is not None:
        try:
            return page.png(draw_top(run, scene)), scene, ""
        except (ImportError, RuntimeError) as error:
            why = f"Odometry alone, since the simulator cannot draw here: {error}"
    return page.png(draw_top(run, None)), None, why


def _pictures(run: Run, answers: Sequence[Step]) -> dict[str, bytes]:
    pictures = {}
    if any(decision.frame is not None for decision in run.decisions):
        pictures["steps.png"] = page.png(draw_contact_sheet(run), 80)
    if run.stats:
        pictures["latency.png"] = page.png(draw_latency(run))
    if answers:
        pictures["timeline.png"] = page.png(draw_step(median_step(answers)))
    return pictures


def _lead(run: Run) -> str:
    told = f'Told: "{run.instructions[-1]}". ' if run.instructions else ""
    bumps = f", {run.truth['collisions']} collisions" if run.truth else ""
    held = sum(decision.action == HELD for decision in run.decisions)
    return f"{told}Walked {run.length:.2f} m in {len(run.decisions)} decisions, of these {held} HOLD{bumps}."


def _decoding(run: Run, shown: dict[str, str]) -> list[str]:
    parts = []
    if "timeline.png" in shown:
        title = "One answer, drafted on the edge and verified in the cloud"
        parts.append(page.section(title, page.wide(shown["timeline.png"]), note=HOW_TO_READ))
    if "latency.png" in shown:
        note = "Edge and verifier work at the same time, so their bars overlap in time; the dash is the whole answer."
        parts.append(page.section("Where the time of each answer went", page.wide(shown["latency.png"]), note=note))
        parts.append(page.section("Decoding", page.table(decoding_rows(run.stats))))
    return parts


def _card(entry: Recorded) -> str:
    figures, detail = entry.stats, ""
    if figures is not None:
        detail = f"{1e3 * figures.total_s:.0f} ms, {figures.tokens} tokens"
        judged = figures.hits + figures.misses
        detail += f", hits {figures.hits}/{judged}" if judged else ""
    return page.card(entry.frame, f"{entry.step}: {entry.action}", entry.reasoning, detail)


def _files(folder: Path, files: dict[str, Path]) -> str:
    lines = [
        f"<li>{page.link(os.path.relpath(path, folder), name)}: {page.escape(FILES[name])}</li>"
        for name, path in files.items()
    ]
    return page.section("Files", f"<ul>{''.join(lines)}</ul>")


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(prog="python -m evaluation.run_report", description=(__doc__ or "").splitlines()[0])
    line.add_argument("bag", type=Path, help="folder of a rosbag2 bag with decisions of vlm_nav in it")
    line.add_argument("--trace", type=Path, help=f"trace of the run (default: {TRACE} beside the bag, if there is one)")
    line.add_argument("--out", type=Path, help="folder of the page (default: BAG_report beside the bag)")
    line.add_argument("--no-movie", action="store_true", help="leave the movie out, which takes longest")
    return line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = parser().parse_args(arguments)
    beside = options.bag.parent / TRACE
    trace = options.trace or (beside if beside.exists() else None)
    folder = options.out or options.bag.parent / f"{options.bag.name}_report"
    try:
        made = write_report(folder, options.bag, trace=trace, movie=not options.no_movie)
    except (ValueError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(f"report {made}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
