"""`report`: a recorded run as one self-contained HTML page: where it walked, its decisions, where the time went."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from speculation.settings import path_flag
from speculation.trace import load
from vlm_nav_evaluation.html_page import Section, embedded, png, thumbnail, write_page
from vlm_nav_evaluation.report.plots import plot_latency, plot_top
from vlm_nav_evaluation.report.run import HELD, Decision, load_run
from vlm_nav_evaluation.report.tables import decoding_rows
from vlm_nav_evaluation.report.timeline import most_useful_step, plot_step, steps

PAGE, TRACE, LOG = "report.html", "trace.json", "log.txt"
HOW_TO_READ = (
    "The answer for which most draft forwards were of use. The edge drafts, the cloud verifies; lines between them are "
    "messages, ticks are early tokens of the target's exit layers. Green on a shaded band is drafting that a "
    "verification hides: where a commit lands on it (hit), the next draft leaves at once. Blue is drafting that the "
    "cloud waits for."
)
OVERLAP = "Edge and verifier work at the same time, so their bars overlap in time; the dash is the whole answer."
FILES = {
    "bag": "mcap; Foxglove opens it, ros2 bag play plays it",
    TRACE: "every answer's spans; open ui.perfetto.dev and drop the file there",
    LOG: "output of all processes",
}


def write_report(
    folder: Path, bag: Path, *, headline: str = "", trace: Path | None = None, more: Sequence[Section] = ()
) -> Path:
    """Write a bag's page, with its plots as files of their own too, into `folder`, and return the page.

    `more`: parts that stand behind the decoding figures.
    Raises ValueError, in one sentence, if `bag` or `trace` is none; OSError if `folder` cannot be written.
    """
    run = load_run(bag)
    answers = steps(load(trace)) if trace is not None else []
    scene = run.scene()
    problem = "" if scene else "Odometry alone: the bag does not hold the room that the robot was in."
    try:
        top = png(plot_top(run, scene))
    except (ImportError, RuntimeError) as error:
        scene, problem = None, f"Odometry alone, since the simulator cannot render here: {error}"
        top = png(plot_top(run, None))
    folder.mkdir(parents=True, exist_ok=True)

    def keep(name: str, data: bytes, description: str) -> tuple[str, str]:
        (folder / name).write_bytes(data)
        return embedded(data), description

    walk = [keep("top.png", top, "the run from above")]
    sections = [Section("Where it walked", problem, plots=walk)]
    if answers:
        plot = keep(
            "timeline.png", png(plot_step(most_useful_step(answers))), "time line of one answer: edge, link, cloud"
        )
        sections.append(Section("One answer, drafted on the edge and verified in the cloud", HOW_TO_READ, plots=[plot]))
    if run.stats:
        plot = keep("latency.png", png(plot_latency(run)), "time of each answer by stage")
        sections.append(Section("Where the time of each answer went", OVERLAP, plots=[plot]))
        sections.append(Section("Decoding", rows=decoding_rows(run.stats)))
    sections += more
    sections.append(Section("What it saw, and what it did", cards=[_card(entry) for entry in run.decisions]))
    files = {"bag": bag, TRACE: trace, LOG: folder / LOG}
    links = [
        (os.path.relpath(path, folder), name, FILES[name])
        for name, path in files.items()
        if path is not None and path.exists()
    ]
    sections.append(Section("Files", links=links))
    instruction = f'Instruction: "{run.instructions[-1]}". ' if run.instructions else ""
    bumps = f", {run.truth['collisions']} collisions" if run.truth else ""
    held = sum(decision.action == HELD for decision in run.decisions)
    instruction += f"Understood: {run.understood}. " if run.understood else ""
    lead = f"{instruction}Walked {run.length:.2f} m in {len(run.decisions)} decisions, of these {held} HOLD{bumps}."
    return write_page(folder / PAGE, headline or run.headline(), sections, [lead, *run.problems])


def _card(entry: Decision) -> tuple[str, str, str, str]:
    figures, detail = entry.stats, ""
    if figures is not None:
        judged = figures.hits + figures.misses
        detail = f"{1e3 * figures.total_s:.0f} ms, {figures.tokens} tokens"
        detail += f", hits {figures.hits}/{judged}" if judged else ""
    return thumbnail(entry.frame), f"{entry.step}: {entry.action}", entry.reasoning, detail


def run(options: argparse.Namespace) -> int:
    """Run the command. Raises ValueError or OSError, in one sentence, where there is nothing to report."""
    options.bag = options.bag.resolve()
    beside = options.bag.parent / TRACE
    trace = options.trace or (beside if beside.exists() else None)
    folder = options.out or options.bag.parent / f"{options.bag.name}_report"
    print(f"report {write_report(folder, options.bag, trace=trace)}")
    return 0


def add_options(line: argparse.ArgumentParser) -> None:
    """Register the options of `report`."""
    line.add_argument("bag", type=path_flag, help="folder of a rosbag2 bag with decisions of vlm_nav in it")
    line.add_argument(
        "--trace", type=path_flag, help=f"trace of the run (default: {TRACE} beside the bag, if there is one)"
    )
    line.add_argument("--out", type=path_flag, help="folder of the page (default: BAG_report beside the bag)")
