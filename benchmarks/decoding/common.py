"""What the tables share: options, the facts that virtual time runs on, and cells of a table."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.analytic.picospec import acceptance_for
from benchmarks.clocked import Recording, Synthetic, Timings, load_timings
from benchmarks.clocked.__main__ import parser as clocked_parser
from evaluation.experiment.command import result_name, settings_of, write_result
from evaluation.experiment.questions import add_questions
from evaluation.setting import add_pair
from spec_vlm_nav.graph import PROJECT, RESPONSE_ORDER
from speculation.profile import load_profile
from speculation.vlm.folder import folder_fingerprint

FACTS = PROJECT / "out" / "embedded.npz"
RECORDED, QUICK_RECORDED = 40, 8
"""Frames of the embedded pair that are recorded where there are no facts; no command asks for more by itself."""
ASKED = ("frames", "seed", "response_order", "guide", "max_tokens")
"""Options that shape what is recorded, beside the models and their dtype."""
VIRTUAL = "virtual time: every forward, message and prefill takes the time that is declared for it"
ANSWER = 200
"""Tokens of a drawn answer (Early Exits, Sec. 4: n = 200)."""


def add_steps(line: argparse.ArgumentParser, full: int, quick: int, what: str) -> None:
    """Register --steps; without it the command's own number, by --quick."""
    line.add_argument("--steps", type=int, help=f"{what} (default: {full}, with --quick {quick})")
    line.set_defaults(own_steps=(full, quick))


def add_facts(line: argparse.ArgumentParser) -> None:
    """Register --facts and what recording them needs."""
    line.add_argument(
        "--facts", type=Path,
        help=f"file of `python -m benchmarks.clocked record`; {RECORDED} frames are recorded into it where it is "
        f"missing (default: {FACTS.relative_to(PROJECT)})",
    )  # fmt: skip
    add_pair(line)
    add_questions(line)


def steps_of(options: argparse.Namespace) -> int:
    """Return how many steps are decoded, and tell the options, which are saved.

    Raises ValueError, naming --steps, for less than one.
    """
    if options.steps is not None and options.steps < 1:
        raise ValueError(f"--steps {options.steps}: give at least 1")
    full, quick = options.own_steps
    options.steps = int(options.steps or (quick if options.quick else full))
    return int(options.steps)


def facts_file(options: argparse.Namespace) -> Path:
    """Return where the facts of the options' pair and order of answers are."""
    if options.facts is not None:
        return Path(options.facts)
    other = "" if options.response_order == RESPONSE_ORDER.default else f"_{options.response_order}"
    return FACTS.with_name(f"{FACTS.stem}{other}.npz")


def recorded(options: argparse.Namespace, count: int) -> Recording:
    """Return the first `count` recorded steps of the embedded pair; facts that are missing are recorded first.

    So are those in the file of our own that do not fit the options. Raises ValueError, in one sentence, for a named
    file that does not.
    """
    path, pair = facts_file(options), check_pair(options)
    why = misfit(Recording.load(path), options, pair, count) if path.exists() else "is missing"
    if why and options.facts is not None and path.exists():
        raise ValueError(f"--facts {path} {why}; name another file, it will be recorded")
    if why:
        _record(options, path, max(QUICK_RECORDED if options.quick else RECORDED, count))
    recording = Recording.load(path)
    return replace(recording, steps=recording.steps[:count])


def misfit(recording: Recording, options: argparse.Namespace, pair: Mapping[str, str], count: int) -> str:
    """Return why recorded facts are not those of the options, or not enough; empty where they are."""
    for model, fingerprint in pair.items():
        if recording.notes.get(model) != fingerprint:
            return f"is about another {model} model"
    told = recording.notes.get("settings", {})
    for name in (*ASKED, "dtype"):
        if str(told.get(name, getattr(options, name))) != str(getattr(options, name)):
            return f"was recorded with --{name.replace('_', '-')} {told[name]}"
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


def _record(options: argparse.Namespace, path: Path, count: int) -> None:
    print(f"recording {count} frames into {path}")
    names = ("target_model", "draft_model", *ASKED, "dtype")
    told = [word for name in names for word in (f"--{name.replace('_', '-')}", str(getattr(options, name)))]
    asked = clocked_parser().parse_args(["record", "--count", str(count), "--out", str(path), *told])
    asked.action(asked)


GO2_FACTS = Synthetic(tokens=ANSWER)
"""Drawn as Early Exits, Table 8 has its run on the Go2: tau 2.92, 55.6 % of verdicts named by no exit, mean exit 8."""
GSM8K_FACTS = Synthetic(
    tokens=ANSWER, acceptance=acceptance_for(1.96, 4), miss=0.124, mean_exit=13.0, layers=32, variety=0.7, image_bytes=0
)
"""Drawn as Early Exits, Table 6 has GSM8K with Vicuna-68M/7B on RTX: tau 1.96, 12.4 % of verdicts named by no exit,
mean exit 13. Seven of ten exits that are wrong name something else than the one before: the paper does not say."""


def with_server_draft(timings: Timings) -> Timings:
    """Return timings in which mode server_sd has a draft forward: the stand-in of go2_a100 where none is declared."""
    if timings.server_draft_s:
        return timings
    return replace(timings, server_draft_s=load_profile("go2_a100").server_draft_s)


def go2() -> Timings:
    """Return the times of Early Exits, Table 8."""
    return with_server_draft(load_timings("go2"))


def save(
    name: str,
    options: argparse.Namespace,
    data: Mapping[str, Any],
    timings: Timings | None = None,
    recording: Recording | None = None,
) -> None:
    """Write benchmarks/results/decoding_NAME.json where --save was given; `recording` says where facts come from."""
    if options.save:
        told = settings_of(options, "save", "out", "action", "command", "own_steps")
        declared = {} if timings is None else {"timings": asdict(timings)}
        source = {} if recording is None else {"source": dict(recording.notes)}
        base = result_name("decoding", getattr(options, "frames", ""))
        write_result(f"{base}_{name}", {"settings": told, **declared, **source, **data})


def ms(entry: Mapping[str, float] | None, name: str = "median") -> str:
    """Return a spread's value in milliseconds as a cell, a dash for None."""
    return "-" if entry is None else f"{1e3 * entry[name]:.0f}"


def interval(values: Sequence[float] | None) -> str:
    """Return (lower, median, upper) as a cell: '1.58 (1.52-1.64)', a dash for None."""
    return "-" if values is None else f"{values[1]:.2f} ({values[0]:.2f}-{values[2]:.2f})"


def share(value: float | None) -> str:
    """Return a share in percent as a cell, a dash for None."""
    return "-" if value is None else f"{value:.0%}"


def number(value: float | None, digits: int = 2) -> str:
    """Return a number as a cell, a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"
