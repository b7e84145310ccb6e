"""`predictor`: will the target accept this draft token? Log real drafts, fit, compare, export what the edge loads.

WISP, Sec. 4.1 and Appendix B: where a small network predicts that the target rejects a draft token, drafting stops
and the draft is sent; wasted drafting time shrinks. The answer stays the target's own whatever is predicted.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from adapters_training.devices import AUTO, resolved
from adapters_training.predictor.drafts import Drafts, LogConfig, digest, log, read, split
from adapters_training.predictor.fit import CONFIDENCE, EXPORTABLE, FAMILIES, FitConfig, Fitted, fit
from adapters_training.predictor.measure import Quality, Timings, choose_threshold, quality, replay
from speculation.profiles import load_profile
from speculation.settings import add_flags, from_flags, path_flag
from speculation.vlm.settings import ModelSettings

DRY_FRAMES, DRY_EPOCHS = 10, 5
RESULTS_FILE, PLOT_FILE = "predictor_results.json", "predictor.png"
_EXAMPLE = """\
example, for the pair in models/ (frames that neither model was trained on):
  python -m adapters_training data --out out/fresh --scenes 100 --frames-per-scene 12 --held-out
  python -m adapters_training predictor log --data out/fresh --out out/drafts
  python -m adapters_training predictor train --drafts out/drafts --out models/draft --report out/predictor

the same for a draft that is often wrong, for which it is worth more:
  python -m adapters_training predictor weaken --out out/weak
  python -m adapters_training predictor log --draft out/weak --data out/fresh --out out/weak-drafts
  python -m adapters_training predictor train --drafts out/weak-drafts --out out/weak

