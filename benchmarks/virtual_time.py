"""Both policies on virtual time: run modes, record a pair of models, check against real sockets.

See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import recordings
from benchmarks.recordings import TOP, add_as_shipped, changed, fields_help
from edge_drafter import Mode
from speculation.profiles import DeviceProfile, load_profile
from speculation.progress import progress
from vlm_nav_evaluation.experiment.command import command_line, main_of, settings_of, write_result
from vlm_nav_evaluation.experiment.run import WARM_UP, Arm, Run
from vlm_nav_evaluation.setting import add_drafting, drafted_as, machine, milliseconds, several
from vlm_nav_evaluation.tables import MS, Column, figures_table
from vlm_nav_evaluation.virtual_time import PAPERS, Recording, Timings, VirtualTime, load_timings
from vlm_nav_evaluation.virtual_time.figures import at_round_trip, report
from vlm_nav_evaluation.virtual_time.layer_split import LAYER_SPLIT, LayerSplit

MODES = (*(mode.value for mode in Mode), LAYER_SPLIT)
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
    run = commands.add_parser("run", help="every mode at every round trip, on a recording or a synthetic one")
    recordings.add_source(run)
    run.add_argument("--timings", default="go2", help=f"{', '.join(PAPERS)}, or a device profile (default: go2)")
    run.add_argument("--times", default="", metavar="NAME=VALUE,...", help=fields_help(Timings(), "changes of these"))
    recordings.add_cost(run)
    add_as_shipped(run)
    run.add_argument("--split", default="", metavar="NAME=VALUE,...", help=fields_help(LayerSplit(), "layer_split"))
    run.add_argument("--modes", type=several(MODES), default=SHOWN, help=f"of {','.join(MODES)}")
    run.add_argument("--rtt-ms", type=milliseconds, help="round trips, e.g. 0,40,200 (default: the timings' own)")
    add_drafting(run)
    run.add_argument("--fed", action="store_true", help="the recording's fed head drafts, in the draft model's place")
    run.add_argument("--edges", type=int, default=1, help="robots that share the verifier and the steps (default: 1)")
    run.add_argument("--save", metavar="NAME", help="write the figures to benchmarks/results/virtual_time_NAME.json")
    run.set_defaults(action=run_modes)
    record = commands.add_parser("record", help="write what a pair of models predicts on held-out frames")
    recordings.add_models(record)
    recordings.add_recorded_head(record)
    record.add_argument("--count", type=int, default=200, help="frames (default: 200)")
    record.add_argument("--top", type=int, default=TOP, help=f"draft tokens kept for each place (default: {TOP})")
    record.add_argument("--out", type=Path, required=True, help="the file, .npz")
    record.set_defaults(action=write)
    check = commands.add_parser("check", help="real sockets against virtual time at equal delays, medians per mode")
    recordings.add_models(check)
    check.add_argument("--steps", type=int, default=50, help="frames (default: 50)")
    check.add_argument("--profile", default="go2_a100_scaled", help="declared delays (default: %(default)s)")
    check.add_argument("--modes", type=several(CHECKED), default=SHOWN, help=f"of {','.join(CHECKED)}")
    add_drafting(check)
    check.add_argument("--within", type=float, default=0.1, help="share that medians may differ by (default: 0.1)")
    check.add_argument("--save", metavar="NAME", help="write them to benchmarks/results/virtual_time_NAME.json")
    check.set_defaults(action=check_time)
    return top


def run_modes(options: argparse.Namespace) -> int:
    """Print a table for every round trip, and write them where asked."""
    if options.edges < 1:
        raise ValueError(f"--edges {options.edges}: give at least 1")
    recording = recordings.source(options)
    timings: Timings = changed(load_timings(options.timings, options.cost), options.times, "--times")
    split: LayerSplit = changed(LayerSplit(), options.split, "--split")
    timings.layer_ends(recording.layers)
    if Mode.SERVER_SD.value in options.modes and not timings.server_draft_s:
        raise ValueError(
            f"timings {timings.name} declare no server_draft_s, so server_sd would draft for nothing; give one with "
            "--times, e.g. server_draft_s=0.011"
        )
    started = time.perf_counter()
    round_trips = [None] if options.rtt_ms is None else [each / 1e3 for each in options.rtt_ms]
    changes = {"gamma": options.gamma, "text": options.drafting, "fed": options.fed}
    entries = [
        at_round_trip(rtt_s, options.modes, recording, timings, split, options.edges, not options.as_shipped, **changes)
        for rtt_s in progress(round_trips, unit="round trip")
    ]
    name = options.recording.name if options.recording is not None else recording.notes["synthetic"]
    print(f"{len(recording.steps)} steps of {name}\n{timings}\nvirtual time, {drafted_as(options)}")
    for entry in entries:
        tuned = f"; tuned on {entry['tuned_on']} answers that are not among these" if entry["tuned_on"] else ""
        print(f"\nround trip {1e3 * entry['rtt_s']:g} ms, {entry['modes'][options.modes[0]]['steps']} answers{tuned}\n")
        print(report(entry))
    print(f"\n{time.perf_counter() - started:.1f} s of real time")
    if options.save:
        _save(options, {"timings": asdict(timings), "source": dict(recording.notes), "round_trips": entries})
    return 0


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

    recording, asked = recordings.record_questions(options, options.steps)
    flags = [] if options.exits is None else ["--exits", str(options.exits)]
    with sockets(options, options.modes, *flags) as edges:
        real = edges.run(modes_as_arms(options.modes), asked, asked[:WARM_UP])
    timings = declared_timings(profile, real)
    found = agree(real, recording, timings, gamma=options.gamma, text=options.drafting)
    print(
        f"{options.steps} frames ({options.frames}), {drafted_as(options)}; real sockets, then virtual time\n{timings}"
    )
    print(figures_table("mode", found, COLUMNS))
    print(machine())
    if options.save:
        _save(options, {"machine": machine(), "timings": asdict(timings), "modes": found})
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


def _save(options: argparse.Namespace, data: dict[str, object]) -> None:
    write_result(f"virtual_time_{options.save}", {"settings": settings_of(options), **data})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns its exit code, or 2 after one sentence on stderr."""
    return main_of(parser, lambda options: int(options.action(options)), arguments)


if __name__ == "__main__":
    sys.exit(main())
