"""`bars`: what a target has to reach before it ships, in one table by one command.

Rooms are of seeds that no training uses. The target answers alone, in this process: all exact modes give its answers.
"Of the oracle's" counts rooms that the oracle solves.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from adapters_training.evaluate import evaluate
from speculation.language.grammar import CONSTRAINED
from speculation.language.prompts import ResponseOrder, Vocabulary
from speculation.settings import path_flag
from speculation.vlm.load import folder_fingerprint, load_vlm
from vlm_nav_evaluation.closed_loop.command import add_processes, add_walks
from vlm_nav_evaluation.closed_loop.episodes import ORACLE, TARGET, Asked, Episode, EpisodeKey, Setting, walk
from vlm_nav_evaluation.closed_loop.scores import Place, figures, place, place_name, place_of, wilson
from vlm_nav_evaluation.experiment.sockets import edge_config
from vlm_nav_evaluation.journal import Journal
from vlm_nav_evaluation.options import several
from vlm_nav_evaluation.results import provenance, write_json
from vlm_nav_evaluation.search_prompts import Asking
from vlm_nav_evaluation.tables import Column, figures_table, table
from vlm_nav_simulation.episode import Outcome

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
"""Difficulty, layout and what is searched for, by the name of a case."""
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


@dataclass(frozen=True)
class Bar:
    """One row: what is asked and what was measured. `low` and `high` are the 95 % interval of a share (Wilson)."""

    name: str
    asked: float | None
    measured: float | None
    low: float | None = None
    high: float | None = None
    count: int = 0
    at_most: bool = False
    note: str = ""

    @classmethod
    def of_share(cls, name: str, asked: float | None, successes: float, trials: int, at_most: bool = False) -> Bar:
        """Return the row of a share, with its interval."""
        if not trials:
            return cls(name, asked, None, at_most=at_most, note="no episodes")
        low, high = wilson(round(successes), trials)
        return cls(name, asked, successes / trials, low, high, trials, at_most)

    @property
    def met(self) -> bool | None:
        """Whether it is reached; None where nothing is asked or measured."""
        if self.asked is None or self.measured is None:
            return None
        return self.measured <= self.asked if self.at_most else self.measured >= self.asked


def add_options(line: argparse.ArgumentParser) -> None:
    """Register the options of `bars`."""
    shown = f"which of {','.join(CASES)} (default: all)"
    line.add_argument("--cases", type=several(CASES), default=list(CASES), help=shown)
    line.add_argument("--held-out", type=path_flag, help="frames of 'adapters_training data --held-out', for questions")
    line.add_argument("--count", type=int, default=300, help="questions (default: %(default)s)")
    add_walks(line, "0-99", "bars")
    add_processes(line, 2)


def run(options: argparse.Namespace) -> int:
    """Walk what is not done yet, then print and write the table. Raises ValueError for options that make no sense."""
    words = Vocabulary.load(options.target_model)
    if words is None:
        raise ValueError(
            f"{options.target_model} has no objects.json: these rooms are for models that know their objects"
        )
    walked = [name for name in options.cases if name in PLACES]
    if words.form == 1:
        walked = [name for name in walked if PLACES[name][2] == Asked.TARGET.value]
    settings = {"target": folder_fingerprint(options.target_model), "max_actions": options.max_actions,
                "response_order": options.response_order, "guide": options.guide, "views": options.views,
                "max_tokens": options.max_tokens, "dtype": options.dtype, "answers": options.answers}  # fmt: skip
    journal = Journal(options.out, "bars", settings, options.restart)
    keys = []
    for difficulty, layout, asked in (PLACES[name] for name in walked):
        policies = [(seed, policy) for seed in options.seeds for policy in (ORACLE, TARGET)]
        keys += [EpisodeKey(difficulty, seed, policy, layout, asked) for seed, policy in policies]
    edge = edge_config(options, mode="edge")
    setting = Setting(edge, options.target_model, "", options.max_actions, Asking.of(options, words))
    episodes = walk(keys, setting, journal, options.processes)
    report(options, [*walks(episodes, walked), *_others(options, words)], episodes)
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
        found = sum(episode.success for episode in counted)
        rows.append(Bar.of_share(f"{place_name(where)}: {words}", bar, found, len(counted)))
        if case == "hard" and ours:
            mean = sum(episode.collisions for episode in ours) / len(ours)
            name = f"{place_name(where)}: {COLLISIONS}"
            rows.append(Bar(name, COLLISIONS_BAR, mean, count=len(ours), at_most=True))
    there = [e for e in finished if e.policy == TARGET and e.asked != Asked.ABSENT.value]
    false = sum(e.outcome == Outcome.NOT_FOUND.value for e in there)
    name = "false 'not here', of all rooms that hold the object"
    rows.append(Bar.of_share(name, FALSE_BAR, false, len(there), at_most=True))
    return rows


def _others(options: argparse.Namespace, words: Vocabulary) -> list[Bar]:
    """Return the rows that no walk of their own is behind."""
    rows = []
    if QUESTIONS in options.cases and options.held_out is None:
        rows.append(Bar(KIND_NAME, KIND_BAR, None, note="not asked: --held-out names no frames"))
    elif QUESTIONS in options.cases:
        score = evaluate(
            load_vlm(options.target_model), options.held_out, options.count,
            order=ResponseOrder(options.response_order), constrained=options.answers == CONSTRAINED,
        )  # fmt: skip
        rows.append(Bar.of_share(KIND_NAME, KIND_BAR, score.kind, score.answers))
    if words.form == 1:
        note = "a model of prompt form 1 cannot be asked"
        rows.append(Bar("absent objects, a class or a colour alone", None, None, note=note))
    return rows


def outcomes(episodes: Sequence[Episode]) -> dict[str, dict[str, str]]:
    """Return by place how the target ended each room, by its seed: one can walk again those that failed."""
    rooms: dict[str, dict[str, str]] = {}
    for episode in episodes:
        if episode.policy == TARGET:
            rooms.setdefault(place_name(place(episode)), {})[str(episode.seed)] = episode.outcome
    return rooms


def report(options: argparse.Namespace, rows: Sequence[Bar], episodes: Sequence[Episode]) -> None:
    """Print both tables, of the bars and of what was walked; write bars.txt and bars.json."""
    text = table(("bar", "asked", "measured", "95 %", "of", "met"), [_cells(row) for row in rows])
    notes = [f"{row.name}: {row.note}" for row in rows if row.note]
    walked = {place_name(place_of(row)): row for row in figures(episodes) if row["policy"] == TARGET}
    shown = {name: {**row, "of": f"{row['found']}/{row['episodes']}"} for name, row in walked.items()}
    ways = [figures_table("walked", shown, WALKED_COLUMNS)] if walked else []
    about, chosen = provenance(options), ",".join(map(str, options.seeds))
    text = "\n\n".join([text, *notes, *ways, f"rooms: seeds {chosen}; {about['machine']}"])
    print(text)
    (options.out / "bars.txt").write_text(text + "\n", encoding="utf-8")
    data = {"rows": [asdict(row) | {"met": row.met} for row in rows], "walked": list(walked.values())}
    write_json(options.out / "bars.json", {**about, "seeds": options.seeds, **data, "rooms": outcomes(episodes)})


def _cells(row: Bar) -> tuple[str, ...]:
    percent = COLLISIONS not in row.name

    def shown(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f} %" if percent else f"{value:.2f}"

    interval = "-" if row.low is None or row.high is None else f"{100 * row.low:.0f}-{100 * row.high:.0f} %"
    met = "-" if row.met is None else "yes" if row.met else "no"
    return (
        row.name,
        "-" if row.asked is None else f"{'<=' if row.at_most else '>='} {shown(row.asked)}",
        shown(row.measured),
        interval,
        str(row.count),
        met,
    )
