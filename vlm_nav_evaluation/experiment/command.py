"""An experiment as a command: its common options, its errors in one sentence, its results in words and as JSON."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spec_vlm_nav.graph import PROJECT
from speculation.links import load_link
from speculation.predictor import OFF
from speculation.processes import terminable
from speculation.profiles import load_profile
from speculation.settings import path_flag
from vlm_nav_evaluation.experiment.questions import add_questions, in_words
from vlm_nav_evaluation.experiment.run import Run
from vlm_nav_evaluation.journal import Journal
from vlm_nav_evaluation.setting import (
    add_drafting,
    add_fed_head,
    add_link,
    add_pair,
    add_predictor,
    add_profile,
    drafted_as,
    machine,
)

RESULTS = PROJECT / "benchmarks" / "results"
NOT_SETTINGS = ("save", "out", "trace", "journal", "restart", "action", "command", "run")
"""Options that do not change what is measured."""


def command_line(module: str, doc: str | None, **more: Any) -> argparse.ArgumentParser:
    """Return the parser of `python -m MODULE` with the module's docstring as its help."""
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=f"python -m {module}", description=doc, formatter_class=form, **more)


def experiment_line(
    module: str,
    doc: str | None,
    steps: int | None,
    *,
    steps_default: str = "",
    journal: bool = True,
    profile: str = "",
    link: bool = False,
    modes: Sequence[str] = (),
    chosen: Sequence[str] = (),
    drafting: bool = False,
    predictor: bool = False,
    dtype: str = "float32",
    save: bool = True,
    **more: Any,
) -> argparse.ArgumentParser:
    """Return `command_line` with the options of an experiment that asks a pair of models.

    steps, profile, dtype: defaults; without a profile there is no such option. steps_default: words for a number of
    steps that depends on other options. modes, chosen: the choices of --modes and its default.
    """
    line = command_line(module, doc, **more)
    add_pair(line)
    if profile:
        add_profile(line, profile)
    if link:
        add_link(line)
    frames = f"frames, each answered by every arm (default: {steps_default or steps})"
    line.add_argument("--steps", type=int, default=steps, help=frames)
    if journal:
        kept = "keep every answer in this folder, to go on after an interruption"
        line.add_argument("--journal", type=path_flag, metavar="DIR", help=kept)
        line.add_argument("--restart", action="store_true", help="throw away what --journal holds")
    if modes:
        shown = "modes to compare (default: %(default)s)"
        line.add_argument("--modes", nargs="+", default=list(chosen or modes), choices=modes, help=shown)
    if drafting:
        add_drafting(line)
        add_fed_head(line)
    if predictor:
        add_predictor(line)
    add_questions(line, dtype)
    if save:
        add_save(line)
    return line


def main_of(
    parser: Callable[[], argparse.ArgumentParser],
    run: Callable[[argparse.Namespace], int | None],
    arguments: Sequence[str] | None = None,
) -> int:
    """Parse a command line and run it. Returns its exit code; 2 after one sentence on stderr, 130 if interrupted."""
    line = parser()
    options = line.parse_args(arguments)
    name = line.prog.rpartition(".")[2]
    try:
        steps = getattr(options, "steps", None)
        if steps is not None and steps < 1:
            raise ValueError(f"--steps {steps}: give at least 1")
        with terminable():
            return run(options) or 0
    except (ValueError, RuntimeError, OSError) as error:
        print(f"{name}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted; with --journal the same command goes on", file=sys.stderr)
        return 130


def add_save(line: argparse._ActionsContainer) -> None:
    """Register --save."""
    line.add_argument("--save", action="store_true", help="write the figures to benchmarks/results/")


def journal_of(options: argparse.Namespace) -> Journal | None:
    """Return the journal that --journal names, if it does. Raises ValueError for one with other settings."""
    folder: Path | None = getattr(options, "journal", None)
    return Journal(folder, "answers", settings_of(options), options.restart) if folder is not None else None


