"""Every mode at every round trip, in five settings: this machine's own times, declared times that are waited for on
real sockets, and virtual time at the devices of Early Exits.

Within a setting and a round trip the modes decode the same frames, on real sockets by turns; ratios are taken frame by
frame. Settings never share a table.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.clocked import Recording, Timings, load_timings
from benchmarks.clocked.figures import best_sd, compare, figures_of, run_mode
from benchmarks.clocked.layer_split import LAYER_SPLIT
from benchmarks.decoding.action import TimedResult, Words, action_s, timed, words_of
from benchmarks.decoding.common import (
    VIRTUAL,
    add_facts,
    check_pair,
    interval,
    ms,
    number,
    recorded,
    save,
    share,
    steps_of,
    with_server_draft,
)
from benchmarks.decoding.pictures import draw_modes
from edge_drafter import Mode
from edge_drafter.config import read_changes
from evaluation.experiment.questions import warmed_up
from evaluation.experiment.run import Question
from evaluation.figures import times_faster
from evaluation.plots import add_outputs, keep
from evaluation.setting import add_drafting, drafted_as, machine, milliseconds, several
from evaluation.tables import table
from speculation.profile import load_profile
from speculation.trace import Trace

RTTS_MS = [0.0, 20.0, 50.0, 100.0, 200.0]
QUICK_REAL_RTTS_MS, QUICK_CLOCKED_RTTS_MS = [50.0], [0.0, 100.0]
REAL_STEPS, QUICK_REAL_STEPS = 10, 1
CLOCKED_STEPS, QUICK_CLOCKED_STEPS = 40, 4
WARM_UP = 1
LINKED = [mode.value for mode in Mode]
SD_BEST = "sd, best gamma"
"""`sd` at the draft length with which it is fastest there, of 1 to 12; the other modes keep theirs."""
BASES = (Mode.CLOUD.value, Mode.SD.value)


@dataclass(frozen=True)
class Setting:
    """Where times come from. `profile` runs on real sockets, `timings` on virtual time."""

    name: str
    title: str
    kind: str
    profile: str = ""
    timings: str = ""


SETTINGS = {
    each.name: each
    for each in (
        Setting("raw", "this machine, raw", "real sockets, this machine's own times", profile="raw"),
        Setting(
            "profile", "Go2 times / 10, waited for", "real sockets, declared times that are waited for",
            profile="go2_a100_scaled",
        ),
        Setting("go2", "Go2 (Orin), virtual", VIRTUAL, timings="go2"),
        Setting("jetson", "Jetson Nano, virtual", VIRTUAL, timings="jetson_vicuna_7b"),
        Setting("rtx", "RTX 2080 Ti, virtual", VIRTUAL, timings="rtx_vicuna_7b"),
    )
}  # fmt: skip


def add_options(line: argparse.ArgumentParser) -> None:
    """Register what `modes` takes."""
    add_outputs(line)
    line.add_argument("--settings", type=several(list(SETTINGS)), default=list(SETTINGS),
                      help=f"of {','.join(SETTINGS)}")  # fmt: skip
    line.add_argument(
        "--rtt-ms",
        type=milliseconds,
        help="round trips (default: 0,20,50,100,200; with --quick 50 on real sockets, 0,100 on virtual time)",
    )
    line.add_argument("--steps", type=int, metavar="N", help=f"frames on real sockets (default: {REAL_STEPS}, with "
                      f"--quick {QUICK_REAL_STEPS})")  # fmt: skip
    line.set_defaults(own_steps=(REAL_STEPS, QUICK_REAL_STEPS))
    line.add_argument("--clocked-steps", type=int, metavar="N", help=f"recorded frames on virtual time (default: "
                      f"{CLOCKED_STEPS}, with --quick {QUICK_CLOCKED_STEPS})")  # fmt: skip
    add_drafting(line)
    add_facts(line)


def run(options: argparse.Namespace) -> None:
    """Print a table for every setting and round trip, draw all settings in one picture, and save what was asked."""
    steps = steps_of(options)
    real_rtts = options.rtt_ms or (QUICK_REAL_RTTS_MS if options.quick else RTTS_MS)
    clocked_rtts = options.rtt_ms or (QUICK_CLOCKED_RTTS_MS if options.quick else RTTS_MS)
    clocked_steps = options.clocked_steps or (QUICK_CLOCKED_STEPS if options.quick else CLOCKED_STEPS)
    if clocked_steps < 1:
        raise ValueError(f"--clocked-steps {clocked_steps}: give at least 1")
    chosen = [SETTINGS[name] for name in options.settings]
    read_changes(options.drafting)
    check_pair(options)
    any_real = any(each.profile for each in chosen)
    before, asked = warmed_up(options, steps, WARM_UP) if any_real else ([], [])
    recording = recorded(options, clocked_steps) if any(each.timings for each in chosen) else None
    found = {}
    for setting in chosen:
        if setting.profile:
            words = words_of(options.target_model)
            entries = list(real_entries(setting, options, asked, before, real_rtts, words))
        else:
            assert recording is not None
            words = words_of(options.target_model, recording.vocabulary)
            changes = {"gamma": options.gamma, "text": options.drafting}
            entries = list(clocked_entries(setting, recording, clocked_rtts, words, **changes))
        found[setting.name] = entries
        print(report(setting, entries, options))
        data = {"kind": setting.kind, **_origin(setting), "round_trips": entries}
        save(f"modes_{setting.name}", options, data, recording=recording if setting.timings else None)
    keep(draw_modes({SETTINGS[name].title: entries for name, entries in found.items()}), "decoding_modes", options)


def _origin(setting: Setting) -> dict[str, Any]:
    if setting.profile:
        return {"machine": machine(), "scale": load_profile(setting.profile).scale}
    return {}


def real_entries(
    setting: Setting,
    options: argparse.Namespace,
    asked: Sequence[Question],
    before: Sequence[Question],
    rtts_ms: Sequence[float],
    words: Words,
) -> Iterator[dict[str, Any]]:
    """Yield the figures of every mode at each round trip, over real sockets against one verifier process.

    `before` warms up and is not counted.
    """
    from benchmarks.decoding.real import measured  # torch, late: virtual time needs none

    for rtt_ms, results, different in measured(options, setting.profile, asked, LINKED, rtts_ms, before):
        passes = sum(each.stats.cloud_passes for each in results[Mode.SD.value])
        busy = sum(each.stats.server_compute_s for each in results[Mode.SD.value])
        timings = Timings(setting.name, verify_s=busy / max(1, passes))
        sd = figures_of(results[Mode.SD.value], timings)
        yield {
            **entry(rtt_ms, results, timings, (options.gamma, sd), sd["tau"], words),
            "verify_s": timings.verify_s,
            "frames_with_different_tokens": different,
        }


def clocked_entries(
    setting: Setting, recording: Recording, rtts_ms: Sequence[float], words: Words, **changes: Any
) -> Iterator[dict[str, Any]]:
    """Yield the same on virtual time, from recorded facts, with mode layer_split; `changes` as in `run_mode`.

    What the draft would answer by itself is not recorded: mode edge takes its time for the target's answer.
    """
    declared = with_server_draft(load_timings(setting.timings))
    for rtt_ms in tqdm(rtts_ms, unit="round trip", desc=setting.name, disable=None):
        timings = replace(declared, one_way_s=rtt_ms / 2e3)
        results = {}
        for mode in (*LINKED, LAYER_SPLIT):
            trace = Trace(limit=1_000_000)
            facts = as_if_right(recording) if mode == Mode.EDGE.value else recording
            results[mode] = timed(run_mode(mode, facts, timings, trace=trace, **changes), trace.spans)
        four = figures_of(run_mode(Mode.SD.value, recording, timings, gamma=4, stop_below=0.0), timings)
        best = best_sd(recording, timings)
        trace = Trace(limit=1_000_000)
        longest = run_mode(Mode.SD.value, recording, timings, gamma=best[0], stop_below=0.0, trace=trace)
        results[SD_BEST] = timed(longest, trace.spans)
        yield {
            **entry(rtt_ms, results, timings, best, four["tau"], words),
            "verify_s": timings.verify_s,
            "sd_best_gamma": best[0],
        }


def as_if_right(recording: Recording) -> Recording:
    """Return the facts with a draft that answers what the target does, so that it takes as many tokens."""
    steps = []
    for facts in recording.steps:
        said = np.asarray(facts.tokens, dtype=np.int32)[:, None]
        steps.append(replace(facts, draft_tokens=said, draft_chances=np.full(said.shape, 0.99)))
    return replace(recording, steps=tuple(steps))


def entry(
    rtt_ms: float,
    results: Mapping[str, Sequence[TimedResult]],
    timings: Timings,
    best: tuple[Any, Mapping[str, Any]],
    gamma_4_tau: float,
    words: Words,
) -> dict[str, Any]:
    """Return the figures of all modes at one round trip; ratios are (lower end, median, upper end) over frames."""
    modes = compare({mode: figures_of(each, timings) for mode, each in results.items()}, timings, best, gamma_4_tau)
    stats = {mode: [each.stats for each in part] for mode, part in results.items()}
    for mode, figures in modes.items():
        figures["action_s"] = action_s(results[mode], words)
        figures["step_s"] = [round(each.total_s, 4) for each in stats[mode]]
        for base in BASES:
            figures[f"times_{base}"] = times_faster(stats[base], stats[mode])
    return {"rtt_s": rtt_ms / 1e3, "modes": modes}


def report(setting: Setting, entries: Sequence[Mapping[str, Any]], options: argparse.Namespace) -> str:
    """Return the setting's tables, one for each round trip, under a line that says whose times these are."""
    frames = next(iter(entries[0]["modes"].values()))["steps"]
    lines = [f"\n{setting.title}: {frames} frames, {setting.kind}; {drafted_as(options)}"]
    if setting.profile:
        profile = load_profile(setting.profile)
        lines += [f"declared: {profile.scale}", machine()]
    else:
        lines.append(str(with_server_draft(load_timings(setting.timings))))
        lines.append("edge is given an answer as long as the target's; what it would say by itself is not recorded")
    for each in entries:
        known = f"T_q {1e3 * each['verify_s']:.0f} ms"
        if "sd_best_gamma" in each:
            known += f", sd is fastest at gamma {each['sd_best_gamma']}"
        else:
            known += f" as measured in sd; frames on which tokens differ: {each['frames_with_different_tokens']}"
        lines += [f"\n{setting.name}, round trip {1e3 * each['rtt_s']:g} ms ({known})", rows(each["modes"])]
    return "\n".join(lines)


