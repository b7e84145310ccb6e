"""Success and SPL of finished episodes: figures by kind of room and policy, and their tables."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import mean, median
from typing import Any, TypeAlias

from vlm_nav_evaluation.closed_loop.episodes import ORACLE, POLICIES, Asked, Episode, Placed
from vlm_nav_evaluation.tables import Column, figures_table, table
from vlm_nav_simulation.geometry import CameraMount
from vlm_nav_simulation.layouts import Layout
from vlm_nav_simulation.scene import Difficulty

Z95 = 1.959964
LEVELS = tuple(level.name.lower() for level in Difficulty)
LAYOUTS = tuple(layout.value for layout in Layout)
QUERIES = tuple(asked.value for asked in Asked)
Place: TypeAlias = tuple[str, str, str]
"""Difficulty, layout, and what is searched for."""
Row: TypeAlias = dict[str, Any]
"""What `figures` counts of a group."""
SIGHTING_BANDS = (1.0, 2.0, 3.0)
"""Upper ends of the distances, metres, by which places that answers name are listed."""
WITHIN = {"in_68": 1.515, "in_95": 2.448}
"""Standard deviations within which these shares of a normal distribution on the plane are."""
PLACED_COLUMNS = (
    Column("places", "places", ".0f"),
    Column("along m", "along_m"),
    Column("across m", "across_m"),
    Column("median off m", "off_m"),
    Column("in its 68 %", "in_68", ".0%"),
    Column("in its 95 %", "in_95", ".0%"),
)
COLUMNS = (
    Column("found", "of"),
    Column("95 %", "interval"),
    Column("SPL", "spl"),
    Column("path m", "path_m"),
    Column("collisions", "collisions"),
    Column("actions", "actions", ".1f"),
)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a success rate (Wilson 1927); (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    share, square = successes / trials, Z95 * Z95
    centre = (share + square / (2 * trials)) / (1 + square / trials)
    half = Z95 / (1 + square / trials) * math.sqrt(share * (1 - share) / trials + square / (4 * trials * trials))
    # Rounding must not push the rate itself out of its interval.
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def spl(walks: Iterable[tuple[bool, float, float]]) -> float | None:
    """Return success weighted by path length (Anderson et al. 2018, arXiv 1807.06757); None without walks.

    walks: (success, length walked, shortest length), metres.
    """
    terms = []
    for success, walked, shortest in walks:
        longest = max(walked, shortest)
        terms.append(0.0 if not success else shortest / longest if longest > 0.0 else 1.0)
    return mean(terms) if terms else None


def place(episode: Episode) -> Place:
    """Return in which kind of room an episode was, and what was searched for."""
    return episode.difficulty, episode.layout, episode.asked


def figures(episodes: Iterable[Episode]) -> list[Row]:
    """Return one row per place and policy. SPL needs the oracle's episodes among them.

    low, high: 95 % interval of the success rate. spl_episodes: rooms that the oracle solves; SPL is over these, and its
    path counts as the shortest. path_m, collisions, actions: means over all episodes.
    """

    def order(episode: Episode) -> tuple[float, ...]:
        places = LAYOUTS.index(episode.layout), LEVELS.index(episode.difficulty), QUERIES.index(episode.asked)
        return *places, POLICIES.index(episode.policy), episode.seed

    ranked = sorted(episodes, key=order)
    shortest = {(place(one), one.seed): one.path_m for one in ranked if one.policy == ORACLE and one.success}
    groups = groupby(ranked, lambda one: (*place(one), one.policy))
    return [_row(names, list(members), shortest) for names, members in groups]


def _row(
    names: tuple[str, str, str, str], episodes: Sequence[Episode], shortest: dict[tuple[Place, int], float]
) -> Row:
    found = [episode for episode in episodes if episode.success]
    low, high = wilson(len(found), len(episodes))
    solved = [episode for episode in episodes if (place(episode), episode.seed) in shortest]
    return {
        **dict(zip(("difficulty", "layout", "asked", "policy"), names, strict=True)),
        "episodes": len(episodes),
        "found": len(found),
        "low": low,
        "high": high,
        "spl": spl((e.success, e.path_m, shortest[place(e), e.seed]) for e in solved),
        "spl_episodes": len(solved),
        "path_m": mean(episode.path_m for episode in episodes),
        "collisions": mean(episode.collisions for episode in episodes),
        "actions": mean(len(episode.actions) for episode in episodes),
        "outcomes": dict(Counter(episode.outcome for episode in episodes).most_common()),
    }


def place_of(row: Row) -> Place:
    """Return the place of a row of `figures`."""
    return row["difficulty"], row["layout"], row["asked"]


def place_name(where: Place) -> str:
    """Return e.g. 'hard', 'middle, two rooms' or 'middle, asked for what is absent'."""
    difficulty, layout, asked = where
    parts = [difficulty]
    if layout != Layout.ROOM.value:
        parts.append(layout.replace("_", " "))
    if asked != Asked.TARGET.value:
        parts.append("asked for what is absent" if asked == Asked.ABSENT.value else f"asked by {asked} alone")
    return ", ".join(parts)


def placed(episodes: Iterable[Episode]) -> dict[str, Row]:
    """Return how far off answers place what is searched for, by its true distance; empty where none places it.

    along_m, across_m: root mean squares, along the line of sight and across it. in_68, in_95: shares within the parts
    of the published covariance that are to hold so many percent.
    """
    bands: dict[str, list[Placed]] = defaultdict(list)
    for seen in (each for episode in episodes for each in episode.sightings):
        nearer = next((f"under {limit:g} m" for limit in SIGHTING_BANDS if seen.true_metres < limit), "farther")
        for name in ("all", nearer):
            bands[name].append(seen)
    return {name: _placed(bands[name]) for name in sorted(bands)}


def _placed(seen: Sequence[Placed]) -> Row:
    return {
        "places": len(seen),
        "along_m": math.sqrt(mean(each.along**2 for each in seen)),
        "across_m": math.sqrt(mean(each.across**2 for each in seen)),
        "off_m": median(math.hypot(each.along, each.across) for each in seen),
        **{name: mean(each.deviations <= most for each in seen) for name, most in WITHIN.items()},
    }


def camera_name(mount: CameraMount, crop: str) -> str:
    """Return e.g. 'camera at 0.6 m, 10 degrees down, 90 wide, crop none'."""
    return f"camera at {mount.height_m:g} m, {mount.pitch_deg:g} degrees down, {mount.fov_deg:g} wide, crop {crop}"


def camera_tables(rows: Sequence[Row]) -> list[str]:
    """Return what was found by height (down) and pitch (across), a table per place, policy, field of view and crop.

    rows: of `figures`, with the camera's mount and crop.
    """
    tables: dict[str, dict[tuple[float, float], str]] = defaultdict(dict)
    for row in rows:
        name = f"{place_name(place_of(row))}, {row['policy']}"
        title = f"{name}, {row['fov_deg']:g} degrees wide, crop {row['crop']}: found"
        tables[title][row["height_m"], row["pitch_deg"]] = f"{row['found']}/{row['episodes']}"
    texts = []
    for title, cells in tables.items():
        heights, pitches = (sorted({key[axis] for key in cells}) for axis in (0, 1))
        header = ("height m, degrees down", *(f"{pitch:g}" for pitch in pitches))
        lines = [(f"{height:g}", *(cells[height, pitch] for pitch in pitches)) for height in heights]
        texts.append(f"{title}\n{table(header, lines)}")
    return texts


def main_table(rows: Sequence[Row]) -> str:
    """Return success and walk, one row per policy."""
    shown = {
        row["policy"]: {
            **row,
            "of": f"{row['found']}/{row['episodes']}",
            "interval": f"{100 * row['low']:.0f}-{100 * row['high']:.0f} %",
        }
        for row in rows
    }
    return figures_table("policy", shown, COLUMNS)


def outcome_table(rows: Sequence[Row]) -> str:
    """Return how episodes ended, one column per policy."""
    names = sorted({name for row in rows for name in row["outcomes"]})
    return table(("ended", *(row["policy"] for row in rows)),
                 [(name, *(str(row["outcomes"].get(name, 0)) for row in rows)) for name in names])  # fmt: skip
