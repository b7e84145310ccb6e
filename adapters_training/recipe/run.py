"""Run the stages of a recipe in their order, so that the same command goes on where a killed one was."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from adapters_training.devices import cores
from adapters_training.files import replacing
from adapters_training.recipe.stages import SETTINGS, Plan, Stage
from speculation.processes import terminable

RECORD_FILE, LOCK_FILE, STAMPS, LOGS = "recipe.json", "lock", "stamps", "logs"
POLL_SECONDS = 0.1
NOTE_SECONDS = 30.0
"""A killed run loses at most so much of the time that it has taken."""
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
    there = all((plan.out / folder).is_dir() for folder in stage.folders)
    return "done" if stamp.done and there else "begun"


def table(plan: Plan, gpu: bool) -> list[str]:
    """Return a line for each stage: its state, and how long it took or is expected to take."""
    lines = [f"{'stage':16s} {'state':14s} {'minutes':>8s}  command"]
    left = 0.0
    for stage in plan.stages:
        now, stamp = state(plan, stage), stamp_of(plan, stage)
        took = now == "done" and stamp is not None
        seconds = stamp.seconds if took and stamp is not None else stage.seconds
        left += 0.0 if took else seconds
        mark = "" if took else "~"
        lines.append(f"{stage.name:16s} {now:14s} {mark + f'{seconds / 60:.1f}':>8s}  {' '.join(stage.command)}")
    lines.append(f"about {left / 60:.0f} minutes are left, at the speeds of earlier runs on two shared CPU cores")
    if gpu:
        lines.append("on a GPU nothing was measured yet: recipe.json will have its times")
    return lines


@dataclass
class _Running:
    """A stage at work."""

    stage: Stage
    stamp: Stamp
    head: str
    process: subprocess.Popen[bytes]
    log: Path | None
    """Where its output goes; None: to the terminal."""
    before: float
    """Seconds of its earlier runs."""
    begun: float

    def note(self, plan: Plan) -> None:
        self.stamp.seconds = self.before + time.monotonic() - self.begun
        _note(plan, self.stage, self.stamp)


def run(plan: Plan, machine: Callable[[], str], first: str = "", jobs: int = 1) -> None:
    """Run all stages that are not done; `first` names one that is made anew, with all that build on it.

    Up to `jobs` stages that take one core run side by side, each with its output in a file. `machine` describes this
    machine as it is now.
    Raises ValueError, in one sentence, for a stage of other settings and for one that fails; what ran beside it ends,
    and goes on with the next call.
    """
    plan.out.mkdir(parents=True, exist_ok=True)
    with _alone(plan.out) as lock, terminable():
        if first:
            _clear(plan, plan.named(first))
        heads = {stage.name: f"[{place}/{len(plan.stages)}] {stage.name}" for place, stage in enumerate(plan.stages, 1)}
        waiting = _unfinished(plan, heads)
        running: list[_Running] = []
        try:
            while waiting or running:
                while (stage := _next(waiting, running, jobs)) is not None:
                    waiting.remove(stage)
                    threads = max(1, cores() // jobs) if jobs > 1 and stage.beside else 0
                    running.append(_start(plan, stage, heads[stage.name], lock, machine, threads))
                ended = _ended(plan, running)
                running = [each for each in running if each not in ended]
                _finish(plan, ended, machine)
        finally:
            _stop(plan, running, machine)


def _unfinished(plan: Plan, heads: Mapping[str, str]) -> list[Stage]:
    """Return the stages that are to run, in their order. Raises ValueError for one of other settings."""
    unfinished = []
    for stage in plan.stages:
        now, stamp = state(plan, stage), stamp_of(plan, stage)
        if now == "other settings" and stamp is not None:
            raise ValueError(f"{plan.out / stage.name} is {_difference(stage, stamp)}: give --from {stage.name} to "
                             "make it and all that builds on it anew, or another --out")  # fmt: skip
        if now == "done" and stamp is not None:
            print(f"{heads[stage.name]}: done before, {stamp.seconds / 60:.1f} minutes", flush=True)
        else:
            unfinished.append(stage)
    return unfinished


def _next(waiting: Sequence[Stage], running: Sequence[_Running], jobs: int) -> Stage | None:
    """Return the stage to start now: the first whose inputs are there and that may run beside those at work."""
    missing = {stage.name for stage in (*waiting, *(each.stage for each in running))}
    for stage in waiting:
        fits = not running or (len(running) < jobs and stage.beside and all(each.stage.beside for each in running))
        if fits and not any(before.name in missing for before in stage.after):
            return stage
    return None


def _start(
    plan: Plan, stage: Stage, head: str, lock: int, machine: Callable[[], str], threads: int
) -> _Running:  # fmt: skip
    """Start a stage; with `threads` so many are its share of the machine, and its output goes to a file."""
    begun = state(plan, stage) == "begun"
    log = plan.out / LOGS / f"{stage.name}.log" if threads else None
    print(f"{head}: {'goes on' if begun else 'begins'}, about {stage.seconds / 60:.1f} minutes on two CPU cores in all"
          f"{f'; its output: {log}' if log is not None else ''}", flush=True)  # fmt: skip
    path = plan.out / SETTINGS / f"{stage.name}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(msgspec.yaml.encode(stage.file))
    fresh, known = Stamp(stage.identity, dict(stage.settings), machine()), stamp_of(plan, stage)
    stamp = known if known is not None and begun else fresh
    stamp.done = False
    stamp.runs += 1
    _note(plan, stage, stamp)
    # What a stage starts holds the lock too, so that no second recipe runs beside one that a dead recipe left.
    if log is None:
        process = subprocess.Popen(command_of(stage), pass_fds=(lock,))
    else:
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as file:
            share = os.environ | {"OMP_NUM_THREADS": str(threads)}
            process = subprocess.Popen(command_of(stage), stdout=file, stderr=file, pass_fds=(lock,), env=share)
    return _Running(stage, stamp, head, process, log, stamp.seconds, time.monotonic())


def _ended(plan: Plan, running: Sequence[_Running]) -> list[_Running]:
    """Return the stages that have ended, once there is one."""
    noted = time.monotonic()
    while not (ended := [each for each in running if each.process.poll() is not None]):
        time.sleep(POLL_SECONDS)
        if time.monotonic() - noted >= NOTE_SECONDS:
            noted = time.monotonic()
            for each in running:
                each.note(plan)
    return ended


def _finish(plan: Plan, ended: Sequence[_Running], machine: Callable[[], str]) -> None:
    """Note how stages ended. Raises ValueError for one that failed, once all are noted."""
    for each in ended:
        each.stamp.machine, each.stamp.done = machine(), each.process.returncode == 0
        each.note(plan)
        if each.stamp.done:
            print(f"{each.head}: done, {each.stamp.seconds / 60:.1f} minutes", flush=True)
    for each in ended:
        if not each.stamp.done:
            where = "above" if each.log is None else f"in {each.log}"
            raise ValueError(f"stage {each.stage.name} ended with status {each.process.returncode}, its message stands "
                             f"{where}; the same command goes on there")  # fmt: skip


def _stop(plan: Plan, running: Sequence[_Running], machine: Callable[[], str]) -> None:
    """End what still runs; its next run goes on there."""
    for each in running:
        each.process.terminate()
    for each in running:
        try:
            each.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            each.process.kill()
            each.process.wait()
        each.stamp.machine = machine()
        each.note(plan)


def command_of(stage: Stage) -> list[str]:
    """Return the command line of a stage."""
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(stage.processes)]
    return [sys.executable, *(several if stage.processes > 1 else []), "-m", "adapters_training", *stage.command]


def _note(plan: Plan, stage: Stage, stamp: Stamp) -> None:
    """Write the stage's stamp, and recipe.json for the model card."""
    path = _stamp_path(plan, stage)
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as file:
        file.write_bytes(msgspec.json.encode(stamp))
    known = [(each, stamp_of(plan, each)) for each in plan.stages]
    rows = [
        {"stage": each.name, "seconds": round(found.seconds, 1), "runs": found.runs, "done": found.done,
         "machine": found.machine, "command": " ".join(each.command)}
        for each, found in known if found is not None and found.identity == each.identity
    ]  # fmt: skip
    with replacing(plan.out / RECORD_FILE) as file:
        file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _clear(plan: Plan, first: Stage) -> None:
    """Remove what a stage has made, and all that builds on it."""
    gone = [first.name]
    for stage in plan.stages:
        if stage.name != first.name and not any(each.name in gone for each in stage.after):
            continue
        gone.append(stage.name)
        for folder in stage.folders:
            shutil.rmtree(plan.out / folder, ignore_errors=True)
        _stamp_path(plan, stage).unlink(missing_ok=True)


