"""Make the embedded pair by one command: rooms, target, draft, exits, fed head, predictor and the target's pass costs.

Each stage is one of this package's other commands with an output of its own under --out. A killed recipe goes on when
it is started again with the same words: finished stages of the same settings are passed over, the one that was running
goes on at its own checkpoint. A stage of other settings is never mixed with new ones: it is named, and --from makes it
anew with all that builds on it. OUT/recipe.json has every stage's seconds and machine.

examples:
  python -m adapters_training recipe --config config/embedded_pair.yaml --out out/pair --plan
  python -m adapters_training recipe --config config/embedded_pair.yaml --out out/pair --export models
  python -m adapters_training recipe --config config/embedded_pair.yaml --out out/try --quick

time: --plan prints it; hours on two CPU cores.
"""

from __future__ import annotations

import argparse
from typing import Any

from adapters_training.devices import Device
from speculation.settings import path_flag

STOPPED = 130
"""Exit status of an interrupted command, as shells have it."""


def add_command(commands: Any) -> None:
    """Register `recipe`."""
    line = commands.add_parser(
        "recipe", help="make the whole embedded pair, stage by stage", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    line.add_argument("--config", type=path_flag, required=True, help="YAML file of the recipe")
    line.add_argument("--out", type=path_flag, required=True, help="folder for the stages' outputs; the same goes on")
    line.add_argument("--device", choices=[each.value for each in Device], default=Device.AUTO.value,
                      help="auto: all GPUs of this machine where it has any (default: %(default)s)")  # fmt: skip
    line.add_argument("--jobs", type=int, default=1, metavar="N",
                      help="stages that need one core run side by side, N at once, their output in OUT/logs "
                      "(default: %(default)s)")  # fmt: skip
    line.add_argument("--plan", action="store_true", help="print the stages, their state and minutes; run nothing")
    line.add_argument("--quick", action="store_true", help="make everything tiny: to try the way, of no use")
    line.add_argument("--from", dest="first", default="", metavar="STAGE",
                      help="remove what this stage and all that build on it have made, and make it anew")  # fmt: skip
    line.add_argument("--export", type=path_flag, metavar="FOLDER", help="at the end copy what ships into this folder")
    line.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run or plan the recipe. Raises ValueError, in one sentence, for what cannot be run."""
    import torch

    from adapters_training import devices
    from adapters_training.exit_choice.report import machine
    from adapters_training.recipe import run as runner
    from adapters_training.recipe.config import load, quick
    from adapters_training.recipe.stages import Plan

    if options.quick and options.export:
        raise ValueError("--quick makes models of no use: leave --export out")
    if options.jobs < 1:
        raise ValueError(f"--jobs is {options.jobs}; give at least 1")
    recipe = load(options.config)
    device = devices.chosen(Device(options.device))
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    plan = Plan(quick(recipe) if options.quick else recipe, options.out, gpus)
    if options.plan:
        if options.first:
            plan.named(options.first)
        print("\n".join(runner.table(plan, gpus > 0)))
        return 0
    try:
        runner.run(plan, lambda: machine(str(device)), options.first, options.jobs)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on")
        return STOPPED
    if options.export:
        print(runner.export(plan, options.export))
        print(f"the sample bag: python -m vlm_nav_evaluation record --out {options.export / 'sample_bag'}")
    return 0
