"""A fed head beside every other way to draft, each at its best, on virtual time; and what its features cost on links.

    python -m benchmarks.fed_arms --recording out/embedded.npz --save

The robot is an Orin that drafts for a fast server: T_p of its draft model 72 ms (Early Exits, Table 8), of a fed head
7 ms, T_q 15 ms, T_c 10 ms, no memory of earlier answers. A draft forward beside the target takes the same part of T_q
as on SpecEdge's A100 (11 of 94.2 ms). `--times` changes any of them. What every arm drafts is searched on answers that
are not reported (`vlm_nav_evaluation.virtual_time.tuning`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from benchmarks.recordings import (
    COUNT,
    QUICK_COUNT,
    add_cost,
    add_source,
    changed,
    fed_shares,
    fields_help,
    source,
)
from edge_drafter import Mode
from speculation.progress import progress
from vlm_nav_evaluation.experiment.command import command_line, main_of, settings_of, write_result
from vlm_nav_evaluation.experiment.run import Arm, Run
from vlm_nav_evaluation.formulas import SYSTEMS
from vlm_nav_evaluation.plots import add_outputs
from vlm_nav_evaluation.tables import MS, Column, figures_table
from vlm_nav_evaluation.virtual_time import Recording, Timings, VirtualTime
from vlm_nav_evaluation.virtual_time.timings import TABLE_9_LEAF
from vlm_nav_evaluation.virtual_time.tuning import changes_of, is_tuned, split, tune

ORIN = Timings(
    "orin", SYSTEMS["go2"].draft_s, TABLE_9_LEAF, 0.015, one_way_s=0.010, server_draft_s=0.015 * 11.0 / 94.2,
    fed_s=0.007,
)  # fmt: skip
CLOUD, FULL, SERVER_SD = Mode.CLOUD.value, Mode.FULL.value, Mode.SERVER_SD.value
FED_FULL = "full, fed head"
LEAST_CLOUD, LEAST_BEST = 1.5, 1.2
"""What `full` with a fed head is to be, times as fast as `cloud` and as the best other arm."""
COLUMNS = (
    Column("ms/token min", "per_token_s.min", ".1f", MS),
    Column("median", "per_token_s.median", ".1f", MS),
    Column("max", "per_token_s.max", ".1f", MS),
    Column("x cloud", "times_cloud"),
    Column("tau", "tau"),
    Column("passes/token", "passes_per_token"),
    Column("draft forwards/token", "forwards_per_token"),
    Column("wasted", "wasted_forwards", ".0%"),
    Column("B up", "bytes_up_per_step", ".0f"),
    Column("B down", "bytes_down_per_step", ".0f"),
    Column("drafting", "drafting", ""),
)
LINK_COLUMNS = (
    Column("cloud ms", "cloud_s", ".0f", MS),
    Column("full, fed head ms", "fed_s", ".0f", MS),
    Column("x cloud", "times_cloud"),
    Column("of these features ms", "features_s", ".1f", MS),
    Column("by arithmetic", "by_hand_s", ".1f", MS),
)


def arms(has_head: bool) -> list[Arm[Any]]:
    """Return every mode that a link is needed for, those that draft on the edge with either source."""
    found: list[Arm[Any]] = []
    for mode in Mode:
        if mode is Mode.EDGE:
            continue
        found.append(Arm(mode.value, mode.value))
        if mode.drafts and has_head:
            found.append(Arm(f"{mode.value}, fed head", mode.value, {"fed": True}))
    return found


def drafting_of(arm: Arm[Any], recording: Recording, timings: Timings) -> str:
    """Return what the arm drafts where it decodes these answers in the least time, as `--drafting` takes it."""
    if not is_tuned(arm.mode):
        return ""
    return tune(arm.mode, recording, timings, "ngrams=off" if Mode(arm.mode).drafts else "", **arm.changes)


def compared(run: Run, drafting: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return every arm's figures, what it drafts, and how many times as fast as `cloud` it is (ratio of medians)."""
    found = {}
    for arm, figures in run.figures().items():
        stats = run.stats(arm)
        found[arm] = {
            **figures,
            "drafting": drafting[arm],
            "times_cloud": median(run.seconds(CLOUD)) / median(run.seconds(arm)),
            "forwards_per_token": sum(each.draft_forwards for each in stats) / sum(each.tokens for each in stats),
        }
    return found


