"""An experiment as a command: its common options, its errors in one sentence, its results in words and as JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from speculation.links import load_link
from speculation.predictor import OFF
from speculation.profiles import load_profile
from speculation.settings import CommandLine, path_flag
from speculation.worker_processes import terminable
from vlm_nav_evaluation.experiment.mmspec import is_mmspec
from vlm_nav_evaluation.experiment.prompts import in_words
from vlm_nav_evaluation.experiment.questions import add_questions
from vlm_nav_evaluation.experiment.run import Run
from vlm_nav_evaluation.journal import Journal
from vlm_nav_evaluation.options import add_edge_flags, add_gamma, add_pair, drafted_as, several
from vlm_nav_evaluation.results import provenance, settings_of, write_result


def command_line(module: str, doc: str | None) -> argparse.ArgumentParser:
    """Return the parser of `python -m MODULE` with the module's docstring as its help."""
    form = argparse.RawDescriptionHelpFormatter
    return CommandLine(prog=f"python -m {module}", description=doc, formatter_class=form)


def experiment_line(
    module: str, doc: str | None, steps: int, edge: Sequence[str] = (), quick_steps: int = 0, **defaults: Any
) -> argparse.ArgumentParser:
    """Return `command_line` with the options of an experiment that asks a pair of models.

    steps, quick_steps: the default of --steps; with the latter it is None, and the command takes the one of the two.
    edge: settings of `EdgeConfig` that are options too, some with `defaults` of their own; --gamma goes with drafting.
    """
    line = command_line(module, doc)
    add_pair(line)
    dtype = defaults.pop("dtype", "float32")
    add_edge_flags(line, *edge, **defaults)
    if "drafting" in edge:
        add_gamma(line)
    fewer = f", with --quick {quick_steps}" if quick_steps else ""
    shown = f"frames, each answered by every arm (default: {steps}{fewer})"
    line.add_argument("--steps", type=int, default=None if quick_steps else steps, help=shown)
    add_questions(line, dtype)
    return line


def add_journal(
    line: argparse.ArgumentParser, kept: str = "keep every answer in this folder, to go on after an interruption"
) -> None:
    """Register --journal and --restart."""
    line.add_argument("--journal", type=path_flag, metavar="DIR", help=kept)
    line.add_argument("--restart", action="store_true", help="throw away what --journal holds")


def add_modes(line: argparse.ArgumentParser, modes: Sequence[str], chosen: Sequence[str] = ()) -> None:
    """Register --modes; `chosen` are the default, where that is not all of them."""
    default = list(chosen or modes)
    shown = f"modes to compare, of {','.join(modes)} (default: {','.join(default)})"
    line.add_argument("--modes", type=several(modes), default=default, help=shown)


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
        for option in ("steps", "rounds"):
            count = getattr(options, option, None)
            if count is not None and count < 1:
                raise ValueError(f"--{option} {count}: give at least 1")
        with terminable():
            return run(options) or 0
    except (ValueError, RuntimeError, OSError) as error:
        print(f"{name}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted; with --journal the same command goes on", file=sys.stderr)
        return 130


def journal_of(options: argparse.Namespace) -> Journal | None:
    """Return the journal that --journal names, if it does. Raises ValueError for one with other settings."""
    folder: Path | None = getattr(options, "journal", None)
    return Journal(folder, "answers", settings_of(options), options.restart) if folder is not None else None


def described(options: argparse.Namespace) -> str:
    """Return what is measured under which declared conditions, in one line, as the options have it."""
    parts = [f"{options.steps} {'samples' if is_mmspec(options.frames) else 'frames'} ({options.frames})"]
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
            f"{high:.2f}; single frames {min(ratios):.2f} to {max(ratios):.2f})"
        )
    return "\n".join(lines)


def result_name(base: str, source: str) -> str:
    """Return the name of a benchmark's results: those of text and of MMSpec never overwrite those of frames."""
    return f"{base}_text" if in_words(source) else f"{base}_mmspec" if is_mmspec(source) else base


def finish(options: argparse.Namespace, base: str, data: Mapping[str, Any], run: Run | None = None) -> None:
    """Print the machine; with --save, write `data` with settings and provenance, and every step's time of a run.

    The result's name is `base` with the source, fed head, cores, profile, link, round trip and dtype of the options.
    """
    about = provenance(options)
    print(about["machine"])
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
    write_result(name, {"settings": settings_of(options), **about, **data, **measured})
