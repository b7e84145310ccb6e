"""Saved results: what every one of them says about itself, and where benchmarks keep theirs."""

from __future__ import annotations

import argparse
import json
import operator
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from spec_vlm_nav.graph import PROJECT
from speculation.machine_info import busy_share, host
from speculation.vlm.folder import folder_fingerprint

RESULTS = PROJECT / "benchmarks" / "results"
BUSY_SHARE, BUSY_S = 0.1, 0.5
"""The share of the processors from which figures are marked, and for how long it is read."""
NOT_SETTINGS = ("save", "busy", "out", "trace", "journal", "restart", "action", "command", "run")
"""Options that do not change what is measured."""
OVER_ALL: dict[str, Callable[[Any], Any]] = {
    "mean": fmean,
    "sum": sum,
    "max": max,
    "below 1": lambda found: fmean(each < 1 for each in found),
}
OPERATIONS = {"/": operator.truediv, "*": operator.mul, "+": operator.add, "-": operator.sub}


def machine() -> str:
    """Return what the figures were measured on, the widest instructions that torch uses there among it."""
    import torch

    instructions = torch.backends.cpu.get_cpu_capability()
    return f"{host()} at the end; Python {platform.python_version()}, torch {torch.__version__}, {instructions}"


def commit() -> str:
    """Return the commit of this checkout; '-' where there is no repository.

    It has a plus where files differ from it, but pages, plots and saved results.
    """
    command = ["git", "describe", "--always", "--exclude=*"]
    found = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    command = ["git", "diff", "--quiet", "HEAD", "--", ".", ":!benchmarks/results", ":!docs", ":!*.md"]
    changed = subprocess.run(command, cwd=PROJECT, capture_output=True, check=False).returncode == 1
    return found.stdout.strip() + ("+" if changed else "") or "-"


def mark_busy(options: argparse.Namespace) -> None:
    """Find out, before times over sockets are measured to be saved, how much of the processors other programs use."""
    if getattr(options, "save", False) and not hasattr(options, "busy"):
        options.busy = round(busy_share(BUSY_S), 2)
        if options.busy > BUSY_SHARE:
            words = f"others use {options.busy:.0%} of the processors: the saved figures are marked with it"
            print(words, file=sys.stderr)


def provenance(options: argparse.Namespace) -> dict[str, Any]:
    """Return what a result has to name: commit, machine, and the fingerprints of the pair of models.

    It has `busy`, a share, where `mark_busy` found that much. Raises ValueError or OSError for a model folder that
    cannot be read.
    """
    folders = {name: getattr(options, f"{name}_model", None) for name in ("target", "draft")}
    pair = {name: folder_fingerprint(Path(folder)) for name, folder in folders.items() if folder}
    about = {"commit": commit(), "machine": machine(), "pair": pair}
    return about | ({"busy": options.busy} if getattr(options, "busy", 0.0) > BUSY_SHARE else {})


def settings_of(options: argparse.Namespace, *outputs: str) -> dict[str, str]:
    """Return the settings of a run: all options but `NOT_SETTINGS` and `outputs`, paths relative to the project.

    A path may stand in a longer word, as in text:PATH.
    """
    left_out = {*NOT_SETTINGS, *outputs}
    inside = rf"(^|[:,]){re.escape(str(PROJECT))}/"
    return {name: re.sub(inside, r"\1", str(value)) for name, value in vars(options).items() if name not in left_out}


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write figures as JSON, a list of numbers on one line. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flat = partial(re.sub, r"\s*\n\s*", " ")
    text = re.sub(r"\[\n\s*([^\[\]{}]*?)\n\s*\]", lambda found: f"[{flat(found[1])}]", json.dumps(data, indent=1))
    path.write_text(text + "\n", encoding="utf-8")


@cache
def shipped_pair() -> dict[str, str]:
    """Return the fingerprints of the pair in models/."""
    return {name: folder_fingerprint(PROJECT / "models" / name) for name in ("target", "draft")}


def name_of_pair(pair: Mapping[str, str]) -> str:
    """Return what the name of a result has to end with: empty for the shipped pair and where no model answered.

    Of another pair these are the first digits of its target's fingerprint.
    """
    if all(shipped_pair()[name] == fingerprint for name, fingerprint in pair.items()):
        return ""
    return pair.get("target", "")[:8] or "draft"


def problems(path: Path) -> list[str]:
    """Return what a saved result does not say about itself, a sentence each."""
    data = json.loads(path.read_text(encoding="utf-8"))
    missing = [name for name in ("commit", "machine", "pair") if name not in data]
    if missing:
        return [f"{path} does not name its {', '.join(missing)}"]
    end = name_of_pair(data["pair"])
    wrong = end and not path.stem.endswith(f"_{end}")
    return [f"{path} is of another pair than the shipped one: its name has to end with _{end}"] if wrong else []


