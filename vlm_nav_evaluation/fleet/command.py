"""`fleet`: many robots and one verifier on virtual time, with production's own scheduler.

wisp: capacity, goodput and violations by policy; specedge: two cohorts against a draft model on the server. Nothing is
measured on this machine but the scheduler's own time; passes cost what is declared.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from vlm_nav_evaluation.fleet import specedge, wisp
from vlm_nav_evaluation.plots import add_outputs, keep
from vlm_nav_evaluation.results import provenance, settings_of, write_result

SETTINGS: dict[str, Any] = {"wisp": wisp, "specedge": specedge}


def add_options(line: argparse.ArgumentParser) -> None:
    """Register the options of `fleet`."""
    line.add_argument("setting", choices=[*SETTINGS, "all"], help="which tables")
    line.add_argument("--seed", type=int, default=0, help="of requests, classes and starts (default: 0)")
    line.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs side by side (default: all cores)")
    for setting in SETTINGS.values():
        setting.add_options(line)
    add_outputs(line)


def run(options: argparse.Namespace) -> int:
    """Print the tables, draw the plots, and save what was asked. Raises ValueError for bad options."""
    if options.jobs < 1 or options.seed < 0:
        raise ValueError(f"--jobs {options.jobs}, --seed {options.seed}: give at least 1 and at least 0")
    for name in SETTINGS if options.setting == "all" else [options.setting]:
        data = {"settings": settings_of(options), **provenance(options)} | SETTINGS[name].measure(options)
        print("\nsettings: " + ", ".join(f"{each} {value}" for each, value in data["settings"].items()))
        print(f"{SETTINGS[name].report(data)}\n{data['machine']}; virtual time")
        kept = f"fleet_{data.get('name', name)}"
        if not {"parts", "mixed"} & set(data):
            keep(SETTINGS[name].plot(data), kept, options)
        if options.save:
            write_result(kept, data)
    return 0
