"""Does virtual time tell the truth? Real sockets and processes against the clocked engine, mode by mode.

The real runs wait for a device profile's declared times; the clocked ones are told the same times, and the prefill
times that the real ones had. Both decode the same frames with the same models.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.clocked.facts import Recording
from benchmarks.clocked.figures import run_mode
from benchmarks.clocked.timings import Timings
from edge_drafter import DecodingStats, StepResult
from evaluation.experiment.run import WARM_UP, Question
from evaluation.experiment.sockets import modes_as_arms, sockets
from evaluation.tables import table
from speculation.profile import DeviceProfile


@dataclass(frozen=True)
class Agreement:
    """One mode's median step on real sockets and on virtual time, seconds, and of how many steps tokens differ.

    clocked_s: with the declared times. as_waited_s: with the times that forwards really took, on this machine and in
    this mode, where waiting for the declared ones ended late.
    """

    mode: str
    real_s: float
    clocked_s: float
    as_waited_s: float
    different: int
    real: DecodingStats
    clocked: DecodingStats

    @property
    def error(self) -> float:
        """How far virtual time is off, as a share of the real time."""
        return self.clocked_s / self.real_s - 1.0

    @property
    def error_as_waited(self) -> float:
        """The same where virtual time is told how long the real forwards took."""
        return self.as_waited_s / self.real_s - 1.0


def measure_real(
    options: argparse.Namespace, exits: Path | None, asked: Sequence[Question], modes: Sequence[str]
) -> Mapping[str, Sequence[StepResult]]:
    """Decode every question in every mode, interleaved, against a verifier process of its own.

    Raises as `EdgeDecoder.decode`.
    """
    with sockets(options, modes, *(["--exits", str(exits)] if exits is not None else [])) as edges:
        return edges.run(modes_as_arms(modes), asked, asked[:WARM_UP]).answers


def clocked_timings(profile: DeviceProfile, real: Mapping[str, Sequence[StepResult]]) -> Timings:
    """Return the declared times of a profile with the median prefill times of real runs."""
    stats = [result.stats for results in real.values() for result in results]
    edge = [each.prefill_s for each in stats if each.prefill_s > 0.0]
    cloud = [each.server_prefill_s for each in stats if each.server_prefill_s > 0.0]
    return Timings.of(
        profile, edge_prefill_s=median(edge) if edge else 0.0, cloud_prefill_s=median(cloud) if cloud else 0.0
    )


def agree(
    real: Mapping[str, Sequence[StepResult]], recording: Recording, timings: Timings, **changes: Any
) -> list[Agreement]:
    """Run the clocked engine in every mode of `real`, warmed up like it, and set both side by side.

    `changes` are those of `run_mode`.
    """
    rows = []
    for mode, results in real.items():
        clocked, waited = (
            run_mode(mode, recording, each, warm_up=WARM_UP, **changes)
            for each in (timings, as_waited(timings, _sum(results)))
        )
        different = sum(one.tokens != other.tokens for one, other in zip(results, clocked, strict=True))
        real_s, clocked_s, waited_s = (
            median(each.stats.total_s for each in part) for part in (results, clocked, waited)
        )
        rows.append(Agreement(mode, real_s, clocked_s, waited_s, different, _sum(results), _sum(clocked)))
    return rows


def as_waited(timings: Timings, real: DecodingStats) -> Timings:
    """Return timings with the mean times that a mode's real forwards took; none is shorter than declared.

    A draft forward that was given up was shorter, and counts in the mean.
    """
    draft_s = (real.draft_s + real.predraft_s) / real.draft_forwards if real.draft_forwards else 0.0
    verify_s = real.server_compute_s / real.cloud_passes if real.cloud_passes else 0.0
    return replace(timings, draft_s=max(timings.draft_s, draft_s), verify_s=max(timings.verify_s, verify_s))


def report(rows: Sequence[Agreement], timings: Timings) -> str:
    """Return a table with a row per mode; where two columns share a name, the first is real and the second virtual."""
    header = (
        "mode", "real ms", "clocked ms", "off by", "as waited ms", "off by", "T_p ms", "T_q ms", "tau", "", "hits", "",
        "wasted", "", "passes", "", "tokens differ",
    )  # fmt: skip
    lines = []
    for row in rows:
        both = (row.real, row.clocked)
        waited = as_waited(timings, row.real)
        lines.append(
            (
                row.mode,
                f"{1e3 * row.real_s:.1f}",
                f"{1e3 * row.clocked_s:.1f}",
                f"{row.error:+.1%}",
                f"{1e3 * row.as_waited_s:.1f}",
                f"{row.error_as_waited:+.1%}",
                f"{1e3 * waited.draft_s:.2f}",
                f"{1e3 * waited.verify_s:.2f}",
                *(f"{each.tau:.2f}" for each in both),
                *(f"{each.hit_rate:.0%}" for each in both),
                *(f"{each.wasted_forwards / max(1, each.draft_forwards):.0%}" for each in both),
                *(str(each.cloud_passes) for each in both),
                str(row.different),
            )
        )
    return table(header, lines)


def _sum(results: Sequence[StepResult]) -> DecodingStats:
    whole = DecodingStats()
    for result in results:
        whole.add(result.stats)
    return whole
