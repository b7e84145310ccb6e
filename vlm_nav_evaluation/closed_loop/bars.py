"""`bars`: what a target has to reach before it ships, in one table by one command.

Rooms are of seeds that no training uses. The target answers alone, in this process: all exact modes give its answers.
"Of the oracle's" counts rooms that the oracle solves.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

import msgspec
from matplotlib.figure import Figure

from adapters_training.evaluate import evaluate
from speculation.language.grammar import CONSTRAINED
from speculation.language.prompts import Guidance, ResponseOrder, Vocabulary
from speculation.progress import progress
from speculation.settings import path_flag
from speculation.vlm.load import folder_fingerprint, load_vlm
from vlm_nav_evaluation.closed_loop.command import MAX_PROCESSES, episodes, seeds
from vlm_nav_evaluation.closed_loop.episodes import ORACLE, TARGET, Asked, Episode, EpisodeKey, Setting
from vlm_nav_evaluation.closed_loop.scores import Place, figures, place, place_name, place_of, wilson
from vlm_nav_evaluation.experiment.sockets import edge_config
from vlm_nav_evaluation.journal import Journal
from vlm_nav_evaluation.plots import new_figure
from vlm_nav_evaluation.setting import add_decoding, machine
from vlm_nav_evaluation.tables import Column, figures_table, table
from vlm_nav_simulation.episode import Outcome

ABSENT_ACTIONS = 80
"""A whole search of two rooms takes more actions than a walk to what is there."""
PLACES: dict[str, Place] = {
    "easy": ("easy", "room", Asked.TARGET.value),
    "middle": ("middle", "room", Asked.TARGET.value),
    "hard": ("hard", "room", Asked.TARGET.value),
    "two_rooms": ("middle", "two_rooms", Asked.TARGET.value),
    "hallway": ("middle", "hallway", Asked.TARGET.value),
    "absent": ("middle", "room", Asked.ABSENT.value),
    "absent_two_rooms": ("middle", "two_rooms", Asked.ABSENT.value),
    "class": ("middle", "room", Asked.CLASS.value),
    "colour": ("middle", "room", Asked.COLOUR.value),
}
"""What is walked."""
QUESTIONS = "questions"
CASES = (*PLACES, QUESTIONS)
FOUND_BARS = {"easy": 0.97, "middle": 0.97, "hard": 0.92, "two_rooms": 0.92, "hallway": 0.92}
COLLISIONS, KIND_NAME = "collisions an episode", "action kind on held-out questions"
ABSENT_BAR, FALSE_BAR, COLLISIONS_BAR, KIND_BAR = 0.90, 0.03, 0.3, 0.90
WALKED_COLUMNS = (
    Column("found", "of"),
    Column("SPL", "spl"),
    Column("path m", "path_m"),
    Column("collisions", "collisions"),
    Column("actions", "actions", ".1f"),
)


class Sign(str, Enum):
    """How a measured value has to lie to what is asked."""

    AT_LEAST = ">="
    AT_MOST = "<="
    BELOW = "<"


@dataclass(frozen=True)
class Bar:
    """One row: what is asked and what was measured. `low` and `high` are the 95 % interval of a share (Wilson)."""

    name: str
    asked: float | None
    sign: Sign
    measured: float | None
    low: float | None = None
    high: float | None = None
    count: int = 0
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether it is reached; None where nothing is asked or measured."""
        if self.asked is None or self.measured is None:
            return None
        if self.sign is Sign.BELOW:
            return self.measured < self.asked
        return self.measured <= self.asked if self.sign is Sign.AT_MOST else self.measured >= self.asked


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `bars`."""
    line = commands.add_parser("bars", help="what a target has to reach, in one table", description=__doc__)
    line.add_argument("--seeds", default="0-99", help="rooms, e.g. 0-19 or 3,5,8-11 (default: %(default)s)")
    line.add_argument("--cases", default=",".join(CASES), help="which of them (default: %(default)s)")
    line.add_argument("--held-out", type=path_flag, help="frames of 'adapters_training data --held-out', for questions")
    line.add_argument("--count", type=int, default=300, help="questions (default: %(default)s)")
    add_decoding(line, (TARGET,), max_tokens=96, out="bars")
    line.add_argument("--max-actions", type=int, default=40)
    line.add_argument("--processes", type=int, default=2, help="episodes at once (default: %(default)s)")
    line.set_defaults(run=run, answers=CONSTRAINED)


def run(options: argparse.Namespace) -> int:
    """Walk what is not done yet, then print and write the table. Raises ValueError for options that make no sense."""
    cases = [name.strip() for name in options.cases.split(",")]
    if unknown := [name for name in cases if name not in CASES]:
        raise ValueError(f"--cases: {unknown[0]!r} is none; known are {', '.join(CASES)}")
    if not 1 <= options.processes <= MAX_PROCESSES:
        raise ValueError(f"--processes {options.processes} is outside 1 to {MAX_PROCESSES}")
    words = Vocabulary.load(options.target_model)
    if words is None:
        raise ValueError(
            f"{options.target_model} has no objects.json: these rooms are for models that know their objects"
        )
    walked = [name for name in cases if name in PLACES]
    if words.form == 1:
        walked = [name for name in walked if PLACES[name][2] == Asked.TARGET.value]
    chosen = seeds(options.seeds)
    settings = {"target": folder_fingerprint(options.target_model), "max_actions": options.max_actions,
                "response_order": options.response_order, "guide": options.guide, "views": options.views,
                "max_tokens": options.max_tokens, "dtype": options.dtype, "answers": options.answers}  # fmt: skip
    journal = Journal(options.out, "bars", settings, options.restart)
    done = {episode.key: episode for episode in (msgspec.convert(piece, Episode) for piece in journal.pieces())}
    keys = [
        EpisodeKey(*PLACES[name][:1], seed, policy, None, *PLACES[name][1:])
        for name in walked
        for seed in chosen
        for policy in (ORACLE, TARGET)
    ]
    shared = Setting(
        edge_config(options, "", mode="edge"), options.target_model, "", options.max_actions,
        ResponseOrder(options.response_order), Guidance(options.guide).applies(words), words.form,
    )  # fmt: skip
    absent = replace(shared, max_actions=max(options.max_actions, ABSENT_ACTIONS))
    with progress(total=len(keys), initial=sum(key in done for key in keys), unit="episode") as bar:
        for setting in (shared, absent):
            missing = [
                key for key in keys if key not in done and (key.asked == Asked.ABSENT.value) == (setting is absent)
            ]
            for episode in episodes(missing, setting, options.processes):
                journal.add(asdict(episode))
                done[episode.key] = episode
                bar.update()
    finished = [done[key] for key in keys]
    report(options, [*walks(finished, walked), *_others(options, cases, words)], finished)
    return 0


def walks(finished: Sequence[Episode], names: Iterable[str]) -> list[Bar]:
    """Return the rows of the episodes."""
    rows = []
    for case in names:
        where = PLACES[case]
        ours = [episode for episode in finished if place(episode) == where and episode.policy == TARGET]
        solved = {e.seed for e in finished if place(e) == where and e.policy == ORACLE and e.success}
        counted = [episode for episode in ours if episode.seed in solved or where[2] == Asked.ABSENT.value]
        bar = ABSENT_BAR if case == "absent" else FOUND_BARS.get(case)
        words = "said 'not here'" if where[2] == Asked.ABSENT.value else "found, of the oracle's"
        rows.append(_share(f"{place_name(where)}: {words}", bar, Sign.AT_LEAST, [e.success for e in counted]))
        if case == "hard" and ours:
            mean = sum(episode.collisions for episode in ours) / len(ours)
            name = f"{place_name(where)}: {COLLISIONS}"
            rows.append(Bar(name, COLLISIONS_BAR, Sign.BELOW, mean, count=len(ours)))
    there = [e for e in finished if e.policy == TARGET and e.asked != Asked.ABSENT.value]
    false = [e.outcome == Outcome.NOT_FOUND.value for e in there]
    rows.append(_share("false 'not here', of all rooms that hold the object", FALSE_BAR, Sign.AT_MOST, false))
    return rows


def _others(options: argparse.Namespace, cases: Sequence[str], words: Vocabulary) -> list[Bar]:
    rows = []
    if QUESTIONS in cases and options.held_out is None:
        rows.append(Bar(KIND_NAME, KIND_BAR, Sign.AT_LEAST, None, note="not asked: --held-out names no frames"))
    elif QUESTIONS in cases:
        score = evaluate(
            load_vlm(options.target_model), options.held_out, options.count,
            order=ResponseOrder(options.response_order), constrained=options.answers == CONSTRAINED,
        )  # fmt: skip
        rows.append(_counted(KIND_NAME, KIND_BAR, Sign.AT_LEAST, score.kind, score.answers))
    if words.form == 1:
        rows.append(Bar("absent objects, a class or a colour alone", None, Sign.AT_LEAST, None,
                        note="a model of prompt form 1 cannot be asked"))  # fmt: skip
    return rows


def _share(name: str, asked: float | None, sign: Sign, results: Sequence[bool]) -> Bar:
    if not results:
        return Bar(name, asked, sign, None, note="no episodes")
    return _counted(name, asked, sign, sum(results), len(results))


def _counted(name: str, asked: float | None, sign: Sign, successes: int, trials: int) -> Bar:
    low, high = wilson(successes, trials)
    return Bar(name, asked, sign, successes / trials, low, high, trials)


def outcomes(finished: Sequence[Episode]) -> dict[str, dict[str, str]]:
    """Return by place how the target ended each room, by its seed: one can walk again those that failed."""
    rooms: dict[str, dict[str, str]] = {}
    for episode in finished:
        if episode.policy == TARGET:
            rooms.setdefault(place_name(place(episode)), {})[str(episode.seed)] = episode.outcome
    return rooms


def report(options: argparse.Namespace, rows: Sequence[Bar], finished: Sequence[Episode]) -> None:
    """Print both tables, of the bars and of what was walked; write bars.txt, bars.json and bars.png."""
    text = table(("bar", "asked", "measured", "95 %", "of", "met"), [_cells(row) for row in rows])
    notes = [f"{row.name}: {row.note}" for row in rows if row.note]
    walked = {place_name(place_of(row)): row for row in figures(finished) if row["policy"] == TARGET}
    shown = {name: {**row, "of": f"{row['found']}/{row['episodes']}"} for name, row in walked.items()}
    ways = [figures_table("walked", shown, WALKED_COLUMNS)] if walked else []
    text = "\n\n".join([text, *notes, *ways, f"rooms: seeds {options.seeds}; {machine()}"])
    print(text)
    (options.out / "bars.txt").write_text(text + "\n", encoding="utf-8")
    data: dict[str, Any] = {"target": folder_fingerprint(options.target_model), "seeds": options.seeds,
                            "machine": machine(), "rows": [asdict(row) | {"met": row.met} for row in rows],
                            "walked": list(walked.values()), "rooms": outcomes(finished)}  # fmt: skip
    (options.out / "bars.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    path = options.out / "bars.png"
    plot(rows).savefig(path, dpi=110, bbox_inches="tight")
    print(path)


def _cells(row: Bar) -> tuple[str, ...]:
    percent = COLLISIONS not in row.name

    def shown(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f} %" if percent else f"{value:.2f}"

    interval = "-" if row.low is None or row.high is None else f"{100 * row.low:.0f}-{100 * row.high:.0f} %"
    met = "-" if row.met is None else "yes" if row.met else "no"
    return (
        row.name,
        "-" if row.asked is None else f"{row.sign.value} {shown(row.asked)}",
        shown(row.measured),
        interval,
        str(row.count),
        met,
    )


def plot(rows: Sequence[Bar]) -> Figure:
    """Return every share as a bar with its interval and a mark where it has to be."""
    shares = [row for row in rows if row.measured is not None and row.low is not None]
    figure = new_figure(0.45 * max(1, len(shares)) + 1.2, 9.0)
    axes = figure.subplots()
    for place_, row in enumerate(shares):
        assert row.measured is not None and row.low is not None and row.high is not None
        colour = {True: "#2ca02c", False: "#d62728", None: "#7f7f7f"}[row.met]
        axes.barh(place_, 100 * row.measured, color=colour, height=0.55, alpha=0.85)
        axes.plot([100 * row.low, 100 * row.high], [place_, place_], "k-", lw=1.2)
        if row.asked is not None:
            axes.plot([100 * row.asked] * 2, [place_ - 0.4, place_ + 0.4], "k--", lw=1.5)
    axes.set_yticks(range(len(shares)), [row.name for row in shares])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("%  (dashed: the bar; line: 95 % interval; green: met)")
    return figure
