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
            ("tau", "tau", ".2f"), ("hits", "hit_rate", ".0%"), ("wasted", "wasted_forwards", ".0%"),
            ("passes/token", "passes_per_token", ".2f"),
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
    """Return, for every mode of `real`, it and virtual time side by side: seconds of the median step, and figures.

    virtual_s is with the declared times; as_waited_s with the mean times of forwards on this machine in this mode,
    where the declared waits ended late: none is shorter than declared. Forwards that were given up count in the mean.
    different: steps whose tokens differ. Virtual time is warmed up like `real`; `changes` are those of `run_mode`.
    """
    found = {}
    for mode, own in real.figures().items():
        draft_s, verify_s = own["draft_forward_s"] or 0.0, own["verify_s"] or 0.0
        waited = replace(timings, draft_s=max(timings.draft_s, draft_s), verify_s=max(timings.verify_s, verify_s))
        declared, late = (
            VirtualTime(recording, each).run([Arm(mode, mode, changes)], None, recording.steps[:WARM_UP])
            for each in (timings, waited)
        )
        real_s, virtual_s, late_s = (median(each.seconds(mode)) for each in (real, declared, late))
        pairs = zip(real.answers[mode], declared.answers[mode], strict=True)
        found[mode] = {
            "real_s": real_s,
            "virtual_s": virtual_s,
            "error": virtual_s / real_s - 1.0,
            "as_waited_s": late_s,
            "error_as_waited": late_s / real_s - 1.0,
            "different": sum(one.tokens != other.tokens for one, other in pairs),
            "draft_s": waited.draft_s,
            "verify_s": waited.verify_s,
            "real": own,
            "virtual": declared.figures()[mode],
        }
    return found
