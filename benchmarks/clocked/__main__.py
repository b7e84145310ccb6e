"""Command line of the clocked engine: run. See docs/clocked.md."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.clocked.facts import Recording
from benchmarks.clocked.figures import at_round_trip, report
from benchmarks.clocked.layer_split import LAYER_SPLIT, LayerSplit
from benchmarks.clocked.synthetic import Synthetic
from benchmarks.clocked.timings import PAPERS, Timings, load_timings
from benchmarks.setting import RESULTS, settings_of
from spec_vlm_nav.evaluation.setting import gamma, milliseconds, several
from spec_vlm_nav.graph import PROJECT
from speculation.drafting import Mode

MODES = (*(mode.value for mode in Mode), LAYER_SPLIT)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.clocked", description="Both policies on virtual time.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="every mode at every round trip, from recorded or drawn facts")
    run.add_argument("--facts", type=Path, help="file of `record`; without it facts are drawn (see --draw)")
    run.add_argument("--draw", default="", metavar="NAME=VALUE,...", help=_told(Synthetic(), "drawn facts"))
    run.add_argument("--steps", type=int, help="steps (default: 20 drawn ones, all recorded ones)")
    run.add_argument("--timings", default="go2", help=f"{', '.join(PAPERS)}, or a device profile (default: go2)")
    run.add_argument("--times", default="", metavar="NAME=VALUE,...", help=_told(Timings(), "changes of the timings"))
    run.add_argument("--split", default="", metavar="NAME=VALUE,...", help=_told(LayerSplit(), "layer_split"))
    run.add_argument("--modes", type=several(MODES), default=["cloud", "sd", "fsd"], help=f"of {','.join(MODES)}")
    run.add_argument("--rtt-ms", type=milliseconds, help="round trips, e.g. 0,40,200 (default: the timings' own)")
    run.add_argument("--gamma", type=gamma, default=4, help="draft tokens per verification, or auto (default: 4)")
    run.add_argument("--edges", type=int, default=1, help="robots that share the verifier and the steps (default: 1)")
    run.add_argument("--save", metavar="NAME", help="write the figures to benchmarks/results/clocked_NAME.json")
    run.set_defaults(action=run_modes)
    return top


def _told(defaults: Any, what: str) -> str:
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
        try:
            changes[name] = _read(value, known[name])
        except ValueError:
            raise ValueError(f"{flag}: {name}={value} is no number, nor numbers joined by +") from None
    return replace(declaration, **changes)


def _read(text: str, like: Any) -> Any:
    if isinstance(like, str):
        return text
    if isinstance(like, tuple) or "+" in text:
        kind: Callable[[str], Any] = int if isinstance(like, tuple) and "." not in text else float
        return tuple(kind(each) for each in text.split("+"))
    return int(text) if isinstance(like, int) and not isinstance(like, bool) else float(text)


def source(options: argparse.Namespace) -> Recording:
    """Return the facts that the options name. Raises ValueError where there are not as many steps."""
    if options.steps is not None and options.steps < 1:
        raise ValueError(f"--steps {options.steps}: give at least 1")
    if options.facts is None:
        drawn: Synthetic = changed(Synthetic(), options.draw, "--draw")
        return drawn.draw(options.steps or 20)
    if options.draw:
        raise ValueError("--draw and --facts: choose one")
    recording = Recording.load(options.facts)
    if options.steps is not None and options.steps > len(recording.steps):
        raise ValueError(f"--steps {options.steps}: {options.facts} has {len(recording.steps)}")
    return replace(recording, steps=recording.steps[: options.steps])


def run_modes(options: argparse.Namespace) -> None:
    """Print a table for every round trip, and write them where asked."""
    if options.edges < 1:
        raise ValueError(f"--edges {options.edges}: give at least 1")
    recording = source(options)
    timings: Timings = changed(load_timings(options.timings), options.times, "--times")
    split: LayerSplit = changed(LayerSplit(), options.split, "--split")
    timings.layer_ends(recording.layers)
    started = time.perf_counter()
    entries = []
    round_trips = [None] if options.rtt_ms is None else [each / 1e3 for each in options.rtt_ms]
    for rtt_s in tqdm(round_trips, unit="round trip", disable=None):
        entries.append(
            at_round_trip(rtt_s, options.modes, recording, timings, split, options.edges, gamma=options.gamma)
        )
    source_name = options.facts.name if options.facts is not None else recording.notes["synthetic"]
    print(f"{len(recording.steps)} steps of {source_name}\n{timings}\nvirtual time, gamma {options.gamma}")
    for entry in entries:
        print(
            f"\nround trip {1e3 * entry['rtt_s']:g} ms; sd is fastest at gamma {entry['sd_best_gamma']}, tau "
            f"{entry['sd_best_tau']:.2f} (gamma 4: {entry['sd_gamma_4_tau']:.2f})"
        )
        print(report(entry))
    print(f"\n{time.perf_counter() - started:.1f} s of real time")
    if options.save:
        save(options, recording, timings, entries)


def save(options: argparse.Namespace, recording: Recording, timings: Timings, entries: list[dict[str, Any]]) -> None:
    """Write the figures. Virtual times depend on no machine, so none is named."""
    data = {
        "settings": settings_of(options, "save", "action", "command"),
        "timings": asdict(timings),
        "source": dict(recording.notes),
        "round_trips": entries,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"clocked_{options.save}.json"
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(f"saved {path.relative_to(PROJECT)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code: 0, or 2 after one sentence on stderr."""
    options = parser().parse_args(arguments)
    try:
        code: int | None = options.action(options)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"clocked: {error}", file=sys.stderr)
        return 2
    return code or 0


if __name__ == "__main__":
    sys.exit(main())
