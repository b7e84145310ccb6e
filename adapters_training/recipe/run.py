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
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from adapters_training import devices
from adapters_training.devices import Device, cores, machine
from adapters_training.files import replacing
from adapters_training.recipe.stages import Plan, Stage
from speculation.settings import path_flag
from speculation.worker_processes import terminable

RECORD_FILE, LOCK_FILE, STAMPS, LOGS, SETTINGS = "recipe.json", "lock", "stamps", "logs", "settings"
WEIGHTS = ".safetensors"
POLL_SECONDS = 0.1
END_SECONDS = 30.0
"""How long a stage has to end by itself when the recipe is interrupted."""
STOPPED = 130
"""Exit status of an interrupted command, as shells have it."""


class Stamp(msgspec.Struct):
    """What is known of a stage: `identity` of what it was begun with, `seconds` in all its runs, whether it ended."""

    identity: str
    settings: dict[str, Any]
    machine: str
    seconds: float = 0.0
    runs: int = 0
    done: bool = False


def stamp_of(plan: Plan, stage: Stage) -> Stamp | None:
    """Return what is known of a stage; None where it never began. Raises ValueError for a file that is no stamp."""
    path = _stamp_path(plan, stage)
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Stamp)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is no stamp of a stage ({error}): give --from {stage.name} to make it anew") from None


def state(plan: Plan, stage: Stage) -> str:
    """Return `done`, `begun`, `to do` or, of another recipe, `other settings`."""
    stamp = stamp_of(plan, stage)
    if stamp is None:
        return "to do"
    if stamp.identity != stage.identity:
        return "other settings"
    return "done" if stamp.done and (not stage.has_folder or (plan.out / stage.name).is_dir()) else "begun"


def table(plan: Plan) -> list[str]:
    """Return a line for each stage: its state, and how long it took or is expected to take."""
    lines = [f"{'stage':16s} {'state':14s} {'minutes':>8s}  command"]
    left = 0.0
    for stage in plan.stages:
        now, stamp = state(plan, stage), stamp_of(plan, stage)
        if now == "done" and stamp is not None:
            minutes = f"{stamp.seconds / 60:.1f}"
        else:
            minutes = f"~{stage.minutes:.1f}"
            left += stage.minutes
        lines.append(f"{stage.name:16s} {now:14s} {minutes:>8s}  {' '.join(words_of(plan, stage))}")
    lines.append(f"about {left:.0f} minutes are left, at the speeds of earlier runs on two shared CPU cores")
    return lines


@dataclass
class _Running:
    """A stage at work; its output goes to a file `log`, or to the terminal."""

    stage: Stage
    stamp: Stamp
    process: subprocess.Popen[bytes]
    log: Path | None
    before: float
    """How many seconds its earlier runs took."""
    begun: float

    def note_end(self, plan: Plan, where: str) -> None:
        self.stamp.seconds = self.before + time.monotonic() - self.begun
        self.stamp.machine, self.stamp.done = where, self.process.returncode == 0
        _note(plan, self.stage, self.stamp)


def run(plan: Plan, describe: Callable[[], str], first: str = "", jobs: int = 1) -> None:
    """Run all stages that are not done; `first` names one that is made anew, with all that build on it.

    Up to `jobs` stages that take one core run side by side, each with its output in a file. `describe` returns what
    this machine is and does. Raises ValueError, in one sentence, for a stage of other settings and for one that fails;
    what ran beside it ends, and goes on with the next call.
    """
    plan.out.mkdir(parents=True, exist_ok=True)
    with _alone(plan.out) as lock, terminable():
        if first:
            _clear(plan, plan.named(first))
        waiting = _unfinished(plan)
        running: list[_Running] = []
        try:
            while waiting or running:
                while (stage := _next(waiting, running, jobs)) is not None:
                    waiting.remove(stage)
                    running.append(_start(plan, stage, lock, describe(), jobs))
                time.sleep(POLL_SECONDS)
                for each in [each for each in running if each.process.poll() is not None]:
                    running.remove(each)
                    each.note_end(plan, describe())
                    _report_end(plan, each)
        finally:
            for each in running:
                each.process.terminate()
            for each in running:
                try:
                    each.process.wait(END_SECONDS)
                except subprocess.TimeoutExpired:
                    each.process.kill()
                    each.process.wait()
                each.note_end(plan, describe())


