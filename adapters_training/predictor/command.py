"""`predictor`: will the target accept this draft token? Log real drafts, fit, export what the edge loads.

WISP, Sec. 4.1 and Appendix B: where a small network predicts that the target rejects a draft token, drafting stops
and the draft is sent; wasted drafting time shrinks. The answer stays the target's own whatever is predicted.

example, for the pair in models/ (frames that neither model was trained on):
  python -m adapters_training data --out out/fresh --scenes 100 --frames-per-scene 12 --held-out
  python -m adapters_training predictor log --data out/fresh --out out/drafts
  python -m adapters_training predictor train --drafts out/drafts --out models/draft

time: log takes about a third of a second of one CPU core a frame with the pair in models/ (4 minutes for 600 frames)
and goes on at the last finished shard after a kill; train takes seconds, keeps nothing on the way and gives the same
weights whenever it is begun again.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from typing import Any

from adapters_training.command import Command, Group
from adapters_training.devices import resolved
from adapters_training.predictor.drafts import LogConfig, log, read, split
from adapters_training.predictor.fit import FitConfig, fit
from adapters_training.predictor.measure import Outcome, Quality, Timings, choose_threshold, quality, replay
from speculation.profiles import load_profile
from speculation.vlm.load import load_vlm


def _log(config: LogConfig, _: argparse.Namespace) -> int:
    draft, target = (load_vlm(folder, resolved(config)) for folder in (config.draft, config.target))
    drafts = log(draft, target, config)
    labels = drafts.labelled()[1]
    print(f"{len(drafts)} draft tokens of {len(set(drafts.scene.tolist()))} scenes, {len(labels)} with a label, "
          f"{labels.mean():.0%} of these accepted: {config.out}")  # fmt: skip
    return 0


def _train(config: FitConfig, _: argparse.Namespace) -> int:
    timings = Timings.of(load_profile(config.profile))
    drafts = read(config.drafts)
    if config.gamma > drafts.header["gamma"]:
        raise ValueError(f"--gamma is {config.gamma}; the drafts were logged with {drafts.header['gamma']}: give 1 to "
                         "that")  # fmt: skip
    parts = split(drafts.scene.tolist(), config.seed)
    training, validation, test = (drafts.of(scenes) for scenes in parts)
    known = drafts.of(parts[0] | parts[1])
    predictor = fit(training, validation, config)
    threshold = config.threshold
    if threshold is None:
        threshold = choose_threshold(known, predictor.probabilities(known.features), config.gamma, timings)
    chances = predictor.probabilities(test.features)
    found = quality(test, predictor.probabilities, threshold)
    stopping, never = (replay(test, chances, each, config.gamma, timings) for each in (threshold, 0.0))
    notes: dict[str, Any] = {
        "drafts": drafts.header,
        "profile": config.profile,
        "gamma": config.gamma,
        "test": {name: round(value, 4) for name, value in asdict(found).items()},
        "replayed": {"stopping": asdict(stopping), "never stopping": asdict(never)},
    }
    replace(predictor, threshold=threshold).save(config.out, notes)
    print(_report(found, stopping, never))
    print(f"exported to {config.out}")
    return 0


def _report(found: Quality, stopping: Outcome, never: Outcome) -> str:
    lines = [
        f"threshold {found.threshold:.2f}, on {found.tokens} tokens of held-out scenes, {found.accepted:.1%} accepted: "
        f"accuracy {found.accuracy:.3f}, AUC {found.auc:.3f}, recall {found.recall:.3f}, specificity "
        f"{found.specificity:.3f}, calibration error {found.ece:.3f}"
    ]
    for name, each in (("stopping there", stopping), ("never stopping", never)):
        lines.append(
            f"{name}: {1e3 * each.token_s:.1f} ms a token, {1e3 * each.wasted_s:.1f} ms of it wasted, "
            f"{each.length:.2f} tokens a draft, {each.acceptance:.0%} accepted"
        )
    return "\n".join(lines)


COMMAND = Group("predictor", "train the network that predicts where the edge should stop drafting", __doc__, (
    Command(
        "log", "decode frames with the pair and keep what became of every draft token",
        "Decodes frames as mode sd does, draft and target in this process. For every draft token it keeps confidence, "
        "entropy, margin, deviation of the logits and depth, and whether the target accepted it.",
        LogConfig, _log,
    ),
    Command(
        "train", "fit a predictor, measure and export it",
        "Fits an MLP on three fifths of the scenes, calibrates on one, measures on one. The threshold is the one with "
        "the least time plus waste among those that cost no time, when all but the last fifth's drafts are replayed "
        "with a profile's times. Writes predictor.json and predictor.safetensors.",
        FitConfig, _train,
    ),
))  # fmt: skip
