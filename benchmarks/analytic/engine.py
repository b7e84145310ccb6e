"""The clocked engine where the papers' formulas speak: the same times, and facts drawn with the same acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tqdm import tqdm

from benchmarks.analytic import early_exits, picospec
from benchmarks.clocked import PAPERS, Synthetic, Timings
from benchmarks.clocked.figures import figures_of, run_mode
from benchmarks.clocked.link import Channel
from benchmarks.clocked.timeline import Timeline
from edge_drafter import Mode
from speculation.wire import Commit, Draft, encode

COMPARED = (Mode.CLOUD.value, Mode.SD.value, Mode.FSD.value, Mode.PIPELINED.value)
"""Modes for which a paper has a formula."""


@dataclass(frozen=True)
class Ran:
    """One mode on the engine: mean seconds per token, tau, and the share of commits that missed."""

    token_s: float
    tau: float
    miss: float


def ran(mode: str, source: Synthetic, steps: int, timings: Timings, gamma: int = early_exits.GAMMA) -> Ran:
    """Run a mode on drawn facts; a draft forward over several leaves takes no longer, as in the formulas."""
    recording = source.draw(steps)
    timings = replace(timings, draft_leaf=0.0)
    figures = figures_of(run_mode(mode, recording, timings, gamma=gamma), timings)
    return Ran(
        figures["total_percentiles_s"]["mean"] * steps / figures["tokens"], figures["tau"], figures["miss_rate"] or 0.0
    )


def source_of(system: early_exits.System, measured: early_exits.Measured, tokens: int) -> Synthetic:
    """Return facts like a paper's system: the acceptance that gives its tau, its miss rate and its mean exit."""
    acceptance = picospec.acceptance_for(measured.tau, early_exits.GAMMA)
    return Synthetic(tokens, acceptance, miss=measured.miss, mean_exit=measured.mean_exit, layers=system.layers)


def systems(steps: int, tokens: int) -> dict[str, dict[str, Ran]]:
    """Return cloud, sd and fsd at the times and facts of every system of Early Exits."""
    found = {}
    for name, system in tqdm(early_exits.SYSTEMS.items(), unit="system", disable=None):
        source = source_of(system, early_exits.MEASURED[name], tokens)
        found[name] = {mode: ran(mode, source, steps, PAPERS[name]) for mode in COMPARED[:3]}
    return found


def round_trips(source: Synthetic, steps: int, rtts_s: Sequence[float], base: Timings) -> dict[str, list[Ran]]:
    """Return every mode that has a formula at every round trip."""
    found: dict[str, list[Ran]] = {mode: [] for mode in COMPARED}
    for rtt_s in tqdm(rtts_s, unit="round trip", disable=None):
        for mode, entries in found.items():
            entries.append(ran(mode, source, steps, replace(base, one_way_s=rtt_s / 2.0)))
    return found


def pairs(steps: int, tokens: int) -> dict[str, dict[str, Ran]]:
    """Return sd and pipelined at the times of every pair of PicoSpec, with the acceptance of its printed length."""
    found = {}
    for name, pair in tqdm(picospec.PAIRS.items(), unit="pair", disable=None):
        acceptance = picospec.acceptance_for(pair.accepted, picospec.GAMMA)
        source = Synthetic(tokens, acceptance)
        timings = Timings(name, pair.draft_s, 0.0, pair.decode_s, one_way_s=pair.one_way_s)
        found[name] = {mode: ran(mode, source, steps, timings) for mode in (Mode.SD.value, Mode.PIPELINED.value)}
    return found


def round_s(up_bytes: int, down_bytes: int, timings: Timings) -> float:
    """Return the seconds that a message up and its answer take on the engine's link."""
    timeline = Timeline()
    up, down = Channel.pair(timeline, timings)

    def round_trip() -> None:
        for way, size in ((up, up_bytes), (down, down_bytes)):
            timeline.sleep(way.send(bytes(size), lambda: None) - timeline.now)

    timeline.run([round_trip])
    return timeline.now


def wire_bytes(gamma: int, tau: float) -> tuple[int, int]:
    """Return the bytes of this project's own messages of a round: a draft of gamma tokens, a commit of tau."""
    place, word = 100, 100_000
    draft = Draft(1, 1, place, bytes(8), [word] * gamma)
    commit = Commit(1, 1, place, [word] * round(tau), bytes(8), False, 1, 0.001, 0.1)
    return len(encode(draft)), len(encode(commit))
