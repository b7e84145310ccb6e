"""Every mode at every round trip, in five settings: this machine's own times, declared times that are waited for on
real sockets, and virtual time at the devices of Early Exits.

Within a setting and a round trip the modes decode the same frames, on real sockets by turns, each as shipped and at its
best there, `full` also without earlier answers; ratios are taken frame by frame. Settings never share a table.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.at_best import at_best
from benchmarks.decoding.common import VIRTUAL, declared, save
from benchmarks.decoding.plots import plot_modes
from benchmarks.recordings import add_as_shipped, check_pair, recorded
from edge_drafter import Mode
from edge_drafter.config import read_changes
from edge_drafter.decoder import EdgeDecoder
from speculation.profiles import load_profile
from speculation.progress import progress
from vlm_nav_evaluation.action_time import Words, action_s, arrivals, words_of
from vlm_nav_evaluation.experiment.run import Answer, Question, Run
from vlm_nav_evaluation.plots import keep
from vlm_nav_evaluation.setting import add_drafting, drafted_as, machine, milliseconds, several
from vlm_nav_evaluation.tables import MS, Column, markdown, spread_columns
from vlm_nav_evaluation.virtual_time import Recording, Timings, VirtualTime
from vlm_nav_evaluation.virtual_time.figures import compare, figures_of
from vlm_nav_evaluation.virtual_time.layer_split import LAYER_SPLIT
from vlm_nav_evaluation.virtual_time.tuning import arms_at_best, split

RTTS_MS = [0.0, 20.0, 50.0, 100.0, 200.0]
QUICK_REAL_RTTS_MS, QUICK_VIRTUAL_RTTS_MS = [50.0], [0.0, 100.0]
STEPS = (10, 1, "frames on real sockets")
VIRTUAL_STEPS, QUICK_VIRTUAL_STEPS = 40, 4
SPANS = 4000
"""More than a step on real sockets has."""
LINKED = [mode.value for mode in Mode]
CLOUD, SD, EDGE = Mode.CLOUD.value, Mode.SD.value, Mode.EDGE.value
COLUMNS = (
    *spread_columns("total_s"),
    Column("action known", "action_s.median", ".0f", MS),
    Column("TTFT", "first_commit_s.median", ".0f", MS),
    Column("TPOT", "tpot_s.median", ".1f", MS),
    Column("x cloud", "times_cloud"),
    Column("x sd", "times_sd"),
    Column("tau", "verified.tau"),
    Column("hits", "hits_shown", ".0%"),
    Column("mean exit", "mean_exit", ".1f"),
    Column("wasted", "verified.wasted", ".0%"),
    Column("passes/token", "verified.passes_per_token"),
    Column("busy", "verified.target_busy"),
    Column("edge CPU s", "cpu_s_per_step"),
    Column("B up", "bytes_up_per_step", ".0f"),
    Column("B down", "bytes_down_per_step", ".0f"),
    Column("drafting", "drafting", ""),
)


class Setting(NamedTuple):
    """Where times come from."""

    title: str
    kind: str
    times: str
    """A device profile on real sockets, or timings of virtual time."""

    @property
    def is_virtual(self) -> bool:
        """Whether it is on virtual time."""
        return self.kind == VIRTUAL


SETTINGS = {
    "raw": Setting("this machine, raw", "real sockets, this machine's own times", "raw"),
    "profile": Setting(
        "Go2 times / 10, waited for", "real sockets, declared times that are waited for", "go2_a100_scaled"
    ),
    "go2": Setting("Go2 (Orin), virtual", VIRTUAL, "go2"),
    "jetson": Setting("Jetson Nano, virtual", VIRTUAL, "jetson_vicuna_7b"),
    "rtx": Setting("RTX 2080 Ti, virtual", VIRTUAL, "rtx_vicuna_7b"),
}


def add_options(line: argparse.ArgumentParser) -> None:
    """Register --settings, --rtt-ms, --virtual-steps, --as-shipped and how modes draft."""
    line.add_argument("--settings", type=several(list(SETTINGS)), default=list(SETTINGS),
                      help=f"of {','.join(SETTINGS)}")  # fmt: skip
    line.add_argument("--rtt-ms", type=milliseconds, help="round trips (default: 0,20,50,100,200; with --quick 50 on "
                      "real sockets, 0,100 on virtual time)")  # fmt: skip
    line.add_argument("--virtual-steps", type=int, metavar="N", help=f"recorded frames on virtual time (default: "
                      f"{VIRTUAL_STEPS}, with --quick {QUICK_VIRTUAL_STEPS})")  # fmt: skip
    add_as_shipped(line)
    add_drafting(line)


def run(options: argparse.Namespace) -> None:
    """Print a table for every setting and round trip, plot all settings in one figure, and save what was asked."""
    quick_rtts = {False: QUICK_REAL_RTTS_MS, True: QUICK_VIRTUAL_RTTS_MS}
    virtual_steps = options.virtual_steps or (QUICK_VIRTUAL_STEPS if options.quick else VIRTUAL_STEPS)
    if virtual_steps < 1:
        raise ValueError(f"--virtual-steps {virtual_steps}: give at least 1")
    chosen = {name: SETTINGS[name] for name in options.settings}
    read_changes(options.drafting)
    check_pair(options)
    kinds = {each.is_virtual for each in chosen.values()}
    recording = recorded(options, virtual_steps) if True in kinds else None
    found = {}
    for name, setting in chosen.items():
        rtts_ms = options.rtt_ms or (quick_rtts[setting.is_virtual] if options.quick else RTTS_MS)
        own = recording if setting.is_virtual else None
        words = words_of(options.target_model, own.vocabulary if own is not None else None)
        origin: dict[str, Any] = {}
        if own is not None:
            changes = {"gamma": options.gamma, "text": options.drafting}
            tuned, timings = not options.as_shipped, declared(setting.times, options.cost)
            entries = list(on_virtual_time(timings, own, rtts_ms, words, tuned, **changes))
        else:
            entries = list(on_sockets(setting.times, options, rtts_ms, words))
            origin = {"machine": machine(), "scale": load_profile(setting.times).scale}
        found[setting.title] = entries
        print(report(name, entries, options))
        save(f"modes_{name}", options, {"kind": setting.kind, **origin, "round_trips": entries}, recording=own)
    virtual = [declared(each.times, options.cost).cost_words for each in chosen.values() if each.is_virtual]
    keep(plot_modes(found, virtual[0] if virtual else ""), "decoding_modes", options)


def on_sockets(
    profile: str, options: argparse.Namespace, rtts_ms: Sequence[float], words: Words
) -> Iterator[dict[str, Any]]:
    """Yield the figures of every mode at each round trip, over real sockets.

    The round trip is declared in place of the profile's own, also where all else is raw. Raises ValueError for models
    that cannot be used, RuntimeError and VerifierLost where a verifier does not start or is lost.
    """
    options = argparse.Namespace(**{**vars(options), "profile": profile, "exits": None})
    with at_best(options, LINKED, trace=SPANS) as (best, before, asked):
        for rtt_ms in rtts_ms:
            planned, drafting = best.arms(LINKED, rtt_ms / 1e3)
            made = [(arm, best.of(arm).edge(**arm.changes)) for arm in planned]
            arms = [replace(arm, decode=_with_arrivals(edge, arm.mode)) for arm, edge in made]
            run = best.run(arms, asked, before)
            for _, edge in made:
                edge.close()
            passes = sum(each.cloud_passes for each in run.stats(CLOUD))
            busy = sum(each.server_compute_s for each in run.stats(CLOUD))
            found = entry(rtt_ms, run, Timings(profile, verify_s=busy / max(1, passes)), words, drafting)
            yield {**found, "frames_with_different_tokens": run.different}


def _with_arrivals(edge: EdgeDecoder, mode: str) -> Callable[[Question], Answer]:
    """Return a decoder whose answers have when their tokens came."""

    def decode(question: Question) -> Answer:
        begun = time.perf_counter()
        result = edge.decode(question.prompt, question.jpeg, mode=mode)
        spans = [span for span in edge.trace.spans if span.start >= begun]
        return Answer(result.tokens, result.stats, {"arrivals": arrivals(spans, begun)})

    return decode


def on_virtual_time(
    timings: Timings, recording: Recording, rtts_ms: Sequence[float], words: Words, tuned: bool = True, **changes: Any
) -> Iterator[dict[str, Any]]:
    """Yield the same on virtual time, from recorded steps, with mode layer_split; `changes` as in `run_mode`.

    What the draft would answer by itself is not recorded: mode edge takes its time for the target's answer. tuned: also
    every mode at its best there, tuned on the first answers, and the others alone are reported.
    """
    first, shown = split(recording) if tuned else (None, recording)
    alone, text = {"recording": with_perfect_draft(shown)}, changes.pop("text", "")
    for rtt_ms in progress(rtts_ms, unit="round trip", desc=timings.name):
        at = replace(timings, one_way_s=rtt_ms / 2e3)
        arms, drafting = arms_at_best((*LINKED, LAYER_SPLIT), first, at, text, **changes)
        arms = [replace(arm, changes={**alone, **arm.changes}) if arm.mode == EDGE else arm for arm in arms]
        run = VirtualTime(shown, at, with_arrivals=True).run(arms)
        yield entry(rtt_ms, run, at, words, drafting)


def with_perfect_draft(recording: Recording) -> Recording:
    """Return the recording with a draft that predicts the target's answer, so that it takes as many tokens."""
    steps = []
    for step in recording.steps:
        tokens = np.asarray(step.tokens, dtype=np.int32)[:, None]
        steps.append(replace(step, draft_tokens=tokens, draft_probabilities=np.full(tokens.shape, 0.99)))
    return replace(recording, steps=tuple(steps))


