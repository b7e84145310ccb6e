"""How near virtual time is to real sockets and processes, mode by mode.

The real runs wait for a device profile's declared times; the virtual ones take the same times, and the prefill times
that the real ones had. Both decode the same frames with the same models.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from edge_drafter import DecodingStats, StepResult
from evaluation.experiment.run import WARM_UP, Arm, Question, Run
from evaluation.experiment.sockets import modes_as_arms, sockets
from evaluation.tables import MS, Column
from evaluation.virtual_time import Recording, Timings, VirtualTime
from speculation.profiles import DeviceProfile

COLUMNS = (
    Column("real ms", "real_s", ".1f", MS),
    Column("virtual ms", "virtual_s", ".1f", MS),
    Column("off by", "error", "+.1%"),
    Column("as waited ms", "as_waited_s", ".1f", MS),
    Column("off by", "error_as_waited", "+.1%"),
    Column("T_p ms", "draft_s", ".2f", MS),
    Column("T_q ms", "verify_s", ".2f", MS),
    *(
        Column(title if side == "real" else "", f"{side}.{path}", form)
        for title, path, form in (
            ("tau", "tau", ".2f"), ("hits", "hit_rate", ".0%"), ("wasted", "wasted", ".0%"), ("passes", "passes", ".0f")
        )
        for side in ("real", "virtual")
    ),
    Column("tokens differ", "different", ".0f"),
)  # fmt: skip
"""Where two columns share a title, the first is real and the second virtual."""


def on_sockets(options: argparse.Namespace, asked: Sequence[Question]) -> Run:
    """Decode every question in every mode against a verifier process. Raises ValueError, VerifierLost, AnswerLate."""
    flags = [] if options.exits is None else ["--exits", str(options.exits)]
    with sockets(options, options.modes, *flags) as edges:
        return edges.run(modes_as_arms(options.modes), asked, asked[:WARM_UP])


def declared_timings(profile: DeviceProfile, real: Run) -> Timings:
    """Return the declared times of a profile with the median prefill times of real runs."""
    stats = [each for mode in real.answers for each in real.stats(mode)]
    edge = [each.prefill_s for each in stats if each.prefill_s > 0.0]
    cloud = [each.server_prefill_s for each in stats if each.server_prefill_s > 0.0]
    return Timings.of(
        profile, edge_prefill_s=median(edge) if edge else 0.0, cloud_prefill_s=median(cloud) if cloud else 0.0
    )


def agree(real: Run, recording: Recording, timings: Timings, **changes: Any) -> dict[str, dict[str, Any]]:
    """Return, for every mode of `real`, it and virtual time side by side: seconds of the median step, and `COLUMNS`.

    virtual_s is with the declared times; as_waited_s with those that forwards took on this machine in this mode, where
    the declared waits ended late. different: steps whose tokens differ. Virtual time is warmed up like `real`;
    `changes` are those of `run_mode`.
    """
    found = {}
    for mode, answers in real.answers.items():
        waited = as_waited(timings, _sum(answers))
        virtual, late = (
            VirtualTime(recording, each).run([Arm(mode, mode, changes)], None, recording.steps[:WARM_UP]).answers[mode]
            for each in (timings, waited)
        )
        real_s, virtual_s, late_s = (median(each.stats.total_s for each in part) for part in (answers, virtual, late))
        found[mode] = {
            "real_s": real_s,
            "virtual_s": virtual_s,
            "error": virtual_s / real_s - 1.0,
            "as_waited_s": late_s,
            "error_as_waited": late_s / real_s - 1.0,
            "different": sum(one.tokens != other.tokens for one, other in zip(answers, virtual, strict=True)),
            "draft_s": waited.draft_s,
            "verify_s": waited.verify_s,
            "real": _shown(_sum(answers)),
            "virtual": _shown(_sum(virtual)),
        }
    return found


def _shown(stats: DecodingStats) -> dict[str, Any]:
    wasted = stats.wasted_forwards / max(1, stats.draft_forwards)
    return {"tau": stats.tau, "hit_rate": stats.hit_rate, "wasted": wasted, "passes": stats.cloud_passes}


def as_waited(timings: Timings, real: DecodingStats) -> Timings:
    """Return timings with the mean times that a mode's real forwards took; none is shorter than declared.

    A draft forward that was given up was shorter, and counts in the mean.
    """
    draft_s = (real.draft_s + real.predraft_s) / real.draft_forwards if real.draft_forwards else 0.0
    verify_s = real.server_compute_s / real.cloud_passes if real.cloud_passes else 0.0
    return replace(timings, draft_s=max(timings.draft_s, draft_s), verify_s=max(timings.verify_s, verify_s))


def _sum(results: Sequence[StepResult]) -> DecodingStats:
    whole = DecodingStats()
    for result in results:
        whole.add(result.stats)
    return whole