def page_problems(page: Path, results: Path = RESULTS) -> list[str]:
    """Return which figures of a page are not those of the result files that it names, a sentence each.

    `<!-- FILE: FIGURE; FIGURE -->` behind as many numbers (those in backticks do not count) says which figures of
    benchmarks/results/FILE.json, or of FILE.json in the project, they are. A figure is a path of keys with dots between
    them; keys that all of them begin with may stand behind FILE. In a list a key is a number, `FIELD=VALUE,FIELD=VALUE`
    for the first entry that has both, or `mean`, `sum`, `max` or `below 1` (the share of them) of all entries.
    ` / `, ` * `, ` + ` and ` - ` with another path or a number are computed from left to right. The figure has to be
    equal to as many digits as are printed.
    """
    found = []
    for printed in _printed(page.read_text(encoding="utf-8"), results):
        if printed.problem:
            found.append(f"{page} {printed.problem}")
        elif printed.is_wrong:
            found.append(f"{page} prints {printed.number} where {printed.figure} is {printed.right}")
    return found


def renew_page(page: Path, results: Path = RESULTS) -> list[str]:
    """Print the result files' figures in a page, with as many digits as it has, and return what was changed.

    Raises ValueError, naming the first, for a marker that cannot be read (`page_problems`).
    """
    text, changed = page.read_text(encoding="utf-8"), []
    for printed in reversed(list(_printed(text, results))):
        if printed.problem:
            raise ValueError(f"{page} {printed.problem}")
        if printed.is_wrong:
            text = text[: printed.place] + printed.right + text[printed.place + len(printed.number) :]
            changed.append(f"{page}: {printed.number} is now {printed.right}, {printed.figure}")
    if changed:
        page.write_text(text, encoding="utf-8")
    return changed[::-1]


@dataclass(frozen=True)
class _Printed:
    """A number of a page and the figure that it is said to be, or why the marker cannot be read."""

    number: str = ""
    place: int = 0
    """The number begins with this character of the page, counted from 0."""
    figure: str = ""
    value: float = 0.0
    problem: str = ""

    @property
    def decimals(self) -> int:
        return len(self.number.partition(".")[2])

    @property
    def is_wrong(self) -> bool:
        """Return whether it differs by more than half of its last digit, which may have been rounded up or down."""
        return abs(self.value - float(self.number.replace(",", ""))) > 0.50001 * 0.1**self.decimals

    @property
    def right(self) -> str:
        """Return what the page has to print."""
        return f"{self.value:{',' if ',' in self.number else ''}.{self.decimals}f}"


def _printed(text: str, results: Path) -> Iterator[_Printed]:
    """Yield the marked numbers of a page, in its order."""
    shown, end = re.sub(r"`[^`]*`", lambda code: " " * len(code[0]), text), 0
    number = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?")
    for marker in re.finditer(r"<!-- ([\w/]+)((?:\.[^:;>]+)?): ([^>]*) -->", shown):
        file, keys, figures = marker.groups()
        asked, path = figures.split(";"), results / f"{file}.json"
        numbers = list(number.finditer(shown, end, marker.start()))[-len(asked) :]
        end = marker.end()
        if not path.exists():
            path = PROJECT / f"{file}.json"
        if not path.exists():
            yield _Printed(problem=f"names {path}, which is not there")
            continue
        data = json.loads(path.read_text(encoding="utf-8"))
        if len(numbers) < len(asked):
            yield _Printed(problem=f"has fewer numbers than figures before {file}: {figures}")
        for each, figure in zip(numbers, map(str.strip, asked), strict=False):
            try:
                value = _figure(_at(data, keys[1:]), figure)
            except (KeyError, IndexError, ValueError, TypeError, StopIteration) as error:
                yield _Printed(problem=f"names {figure}, which {path.name} has not ({type(error).__name__}: {error})")
                continue
            yield _Printed(each[0], each.start(), f"{figure} of {path.name}", value)


def _at(data: Any, path: str) -> Any:
    if not path:
        return data
    if isinstance(data, list):
        key, _, rest = path.partition(".")
        if key in OVER_ALL:
            return OVER_ALL[key]([_at(entry, rest) for entry in data])
        if "=" in key:
            asked = [each.split("=") for each in key.split(",")]
            return _at(next(entry for entry in data if all(str(entry[field]) == value for field, value in asked)), rest)
        return _at(data[int(key)], rest)
    # a key may hold dots itself
    key = max((key for key in data if f"{path}.".startswith(f"{key}.")), key=len, default=path)
    return _at(data[key], path[len(key) + 1 :])


def _figure(data: Any, figure: str) -> float:
    path, *operations = re.split(r" ([-+*/]) ", " ".join(figure.split()))
    value = float(_at(data, path))
    for sign, operand in zip(operations[::2], operations[1::2], strict=True):
        number = float(operand) if re.fullmatch(r"-?[\d.]+", operand) else float(_at(data, operand))
        value = OPERATIONS[sign](value, number)
    return value


def write_result(name: str, data: Mapping[str, Any]) -> Path:
    """Write benchmarks/results/NAME.json, named after its pair where that is not the shipped one; return the path.

    `data` holds what `provenance` returns. Raw and declared times need different names.
    """
    path = RESULTS / f"{'_'.join(filter(None, (name, name_of_pair(data['pair']))))}.json"
    write_json(path, data)
    print(f"saved {path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path}")
    return path