def rows(modes: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table with a row per mode."""
    header = (
        "mode", "step ms: min", "median", "max", "action known", "TTFT", "TPOT", "x cloud", "x sd", "tau", "hits",
        "mean exit", "wasted", "passes/token", "useful", "B up", "B down",
    )  # fmt: skip
    return table(header, [_row(mode, each) for mode, each in modes.items()])


def _row(mode: str, each: Mapping[str, Any]) -> tuple[str, ...]:
    times, later = each["total_s"], each["tpot_s"]
    alone = mode == Mode.EDGE.value
    return (
        mode,
        *(ms(times, name) for name in ("min", "median", "max")),
        ms(each["action_s"]),
        ms(each["first_commit_s"]),
        "-" if later is None else f"{1e3 * later['median']:.1f}",
        *(interval(each[f"times_{base}"]) for base in BASES),
        "-" if alone else number(each["tau"]),
        share(each["hit_rate"] if each["miss_rate"] is not None else None),
        number(each["mean_exit"], 1),
        "-" if alone else share(each["wasted_forwards"] if each["forwards_per_token"] else None),
        "-" if alone else number(each["passes_per_token"]),
        "-" if alone else number(each["useful"]),
        f"{each['bytes_up_per_step']:.0f}",
        f"{each['bytes_down_per_step']:.0f}",
    )
