"""What virtual time runs on: a synthetic recording, or what a pair of models predicts on held-out frames.

`python -m benchmarks.recordings --out FILE.npz` records a pair; `tune` and `ablation` do that where none is there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from spec_vlm_nav.graph import PROJECT
from speculation.predictor import AUTO
from speculation.vlm.folder import folder_fingerprint
from vlm_nav_evaluation.experiment.command import command_line, main_of
from vlm_nav_evaluation.experiment.prompts import in_words
from vlm_nav_evaluation.experiment.questions import add_questions, asked_of, check_prompts
from vlm_nav_evaluation.options import MEASURED_ORDER, add_edge_flags, add_pair
from vlm_nav_evaluation.results import machine, settings_of
from vlm_nav_evaluation.virtual_time import Recording, Synthetic
from vlm_nav_evaluation.virtual_time.timings import COST_HELP, DEFAULT_COST

EMBEDDED = PROJECT / "out" / "embedded.npz"
COUNT, QUICK_COUNT = 40, 8
"""Frames of the embedded pair that are recorded where there is no recording; no command needs more by itself."""
VIRTUAL = "virtual time: every forward, message and prefill takes the time that is declared for it"
PROMPTING = ("frames", "seed", "response_order", "guide", "max_tokens", "dtype")
"""Options that shape what is recorded, beside the models."""


def add_recording(line: argparse.ArgumentParser) -> None:
    """Register --recording and what making it needs."""
    line.add_argument(
        "--recording", type=Path,
        help=f"file of `python -m benchmarks.recordings`; {COUNT} frames are recorded into it where it is "
        f"missing (default: {EMBEDDED.relative_to(PROJECT)})",
    )  # fmt: skip
    add_pair(line)
    add_questions(line)


def add_source(line: argparse.ArgumentParser) -> None:
    """Register --recording, --synthetic and --steps."""
    line.add_argument("--recording", type=Path, help="file of `python -m benchmarks.recordings`")
    line.add_argument("--synthetic", metavar="NAME=VALUE,...", help=fields_help(Synthetic(), "synthetic recording"))
    line.add_argument("--steps", type=int, help="steps (default: 20 synthetic ones, all recorded ones)")


def add_cost(line: argparse.ArgumentParser) -> None:
    """Register --cost, as `load_timings` has it."""
    line.add_argument("--cost", default=DEFAULT_COST, metavar="FILE|NAME", help=f"on virtual time, {COST_HELP}")


def fields_help(defaults: Any, what: str) -> str:
    """Return a help text that names the fields of a frozen declaration with their defaults."""
    shown = ", ".join(f"{each.name}={getattr(defaults, each.name)}" for each in fields(defaults))
    return f"{what}: {shown}; values of a list are joined by +".replace("%", "%%")


def changed(declaration: Any, text: str, flag: str) -> Any:
    """Return a frozen declaration with NAME=VALUE,... changed. Raises ValueError, naming flag and field."""
    known = {each.name: getattr(declaration, each.name) for each in fields(declaration)}
    changes: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in known:
            raise ValueError(f"{flag}: {name!r} is unknown; choose {', '.join(known)}")
        like = known[name]
        try:
            if isinstance(like, tuple) or ("+" in value and not isinstance(like, str)):
                number: Callable[[str], Any] = int if isinstance(like, tuple) and "." not in value else float
                changes[name] = tuple(number(each) for each in value.split("+"))
            else:
                changes[name] = type(like)(value)
        except ValueError:
            raise ValueError(f"{flag}: {name}={value} is no number, nor numbers joined by +") from None
    return replace(declaration, **changes)


def source(options: argparse.Namespace) -> Recording:
    """Return the recording of --recording, or a synthetic one. Raises ValueError where it has not as many steps."""
    if options.recording is None:
        synthetic: Synthetic = changed(Synthetic(), options.synthetic or "", "--synthetic")
        return synthetic.draw(options.steps or 20)
    if options.synthetic:
        raise ValueError("--synthetic and --recording: choose one")
    if not options.recording.exists():
        make = f"python -m benchmarks.recordings --out {options.recording}"
        raise ValueError(f"--recording {options.recording} is missing; make it of the embedded pair: {make}")
    recording = Recording.load(options.recording)
    if options.steps is not None and options.steps > len(recording.steps):
        raise ValueError(f"--steps {options.steps}: {options.recording} has {len(recording.steps)}")
    return replace(recording, steps=recording.steps[: options.steps])


def of_recording(recording: Recording) -> dict[str, Any]:
    """Return what a result says about its recording: which pair of models answered, none where it is synthetic."""
    notes = dict(recording.notes)
    return {"pair": {name: notes[name] for name in ("target", "draft") if name in notes}, "source": notes}


def recorded(options: argparse.Namespace, count: int) -> Recording:
    """Return the first `count` recorded steps of the options' pair; a missing recording is made first.

    So is the default one where it does not fit the options. Raises ValueError, in one sentence, for a named file that
    does not.
    """
    path, pair = recording_file(options), check_pair(options)
    why = misfit(Recording.load(path), options, pair, count) if path.exists() else "is missing"
    if why and options.recording is not None and path.exists():
        raise ValueError(f"--recording {path} {why}; name another file, it will be recorded")
    if why:
        frames = max(QUICK_COUNT if options.quick else COUNT, count)
        print(f"recording {frames} frames into {path}")
        write_recording(options, path, frames)
    recording = Recording.load(path)
    return replace(recording, steps=recording.steps[:count])


def recording_file(options: argparse.Namespace) -> Path:
    """Return the recording of the options' pair and order of answers."""
    if options.recording is not None:
        return Path(options.recording)
    other = "" if options.response_order == MEASURED_ORDER else f"_{options.response_order}"
    return EMBEDDED.with_name(f"{EMBEDDED.stem}{other}.npz")


