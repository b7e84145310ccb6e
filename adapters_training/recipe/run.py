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
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import torch

from adapters_training import devices, settings
from adapters_training.devices import Device, cores, machine
from adapters_training.files import replacing
from adapters_training.recipe.stages import Plan, Stage
from speculation.settings import path_flag

RECORD_FILE, SETTINGS = "recipe.json", "settings"
END_SECONDS = 30.0
"""How long a stage has to end by itself when the recipe is interrupted."""


class Stamp(msgspec.Struct):
    """What is known of a stage: `identity` of what it was begun with, `seconds` in all its runs, whether it ended."""

    identity: str
    settings: dict[str, Any]
    machine: str
    seconds: float = 0.0
    runs: int = 0
    done: bool = False


class Record:
    """The stamps of a recipe's stages, in the file recipe.json."""

    def __init__(self, plan: Plan) -> None:
        """Read the file, if there is one. Raises ValueError for one that holds something else."""
        self._plan, self._path = plan, plan.out / RECORD_FILE
        self.stamps: dict[str, Stamp] = {}
        if self._path.exists():
            try:
                self.stamps = msgspec.json.decode(self._path.read_bytes(), type=dict[str, Stamp])
            except msgspec.DecodeError as error:
                raise ValueError(f"{self._path} is no record of a recipe ({error}): choose another --out") from None

    def save(self) -> None:
        """Write the file."""
        with replacing(self._path) as file:
            file.write_bytes(msgspec.json.format(msgspec.json.encode(self.stamps), indent=1) + b"\n")

    def state(self, stage: Stage) -> str:
        """Return `done`, `begun`, `to do` or, of another recipe, `other settings`."""
        stamp = self.stamps.get(stage.name)
        if stamp is None:
            return "to do"
        if stamp.identity != stage.identity:
            return "other settings"
        return "done" if stamp.done and (not stage.has_folder or (self._plan.out / stage.name).is_dir()) else "begun"

    def clear(self, first: Stage) -> None:
        """Remove what a stage has made, and all that builds on it."""
        gone = {first}
        for stage in self._plan.stages:
            if stage in gone or gone & set(stage.after):
                gone.add(stage)
                shutil.rmtree(self._plan.out / stage.name, ignore_errors=True)
                self.stamps.pop(stage.name, None)
        self.save()


def table(plan: Plan) -> list[str]:
    """Return a line for each stage: its state, and how long it took or is expected to take."""
    lines, record = [f"{'stage':16s} {'state':14s} {'minutes':>8s}  command"], Record(plan)
    left = 0.0
    for stage in plan.stages:
        now, minutes = record.state(stage), f"~{stage.minutes:.1f}"
        if now == "done":
            minutes = f"{record.stamps[stage.name].seconds / 60:.1f}"
        else:
            left += stage.minutes
        lines.append(f"{stage.name:16s} {now:14s} {minutes:>8s}  {' '.join(words_of(plan, stage))}")
    lines.append(f"about {left:.0f} minutes are left, at the speeds of earlier runs on two shared CPU cores")
    return lines


def run(plan: Plan, device: str = "cpu", first: str = "") -> None:
    """Run all stages that are not done; `first` names one that is made anew, with all that build on it.

    Raises ValueError, in one sentence, for a stage of other settings and for one that fails.
    """
    plan.out.mkdir(parents=True, exist_ok=True)
    record = Record(plan)
    if first:
        record.clear(plan.named(first))
    for stage in plan.stages:
        if record.state(stage) == "other settings":
            raise ValueError(f"{plan.out / stage.name} is {_difference(stage, record.stamps[stage.name])}: give --from "
                             f"{stage.name} to make it and all that builds on it anew, or another --out")  # fmt: skip
    for number, stage in enumerate(plan.stages, start=1):
        head, now = f"[{number}/{len(plan.stages)}] {stage.name}", record.state(stage)
        if now == "done":
            print(f"{head}: done before, {record.stamps[stage.name].seconds / 60:.1f} minutes", flush=True)
            continue
        print(f"{head}: {'goes on' if now == 'begun' else 'begins'}, about {stage.minutes:.1f} minutes on two CPU "
              "cores in all", flush=True)  # fmt: skip
        _run_stage(plan, stage, record, machine(device))
        print(f"{head}: done, {record.stamps[stage.name].seconds / 60:.1f} minutes", flush=True)


