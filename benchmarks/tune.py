"""Every mode at its best: gamma, width, tokens of a draft, leaves and idling, searched at a setting's times.

    python -m benchmarks.tune --setting go2 --rtt-ms 40,240 --save

On virtual time, with the same number of candidates for every mode, on answers other than those that are reported
(`vlm_nav_evaluation.virtual_time.tuning`): 60 candidates on two answers, the fastest 20 on four, 7 on twelve. The table
has every mode as shipped and tuned; what it names goes word for word behind `--drafting`. `full` stands there as
shipped once more, without earlier answers and at a verifier with a draft model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.recordings import (
    COUNT,
    QUICK_COUNT,
    VIRTUAL,
    add_cost,
    add_recording,
    changed,
    fields_help,
    of_recording,
    recorded,
)
from edge_drafter import Mode
from vlm_nav_evaluation.experiment.command import command_line, main_of
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.figures import with_ratios
from vlm_nav_evaluation.options import add_edge_flags, add_gamma, drafted_as, milliseconds, several
from vlm_nav_evaluation.plots import add_outputs
from vlm_nav_evaluation.results import provenance, settings_of, write_result
from vlm_nav_evaluation.tables import MS, Column, markdown
from vlm_nav_evaluation.virtual_time import (
    PAPERS,
    SERVER,
    Recording,
    Synthetic,
    Timings,
    figures_of,
    load_timings,
    run_arms,
)
from vlm_nav_evaluation.virtual_time.tuning import NO_NGRAMS, QUICK_BUDGET, TUNED, arms_at_best, is_tuned, split

FULL = Mode.FULL.value
BESIDE = f"{FULL}, server draft, {NO_NGRAMS}"
"""`full` at a verifier with a draft model, which `server_sd` has as well."""
MODES = ("cloud", *(mode.value for mode in Mode if is_tuned(mode.value)))
COLUMNS = (
    Column("as shipped, x cloud", "shipped.speed_up"),
    Column("tuned, x cloud", "tuned.speed_up"),
    Column("ms a step", "tuned.total_s.median", ".0f", MS),
    Column("tokens a pass", "tokens_per_pass"),
    Column("busy", "tuned.target_busy"),
    Column("wasted forwards", "tuned.wasted_forwards", ".0%"),
    Column("edge CPU s: as shipped", "shipped.cpu_s_per_step"),
    Column("tuned", "tuned.cpu_s_per_step"),
    Column("tuned: drafting", "drafting", ""),
)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command_line("benchmarks.tune", __doc__)
    line.add_argument("--setting", default="go2", help=f"{', '.join(PAPERS)}, or a device profile (default: go2)")
    line.add_argument("--times", default="", metavar="NAME=VALUE,...", help=fields_help(Timings(), "changes of these"))
    line.add_argument("--rtt-ms", type=milliseconds, help="round trips, e.g. 40,240 (default: the setting's own)")
    line.add_argument("--modes", type=several(MODES), default=list(MODES), help=f"of {','.join(MODES)}")
    line.add_argument(
        "--synthetic", metavar="NAME=VALUE,...", help=fields_help(Synthetic(), "synthetic answers instead")
    )
    line.add_argument("--steps", type=int, help=f"answers, 3 of 10 but at most 12 to tune on (default: {COUNT}, with "
                      f"--quick {QUICK_COUNT})")  # fmt: skip
    line.add_argument("--name", help="of the results, tuned_NAME.json (default: the setting)")
    add_gamma(line)
    add_edge_flags(line, "drafting")
    add_cost(line)
    add_outputs(line)
    add_recording(line)
    return line


def run(options: argparse.Namespace) -> None:
    """Print a table for each round trip, and save what was asked."""
    options.steps = options.steps or (QUICK_COUNT if options.quick else COUNT)
    timings: Timings = changed(load_timings(options.setting, options.cost), options.times, "--times")
    timings = timings.with_server_draft()
    if options.synthetic is not None:
        synthetic: Synthetic = changed(Synthetic(), options.synthetic, "--synthetic")
        recording, what = synthetic.draw(options.steps), repr(synthetic)
    else:
        recording = recorded(options, options.steps)
        what = "recorded"
    first, shown = split(recording)
    print(f"{len(shown.steps)} answers, tuned on {len(first.steps)} others, {what}\n{timings}\n{VIRTUAL}, "
          f"{drafted_as(options)}")  # fmt: skip
    found, budget = [], QUICK_BUDGET if options.quick else None
    for rtt_ms in options.rtt_ms or [2e3 * timings.one_way_s]:
        at = replace(timings, one_way_s=rtt_ms / 2e3)
        entry = {
            "rtt_s": rtt_ms / 1e3,
            **at_best(options.modes, first, shown, at, options.drafting, budget, gamma=options.gamma),
        }
        print(f"\n{options.setting}, round trip {rtt_ms:g} ms\n\n{report(entry)}", flush=True)
        found.append(entry)
    if options.save:
        about = {**provenance(options), **of_recording(recording)}
        about |= {"timings": asdict(timings), "tuned_on": len(first.steps), "kind": VIRTUAL}
        name = f"tuned_{options.name or options.setting}"
        path = write_result(name, {"settings": settings_of(options), **about, "round_trips": found})
        if options.synthetic is None:
            shown.save(path.with_suffix(".npz"))


def at_best(
    modes: Sequence[str], first: Recording, shown: Recording, timings: Timings, base: str = "",
    budget: int | None = None, **changes: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return the figures of every arm on `shown`, and what those that were tuned on `first` draft."""
    arms, drafting = arms_at_best(modes, first, timings, base, budget, **changes)
    if FULL in modes:
        text = ",".join(filter(None, (base, "ngrams=off")))
        arms.append(Arm(BESIDE, FULL, {**changes, "text": text, "server": SERVER.changed(draft_model=Path("beside"))}))
    return {"modes": with_ratios(figures_of(run_arms(arms, shown, timings), timings)), "drafting": drafting}


def report(entry: Mapping[str, Any]) -> str:
    """Return a Markdown table with a row per mode, and one without earlier answers: as shipped and tuned."""
    rows = {}
    for arm, figures in entry["modes"].items():
        if arm.endswith(f", {TUNED}"):
            continue
        best = f"{arm}, {TUNED}"
        tuned = entry["modes"].get(best, figures)
        text = entry["drafting"].get(best)
        rows[f"`{arm}`".replace(f", {NO_NGRAMS}`", f"`, {NO_NGRAMS}")] = {
            "shipped": figures,
            "tuned": tuned,
            "tokens_per_pass": 1.0 / tuned["passes_per_token"],
            "drafting": None if text is None else f"`{text}`" if text else "as shipped",
        }
    return markdown("mode", rows, COLUMNS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code: 0, or 2 after one sentence on stderr."""
    return main_of(parser, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
