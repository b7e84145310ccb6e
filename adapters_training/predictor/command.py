"""`predictor`: will the target accept this draft token? Log real drafts, fit, compare, export what the edge loads.

WISP, Sec. 4.1 and Appendix B: where a small network predicts that the target rejects a draft token, drafting stops
and the draft is sent; wasted drafting time shrinks. The answer stays the target's own whatever is predicted.

example, for the pair in models/ (frames that neither model was trained on):
  python -m adapters_training data --out out/fresh --scenes 100 --frames-per-scene 12 --held-out
  python -m adapters_training predictor log --data out/fresh --out out/drafts
  python -m adapters_training predictor train --drafts out/drafts --out models/draft --report out/predictor

time: log takes about a third of a second of one CPU core a frame with the pair in models/ (4 minutes for 600 frames)
and goes on at the last finished shard after a kill; train takes seconds, keeps nothing on the way and gives the same
weights whenever it is begun again. --dry-run does the same work on little in well under a minute.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from typing import Any

import msgspec

from adapters_training.command import Command, Group
from adapters_training.devices import resolved
from adapters_training.predictor.drafts import LogConfig, digest, log, read, split
from adapters_training.predictor.fit import FitConfig, fit
from adapters_training.predictor.measure import Quality, Timings, choose_threshold, quality, replay
from speculation.profiles import load_profile
from speculation.vlm.load import load_vlm

DRY_FRAMES, DRY_EPOCHS = 10, 5
RESULTS_FILE = "predictor_results.json"
MLP, CONFIDENCE = "mlp", "confidence"
"""The predictor, and the draft's own top-1 probability, which needs no fit."""


def _log(config: LogConfig, options: argparse.Namespace) -> int:
    if options.dry_run:
        config = msgspec.structs.replace(config, frames=DRY_FRAMES, max_tokens=min(32, config.max_tokens))
    draft, target = (load_vlm(folder, resolved(config)) for folder in (config.draft, config.target))
    drafts = log(draft, target, config)
    _, labels = drafts.labelled()
    print(f"{len(drafts)} draft tokens of {len(set(drafts.scene.tolist()))} scenes, {len(labels)} with a label, "
          f"{labels.mean():.0%} of these accepted: {config.out}")  # fmt: skip
    return 0


def _train(config: FitConfig, options: argparse.Namespace) -> int:
    timings = Timings.of(load_profile(config.profile))
    if options.dry_run:
        config = msgspec.structs.replace(config, epochs=min(config.epochs, DRY_EPOCHS))
    drafts = read(config.drafts)
    if config.gamma > drafts.header["gamma"]:
        raise ValueError(f"--gamma is {config.gamma}; the drafts were logged with {drafts.header['gamma']}: give 1 to "
                         "that")  # fmt: skip
    parts = split(drafts.scene.tolist(), config.seed)
    training, validation, test = (drafts.of(scenes) for scenes in parts)
    known = drafts.of(parts[0] | parts[1])
    predictor = fit(training, validation, config)
    rows: dict[str, Quality] = {}
    outcomes: dict[str, dict[str, float]] = {}
    for name, ask in ((MLP, predictor.probabilities), (CONFIDENCE, lambda rows: rows[:, 0])):
        threshold = config.threshold
        if threshold is None:
            threshold = choose_threshold(known, ask(known.features), config.gamma, timings)
        rows[name] = quality(test, ask, threshold)
        outcomes[name] = asdict(replay(test, ask(test.features), threshold, config.gamma, timings))
    outcomes["never stopping"] = asdict(replay(test, test.features[:, 0], 0.0, config.gamma, timings))
    notes: dict[str, Any] = {
        "family": MLP,
        "drafts": digest(drafts),
        "profile": config.profile,
        "gamma": config.gamma,
        "test": {name: round(value, 4) for name, value in asdict(rows[MLP]).items() if name != "call_us"},
        "replayed": {name: outcomes[name] for name in (MLP, "never stopping")},
    }
    replace(predictor, threshold=rows[MLP].threshold).save(config.out, notes)
    report = config.report or config.out
    report.mkdir(parents=True, exist_ok=True)
    results = {
        "drafts": drafts.header | {"digest": digest(drafts)},
        "split": {name: len(set(part.scene.tolist())) for name, part in
                  (("training", training), ("validation", validation), ("test", test))},
        "fit": {name: getattr(config, name) for name in ("hidden", "learning_rate", "epochs", "seed")},
        "profile": config.profile,
        "gamma": config.gamma,
        "test": {family: asdict(row) for family, row in rows.items()},
        "replayed": outcomes,
    }  # fmt: skip
    (report / RESULTS_FILE).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(_table(rows, outcomes))
    print(f"exported to {config.out}; results in {report}")
    return 0


def _table(rows: dict[str, Quality], outcomes: dict[str, dict[str, float]]) -> str:
    header = ("family", "threshold", "accuracy", "AUC", "recall", "spec.", "FPR", "bal. acc.", "ECE", "us/call",
              "waste ms/token", "ms/token", "tokens/draft", "accepted")  # fmt: skip
    lines = []
    for family, outcome in outcomes.items():
        row = rows.get(family)
        figures = ("", *("-" for _ in range(8))) if row is None else (
            f"{row.threshold:.2f}", f"{row.accuracy:.3f}", f"{row.auc:.3f}", f"{row.recall:.3f}",
            f"{row.specificity:.3f}", f"{row.fpr:.3f}", f"{row.balanced:.3f}", f"{row.ece:.3f}", f"{row.call_us:.0f}",
        )  # fmt: skip
        lines.append((family, *figures, f"{1e3 * outcome['wasted_s']:.1f}", f"{1e3 * outcome['token_s']:.1f}",
                      f"{outcome['length']:.2f}", f"{outcome['acceptance']:.0%}"))  # fmt: skip
    widths = [max(len(line[column]) for line in (header, *lines)) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(widths[0]) if column == 0 else cell.rjust(widths[column])
                  for column, cell in enumerate(line)).rstrip()
        for line in (header, *lines)
    )  # fmt: skip


COMMAND = Group("predictor", "train the network that predicts where the edge should stop drafting", __doc__, (
    Command(
        "log", "decode frames with the pair and keep what became of every draft token",
        "Decodes frames as mode sd does, draft and target in this process. For every draft token it keeps confidence, "
        "entropy, margin, deviation of the logits and depth, and whether the target accepted it.",
        LogConfig, _log, {"dry-run": f"{DRY_FRAMES} frames, short answers"},
    ),
    Command(
        "train", "fit a predictor, measure and export it",
        "Fits an MLP on three fifths of the scenes, calibrates on one, measures on one, beside the draft's own top-1 "
        "probability. The threshold is the one with the least time plus waste among those that cost no time, when all "
        "but the last fifth's drafts are replayed with a profile's times. Writes predictor.json and "
        f"predictor.safetensors; into --report {RESULTS_FILE}.",
        FitConfig, _train, {"dry-run": f"{DRY_EPOCHS} epochs"},
    ),
))  # fmt: skip