def _head(plan: Plan, stage: Stage) -> str:
    return f"[{plan.stages.index(stage) + 1}/{len(plan.stages)}] {stage.name}"


def _unfinished(plan: Plan) -> list[Stage]:
    """Return the stages that are to run, in their order. Raises ValueError for one of other settings."""
    unfinished = []
    for stage in plan.stages:
        now, stamp = state(plan, stage), stamp_of(plan, stage)
        if now == "other settings" and stamp is not None:
            raise ValueError(f"{plan.out / stage.name} is {_difference(stage, stamp)}: give --from {stage.name} to "
                             "make it and all that builds on it anew, or another --out")  # fmt: skip
        if now == "done" and stamp is not None:
            print(f"{_head(plan, stage)}: done before, {stamp.seconds / 60:.1f} minutes", flush=True)
        else:
            unfinished.append(stage)
    return unfinished


def _next(waiting: Sequence[Stage], running: Sequence[_Running], jobs: int) -> Stage | None:
    """Return the stage to start now: the first whose inputs are there and that may run beside those at work."""
    missing = {stage.name for stage in (*waiting, *(each.stage for each in running))}
    beside = len(running) < jobs and all(each.stage.is_single_core for each in running)
    for stage in waiting:
        fits = not running or (beside and stage.is_single_core)
        if fits and not any(before.name in missing for before in stage.after):
            return stage
    return None