def misfit(recording: Recording, options: argparse.Namespace, pair: Mapping[str, str], count: int) -> str:
    """Return why a recording is not that of the options, or too short; empty where it is."""
    for model, fingerprint in pair.items():
        if recording.notes.get(model) != fingerprint:
            return f"is about another {model} model"
    settings = recording.notes.get("settings", {})
    for name in PROMPTING:
        if str(settings.get(name, getattr(options, name))) != str(getattr(options, name)):
            return f"was recorded with --{name.replace('_', '-')} {settings[name]}"
    return f"has {len(recording.steps)} steps, {count} are needed" if count > len(recording.steps) else ""


def check_pair(options: argparse.Namespace) -> dict[str, str]:
    """Return the fingerprints of target and draft. Raises ValueError, naming the option, for no model folder."""
    found = {}
    for model in ("target", "draft"):
        folder = getattr(options, f"{model}_model")
        try:
            found[model] = folder_fingerprint(folder)
        except (OSError, ValueError) as error:
            raise ValueError(f"--{model}-model {folder}: {' '.join(str(error).split())}") from None
    return found


def write_recording(options: argparse.Namespace, path: Path, count: int) -> None:
    """Record `count` of the options' questions into a file. Raises ValueError for models that cannot be used."""
    from vlm_nav_evaluation.virtual_time.record import Models, record  # torch, late: virtual time needs none

    asked = asked_of(options, count)
    models = Models.load(
        options.target_model, options.draft_model, getattr(options, "exits", None),
        getattr(options, "predictor", AUTO), options.dtype, in_words(options.frames),
    )  # fmt: skip
    check_prompts(models.target, asked, options.max_tokens)
    recording = record(models, asked, options.max_tokens)
    notes = {"settings": settings_of(options, "recording"), "machine": machine()}
    replace(recording, notes={**recording.notes, **notes}).save(path)
    tokens = [token for step in recording.steps for token in step.tokens]
    drafted = [token for step in recording.steps for token in step.draft_tokens[:, 0].tolist()]
    right = sum(map(int.__eq__, tokens, drafted)) / len(tokens)
    print(
        f"{len(recording.steps)} steps, {len(tokens)} tokens, exits after {list(recording.exit_layers) or 'none'}, the "
        f"draft's likeliest token is right in {right:.1%}: {path}, {path.stat().st_size} bytes"
    )


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command_line("benchmarks.recordings", __doc__)
    add_pair(line)
    line.add_argument("--exits", type=Path, help="folder of exit heads (default: as the verifier finds them)")
    add_edge_flags(line, "predictor")
    add_questions(line)
    line.add_argument("--count", type=int, default=200, help="frames (default: 200)")
    line.add_argument("--out", type=Path, required=True, help="the file, .npz")
    return line


def run(options: argparse.Namespace) -> None:
    """Write a recording. Raises ValueError, naming the option, for a count or a name that cannot be used."""
    if options.count < 1:
        raise ValueError(f"--count {options.count}: give at least 1")
    if options.out.suffix != ".npz":
        raise ValueError(f"--out {options.out}: name a .npz file")
    write_recording(options, options.out, options.count)


main = partial(main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
