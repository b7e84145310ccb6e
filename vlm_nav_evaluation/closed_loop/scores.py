"""Success, SPL and time of finished episodes: figures by difficulty, policy and link, and their tables."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import mean, median
from typing import Any, TypeAlias

from vlm_nav_evaluation.closed_loop.episodes import ORACLE, POLICIES, TARGET, Asked, Episode, Placed, is_linked
from vlm_nav_evaluation.tables import MS, Column, figures_table, table
from vlm_nav_simulation.geometry import CameraMount
from vlm_nav_simulation.layouts import Layout
from vlm_nav_simulation.scene import Difficulty

Z95 = 1.959964
LEVELS = tuple(level.name.lower() for level in Difficulty)
LAYOUTS = tuple(layout.value for layout in Layout)
QUERIES = tuple(asked.value for asked in Asked)
Place: TypeAlias = tuple[str, str, str]
"""Difficulty, layout, and what is searched for."""
Group: TypeAlias = tuple[Place, str, "float | None"]
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
    Column("to goal s", "time_to_goal_s", ".1f"),
    Column("standing s", "standing_to_goal_s", ".1f"),
    Column("standing", "standing_share", ".0%"),
    Column("answer ms", "answer_s", ".0f", MS),
    Column("passes/token", "passes_per_token"),
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


def group(episodes: Iterable[Episode]) -> dict[Group, list[Episode]]:
    """Return the episodes by (place, policy, round trip): policies without a link first, then link by link."""

    def order(episode: Episode) -> tuple[float, ...]:
        rtt_ms = -1.0 if episode.rtt_ms is None else episode.rtt_ms
        places = LAYOUTS.index(episode.layout), LEVELS.index(episode.difficulty), QUERIES.index(episode.asked)
        return *places, rtt_ms, POLICIES.index(episode.policy), episode.seed

    members = groupby(sorted(episodes, key=order), lambda one: (place(one), one.policy, one.rtt_ms))
    return {key: list(some) for key, some in members}


def place(episode: Episode) -> Place:
    """Return in which kind of room an episode was, and what was searched for."""
    return episode.difficulty, episode.layout, episode.asked


def figures(episodes: Iterable[Episode]) -> list[Row]:
    """Return one row per place, policy and round trip. SPL needs the oracle's episodes among them.

    Times are seconds; None where the policy has no times or nothing was found. low, high: 95 % interval of the success
    rate. spl_episodes: rooms that the oracle solves; SPL is over these, and its path counts as the shortest. path_m,
    collisions, actions: means over all episodes. *_to_goal_s: medians over the episodes that found the target.
    standing_share: standing over all time, of all episodes. answer_s: median of all answers.
    """
    groups = group(episodes)
    shortest = {
        (place(episode), episode.seed): episode.path_m
        for (_, policy, _), members in groups.items()
        for episode in members
        if policy == ORACLE and episode.success
    }
    return [_row(key, members, shortest) for key, members in groups.items()]


def _row(key: Group, episodes: Sequence[Episode], shortest: dict[tuple[Place, int], float]) -> Row:
    found = [episode for episode in episodes if episode.success]
    low, high = wilson(len(found), len(episodes))
    solved = [episode for episode in episodes if (place(episode), episode.seed) in shortest]
    times = [episode for episode in found if episode.total_s is not None]
    standing = [episode for episode in episodes if episode.standing_s is not None]
    whole = sum(episode.total_s or 0.0 for episode in standing)
    answers = [seconds for episode in episodes for seconds in episode.answers_s]
    tokens = sum(episode.tokens for episode in episodes)
    return {
        "difficulty": key[0][0],
        "layout": key[0][1],
        "asked": key[0][2],
        "policy": key[1],
        "rtt_ms": key[2],
        "episodes": len(episodes),
        "found": len(found),
        "low": low,
        "high": high,
        "spl": spl((e.success, e.path_m, shortest[place(e), e.seed]) for e in solved),
        "spl_episodes": len(solved),
        "path_m": mean(episode.path_m for episode in episodes),
        "collisions": mean(episode.collisions for episode in episodes),
        "actions": mean(len(episode.actions) for episode in episodes),
        "time_to_goal_s": median(episode.total_s or 0.0 for episode in times) if times else None,
        "standing_to_goal_s": median(episode.standing_s or 0.0 for episode in times) if times else None,
        "standing_share": sum(episode.standing_s or 0.0 for episode in standing) / whole if whole else None,
        "answer_s": median(answers) if answers else None,
        "tokens_per_answer": tokens / len(answers) if answers else None,
        "passes_per_token": sum(e.cloud_passes for e in episodes) / tokens if tokens and is_linked(key[1]) else None,
        "outcomes": dict(Counter(episode.outcome for episode in episodes).most_common()),
    }


def different_walks(episodes: Iterable[Episode]) -> tuple[int, int]:
    """Return in how many rooms the policies that give the target's answers act differently, and of how many rooms."""
    walks: dict[tuple[Any, ...], list[tuple[str, ...]]] = defaultdict(list)
    for episode in episodes:
        if is_linked(episode.policy) or episode.policy == TARGET:
            walks[place(episode), episode.seed, episode.mount, episode.crop].append(episode.actions)
    several = [entries for entries in walks.values() if len(entries) > 1]
    return sum(len(set(entries)) > 1 for entries in several), len(several)


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


def name_of(policy: str, rtt_ms: float | None) -> str:
    """Return a row's name, e.g. 'sd, 40 ms'."""
    return policy if rtt_ms is None else f"{policy}, {rtt_ms:g} ms"


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
        name = f"{place_name(place_of(row))}, {name_of(row['policy'], row['rtt_ms'])}"
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
    """Return success, walk and time, one row per policy and link."""
    shown = {
        name_of(row["policy"], row["rtt_ms"]): {
            **row,
            "of": f"{row['found']}/{row['episodes']}",
            "interval": f"{100 * row['low']:.0f}-{100 * row['high']:.0f} %",
        }
        for row in rows
    }
    return figures_table("policy, round trip", shown, COLUMNS)


def outcome_table(rows: Sequence[Row]) -> str:
    """Return how episodes ended, one column per policy; the first link stands for all of them."""
    columns = first_links(rows)
    names = sorted({name for row in columns for name in row["outcomes"]})
    return table(("ended", *(row["policy"] for row in columns)),
                 [(name, *(str(row["outcomes"].get(name, 0)) for row in columns)) for name in names])  # fmt: skip


def first_links(rows: Sequence[Row]) -> list[Row]:
    """Return one row per place and policy, that of the smallest round trip: links change times, not walks."""
    seen: dict[tuple[Place, str], Row] = {}
    for row in rows:
        seen.setdefault((place_of(row), row["policy"]), row)
    return list(seen.values())