def _start(plan: Plan, stage: Stage, lock: int, where: str, jobs: int) -> _Running:
    """Start a stage; one that may run beside others has its share of the machine and writes its output to a file."""
    begun = state(plan, stage) == "begun"
    log = plan.out / LOGS / f"{stage.name}.log" if jobs > 1 and stage.is_single_core else None
    print(f"{_head(plan, stage)}: {'goes on' if begun else 'begins'}, about {stage.minutes:.1f} minutes on two CPU "
          f"cores in all{f'; its output: {log}' if log is not None else ''}", flush=True)  # fmt: skip
    path = _settings_path(plan, stage)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(msgspec.yaml.encode(plan.settings_of(stage)))
    fresh, known = Stamp(stage.identity, dict(stage.settings), where), stamp_of(plan, stage)
    stamp = known if known is not None and begun else fresh
    stamp.done = False
    stamp.runs += 1
    _note(plan, stage, stamp)
    # What a stage starts holds the lock too, so that no second recipe runs beside one that a dead recipe left.
    if log is None:
        process = subprocess.Popen(command_of(plan, stage), pass_fds=(lock,))
    else:
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as file:
            share = os.environ | {"OMP_NUM_THREADS": str(max(1, cores() // jobs))}
            process = subprocess.Popen(command_of(plan, stage), stdout=file, stderr=file, pass_fds=(lock,), env=share)
    return _Running(stage, stamp, process, log, stamp.seconds, time.monotonic())


def _report_end(plan: Plan, ended: _Running) -> None:
    """Print that a stage is done. Raises ValueError for one that failed."""
    if not ended.stamp.done:
        where = "above" if ended.log is None else f"in {ended.log}"
        raise ValueError(f"stage {ended.stage.name} ended with status {ended.process.returncode}, its message stands "
                         f"{where}; the same command goes on there")  # fmt: skip
    print(f"{_head(plan, ended.stage)}: done, {ended.stamp.seconds / 60:.1f} minutes", flush=True)


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


def _note(plan: Plan, stage: Stage, stamp: Stamp) -> None:
    """Write the stage's stamp, and recipe.json for the model card."""
    path = _stamp_path(plan, stage)
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as file:
        file.write_bytes(msgspec.json.encode(stamp))
    known = [(each, stamp_of(plan, each)) for each in plan.stages]
    rows = [
        {"stage": each.name, "seconds": round(found.seconds, 1), "runs": found.runs, "done": found.done,
         "machine": found.machine, "command": " ".join(words_of(plan, each))}
        for each, found in known if found is not None and found.identity == each.identity
    ]  # fmt: skip
    with replacing(plan.out / RECORD_FILE) as file:
        file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _clear(plan: Plan, first: Stage) -> None:
    """Remove what a stage has made, and all that builds on it."""
    gone = {first}
    for stage in plan.stages:
        if stage in gone or gone & set(stage.after):
            gone.add(stage)
            shutil.rmtree(plan.out / stage.name, ignore_errors=True)
            _stamp_path(plan, stage).unlink(missing_ok=True)


def _difference(stage: Stage, stamp: Stamp) -> str:
    for name in sorted({*stage.settings, *stamp.settings}):
        if stage.settings.get(name) != stamp.settings.get(name):
            there, now = stamp.settings.get(name), stage.settings.get(name)
            return f"of other settings ({name}: {there} there, {now} now)"
    return "made of something else (an earlier stage was another)"


def _stamp_path(plan: Plan, stage: Stage) -> Path:
    return plan.out / STAMPS / f"{stage.name}.json"


def _settings_path(plan: Plan, stage: Stage) -> Path:
    return plan.out / SETTINGS / f"{stage.name}.yaml"


@contextmanager
def _alone(out: Path) -> Iterator[int]:
    with (out / LOCK_FILE).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"--out {out}: another recipe, or a stage that it left, still runs there") from None
        yield file.fileno()


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

    Raises ValueError, before anything is copied, for weights beyond the recipe's limit and for stages that are missing.
    """
    unfinished = [stage.name for stage in plan.stages if state(plan, stage) != "done"]
    if unfinished:
        raise ValueError(f"--export: {', '.join(unfinished)} not done: run the recipe to its end first")
    parts = shipped(plan)
    sizes = {path: path.stat().st_size for part in parts.values() for path in part}
    weights = sum(size for path, size in sizes.items() if path.suffix == WEIGHTS) / 1e6
    if weights > plan.recipe.weights_mb:
        raise ValueError(
            f"the weights are {weights:.1f} MB, more than weights_mb {plan.recipe.weights_mb:g}: nothing was copied; "
            "train smaller ones, or raise the limit"
        )
    for name, paths in parts.items():
        fresh = folder / f"{name}.part"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for path in paths:
            shutil.copyfile(path, fresh / path.name)
        shutil.rmtree(folder / name, ignore_errors=True)
        fresh.rename(folder / name)
    return f"{folder}: {', '.join(parts)}; {weights:.1f} MB of weights, {sum(sizes.values()) / 1e6:.1f} MB in all"


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
    line.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    """Run or plan the recipe. Raises ValueError, in one sentence, for what cannot be run."""
    if options.quick and options.export:
        raise ValueError("--quick makes models of no use: leave --export out")
    if options.jobs < 1:
        raise ValueError(f"--jobs is {options.jobs}; give at least 1")
    device = devices.chosen(Device(options.device))
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    plan = Plan(options.config, options.out, gpus, options.quick)
    if options.plan:
        if options.first:
            plan.named(options.first)
        print("\n".join(table(plan)))
        return 0
    try:
        run(plan, lambda: machine(str(device)), options.first, options.jobs)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on")
        return STOPPED
    if options.export:
        print(export(plan, options.export))
        print(f"the sample bag: python -m vlm_nav_evaluation record --out {options.export / 'sample_bag'}")
    return 0
