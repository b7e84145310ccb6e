"""Command line of the clocked engine: record, run, check. See docs/clocked.md."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from benchmarks.clocked.facts import Recording
from benchmarks.clocked.figures import at_round_trip, report
from benchmarks.clocked.layer_split import LAYER_SPLIT, LayerSplit
from benchmarks.clocked.synthetic import Synthetic
from benchmarks.clocked.timings import PAPERS, Timings, load_timings
from edge_drafter import Mode
from edge_drafter.reply import AnswerLate, VerifierLost
from evaluation.experiment.command import settings_of, write_result
from evaluation.experiment.questions import add_questions, asked_as, check_prompts, in_words, questions
from evaluation.setting import add_drafting, add_pair, add_predictor, drafted_as, machine, milliseconds, several
from speculation.profile import load_profile

if TYPE_CHECKING:
    from benchmarks.clocked.record import Models

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
    run.add_argument(
        "--modes", type=several(MODES), default=["cloud", "sd", "fsd", "full"], help=f"of {','.join(MODES)}"
    )
    run.add_argument("--rtt-ms", type=milliseconds, help="round trips, e.g. 0,40,200 (default: the timings' own)")
    add_drafting(run)
    run.add_argument("--edges", type=int, default=1, help="robots that share the verifier and the steps (default: 1)")
    run.add_argument("--save", metavar="NAME", help="write the figures to benchmarks/results/clocked_NAME.json")
    run.set_defaults(action=run_modes)
    recorder = commands.add_parser("record", help="write what a pair of models says about held-out frames")
    _add_models(recorder)
    recorder.add_argument("--count", type=int, default=200, help="frames (default: 200)")
    recorder.add_argument("--top", type=int, default=5, help="draft tokens kept for each place (default: 5)")
    recorder.add_argument("--out", type=Path, required=True, help="the file, .npz")
    recorder.set_defaults(action=record_facts)
    check = commands.add_parser("check", help="real sockets against virtual time at equal delays, medians per mode")
    _add_models(check)
    check.add_argument("--steps", type=int, default=50, help="frames (default: 50)")
    check.add_argument("--profile", default="go2_a100_scaled", help="declared delays (default: %(default)s)")
    # A verifier's durations do not tell its own draft forwards from the target's, so server_sd cannot be checked so.
    linked = [mode.value for mode in Mode if mode not in (Mode.EDGE, Mode.SERVER_SD)]
    check.add_argument(
        "--modes", type=several(linked), default=["cloud", "sd", "fsd", "full"], help=f"of {','.join(linked)}"
    )
    add_drafting(check)
    check.add_argument("--within", type=float, default=0.1, help="share that medians may differ by (default: 0.1)")
    check.add_argument("--save", metavar="NAME", help="write the comparison to benchmarks/results/clocked_NAME.json")
    check.set_defaults(action=check_time)
    return top


def _add_models(line: argparse.ArgumentParser) -> None:
    add_pair(line)
    line.add_argument("--exits", type=Path, help="folder of exit heads (default: as the verifier finds them)")
    add_predictor(line)
    add_questions(line)


def _models(options: argparse.Namespace) -> Models:
    from benchmarks.clocked.record import Models

    how = (options.exits, options.predictor, options.dtype, in_words(options.frames))
    return Models.load(options.target_model, options.draft_model, *how)


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
    if Mode.SERVER_SD.value in options.modes and not timings.server_draft_s:
        raise ValueError(
            f"timings {timings.name} declare no server_draft_s, so server_sd would draft for nothing; give one with "
            "--times, e.g. server_draft_s=0.011"
        )
    started = time.perf_counter()
    entries = []
    round_trips = [None] if options.rtt_ms is None else [each / 1e3 for each in options.rtt_ms]
    for rtt_s in tqdm(round_trips, unit="round trip", disable=None):
        entries.append(
            at_round_trip(
                rtt_s,
                options.modes,
                recording,
                timings,
                split,
                options.edges,
                gamma=options.gamma,
                text=options.drafting,
            )
        )
    source_name = options.facts.name if options.facts is not None else recording.notes["synthetic"]
    print(f"{len(recording.steps)} steps of {source_name}\n{timings}\nvirtual time, {drafted_as(options)}")
    for entry in entries:
        print(
            f"\nround trip {1e3 * entry['rtt_s']:g} ms; sd is fastest at gamma {entry['sd_best_gamma']}, tau "
            f"{entry['sd_best_tau']:.2f} (gamma 4: {entry['sd_gamma_4_tau']:.2f})"
        )
        print(report(entry))
    print(f"\n{time.perf_counter() - started:.1f} s of real time")
    if options.save:
        save(options, recording, timings, entries)


def record_facts(options: argparse.Namespace) -> None:
    """Write the facts of held-out frames."""
    if options.count < 1 or options.top < 1:
        raise ValueError(f"--count {options.count}, --top {options.top}: give at least 1")
    if options.out.suffix != ".npz":
        raise ValueError(f"--out {options.out}: name a .npz file")
    from benchmarks.clocked.record import record  # torch, late: virtual time needs none

    models = _models(options)
    asked = questions(options.frames, options.count, options.seed, *asked_as(options))
    check_prompts(models.target, asked, options.max_tokens)
    recording = record(models, asked, options.max_tokens, options.top)
    told = settings_of(options, "out", "action", "command")
    replace(recording, notes={**recording.notes, "settings": told, "machine": machine()}).save(options.out)
    count = sum(len(step.tokens) for step in recording.steps)
    right = sum(
        int(step.draft_tokens[place, 0]) == token for step in recording.steps for place, token in enumerate(step.tokens)
    )
    print(
        f"{len(recording.steps)} steps, {count} tokens, exits after {list(recording.exit_layers) or 'none'}, the "
        f"draft's likeliest token is right in {right / count:.1%}: {options.out}, {options.out.stat().st_size} bytes"
    )


def check_time(options: argparse.Namespace) -> int:
    """Compare real sockets with virtual time. Returns 1 where a mode's median is further off than allowed."""
    if options.steps < 1:
        raise ValueError(f"--steps {options.steps}: give at least 1")
    profile = load_profile(options.profile)
    if profile.is_raw:
        raise ValueError(f"--profile {profile.name} declares no times that virtual time could be told")
    from benchmarks.clocked import check
    from benchmarks.clocked.record import record

    asked = questions(options.frames, options.steps, options.seed, *asked_as(options))
    models = _models(options)
    check_prompts(models.target, asked, options.max_tokens)
    recording = record(models, asked, options.max_tokens)
    real = check.measure_real(options, options.exits, asked, options.modes)
    timings = check.clocked_timings(profile, real)
    rows = check.agree(real, recording, timings, gamma=options.gamma, text=options.drafting)
    print(
        f"{options.steps} frames ({options.frames}), {drafted_as(options)}; real sockets, then virtual time\n{timings}"
    )
    print(check.report(rows, timings))
    print(machine())
    if options.save:
        names = ("real_s", "clocked_s", "error", "as_waited_s", "error_as_waited", "different")
        found = {row.mode: {name: getattr(row, name) for name in names} for row in rows}
        told = settings_of(options, "save", "action", "command")
        write_result(
            f"clocked_{options.save}",
            {"settings": told, "machine": machine(), "timings": asdict(timings), "modes": found},
        )
    return int(any(abs(row.error) > options.within or row.different for row in rows))


def save(options: argparse.Namespace, recording: Recording, timings: Timings, entries: list[dict[str, Any]]) -> None:
    """Write the figures. Virtual times depend on no machine, so none is named."""
    data = {
        "settings": settings_of(options, "save", "action", "command"),
        "timings": asdict(timings),
        "source": dict(recording.notes),
        "round_trips": entries,
    }
    write_result(f"clocked_{options.save}", data)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code: 0, or 2 after one sentence on stderr."""
    options = parser().parse_args(arguments)
    try:
        code: int | None = options.action(options)
    except (ValueError, OSError, RuntimeError, VerifierLost, AnswerLate) as error:
        print(f"clocked: {error}", file=sys.stderr)
        return 2
    return code or 0


if __name__ == "__main__":
    sys.exit(main())