def entry(rtt_ms: float, run: Run, timings: Timings, words: Words, drafting: Mapping[str, str]) -> dict[str, Any]:
    """Return the figures of all modes at one round trip; ratios are (lower end, median, upper end) over frames.

    drafting: what tuned arms draft, by arm.
    """
    modes = compare({mode: figures_of(each, timings) for mode, each in run.answers.items()})
    for mode, figures in modes.items():
        figures["action_s"] = action_s(run.answers[mode], words)
        figures["step_s"] = [round(seconds, 4) for seconds in run.seconds(mode)]
        figures |= {f"times_{base}": run.times_faster(base, mode) for base in (CLOUD, SD)}
    return {"rtt_s": rtt_ms / 1e3, "modes": modes, "verify_s": timings.verify_s, "drafting": dict(drafting)}


def report(name: str, entries: Sequence[Mapping[str, Any]], options: argparse.Namespace) -> str:
    """Return the setting's tables, one for each round trip, under a line with where its times are from."""
    setting = SETTINGS[name]
    frames = next(iter(entries[0]["modes"].values()))["steps"]
    lines = [f"\n{setting.title}: {frames} frames, {setting.kind}; {drafted_as(options)}"]
    if setting.is_virtual:
        lines.append(str(declared(setting.times, options.cost)))
        lines.append("edge is given an answer as long as the target's; its own answer is not recorded")
        known = ""
    else:
        lines += [f"declared: {load_profile(setting.times).scale}", machine()]
        known = " as measured in cloud; frames on which tokens differ: {frames_with_different_tokens}"
    for each in entries:
        at = f"{name}, round trip {1e3 * each['rtt_s']:g} ms"
        shown = {mode: {**figures, **_shown(mode, figures)} for mode, figures in each["modes"].items()}
        for mode, drafting in each["drafting"].items():
            shown[mode]["drafting"] = f"`{drafting or 'as shipped'}`"
        lines.append(f"\n{at} (T_q {1e3 * each['verify_s']:.0f} ms{known.format(**each)})\n")
        lines.append(markdown("mode", shown, COLUMNS))
    return "\n".join([*lines, f"\n{name}: times faster than cloud by round trip\n", speed_ups(entries)])


def speed_ups(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table of how many times faster than `cloud` each mode is, a column for each round trip."""
    rows = {
        mode: {str(place): each["modes"][mode]["times_cloud"] for place, each in enumerate(entries)}
        for mode in entries[0]["modes"]
    }
    columns = [Column(f"{1e3 * each['rtt_s']:g} ms", str(place)) for place, each in enumerate(entries)]
    return markdown("mode", rows, columns)


def _shown(mode: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is shown only where it means something: of verified modes, of those that draft, of pre-drafts."""
    verified = {name: figures[name] for name in ("tau", "passes_per_token", "target_busy")} if mode != EDGE else {}
    if mode != EDGE and figures["forwards_per_token"]:
        verified["wasted"] = figures["wasted_forwards"]
    return {"verified": verified, "hits_shown": figures["hit_rate"] if figures["miss_rate"] is not None else None}
