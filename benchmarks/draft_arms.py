"""Other eyes for the draft model: half of the frame's width and height, none, or both kinds averaged (TABED).

    python -m benchmarks.draft_arms --recording out/embedded.npz --save

Each arm is the same draft model on the same held-out frames. tau: tokens a verification at --gamma as mode `sd` commits
them, by forwards over the target's own answer. TABED (arXiv 2601.20357) drafts with the mean of the distributions with
and without the frame; here with equal weights, where the paper's follow what was accepted. Prefill and forward are this
processor's time on one thread, of both views one after the other. The last columns are mode `full` on virtual time,
n-grams off, as shipped and tuned on other answers, times as fast as `cloud`: T_p grows with an arm's forward, two views
in a batch cost what a second leaf does, and both sides' prefills are as many forwards long as here.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from adapters_training.fed_head.measuring import Tally
from benchmarks.fed_arms import ORIN
from benchmarks.recordings import COUNT, QUICK_COUNT, TOP, add_recording, recorded
from edge_drafter import Mode
from speculation.frames import Frame, decode_frames
from speculation.progress import progress
from speculation.vlm.load import Vlm, load_vlm
from speculation.vlm.session import VlmSession
from vlm_nav_evaluation.experiment.command import command_line, main_of, settings_of, write_result
from vlm_nav_evaluation.experiment.questions import asked_of
from vlm_nav_evaluation.experiment.run import Arm, Question
from vlm_nav_evaluation.figures import spread
from vlm_nav_evaluation.plots import add_outputs
from vlm_nav_evaluation.setting import machine
from vlm_nav_evaluation.tables import MS, Column, figures_table
from vlm_nav_evaluation.virtual_time import Recording, Timings, VirtualTime, load_timings
from vlm_nav_evaluation.virtual_time.tuning import TUNED, split, tune

CAPACITY = 2048
FORWARDS = 4
"""Forwards of one token that are timed on each frame."""
WHOLE, HALF, BLIND = "whole", "half", "blind"
CLOUD, FULL = Mode.CLOUD.value, Mode.FULL.value
BASE = "ngrams=off"


ARMS: dict[str, tuple[str, ...]] = {
    "whole frame": (WHOLE,),
    "half the width and height": (HALF,),
    "blind": (BLIND,),
    "TABED": (WHOLE, BLIND),
    "TABED, half": (HALF, BLIND),
}
"""What the draft model sees; several views: the mean of its distributions."""
COLUMNS = (
    Column("tau min", "tau.min"),
    Column("median", "tau.median"),
    Column("max", "tau.max"),
    Column("right", "right", ".1%"),
    Column("prefill ms", "prefill_s", ".1f", MS),
    Column("forward ms", "forward_s", ".2f", MS),
    Column("full, Go2", "times_cloud.go2.shipped"),
    Column("tuned", "times_cloud.go2.tuned"),
    Column("full, fast server", "times_cloud.fast.shipped"),
    Column("tuned", "times_cloud.fast.tuned"),
)


class Seen(NamedTuple):
    """What a view gives on one frame: probabilities [n, vocabulary] and seconds."""

    probabilities: npt.NDArray[np.float64]
    prefill_s: float
    forward_s: float


def sessions_of(folder: Path, dtype: str, frame: Frame) -> dict[str, VlmSession]:
    """Return a session of the draft model for each view; HALF resizes frames to a quarter of the pixels.

    Raises ValueError for a model without sight.
    """
    draft = load_vlm(folder, dtype=dtype)
    if not draft.sees_images:
        raise ValueError(f"--draft-model {folder} is a language model alone: it has no frame to do without")
    rows, columns = draft.processor.resized(*frame.shape[:2])
    small = load_vlm(folder, dtype=dtype)
    small.processor.limit(1, rows * columns // 4)
    return {WHOLE: VlmSession(draft, CAPACITY), HALF: VlmSession(small, CAPACITY), BLIND: VlmSession(draft, CAPACITY)}


def seen(session: VlmSession, question: Question, tokens: Sequence[int], sighted: bool = True) -> Seen:
    """Return what the model drafts at every place of an answer, `sighted` or without the frame."""
    image = decode_frames(question.jpeg) if sighted else None
    started = time.process_time()
    session.begin(question.prompt, image)
    rows = [session.root_logits()[None]]
    prefill_s, forwards = time.process_time() - started, []
    for place, token in enumerate(tokens[: min(FORWARDS, len(tokens) - 1)]):
        started = time.process_time()
        rows.append(session.extend([token], [place - 1]))
        forwards.append(time.process_time() - started)
    if len(rows) < len(tokens):
        first = len(rows) - 1
        rows.append(session.extend(tokens[first:-1], range(first - 1, len(tokens) - 2)))
    logits = np.concatenate(rows).astype(np.float64)
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    return Seen(chances / chances.sum(axis=1, keepdims=True), prefill_s, median(forwards) if forwards else 0.0)


def measured(
    sessions: Mapping[str, VlmSession], recording: Recording, asked: Sequence[Question], gamma: int
) -> tuple[dict[str, dict[str, Any]], dict[str, Recording]]:
    """Return every arm's figures, and the recording with its drafts."""
    found: dict[str, list[list[Seen]]] = {name: [] for name in ARMS}
    for step, question in zip(progress(recording.steps, unit="frame"), asked, strict=True):
        views = {view: seen(each, question, step.tokens, view != BLIND) for view, each in sessions.items()}
        for name, chosen in ARMS.items():
            found[name].append([views[view] for view in chosen])
    figures, recordings = {}, {}
    for name, frames in found.items():
        taus, steps, right = [], [], []
        for step, each in zip(recording.steps, frames, strict=True):
            mean = np.mean([one.probabilities for one in each], axis=0)
            likely = np.argsort(-mean, axis=1, kind="stable")[:, :TOP]
            chances = np.take_along_axis(mean, likely, axis=1)
            hits = likely[:, 0] == np.asarray(step.tokens)
            tally = Tally(gamma)
            tally.add([hits] * gamma)
            taus.append(tally.tau)
            right.append(hits)
            # The predictor is that of the draft model as it is: an arm is judged without one.
            steps.append(replace(step, draft_tokens=likely, draft_probabilities=chances, acceptance=chances[:, :1]))
        recordings[name] = replace(recording, steps=tuple(steps), stop_below=0.0)
        figures[name] = {
            "tau": spread(taus),
            "right": float(np.concatenate(right).mean()),
            "prefill_s": median(sum(one.prefill_s for one in each) for each in frames),
            "forward_s": median(sum(one.forward_s for one in each) for each in frames),
            "batched_s": median(
                max(one.forward_s for one in each) * (1.0 + ORIN.draft_leaf * (len(each) - 1)) for each in frames
            ),
        }
    return figures, recordings


