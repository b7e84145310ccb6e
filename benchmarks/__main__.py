"""Every table and plot of README and docs, one program after another: `make benchmarks`, or a look with --quick.

Each runs in a process of its own, so that none of them warms another up, and prints what it prints alone. With
--journal a run that was stopped goes on with the program that it had not finished.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.recordings import COUNT, EMBEDDED, QUICK_COUNT
from spec_vlm_nav.graph import PROJECT
from speculation.program_exit import INTERRUPTED
from speculation.settings import CommandLine
from speculation.worker_processes import terminable
from vlm_nav_evaluation import results
from vlm_nav_evaluation.experiment.command import add_journal
from vlm_nav_evaluation.journal import Journal
from vlm_nav_evaluation.options import several
from vlm_nav_evaluation.plots import KEPT, OUT, add_outputs
from vlm_nav_evaluation.tables import table

FAST_SERVER = "verify_s=0.015,one_way_s=0.01,server_draft_s=0.00175"
BARS, CASES = "vlm_nav_evaluation bars", "easy,middle,hard,two_rooms,hallway"
ACTING = "vlm_nav_evaluation acting"


class Program(NamedTuple):
    """One program: what it shows and its words."""

    shown: str
    words: str
    answers: bool = False
    """It keeps a journal of its answers."""
    quick: str = ""
    """The words of a look, for a program without --quick and --save, which writes `result` into its --out."""
    result: str = ""


PROGRAMS = {
    "exactness": Program("are the modes' tokens the target's own", "benchmarks.exactness", answers=True),
    "tune": Program("every mode as shipped and at its best at the Go2's times, virtual",
                    "benchmarks.tune --rtt-ms 40,240"),
    "tune_synthetic": Program("the same on synthetic answers with the paper's rates",
                              "benchmarks.tune --rtt-ms 40,240 --synthetic tokens=100 --name go2_synthetic"),
    "tune_fast_server": Program("the same for a server whose pass takes 15 ms",
                                f"benchmarks.tune --rtt-ms 40,240 --times {FAST_SERVER} --name fast_server"),
    "latency": Program("the modes as shipped over real sockets, at the Go2's times divided by ten",
                       "benchmarks.latency --rtt-ms 4", answers=True),
    "latency_raw": Program("the same over real sockets, at this machine's own times",
                           "benchmarks.latency --profile raw", answers=True),
    "peers": Program("transformers' own generation on the same pair", "benchmarks.peers --cores split", answers=True),
    "sampling": Program("sampling schemes, and their bytes", "benchmarks.sampling", answers=True),
    "ablation": Program("each technique of full off, and of sd on", "benchmarks.ablation"),
    "break_even": Program("where edge speculation pays, on synthetic answers", "benchmarks.break_even"),
    "break_even_embedded": Program("where it pays on the embedded pair's recorded answers",
                                   f"benchmarks.break_even --recording {shlex.quote(str(EMBEDDED))}"),
    "robots": Program("one verifier and 1 to 16 robots on this machine, under every policy", "benchmarks.robots"),
    "robots_declared": Program("the same at the Go2's times divided by ten",
                               "benchmarks.robots --profile go2_a100_scaled"),
    "fleet": Program("many robots and one verifier: capacity, goodput, SpecEdge's pipeline",
                     "vlm_nav_evaluation fleet all --seed 20000"),
    "fleet_mixed": Program("WISP's classes in one fleet", "vlm_nav_evaluation fleet wisp --mixed"),
    "fleet_parts": Program("SpecEdge's Figs. 8, 11 and 12", "vlm_nav_evaluation fleet specedge --parts --seed 20000"),
    "picospec": Program("PicoSpec's Tables 1 to 3", "benchmarks.ablation --picospec"),
    "bars": Program("what the simulated robot finds in rooms that nobody trained on",
                    f"{BARS} --seeds 20000-20049 --cases {CASES}",
                    quick=f"{BARS} --seeds 20000-20001 --cases easy", result="bars.json"),
    "acting": Program("how long it stands, by mode, round trip and behaviour",
                      f"{ACTING} --seeds 20000-20011 --behaviours wait,early,ahead",
                      quick=f"{ACTING} --seeds 20000 --behaviours wait", result="acting.json"),
    "acting_dead_link": Program("DEGRADED against HOLD while the link is dead for a part of the time",
                      f"{ACTING} --seeds 20000-20049 --target random --modes full --rtt-ms 40 --behaviours ahead,hold"
                      " --dead 3/15,10/30,30/60", quick=f"{ACTING} --seeds 20000 --behaviours hold --dead 3/15",
                      result="acting_dead_link.json"),
    "link_loss": Program("what stops it when a part of the system fails", "vlm_nav_evaluation link-loss",
                         quick="vlm_nav_evaluation link-loss --parts verifier --kinds kill", result="link_loss.json"),
}  # fmt: skip
FIGURES = ("exactness", "tune", "tune_fast_server", "latency", "latency_raw", "peers", "sampling", "robots",
           "robots_declared", "fleet", "fleet_mixed", "fleet_parts", "ablation", "picospec", "break_even", "bars",
           "acting", "acting_dead_link", "link_loss")  # fmt: skip
"""What `make figures` makes anew: the figures of README, and those of pages that need no training and no GPU."""


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = CommandLine(
        prog="python -m benchmarks",
        description=(__doc__ or "").splitlines()[0],
        epilog="programs: " + "; ".join(f"{name}: {each.shown}" for name, each in PROGRAMS.items()),
    )
    some = line.add_mutually_exclusive_group()
    some.add_argument("--only", type=several(list(PROGRAMS)), default=list(PROGRAMS), help=f"of {','.join(PROGRAMS)}")
    shown = "those of README's and the pages' figures that need no training and no GPU"
    some.add_argument("--figures", action="store_const", dest="only", const=list(FIGURES), help=shown)
    add_journal(line, "keep in this folder what is finished; the same command goes on there")
    add_outputs(line)
    return line


def commands(name: str, options: argparse.Namespace) -> list[list[str]]:
    """Return the command lines of a program with this one's options; a recording that it needs is made first."""
    program = PROGRAMS[name]
    words, flags = shlex.split(program.words), list[str]()
    if program.result:
        words = shlex.split(program.quick) if options.quick else words
        flags = ["--out", str(options.out / name)]
    else:
        flags = [f"--{flag}" for flag in ("quick", "save") if getattr(options, flag)]
        flags += [] if options.out == OUT else ["--out", str(options.out)]
    if program.answers and options.journal:
        flags += ["--journal", str(options.journal / name)]
    python = [sys.executable, "-m"]
    lines = [[*python, *words, *flags]]
    if "--recording" in words and not EMBEDDED.exists():
        count = str(QUICK_COUNT if options.quick else COUNT)
        lines.insert(0, [*python, "benchmarks.recordings", "--count", count, "--out", str(EMBEDDED)])
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the programs. Returns 0 or, where one failed, its exit code; the others run all the same.

    The exit code is 130 where it was interrupted, 2 where the journal is one of other settings.
    """
    options = parser().parse_args(arguments)
    try:
        with terminable():
            return _run(options)
    except ValueError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("benchmarks: interrupted; with --journal the same command goes on", file=sys.stderr)
        return INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    journal = None
    if options.journal:
        settings = {"quick": options.quick, "save": options.save}
        journal = Journal(options.journal, "programs", settings, options.restart)
        if options.restart:
            for name in PROGRAMS:
                shutil.rmtree(options.journal / name, ignore_errors=True)
    finished = {each["program"]: each for each in (journal.pieces() if journal else ())}
    rows, failed = [], 0
    for number, name in enumerate(options.only, start=1):
        shown = f"[{number}/{len(options.only)}] {name}: {PROGRAMS[name].shown}"
        if name in finished:
            print(f"{shown}: done before, at commit {finished[name]['commit']}")
            rows.append((name, f"{finished[name]['seconds']:.0f}", "done before"))
            continue
        print(f"\n{shown}", flush=True)
        began = time.monotonic()
        ended = (subprocess.run(line, check=False).returncode for line in commands(name, options))
        code, seconds = next(filter(None, ended), 0), time.monotonic() - began
        failed = failed or code
        rows.append((name, f"{seconds:.0f}", "done" if code == 0 else f"failed, exit code {code}"))
        if code == 0:
            _keep(PROGRAMS[name].result, options.out / name, options)
            if journal:
                journal.add({"program": name, "seconds": round(seconds, 1), "commit": results.commit()})
    print("\n" + table(("program", "seconds", "end"), rows))
    print(f"plots: {'docs/benchmarks' if options.save else options.out}")
    return failed


def _keep(result: str, folder: Path, options: argparse.Namespace) -> None:
    if result and options.save:
        shutil.copyfile(folder / result, kept := results.RESULTS / result)
        print(f"saved {kept.relative_to(PROJECT) if kept.is_relative_to(PROJECT) else kept}")
        if (plot := (folder / result).with_suffix(".png")).exists():
            shutil.copyfile(plot, KEPT / plot.name)


if __name__ == "__main__":
    sys.exit(main())
