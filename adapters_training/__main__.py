"""Command line: python -m adapters_training data | processor | pair | exits | evaluate."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from adapters_training.exit_choice import measure, select
from adapters_training.exits import command as exits_command
from speculation.prompts import Vocabulary

HELD_OUT_SEED = 5_000_000
"""First scene of the held-out frames on which training is judged."""


def main(arguments: list[str] | None = None) -> int:
    """Run one training command; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except (FileNotFoundError, ValueError) as error:
        print(f"adapters_training {options.command}: {error}", file=sys.stderr)
        return 2
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m adapters_training", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    data = commands.add_parser("data", help="render labelled frames with the simulator's oracle")
    data.add_argument("--out", required=True, help="folder for the shards")
    data.add_argument("--scenes", type=int, default=1000)
    data.add_argument("--frames-per-scene", type=int, default=24)
    data.add_argument("--first-seed", type=int, default=100_000)
    data.add_argument("--held-out", action="store_true", help=f"take seeds from {HELD_OUT_SEED} on")
    data.add_argument("--processes", type=int, default=1)
    data.add_argument(
        "--randomise", action="store_true", help="vary light, surfaces, camera and sensor (docs/simulation.md)"
    )
    data.set_defaults(run=_data)

    processor = commands.add_parser("processor", help="train the tokenizer and write the offline processor folder")
    processor.add_argument("--out", required=True)
    processor.set_defaults(run=_processor)

    pair = commands.add_parser("pair", help="train the embedded target or draft (resumes where it stopped)")
    pair.add_argument("role", choices=("target", "draft"))
    pair.add_argument("--data", required=True)
    pair.add_argument("--processor", required=True, help="folder of the 'processor' command")
    pair.add_argument("--out", required=True, help="run folder: checkpoint, TensorBoard, config")
    pair.add_argument("--export", default="", help="model folder to write at the end")
    pair.add_argument("--minutes", type=float, default=60.0, help="training time")
    pair.add_argument("--teacher", default="", help="target model folder to distil from (draft)")
    pair.add_argument("--start", default="", help="checkpoint of an earlier run to start from")
    pair.add_argument("--batch-frames", type=int, default=10, help="frames a step and process")
    pair.add_argument("--learning-rate", type=float, default=1e-3)
    pair.add_argument("--vision-share", type=float, default=0.08, help="share of the time for the vision tower alone")
    pair.add_argument(
        "--ground-share", type=float, default=0.45, help="share of the time in which four of five steps have no words"
    )
    pair.add_argument("--seed", type=int, default=1)
    pair.add_argument("--threads", type=int, default=1)
    pair.set_defaults(run=_pair)

    exits_command.add_command(commands)
    measure.add_command(commands)
    select.add_command(commands)

    evaluate = commands.add_parser("evaluate", help="grounding and action agreement on held-out frames")
    evaluate.add_argument("--model", required=True)
    evaluate.add_argument("--held-out", required=True)
    evaluate.add_argument("--count", type=int, default=300)
    evaluate.add_argument("--show", type=int, default=0, help="print this many answers beside the truth")
    evaluate.add_argument("--json", default="", help="also write the rates to this file")
    evaluate.set_defaults(run=_evaluate)
    return parser


BLOCKERS = ("table", "sofa", "shelf", "wall")
"""What stands in the way besides objects."""


def vocabulary() -> Vocabulary:
    """Return the objects that the simulator shows and the pair learns to find."""
    from simulation.objects import CLASSES, COLOURS

    return Vocabulary(tuple(COLOURS), tuple(CLASSES))


def _data(options: argparse.Namespace) -> int:
    from adapters_training.data import make
    from simulation.scene import UNSEEN_SEED

    first = HELD_OUT_SEED if options.held_out else options.first_seed
    if not options.held_out and first + options.scenes > UNSEEN_SEED:
        raise ValueError(f"--first-seed plus --scenes must stay below {UNSEEN_SEED}: rooms above are held out")
    make(Path(options.out), first, options.scenes, options.frames_per_scene, options.processes, options.randomise)
    return 0


def _processor(options: argparse.Namespace) -> int:
    from adapters_training.shapes import write_processor

    print(write_processor(Path(options.out), vocabulary(), BLOCKERS))
    return 0


def _pair(options: argparse.Namespace) -> int:
    from adapters_training.pair import PairConfig, PairTrainer

    config = PairConfig(
        role=options.role,
        data=options.data,
        out=options.out,
        minutes=options.minutes,
        vision_share=options.vision_share,
        ground_share=options.ground_share,
        batch_frames=options.batch_frames,
        learning_rate=options.learning_rate,
        seed=options.seed,
        threads=options.threads,
        teacher=options.teacher,
        start=options.start,
    )
    folder = Path(options.processor)
    trainer = PairTrainer(config, folder, vocabulary())
    trainer.train()
    if options.export:
        trainer.export(Path(options.export))
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from adapters_training.evaluate import evaluate
    from speculation.vlm.load import load_vlm

    rates = evaluate(load_vlm(Path(options.model)), Path(options.held_out), options.count, show=options.show).rates()
    for name, rate in rates.items():
        print(f"{name:16s} {rate:.3f}" if isinstance(rate, float) else f"{name:16s} {rate}")
    if options.json:
        Path(options.json).write_text(json.dumps(rates, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
