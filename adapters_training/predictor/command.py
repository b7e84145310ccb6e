"""`predictor`: will the target accept this draft token? Decode frames, fit, export what the edge loads.

WISP, Sec. 4.1 and Appendix B: where a small network predicts that the target rejects a draft token, drafting stops
and the draft is sent; wasted drafting time shrinks. The answer stays the target's own whatever is predicted.

Frames are decoded as mode sd does, draft and target in this process. An MLP is fitted on three fifths of the scenes,
calibrated on one and measured on one. The threshold is the one with the least time plus waste among those that cost no
time, when all but the last fifth's drafts are replayed with a profile's times.

example, for the pair in models/ (frames that neither model was trained on):
  python -m adapters_training data --out out/fresh --scenes 100 --frames-per-scene 12 --held-out
  python -m adapters_training predictor --data out/fresh --out DRAFT

time: about a third of a second of one CPU core a frame with the pair in models/ (4 minutes for 600 frames); the same
frames and seed give the same weights.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from adapters_training.devices import resolved
from adapters_training.predictor.drafts import PredictorConfig, collect, split
from adapters_training.predictor.fit import fit, others
from adapters_training.predictor.measure import WISP, Timings, auc, choose_threshold, compare, replay
from adapters_training.settings import Command
from speculation.profiles import load_profile
from speculation.vlm.load import load_vlm


def _run(config: PredictorConfig) -> int:
    timings = Timings.of(load_profile(config.profile))
    if config.threshold_gamma > config.gamma:
        raise ValueError(f"--threshold-gamma {config.threshold_gamma} is more than --gamma {config.gamma}")
    draft, target = (load_vlm(folder, resolved(config)) for folder in (config.draft, config.target))
    drafts = collect(draft, target, config)
    parts = split(drafts.scene.tolist(), config.seed)
    training, validation, test = (drafts.of(scenes) for scenes in parts)
    predictor = fit(training, validation, config.seed)
    threshold = config.threshold
    if threshold is None:
        known = drafts.of(parts[0] | parts[1])
        chances = predictor.probabilities(known.features)
        threshold = choose_threshold(known, chances, config.threshold_gamma, timings)
    rows, labels = test.labelled()
    chances, truth = predictor.probabilities(rows), labels == 1.0
    found = {
        "tokens": len(rows), "accepted": float(truth.mean()), "auc": auc(chances, truth),
        "accuracy": float(((chances >= threshold) == truth).mean()),
    }  # fmt: skip
    every = predictor.probabilities(test.features)
    outcomes = {
        name: replay(test, every, each, config.threshold_gamma, timings)
        for name, each in (("stopping there", threshold), ("never stopping", 0.0))
    }
    notes: dict[str, Any] = {
        "drafts": drafts.header,
        "profile": config.profile,
        "gamma": config.threshold_gamma,
        "test": found,
        "replayed": {name: asdict(outcome) for name, outcome in outcomes.items()},
    }
    if config.compare:
        notes["compared"] = {
            f"{name}, {when}": compare(each, validation, test, longest, times)
            for name, each in {"network": predictor.probabilities, **others(training, config.seed)}.items()
            for when, times, longest in (("profile", timings, config.threshold_gamma), ("WISP", WISP, config.gamma))
        }
        for name, figures in notes["compared"].items():
            print(f"{name}: " + ", ".join(f"{key} {value:.3f}" for key, value in figures.items()))
    replace(predictor, threshold=threshold).save(config.out, notes)
    print(
        f"threshold {threshold:.2f}, on {found['tokens']} tokens of held-out scenes, {found['accepted']:.1%} accepted: "
        f"accuracy {found['accuracy']:.3f}, AUC {found['auc']:.3f}"
    )
    for name, outcome in outcomes.items():
        print(
            f"{name}: {1e3 * outcome.token_s:.1f} ms a token, {1e3 * outcome.wasted_s:.1f} ms of it wasted, "
            f"{outcome.length:.2f} tokens a draft, {outcome.acceptance:.0%} accepted"
        )
    print(f"exported to {config.out}")
    return 0


COMMAND = Command(
    "predictor", "train the network that predicts where the edge should stop drafting", __doc__, PredictorConfig, _run
)
