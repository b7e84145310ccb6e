"""An experiment as a command: its common options, its errors in one sentence, its results as JSON."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.experiment.questions import in_words
from evaluation.experiment.run import Run
from evaluation.journal import Journal
from evaluation.setting import machine
from spec_vlm_nav.graph import PROJECT

RESULTS = PROJECT / "benchmarks" / "results"
NOT_SETTINGS = ("save", "out", "trace", "journal", "action", "command", "run", "own_steps")
"""Options that do not change what is measured."""


def command_line(module: str, doc: str | None) -> argparse.ArgumentParser:
    """Return the parser of `python -m benchmarks.MODULE`; the first line of `doc` describes it."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


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
        return run(options) or 0
    except (ValueError, RuntimeError, OSError) as error:
        print(f"{name}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted; with --journal the same command goes on", file=sys.stderr)
        return 130


def add_steps(line: argparse.ArgumentParser, count: int, what: str = "frames, each answered by every arm") -> None:
    """Register --steps and --journal."""
    line.add_argument("--steps", type=int, default=count, help=f"{what} (default: %(default)s)")
    line.add_argument(
        "--journal", type=Path, metavar="DIR", help="keep every answer in this folder, to go on after an interruption"
    )


def add_save(line: argparse._ActionsContainer) -> None:
    """Register --save."""
    line.add_argument("--save", action="store_true", help="write the figures to benchmarks/results/")


def journal_of(options: argparse.Namespace, name: str) -> Journal | None:
    """Return the journal that --journal names, if it does. Raises ValueError for one with other settings."""
    folder: Path | None = getattr(options, "journal", None)
    return Journal(folder, name, settings_of(options)) if folder is not None else None


def settings_of(options: argparse.Namespace, *outputs: str) -> dict[str, str]:
    """Return the settings of a run: all options but `NOT_SETTINGS` and `outputs`, paths relative to the project."""

    def shown(value: object) -> str:
        inside = isinstance(value, Path) and value.is_absolute() and value.is_relative_to(PROJECT)
        return str(value.relative_to(PROJECT) if isinstance(value, Path) and inside else value)

    return {name: shown(value) for name, value in vars(options).items() if name not in (*NOT_SETTINGS, *outputs)}


def result_name(base: str, source: str) -> str:
    """Return the name of a benchmark's results: those of text never overwrite those of frames."""
    return f"{base}_text" if in_words(source) else base


def save_run(options: argparse.Namespace, name: str, run: Run, **more: Any) -> None:
    """Write a run where --save was given: settings, machine, figures of all arms, every step's time, and `more`.

    name: of the result, after `result_name`'s rule.
    """
    if not options.save:
        return
    figures = {"figures": more.pop("figures")} if "figures" in more else {"figures": run.figures()}
    data = {
        "settings": settings_of(options),
        "machine": machine(),
        "frames_with_different_tokens": run.different,
        **figures,
        **more,
        "step_s": {arm: [round(seconds, 4) for seconds in run.seconds(arm)] for arm in run.answers},
    }
    write_result(name, data)


def write_result(name: str, data: Mapping[str, Any]) -> None:
    """Write benchmarks/results/NAME.json and print its path. Raw and declared times need different names."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    text = re.sub(r"\[\n\s*([^\[\]{}]*?)\n\s*\]", _on_one_line, json.dumps(data, indent=1))
    path.write_text(text + "\n", encoding="utf-8")
    print(f"saved {path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path}")


def _on_one_line(numbers: re.Match[str]) -> str:
    return "[" + re.sub(r",\n\s*", ", ", numbers[1]) + "]"