time: log takes about a third of a second of one CPU core a frame with the pair in models/ (4 minutes for 600 frames)
and goes on at the last finished shard after a kill; train takes seconds, keeps nothing on the way and gives the same
weights whenever it is begun again. --dry-run does the same work on little in well under a minute."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `predictor` with its stages log, train and weaken."""
    line = commands.add_parser(
        "predictor",
        help="train the network that predicts where the edge should stop drafting",
        description=__doc__,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    stages = line.add_subparsers(dest="stage", required=True, metavar="log | train | weaken")
    _add_log(stages)
    _add_train(stages)
    _add_weaken(stages)


def _add_log(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    line = stages.add_parser(
        "log",
        help="decode frames with the pair and keep what became of every draft token",
        description="Decodes frames as mode sd does, draft and target in this process. For every draft token it keeps "
        "confidence, entropy, margin, deviation of the logits and depth, and whether the target accepted it.",
    )
    line.add_argument(
        "--draft", type=path_flag, default=Path("models/draft"), help="model folder (default: %(default)s)"
    )
    line.add_argument(
        "--target", type=path_flag, default=Path("models/target"), help="model folder (default: %(default)s)"
    )
    line.add_argument("--data", type=path_flag, required=True, help="shards of the 'data' command; rooms of their own")
    line.add_argument("--out", type=path_flag, required=True, help="folder for drafts-*.npz, one a shard")
    line.add_argument("--frames", type=int, default=LogConfig.frames, help="in all (default: %(default)s)")
    line.add_argument("--gamma", type=int, default=LogConfig.gamma, help="longest draft (default: %(default)s)")
    line.add_argument("--max-tokens", type=int, default=LogConfig.max_tokens, help="of an answer (default: 96)")
    line.add_argument("--seed", type=int, default=0, help="which frames and questions")
    line.add_argument("--dry-run", action="store_true", help=f"{DRY_FRAMES} frames, short answers")
    add_flags(line, ModelSettings, defaults={"device": AUTO})
    line.set_defaults(run=_log)


def _add_train(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    line = stages.add_parser(
        "train",
        help="fit and compare predictors, export one",
        description="Fits an MLP, logistic regression and boosted trees (the last two need scikit-learn: pip install "
        "'spec-vlm-nav-core[predictor]') on three fifths of the scenes, calibrates on one, measures on one. The "
        "threshold is the one with the least time plus waste among those that cost no time, when all but the last "
        "fifth's drafts are replayed with a profile's times. Writes predictor.json and predictor.safetensors; into "
        f"--report {RESULTS_FILE} and {PLOT_FILE}.",
    )
    line.add_argument("--drafts", type=path_flag, required=True, help="folder of 'predictor log'")
    line.add_argument(
        "--out", type=path_flag, required=True, help="folder to export to; the edge looks beside its draft"
    )
    line.add_argument("--report", type=path_flag, help="folder for results and plot (default: --out)")
    line.add_argument("--export", choices=EXPORTABLE, default=EXPORTABLE[0], help="family (default: %(default)s)")
    line.add_argument("--profile", default="go2_a100", help="times for the threshold (default: %(default)s)")
    line.add_argument("--gamma", type=int, default=4, help="longest draft for the threshold (default: %(default)s)")
    line.add_argument("--threshold", type=float, help="export with this one instead of choosing")
    line.add_argument("--hidden", default="32,16", help="widths of the MLP (default: %(default)s)")
    line.add_argument("--epochs", type=int, default=FitConfig.epochs, help="at most (default: %(default)s)")
    line.add_argument("--learning-rate", type=float, default=FitConfig.learning_rate, help="(default: %(default)s)")
    line.add_argument("--seed", type=int, default=0, help="of weights, batches and the split of scenes")
    line.add_argument("--dry-run", action="store_true", help=f"{DRY_EPOCHS} epochs")
    line.set_defaults(run=_train)


def _add_weaken(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    line = stages.add_parser(
        "weaken",
        help="make a copy of a draft that is often wrong, to measure predictors with",
        description="Adds seeded noise to the decoder's matrices. Log and train for it as for any draft: its "
        "fingerprint is another one.",
    )
    line.add_argument(
        "--draft", type=path_flag, default=Path("models/draft"), help="model folder (default: %(default)s)"
    )
    line.add_argument("--out", type=path_flag, required=True, help="new model folder")
    line.add_argument("--noise", type=float, default=1.0, help="in deviations of each matrix (default: %(default)s)")
    line.add_argument("--seed", type=int, default=0)
    line.set_defaults(run=_weaken)


def _log(options: argparse.Namespace) -> int:
    from speculation.vlm.load import load_vlm

    config = LogConfig(options.gamma, options.frames, options.max_tokens, options.seed)
    if options.dry_run:
        config = replace(config, frames=DRY_FRAMES, max_tokens=min(32, config.max_tokens))
    models = resolved(from_flags(ModelSettings, options))
    draft, target = (load_vlm(folder, models) for folder in (options.draft, options.target))
    drafts = log(draft, target, options.data, options.out, config)
    _, labels = drafts.labelled()
    print(f"{len(drafts)} draft tokens of {len(set(drafts.scene.tolist()))} scenes, {len(labels)} with a label, "
          f"{labels.mean():.0%} of these accepted: {options.out}")  # fmt: skip
    return 0


def _train(options: argparse.Namespace) -> int:
    timings = Timings.of(load_profile(options.profile))
    config = _fit_config(options)
    drafts = read(options.drafts)
    if not 1 <= options.gamma <= drafts.header["gamma"]:
        raise ValueError(f"--gamma is {options.gamma}; the drafts were logged with {drafts.header['gamma']}: give 1 to "
                         "that")  # fmt: skip
    parts = split(drafts.scene.tolist(), options.seed)
    training, validation, test = (drafts.of(scenes) for scenes in parts)
    known = drafts.of(parts[0] | parts[1])
    from adapters_training.predictor.plots import Shown, plot

    rows: dict[str, Quality] = {}
    shown: dict[str, Shown] = {}
    outcomes: dict[str, dict[str, float]] = {}
    fitted: dict[str, Fitted] = {}
    for family in (*FAMILIES, CONFIDENCE):
        try:
            fitted[family] = fit(family, training, validation, config)
        except ModuleNotFoundError:
            print(f"{family} is left out: it needs scikit-learn (pip install 'spec-vlm-nav-core[predictor]')")
            continue
        ask = fitted[family].probabilities
        threshold = choose_threshold(known, ask(known.features), options.gamma, timings)
        if options.threshold is not None:
            threshold = options.threshold
        rows[family] = quality(test, ask, threshold)
        shown[family] = Shown(ask(test.features), threshold)
        outcomes[family] = asdict(replay(test, shown[family].chances, threshold, options.gamma, timings))
    if options.export not in rows:
        raise ValueError(f"--export {options.export} needs scikit-learn; install it, or export {EXPORTABLE[0]}")
    outcomes["never stopping"] = asdict(replay(test, shown[CONFIDENCE].chances, 0.0, options.gamma, timings))
    _export(options, drafts, fitted[options.export], rows[options.export], outcomes)
    report: Path = options.report or options.out
    plot(report / PLOT_FILE, test, shown, options.gamma, timings)
    results = {
        "drafts": drafts.header | {"digest": digest(drafts)},
        "split": {name: len(set(part.scene.tolist())) for name, part in
                  (("training", training), ("validation", validation), ("test", test))},
        "fit": asdict(config),
        "profile": options.profile,
        "gamma": options.gamma,
        "test": {family: asdict(row) for family, row in rows.items()},
        "replayed": outcomes,
    }  # fmt: skip
    (report / RESULTS_FILE).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(_table(rows, outcomes))
    print(f"exported {options.export} to {options.out}; results and plot in {report}")
    return 0


def _fit_config(options: argparse.Namespace) -> FitConfig:
    try:
        hidden = tuple(int(part) for part in options.hidden.split(",") if part.strip())
    except ValueError:
        hidden = ()
    if not hidden or min(hidden) < 1:
        raise ValueError(f"--hidden is {options.hidden!r}; give widths such as 32,16")
    if options.epochs < 1 or options.learning_rate <= 0.0:
        raise ValueError("--epochs must be at least 1 and --learning-rate above 0")
    if options.threshold is not None and not 0.0 <= options.threshold <= 1.0:
        raise ValueError(f"--threshold is {options.threshold}; give 0 to 1")
    epochs = min(options.epochs, DRY_EPOCHS) if options.dry_run else options.epochs
    return FitConfig(hidden, options.learning_rate, epochs=epochs, seed=options.seed)


def _export(
    options: argparse.Namespace, drafts: Drafts, fitted: Fitted, row: Quality, outcomes: dict[str, dict[str, float]]
) -> None:
    if fitted.predictor is None:
        raise ValueError(f"{options.export} cannot be exported")
    notes: dict[str, Any] = {
        "family": options.export,
        "drafts": digest(drafts),
        "profile": options.profile,
        "gamma": options.gamma,
        "test": {name: round(value, 4) for name, value in asdict(row).items() if name != "call_us"},
        "replayed": {name: outcomes[name] for name in (options.export, "never stopping")},
    }
    replace(fitted.predictor, threshold=row.threshold).save(options.out, notes)


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


def _weaken(options: argparse.Namespace) -> int:
    from adapters_training.predictor.weaken import weaken

    weaken(options.draft, options.out, options.noise, options.seed)
    print(f"{options.out}: {options.draft} with noise of {options.noise:g} deviations, seed {options.seed}")
    return 0