def _difference(stage: Stage, stamp: Stamp) -> str:
    own: dict[str, Any] = json.loads(msgspec.json.encode(stage.settings))
    for name in sorted({*own, *stamp.settings}):
        if own.get(name) != stamp.settings.get(name):
            return f"of other settings ({name}: {stamp.settings.get(name)} there, {own.get(name)} now)"
    return "made of something else (an earlier stage or the code's sizes were others)"


def _stamp_path(plan: Plan, stage: Stage) -> Path:
    return plan.out / STAMPS / f"{stage.name}.json"


@contextmanager
def _alone(out: Path) -> Iterator[int]:
    with (out / LOCK_FILE).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"--out {out}: another recipe, or a stage that it left, still runs there") from None
        yield file.fileno()


WEIGHTS = ".safetensors"
EXIT_FILES = ("exits.json", "exits.safetensors", "measured.json", "selection.json")
FED_FILES = ("fed_head.json", "fed_encoder.safetensors", "fed_head.safetensors", "results.json")
DRAFT_FILES = ("predictor.json", "predictor.safetensors")
COST_FILES = ("pass_cost.json", "pass_cost.png")


def shipped(plan: Plan) -> dict[str, list[Path]]:
    """Return the files that ship, by folder. Raises ValueError where one is not there."""
    parts: dict[str, Sequence[Path]] = {
        "target": [*sorted(plan.model(plan.target).glob("*")), *_within(plan.folder(plan.pass_cost), COST_FILES)],
        "draft": [*sorted(plan.model(plan.draft).glob("*")), *_within(plan.folder(plan.predictor), DRAFT_FILES)],
        "exits": _within(plan.folder(plan.exits), EXIT_FILES),
        "fed_head": _within(plan.folder(plan.fed_head), FED_FILES),
    }
    for path in (path for part in parts.values() for path in part):
        if not path.is_file():
            raise ValueError(f"{path} is missing: run the recipe to its end before --export")
    return {name: list(part) for name, part in parts.items()}


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


def _within(folder: Path, names: Sequence[str]) -> list[Path]:
    return [folder / name for name in names]
