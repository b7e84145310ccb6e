"""Success, SPL and time of finished episodes: figures by difficulty, policy and link, and their tables."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from evaluation.closed_loop.episodes import ORACLE, POLICIES, TARGET, Episode, is_linked
from evaluation.tables import table
from simulation.scene import Difficulty

Z95 = 1.959964
LEVELS = tuple(level.name.lower() for level in Difficulty)
Group = tuple[str, str, "float | None"]


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


@dataclass(frozen=True)
class Figures:
    """One row of the table. Times are seconds; None where the policy has no times or nothing was found."""

    difficulty: str
    policy: str
    rtt_ms: float | None
    episodes: int
    found: int
    low: float
    high: float
    """95 % interval of the success rate."""
    spl: float | None
    spl_episodes: int
    """Seeds that the oracle solves: SPL is over these, and its path counts as the shortest."""
    path_m: float
    collisions: float
    actions: float
    """Means over all episodes."""
    time_to_goal_s: float | None
    standing_to_goal_s: float | None
    """Medians over the episodes that found the target."""
    standing_share: float | None
    """Standing over all time, of all episodes."""
    answer_s: float | None
    """Median of all answers."""
    tokens_per_answer: float | None
    passes_per_token: float | None
    outcomes: dict[str, int]
    by_class: dict[str, tuple[int, int]]


def group(episodes: Iterable[Episode]) -> dict[Group, list[Episode]]:
    """Return the episodes by (difficulty, policy, round trip): policies without a link first, then link by link."""
    groups: dict[Group, list[Episode]] = defaultdict(list)
    for episode in episodes:
        groups[episode.difficulty, episode.policy, episode.rtt_ms].append(episode)

    def place(key: Group) -> tuple[float, ...]:
        level, policy, rtt_ms = key
        return LEVELS.index(level), -1.0 if rtt_ms is None else rtt_ms, POLICIES.index(policy)

    return {key: sorted(groups[key], key=lambda episode: episode.seed) for key in sorted(groups, key=place)}


def figures(episodes: Iterable[Episode]) -> list[Figures]:
    """Return one row per difficulty, policy and round trip. SPL needs the oracle's episodes among them."""
    groups = group(episodes)
    shortest = {
        (episode.difficulty, episode.seed): episode.path_m
        for (_, policy, _), members in groups.items()
        for episode in members
        if policy == ORACLE and episode.success
    }
    return [_row(key, members, shortest) for key, members in groups.items()]


def _row(key: Group, episodes: Sequence[Episode], shortest: dict[tuple[str, int], float]) -> Figures:
    found = [episode for episode in episodes if episode.success]
    low, high = wilson(len(found), len(episodes))
    solved = [episode for episode in episodes if (episode.difficulty, episode.seed) in shortest]
    times = [episode for episode in found if episode.total_s is not None]
    standing = [episode for episode in episodes if episode.standing_s is not None]
    whole = sum(episode.total_s or 0.0 for episode in standing)
    answers = [seconds for episode in episodes for seconds in episode.answers_s]
    tokens = sum(episode.tokens for episode in episodes)
    classes: dict[str, list[bool]] = defaultdict(list)
    for episode in episodes:
        classes[episode.object_class].append(episode.success)
    return Figures(
        difficulty=key[0],
        policy=key[1],
        rtt_ms=key[2],
        episodes=len(episodes),
        found=len(found),
        low=low,
        high=high,
        spl=spl((e.success, e.path_m, shortest[e.difficulty, e.seed]) for e in solved),
        spl_episodes=len(solved),
        path_m=mean(episode.path_m for episode in episodes),
        collisions=mean(episode.collisions for episode in episodes),
        actions=mean(len(episode.actions) for episode in episodes),
        time_to_goal_s=median(episode.total_s or 0.0 for episode in times) if times else None,
        standing_to_goal_s=median(episode.standing_s or 0.0 for episode in times) if times else None,
        standing_share=sum(episode.standing_s or 0.0 for episode in standing) / whole if whole else None,
        answer_s=median(answers) if answers else None,
        tokens_per_answer=tokens / len(answers) if answers else None,
        passes_per_token=sum(e.cloud_passes for e in episodes) / tokens if tokens and is_linked(key[1]) else None,
        outcomes=dict(Counter(episode.outcome for episode in episodes).most_common()),
        by_class={name: (sum(results), len(results)) for name, results in sorted(classes.items())},
    )


def different_walks(episodes: Iterable[Episode]) -> tuple[int, int]:
    """Return in how many rooms the policies that give the target's answers act differently, and of how many rooms."""
    walks: dict[tuple[str, int], list[tuple[str, ...]]] = defaultdict(list)
    for episode in episodes:
        if is_linked(episode.policy) or episode.policy == TARGET:
            walks[episode.difficulty, episode.seed].append(episode.actions)
    several = [entries for entries in walks.values() if len(entries) > 1]
    return sum(len(set(entries)) > 1 for entries in several), len(several)


def name_of(policy: str, rtt_ms: float | None) -> str:
    """Return a row's name, e.g. 'sd, 40 ms'."""
    return policy if rtt_ms is None else f"{policy}, {rtt_ms:g} ms"


def main_table(rows: Sequence[Figures]) -> str:
    """Return success, walk and time, one row per policy and link."""
    header = (
        "policy, round trip", "found", "95 %", "SPL", "path m", "collisions", "actions", "to goal s", "standing s",
        "standing", "answer ms", "passes/token",
    )  # fmt: skip
    return table(header, [_cells(row) for row in rows])


def _cells(row: Figures) -> tuple[str, ...]:
    answer_ms = None if row.answer_s is None else 1e3 * row.answer_s
    values = (
        (row.spl, ".2f"), (row.path_m, ".2f"), (row.collisions, ".2f"), (row.actions, ".1f"),
        (row.time_to_goal_s, ".1f"), (row.standing_to_goal_s, ".1f"), (row.standing_share, ".0%"), (answer_ms, ".0f"),
        (row.passes_per_token, ".2f"),
    )  # fmt: skip
    found = f"{row.found}/{row.episodes}", f"{100 * row.low:.0f}-{100 * row.high:.0f} %"
    cells = ("-" if value is None else format(value, form) for value, form in values)
    return (name_of(row.policy, row.rtt_ms), *found, *cells)


def class_table(rows: Sequence[Figures]) -> str:
    """Return found/asked by object class, one column per policy; the first link stands for all of them."""
    columns = first_links(rows)
    classes = sorted({name for row in columns for name in row.by_class})
    lines = [(name, *(found_of_asked(row, name) for row in columns)) for name in classes]
    return table(("object", *(row.policy for row in columns)), lines)


def found_of_asked(row: Figures, object_class: str) -> str:
    """Return e.g. '3/4'; '-' where nothing was asked."""
    found, asked = row.by_class.get(object_class, (0, 0))
    return f"{found}/{asked}" if asked else "-"


def outcome_table(rows: Sequence[Figures]) -> str:
    """Return how episodes ended, one column per policy; the first link stands for all of them."""
    columns = first_links(rows)
    outcomes = sorted({name for row in columns for name in row.outcomes})
    lines = [(name, *(str(row.outcomes.get(name, 0)) for row in columns)) for name in outcomes]
    return table(("ended", *(row.policy for row in columns)), lines)


def first_links(rows: Sequence[Figures]) -> list[Figures]:
    """Return one row per difficulty and policy, that of the smallest round trip: links change times, not walks."""
    seen: dict[tuple[str, str], Figures] = {}
    for row in rows:
        seen.setdefault((row.difficulty, row.policy), row)
    return list(seen.values())