def on_links(
    recording: Recording, timings: Timings, cloud: Arm[Any], fed: Arm[Any], mbits: Sequence[float]
) -> dict[str, dict[str, Any]]:
    """Return what features cost at each rate: the arm with them and with features of one byte, beside `cloud`.

    by_hand_s: the seconds that the bytes alone take at that rate.
    """
    assert recording.fed is not None, "a fed arm has a head"
    small = replace(recording, fed=replace(recording.fed, token_bytes=1))
    found: dict[str, dict[str, Any]] = {}
    for rate in mbits:
        at = replace(timings, up_bits_per_s=1e6 * rate, down_bits_per_s=1e6 * rate)
        one, other = VirtualTime(recording, at).run([cloud, fed]), VirtualTime(small, at).run([fed])
        cloud_s, fed_s, without_s = (median(each) for each in (
            one.seconds(cloud.name), one.seconds(fed.name), other.seconds(fed.name)))  # fmt: skip
        bytes_, without = (median(each.bytes_down for each in run.stats(fed.name)) for run in (one, other))
        found[f"{rate:g} Mbit/s"] = {
            "cloud_s": cloud_s, "fed_s": fed_s, "times_cloud": cloud_s / fed_s, "features_s": fed_s - without_s,
            "feature_bytes": bytes_ - without, "by_hand_s": 8e-6 * (bytes_ - without) / rate,
        }  # fmt: skip
    return found


def verdict(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what `full` with the head is against `cloud` and against the best other arm, and whether that is enough.

    The best one is named with and without a draft model beside the target.
    """
    own, lines = figures[FED_FULL]["times_cloud"], list[str]()
    lines.append(f"{FED_FULL}: {own:.2f} x cloud (wanted: {LEAST_CLOUD:g})")
    others = {name: each["times_cloud"] for name, each in figures.items() if not name.endswith("fed head")}
    edge = {name: value for name, value in others.items() if name != SERVER_SD}
    for words, among in (("of all", others), ("without a draft model beside the target", edge)):
        best = max(among, key=among.__getitem__)
        lines.append(f"{words} the best other arm is {best}, {among[best]:.2f} x cloud: "
                     f"{own / among[best]:.2f} times as fast (wanted: {LEAST_BEST:g})")  # fmt: skip
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command_line("benchmarks.fed_arms", __doc__)
    add_source(line)
    line.add_argument("--times", default="", metavar="NAME=VALUE,...", help=fields_help(ORIN, "changes of these"))
    add_cost(line)
    line.add_argument("--mbits", type=float, nargs="+", default=[3.0, 30.0, 100.0], help="links (default: 3 30 100)")
    add_outputs(line)
    line.add_argument("--name", default="fed_arms", help="of the saved figures (default: %(default)s)")
    return line


def run(options: argparse.Namespace) -> None:
    """Print the arms and the links, and save what was asked."""
    if min(options.mbits) <= 0.0:
        raise ValueError(f"--mbits {min(options.mbits):g}: give rates above 0")
    recording = source(options)
    if options.steps is None:
        recording = replace(recording, steps=recording.steps[: QUICK_COUNT if options.quick else COUNT])
    if recording.fed is None:
        raise ValueError("there is no fed head to compare; give a --recording that has one, or --synthetic fed=0.9+0.8")
    timings: Timings = changed(ORIN.with_cost(options.cost), options.times, "--times")
    search, shown = split(recording)
    tuned_on = len(search.steps)
    drafting = {arm.name: drafting_of(arm, search, timings) for arm in progress(arms(True), unit="arm")}
    by_name = {
        arm.name: replace(arm, changes={**arm.changes, **(changes_of(arm.mode, text) if text else {})})
        for arm, text in zip(arms(True), drafting.values(), strict=True)
    }
    figures = compared(VirtualTime(shown, timings).run(list(by_name.values())), drafting)
    links = on_links(shown, timings, by_name[CLOUD], by_name[FED_FULL], options.mbits)
    tokens = round(median(len(step.tokens) for step in shown.steps))
    shares = fed_shares(recording)
    print(f"{len(shown.steps)} answers of {tokens} tokens, tuned on {tuned_on} others; n-grams off")
    print(f"the head's likeliest token is right, by depth: {', '.join(f'{share:.1%}' for share in shares)}\n{timings}")
    print(figures_table("arm", figures, COLUMNS))
    print(verdict(figures))
    shape = recording.fed
    sizes = [each["feature_bytes"] for each in links.values()]
    print(f"\nfeatures: {shape.token_bytes} bytes a token, {shape.prompt_tokens} tokens of the prompt; "
          f"{min(sizes):.0f} to {max(sizes):.0f} bytes an answer")  # fmt: skip
    print(figures_table("link", links, LINK_COLUMNS))
    if options.save:
        about = {"settings": settings_of(options), "source": dict(recording.notes), "tuned_on": tuned_on}
        more = {"right_by_depth": shares, "timings": str(timings)}
        write_result(options.name, {**about, **more, "arms": figures, "links": links})


main = partial(main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