def target_prefill(target: Vlm, asked: Sequence[Question]) -> float:
    """Return how many of its forwards the target's prefill takes."""
    session = VlmSession(target, CAPACITY)
    timed = [seen(session, question, [0, 0, 0]) for question in asked]
    return median(each.prefill_s for each in timed) / median(each.forward_s for each in timed)


def on_virtual_time(
    figures: dict[str, dict[str, Any]], recordings: dict[str, Recording], cloud_forwards: float
) -> None:
    """Add to every arm how many times faster than `cloud` mode `full` is with it, at the Go2's times and at ORIN's.

    As shipped, and tuned on answers that are not reported.
    """
    forward_s = figures["whole frame"]["forward_s"]
    places = {"go2": load_timings("go2"), "fast": replace(ORIN, name="fast").with_cost("wisp-32b")}
    for name, own in figures.items():
        own["times_cloud"] = {}
        for place, timings in places.items():
            at = scaled(timings, own["batched_s"] / forward_s, own["prefill_s"] / forward_s, cloud_forwards)
            search, shown = split(recordings[name])
            texts = {"shipped": BASE, TUNED: tune(FULL, search, at, BASE)}
            run = VirtualTime(shown, at).run(
                [Arm(CLOUD, CLOUD), *(Arm(arm, FULL, {"text": text}) for arm, text in texts.items())]
            )
            cloud_s = median(run.seconds(CLOUD))
            own["times_cloud"][place] = {arm: cloud_s / median(run.seconds(arm)) for arm in texts}
            own.setdefault("drafting", {})[place] = texts[TUNED]


def scaled(timings: Timings, forwards: float, prefill: float, cloud_forwards: float) -> Timings:
    """Return timings of an arm whose token takes so many of the draft model's forwards, and its prefill so many."""
    return replace(
        timings,
        draft_s=timings.draft_s * forwards,
        edge_prefill_s=timings.draft_s * prefill,
        cloud_prefill_s=timings.verify_s * cloud_forwards,
    )


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command_line("benchmarks.draft_arms", __doc__)
    shown = f"held-out frames, 3 of 10 but at most 12 to tune on (default: {COUNT}, with --quick {QUICK_COUNT})"
    line.add_argument("--count", type=int, help=shown)
    line.add_argument("--gamma", type=int, default=4, help="draft tokens a verification (default: 4)")
    add_recording(line)
    add_outputs(line)
    return line


def run(options: argparse.Namespace) -> None:
    """Print the arms, and save what was asked. Raises ValueError, in one sentence, where it cannot."""
    if options.count is None:
        options.count = QUICK_COUNT if options.quick else COUNT
    if options.count < 2 or options.gamma < 1:
        raise ValueError(f"--count {options.count}, --gamma {options.gamma}: give at least 2 frames and 1 draft token")
    recording, asked = recorded(options, options.count), asked_of(options, options.count)
    sessions = sessions_of(options.draft_model, options.dtype, decode_frames(asked[0].jpeg)[0])
    figures, recordings = measured(sessions, recording, asked, options.gamma)
    cloud_forwards = target_prefill(load_vlm(options.target_model, dtype=options.dtype), asked[:5])
    on_virtual_time(figures, recordings, cloud_forwards)
    print(f"{len(asked)} frames ({options.frames}), gamma {options.gamma}; the target's prefill takes "
          f"{cloud_forwards:.1f} of its forwards")  # fmt: skip
    print(figures_table("what the draft sees", figures, COLUMNS))
    print(machine())
    if options.save:
        about = {"settings": settings_of(options), "machine": machine(), "cloud_prefill_forwards": cloud_forwards}
        write_result("draft_arms", {**about, "arms": figures})


main = partial(main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