def described(options: argparse.Namespace) -> str:
    """Return what is measured under which declared conditions, in one line, as the options have it."""
    parts = [f"{options.steps} frames ({options.frames})"]
    if hasattr(options, "profile"):
        profile = load_profile(options.profile)
        delays = "no declared delays" if profile.is_raw else f"declared delays: {profile.scale}"
        parts.append(f"profile {profile.name} ({delays})")
    if getattr(options, "link", ""):
        link = load_link(options.link)
        parts.append(f"link {link.name} ({link.scale})")
    if getattr(options, "rtt_ms", None) is not None:
        parts.append(f"round trip {options.rtt_ms:g} ms in place of the profile's")
    return ", ".join([*parts, options.dtype, *([drafted_as(options)] if hasattr(options, "gamma") else [])])


def ratio_lines(run: Run, pairs: Sequence[tuple[str, str]]) -> str:
    """Return, for pairs of a slow and a fast arm, how many times faster the latter is, frame by frame."""
    lines = []
    for slow, fast in pairs:
        (low, middle, high), ratios = run.times_faster(slow, fast), run.ratios(slow, fast)
        lines.append(
            f"{fast} against {slow}, frame by frame: {middle:.2f}x in the median (95 % interval {low:.2f} to "
            f"{high:.2f}; {min(ratios):.2f} to {max(ratios):.2f})"
        )
    return "\n".join(lines)


def settings_of(options: argparse.Namespace, *outputs: str) -> dict[str, str]:
    """Return the settings of a run: all options but `NOT_SETTINGS` and `outputs`, paths relative to the project."""

    def shown(value: object) -> str:
        inside = isinstance(value, Path) and value.is_absolute() and value.is_relative_to(PROJECT)
        return str(value.relative_to(PROJECT) if isinstance(value, Path) and inside else value)

    return {name: shown(value) for name, value in vars(options).items() if name not in (*NOT_SETTINGS, *outputs)}


def result_name(base: str, source: str) -> str:
    """Return the name of a benchmark's results: those of text never overwrite those of frames."""
    return f"{base}_text" if in_words(source) else base


def finish(options: argparse.Namespace, base: str, data: Mapping[str, Any], run: Run | None = None) -> None:
    """Print the machine; with --save, write `data` with settings and machine, and every step's time of a run.

    The result's name is `base` with the source, fed head, profile, link, round trip and dtype of the options.
    """
    print(measured_on := machine())
    if not options.save:
        return
    rtt_ms = getattr(options, "rtt_ms", None)
    trip = "" if rtt_ms is None else f"rtt_{rtt_ms:g}_ms"
    drafter = "" if getattr(options, "fed_head", OFF) == OFF else "fed_head"
    cores = getattr(options, "cores", "free")
    placed = "" if str(cores) == "free" else f"cores_{cores}"
    parts = [drafter, placed, getattr(options, "profile", ""), getattr(options, "link", ""), trip, options.dtype]
    measured: dict[str, Any] = {}
    if run is not None:
        times = {arm: [round(seconds, 4) for seconds in run.seconds(arm)] for arm in run.answers}
        measured = {"frames_with_different_tokens": run.different, "step_s": times}
    name = "_".join([result_name(base, options.frames), *filter(None, parts)])
    write_result(name, {"settings": settings_of(options), "machine": measured_on, **data, **measured})


def write_result(name: str, data: Mapping[str, Any]) -> None:
    """Write benchmarks/results/NAME.json and print its path. Raw and declared times need different names."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    text = re.sub(r"\[\n\s*([^\[\]{}]*?)\n\s*\]", _on_one_line, json.dumps(data, indent=1))
    path.write_text(text + "\n", encoding="utf-8")
    print(f"saved {path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path}")


def _on_one_line(numbers: re.Match[str]) -> str:
    return "[" + re.sub(r",\n\s*", ", ", numbers[1]) + "]"