def _run_stage(plan: Plan, stage: Stage, record: Record, where: str) -> None:
    """Run a stage's command, and note how long it took. Raises ValueError where it fails."""
    settings.write_values(plan.settings_of(stage), _settings_path(plan, stage))
    stamp = record.stamps.setdefault(stage.name, Stamp(stage.identity, dict(stage.settings), where))
    stamp.machine, stamp.done = where, False
    stamp.runs += 1
    record.save()
    process, begun = subprocess.Popen(command_of(plan, stage)), time.monotonic()
    try:
        process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        stamp.seconds += time.monotonic() - begun
        stamp.done = process.returncode == 0
        record.save()
    if not stamp.done:
        raise ValueError(f"stage {stage.name} ended with status {process.returncode}, its message stands above; the "
                         "same command goes on there")  # fmt: skip


def words_of(plan: Plan, stage: Stage) -> list[str]:
    """Return the words of a stage's command; where it runs depends on the machine."""
    words = [*stage.command.split(), "--config", str(_settings_path(plan, stage))]
    if stage.command == "data":
        words += ["--processes", str(cores())]
    elif "device" in stage.kind.__struct_fields__ and stage.command != "profile-verifier":
        words += ["--device", "cuda" if plan.gpus else "cpu"]
    return words


def command_of(plan: Plan, stage: Stage) -> list[str]:
    """Return the command line of a stage."""
    processes = plan.processes_of(stage)
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [sys.executable, *(several if processes > 1 else []), "-m", "adapters_training", *words_of(plan, stage)]


def _difference(stage: Stage, stamp: Stamp) -> str:
    for name in sorted({*stage.settings, *stamp.settings}):
        if stage.settings.get(name) != stamp.settings.get(name):
            there, now = stamp.settings.get(name), stage.settings.get(name)
            return f"of other settings ({name}: {there} there, {now} now)"
    return "made of something else (an earlier stage was another)"


def _settings_path(plan: Plan, stage: Stage) -> Path:
    return plan.out / SETTINGS / f"{stage.name}.yaml"


def shipped(plan: Plan) -> dict[str, list[Path]]:
    """Return the files that ship, by folder. Raises ValueError where there are none of a name."""
    parts: dict[str, list[Path]] = {}
    for name, patterns in plan.recipe.ships.items():
        parts[name] = []
        for pattern in map(plan.placed, patterns):
            found = sorted(path for path in Path(pattern).parent.glob(Path(pattern).name) if path.is_file())
            if not found:
                raise ValueError(f"{pattern} is missing: run the recipe to its end before --export")
            parts[name] += found
    return parts


def export(plan: Plan, folder: Path) -> str:
    """Copy what ships into `folder`, each model's folder whole or not at all; return a sentence about it.

    Raises ValueError, before anything is copied, for stages that are missing.
    """
    record = Record(plan)
    unfinished = [stage.name for stage in plan.stages if record.state(stage) != "done"]
    if unfinished:
        raise ValueError(f"--export: {', '.join(unfinished)} not done: run the recipe to its end first")
    parts = shipped(plan)
    size = sum(path.stat().st_size for part in parts.values() for path in part)
    for name, paths in parts.items():
        fresh = folder / f"{name}.part"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for path in paths:
            shutil.copyfile(path, fresh / path.name)
        shutil.rmtree(folder / name, ignore_errors=True)
        fresh.rename(folder / name)
    return f"{folder}: {', '.join(parts)}; {size / 1e6:.1f} MB"


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
    line.add_argument("--plan", action="store_true", help="print the stages, their state and minutes; run nothing")
    line.add_argument("--quick", action="store_true", help="make everything tiny: to try the way, of no use")
    line.add_argument("--from", dest="first", default="", metavar="STAGE",
                      help="remove what this stage and all that build on it have made, and make it anew")  # fmt: skip
    line.add_argument("--export", type=path_flag, metavar="FOLDER", help="at the end copy what ships into this folder")
    line.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    """Run or plan the recipe. Raises ValueError, in one sentence, for what cannot be run."""
    if options.quick and options.export:
        raise ValueError("--quick makes models of no use: leave --export out")
    device = devices.chosen(Device(options.device))
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    plan = Plan(options.config, options.out, gpus, options.quick)
    if options.first:
        plan.named(options.first)
    if options.plan:
        print("\n".join(table(plan)))
        return 0
    run(plan, str(device), options.first)
    if options.export:
        print(export(plan, options.export))
        print(f"the sample bag: python -m vlm_nav_evaluation record --out {options.export / 'sample_bag'}")
    return 0
