"""Every table and plot of docs/benchmarks.md, one program after another: `make benchmarks`, or a look with --quick.

Each runs in a process of its own, so that none of them warms another up, and prints what it prints alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.recordings import COUNT, EMBEDDED, QUICK_COUNT
from speculation.program_exit import INTERRUPTED
from speculation.worker_processes import terminable
from vlm_nav_evaluation.options import several
from vlm_nav_evaluation.plots import OUT, add_outputs
from vlm_nav_evaluation.tables import table

RECORDED = ["--recording", str(EMBEDDED)]
FAST_SERVER = "verify_s=0.015,one_way_s=0.01,server_draft_s=0.00175"
TUNE = ["benchmarks.tune", "--rtt-ms", "40,240"]
PROGRAMS: dict[str, tuple[str, list[str]]] = {
    "tune": ("every mode as shipped and at its best at the Go2's times, virtual", TUNE),
    "tune_synthetic": ("the same on synthetic answers with the paper's rates",
                       [*TUNE, "--synthetic", "tokens=100", "--name", "go2_synthetic"]),
    "tune_fast_server": ("the same for a server whose pass takes 15 ms",
                         ["benchmarks.tune", "--times", FAST_SERVER, "--name", "fast_server"]),
    "latency": ("the modes as shipped over real sockets, at the Go2's times divided by ten",
                ["benchmarks.latency", "--rtt-ms", "4"]),
    "latency_raw": ("the same over real sockets, at this machine's own times",
                    ["benchmarks.latency", "--profile", "raw"]),
    "peers": ("transformers' own generation on the same pair", ["benchmarks.peers"]),
    "sampling": ("sampling schemes, and their bytes", ["benchmarks.sampling"]),
    "ablation": ("each technique of full off, and of sd on", ["benchmarks.ablation"]),
    "break_even": ("where edge speculation pays, on synthetic answers", ["benchmarks.break_even"]),
    "break_even_embedded": ("where it pays on the embedded pair's recorded answers",
                            ["benchmarks.break_even", *RECORDED]),
    "robots": ("one verifier and 1 to 16 robots on this machine, under every policy", ["benchmarks.robots"]),
    "robots_declared": ("the same at the Go2's times divided by ten",
                        ["benchmarks.robots", "--profile", "go2_a100_scaled"]),
    "fleet": ("many robots and one verifier: capacity, goodput, SpecEdge's pipeline",
              ["vlm_nav_evaluation", "fleet", "all"]),
}  # fmt: skip
"""What each shows, its module and its words."""


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=(__doc__ or "").splitlines()[0],
        epilog="programs: " + "; ".join(f"{name}: {shown}" for name, (shown, _) in PROGRAMS.items()),
    )
    line.add_argument("--only", type=several(list(PROGRAMS)), default=list(PROGRAMS), help=f"of {','.join(PROGRAMS)}")
    add_outputs(line)
    return line


def commands(name: str, options: argparse.Namespace) -> list[list[str]]:
    """Return the command lines of a program with this one's options; a recording that it needs is made first."""
    flags = [f"--{flag}" for flag in ("quick", "save") if getattr(options, flag)]
    out = [] if options.out == OUT else ["--out", str(options.out)]
    _, (module, *own) = PROGRAMS[name]
    lines = [[sys.executable, "-m", module, *own, *flags, *out]]
    if "--recording" in own and not EMBEDDED.exists():
        count = str(QUICK_COUNT if options.quick else COUNT)
        record = [sys.executable, "-m", "benchmarks.recordings", "--count", count, "--out", str(EMBEDDED)]
        lines.insert(0, record)
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the programs. Returns 0 or, where one failed, its exit code; the others run all the same.

    The exit code is 130 where it was interrupted.
    """
    options = parser().parse_args(arguments)
    try:
        with terminable():
            return _run(options)
    except KeyboardInterrupt:
        print("benchmarks: interrupted", file=sys.stderr)
        return INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    rows, failed = [], 0
    for number, name in enumerate(options.only, start=1):
        print(f"\n[{number}/{len(options.only)}] {name}: {PROGRAMS[name][0]}", flush=True)
        began = time.monotonic()
        ended = (subprocess.run(line, check=False).returncode for line in commands(name, options))
        code = next(filter(None, ended), 0)
        failed = failed or code
        rows.append((name, f"{time.monotonic() - began:.0f}", "done" if code == 0 else f"failed, exit code {code}"))
    print("\n" + table(("program", "seconds", "end"), rows))
    print(f"plots: {'docs/benchmarks' if options.save else options.out}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
