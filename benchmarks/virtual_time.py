"""Virtual time's recordings of a pair of models, and its check against real sockets; see docs/benchmarks.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import recordings
from benchmarks.recordings import TOP
from edge_drafter import Mode
from speculation.profiles import DeviceProfile, load_profile
from vlm_nav_evaluation.experiment.command import command_line, main_of
from vlm_nav_evaluation.experiment.questions import asked_of
from vlm_nav_evaluation.experiment.run import WARM_UP, Arm, Run
from vlm_nav_evaluation.options import add_edge_flags, add_gamma, drafted_as, several
from vlm_nav_evaluation.results import provenance, settings_of, write_result
from vlm_nav_evaluation.tables import MS, Column, figures_table
from vlm_nav_evaluation.virtual_time import Recording, Timings, VirtualTime

CHECKED = [mode.value for mode in Mode if mode not in (Mode.EDGE, Mode.SERVER_SD)]
"""A verifier's durations do not separate its own draft forwards from the target's, so server_sd cannot be checked."""
SHOWN = ["cloud", "sd", "fsd", "full"]


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


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    top = command_line("benchmarks.virtual_time", __doc__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    record = commands.add_parser("record", help="write what a pair of models predicts on held-out frames")
    recordings.add_models(record)
    shown = "folder of a fed head (default: as the verifier finds it)"
    record.add_argument("--fed-head", dest="recorded_head", type=Path, metavar="FOLDER", help=shown)
    record.add_argument("--count", type=int, default=200, help="frames (default: 200)")
    record.add_argument("--top", type=int, default=TOP, help=f"draft tokens kept for each place (default: {TOP})")
    record.add_argument("--out", type=Path, required=True, help="the file, .npz")
    record.set_defaults(action=write)
    check = commands.add_parser("check", help="real sockets against virtual time at equal delays, medians per mode")
    recordings.add_models(check)
    check.add_argument("--steps", type=int, default=50, help="frames (default: 50)")
    check.add_argument("--modes", type=several(CHECKED), default=SHOWN, help=f"of {','.join(CHECKED)}")
    add_gamma(check)
    add_edge_flags(check, "drafting", "profile", profile="go2_a100_scaled")
    check.add_argument("--within", type=float, default=0.1, help="share that medians may differ by (default: 0.1)")
    check.add_argument("--save", metavar="NAME", help="write them to benchmarks/results/virtual_time_NAME.json")
    check.set_defaults(action=check_time)
    return top


def write(options: argparse.Namespace) -> int:
    """Write a recording of held-out frames."""
    if options.count < 1 or options.top < 1:
        raise ValueError(f"--count {options.count}, --top {options.top}: give at least 1")
    if options.out.suffix != ".npz":
        raise ValueError(f"--out {options.out}: name a .npz file")
    recordings.write_recording(options, options.out, options.count, options.top)
    return 0


def check_time(options: argparse.Namespace) -> int:
    """Compare real sockets with virtual time. Returns 1 where a mode's median is further off than allowed.

    The real runs wait for a device profile's declared times; the virtual ones take the same times, and the prefill
    times that the real ones had. Both decode the same frames with the same models.
    """
    profile = load_profile(options.profile)
    if profile.is_raw:
        raise ValueError(f"--profile {profile.name} declares no times for virtual time")
    from vlm_nav_evaluation.experiment.sockets import modes_as_arms, sockets  # torch, late: virtual time needs none

    asked = asked_of(options, options.steps)
    recording = recordings.record_asked(options, asked)
    with sockets(options, options.modes) as edges:
        real = edges.run(modes_as_arms(options.modes), asked, asked[:WARM_UP])
    timings = declared_timings(profile, real)
    found = agree(real, recording, timings, gamma=options.gamma, text=options.drafting)
    print(
        f"{options.steps} frames ({options.frames}), {drafted_as(options)}; real sockets, then virtual time\n{timings}"
    )
    print(figures_table("mode", found, COLUMNS))
    about = provenance(options)
    print(about["machine"])
    if options.save:
        data = {**about, "timings": asdict(timings), "modes": found}
        write_result(f"virtual_time_{options.save}", {"settings": settings_of(options), **data})
    return int(any(abs(each["error"]) > options.within or each["different"] for each in found.values()))


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns its exit code, or 2 after one sentence on stderr."""
    return main_of(parser, lambda options: int(options.action(options)), arguments)


if __name__ == "__main__":
    sys.exit(main())
