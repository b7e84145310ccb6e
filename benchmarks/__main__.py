"""Every table and plot of README and docs, one program after another: `make benchmarks`, or a look with --quick.

Each runs in a process of its own, so that none of them warms another up. Those that measure no times run two at a time,
and what they print is shown when they have ended; with --quick all do. With --journal a run that was stopped goes on
with the programs that it had not finished.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import closing
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

FAST_SERVER = "verify_s=0.015,server_draft_s=0.00175"
PLACES, POLL_S = 2, 0.1
"""Programs that run side by side, and how often it is asked whether one has ended."""
RECORDING = "recording"
"""The program that makes what others read, so that it runs before them and alone."""
FILE = shlex.quote(str(EMBEDDED))
RECORD = f"benchmarks.recordings --out {FILE}"
BARS, CASES = "vlm_nav_evaluation bars", "easy,middle,hard,two_rooms,hallway"
ACTING = "vlm_nav_evaluation acting"


class Program(NamedTuple):
    """One program: what it shows and its words."""

    shown: str
    words: str
    answers: bool = False
    """It keeps a journal of its answers."""
    one_core: bool = False
    """It measures no times and uses one core, so that another such program may run beside it."""
    quick: str = ""
    """The words of a look, for a program without --quick and --save."""
    result: str = ""
    """The file that such a program writes into its --out, and that --save keeps."""


PROGRAMS = {
    RECORDING: Program("what the embedded pair predicts, for virtual time", f"{RECORD} --count {COUNT}",
                       quick=f"{RECORD} --count {QUICK_COUNT}"),
    "exactness": Program("are the modes' tokens the target's own", "benchmarks.exactness", answers=True),
    "tune": Program("every mode as shipped and at its best at the Go2's times, virtual",
                    "benchmarks.tune --rtt-ms 40,240", one_core=True),
    "tune_synthetic": Program("the same on synthetic answers with the paper's rates",
                              "benchmarks.tune --rtt-ms 40,240 --synthetic tokens=100 --name go2_synthetic",
                              one_core=True),
    "tune_fast_server": Program("the same for a server whose pass takes 15 ms",
                                f"benchmarks.tune --rtt-ms 40,240 --times {FAST_SERVER} --name fast_server",
                                one_core=True),
    "latency": Program("the modes as shipped over real sockets, at the Go2's times divided by ten",
                       "benchmarks.latency --rtt-ms 4", answers=True),
    "latency_raw": Program("the same over real sockets, at this machine's own times",
                           "benchmarks.latency --profile raw", answers=True),
    "peers": Program("transformers' own generation on the same pair", "benchmarks.peers --cores split", answers=True),
    "sampling": Program("sampling schemes, and their bytes", "benchmarks.sampling", answers=True),
    "ablation": Program("each technique of full off, and of sd on", "benchmarks.ablation", one_core=True),
    "break_even": Program("where edge speculation pays, on synthetic answers", "benchmarks.break_even", one_core=True),
    "break_even_embedded": Program("where it pays on the embedded pair's recorded answers",
                                   f"benchmarks.break_even --recording {FILE}", one_core=True),
    "robots": Program("one verifier and 1 to 8 robots on this machine, under every policy", "benchmarks.robots"),
    "robots_declared": Program("the same at the Go2's times divided by ten",
                               "benchmarks.robots --profile go2_a100_scaled"),
    "fleet": Program("many robots and one verifier: capacity, goodput, SpecEdge's pipeline",
                     "vlm_nav_evaluation fleet all --seed 20000"),
    "fleet_mixed": Program("WISP's classes in one fleet", "vlm_nav_evaluation fleet wisp --mixed --seed 20000"),
    "fleet_parts": Program("SpecEdge's Figs. 8, 11 and 12", "vlm_nav_evaluation fleet specedge --parts --seed 20000"),
    "picospec": Program("PicoSpec's Tables 1 to 3", "benchmarks.ablation --picospec", one_core=True),
    "bars": Program("what the simulated robot finds in rooms that nobody trained on",
                    f"{BARS} --seeds 20000-20049 --cases {CASES}",
                    quick=f"{BARS} --seeds 20000-20001 --cases easy", result="bars.json"),
    "acting": Program("how long it stands, by mode, round trip and behaviour",
                      f"{ACTING} --seeds 20000-20011 --behaviours wait,early,ahead",
                      quick=f"{ACTING} --seeds 20000 --modes cloud,full --rtt-ms 40 --behaviours wait",
                      result="acting.json"),
    "acting_dead_link": Program("DEGRADED against HOLD while the link is dead for a part of the time",
                      f"{ACTING} --seeds 20000-20049 --target random --modes full --rtt-ms 40 --behaviours ahead,hold"
                      " --dead 3/15,10/30,30/60",
                      quick=f"{ACTING} --seeds 20000 --modes full --rtt-ms 40 --behaviours hold --dead 3/15",
                      result="acting_dead_link.json"),
    "link_loss": Program("what stops it when a part of the system fails", "vlm_nav_evaluation link-loss",
                         quick="vlm_nav_evaluation link-loss --parts robot --kinds freeze", result="link_loss.json"),
}  # fmt: skip
FIGURES = (RECORDING, "exactness", "tune", "tune_fast_server", "latency", "latency_raw", "peers", "sampling", "robots",
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


def command(name: str, options: argparse.Namespace) -> list[str]:
    """Return the command line of a program with this one's options."""
    program = PROGRAMS[name]
    words, flags = shlex.split(program.words), list[str]()
    if program.quick:
        words = shlex.split(program.quick) if options.quick else words
        flags = ["--out", str(options.out / name)] if program.result else []
    else:
        flags = [f"--{flag}" for flag in ("quick", "save") if getattr(options, flag)]
        flags += [] if options.out == OUT else ["--out", str(options.out)]
    if program.answers and options.journal:
        flags += ["--journal", str(options.journal / name)]
    return [sys.executable, "-m", *words, *flags]


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
    ends = {name: (finished[name]["seconds"], "done before") for name in options.only if name in finished}
    for name in ends:
        print(f"{name}: {PROGRAMS[name].shown}: done before, at commit {finished[name]['commit']}")
    failed = 0
    with closing(_run_all([name for name in options.only if name not in finished], options)) as ended:
        for name, code, seconds in ended:
            failed = failed or code
            ends[name] = (seconds, "done" if code == 0 else f"failed, exit code {code}")
            if code == 0:
                _keep(PROGRAMS[name].result, options.out / name, options)
                if journal:
                    journal.add({"program": name, "seconds": round(seconds, 1), "commit": results.commit()})
    rows = [(name, f"{ends[name][0]:.0f}", ends[name][1]) for name in options.only]
    print("\n" + table(("program", "seconds", "end"), rows))
    print(f"plots: {'docs/benchmarks' if options.save else options.out}")
    return failed


def _run_all(names: Sequence[str], options: argparse.Namespace) -> Generator[tuple[str, int, float], None, None]:
    """Run programs and yield the name of each, its exit code and its seconds, as it ends.

    First those that run alone, one after another, then the others, `PLACES` at a time.
    """
    beside = {name for name in names if (options.quick or PROGRAMS[name].one_core) and name != RECORDING}
    waiting = deque(sorted(names, key=lambda name: name in beside))
    running: dict[str, tuple[subprocess.Popen[bytes], float, Path | None]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < (PLACES if beside.issuperset([*running, waiting[0]]) else 1):
                name = waiting.popleft()
                number = len(names) - len(waiting)
                print(f"\n[{number}/{len(names)}] {name}: {PROGRAMS[name].shown}", flush=True)
                printed = options.out / f"{name}.txt" if name in beside else None
                running[name] = (_start(command(name, options), printed), time.monotonic(), printed)
            time.sleep(POLL_S)
            for name, (process, began, printed) in list(running.items()):
                if (code := process.poll()) is not None:
                    del running[name]
                    if printed:
                        print(f"\n{name}:\n{printed.read_text(encoding='utf-8', errors='replace')}", flush=True)
                    yield name, code, time.monotonic() - began
    finally:
        for process, _, _ in running.values():
            process.terminate()
        for process, _, _ in running.values():
            process.wait()


def _start(line: Sequence[str], printed: Path | None) -> subprocess.Popen[bytes]:
    """Start a program, what it prints in a file or, without one, here."""
    if printed is None:
        return subprocess.Popen(line)
    printed.parent.mkdir(parents=True, exist_ok=True)
    with printed.open("wb") as sink:
        return subprocess.Popen(line, stdout=sink, stderr=subprocess.STDOUT)


def _keep(result: str, folder: Path, options: argparse.Namespace) -> None:
    if result and options.save:
        shutil.copyfile(folder / result, kept := results.RESULTS / result)
        print(f"saved {kept.relative_to(PROJECT) if kept.is_relative_to(PROJECT) else kept}")
        if (plot := (folder / result).with_suffix(".png")).exists():
            shutil.copyfile(plot, KEPT / plot.name)


if __name__ == "__main__":
    sys.exit(main())
