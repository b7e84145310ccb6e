"""Are the modes' tokens the target's own? On held-out frames, through real sockets, against the target decoding alone.

In float64 they must be. In float32 a kernel rounds differently for one token and for five, so a near tie may flip: each
flip is shown with its margin, the target's logit for its own token less that for the mode's. Above 1e-4 it is a bug.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from functools import partial
from typing import Any

from edge_drafter import Mode
from speculation.language.grammar import FREE
from speculation.vlm.load import load_vlm
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.mmspec import is_mmspec, mmspec_figures
from vlm_nav_evaluation.experiment.questions import asked_of
from vlm_nav_evaluation.experiment.reference_answers import LIMITS, TARGET, ModelAlone, bugs, margins
from vlm_nav_evaluation.experiment.sockets import modes_as_arms, sockets
from vlm_nav_evaluation.plots import add_outputs

MODES = [mode.value for mode in Mode if mode is not Mode.EDGE]
STEPS, QUICK_STEPS = 100, 2


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    edge = ("drafting", "fed_head", "answers", "device", "capacity")
    line = command.experiment_line("benchmarks.exactness", __doc__, STEPS, edge, QUICK_STEPS, dtype="float64")
    command.add_modes(line, MODES)
    command.add_journal(line)
    add_outputs(line)
    return line


def run(options: argparse.Namespace) -> int:
    """Run the comparison. Returns 1 for a flip that is no near tie."""
    options.steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
    asked = asked_of(options, options.steps)
    target = load_vlm(options.target_model, dtype=options.dtype, device=options.device)
    alone = ModelAlone(target, options.max_tokens, options.answers, options.capacity)
    with sockets(options, options.modes) as edges:
        asked = edges.conversations(asked) if is_mmspec(options.frames) else asked
        measured = edges.run([alone.arm(), *modes_as_arms(options.modes)], asked, (), command.journal_of(options))
    flips = alone.flips(measured, asked)
    count = sum(stats.tokens for stats in measured.stats(TARGET))
    print(f"{command.described(options)}; {count} tokens of the target alone")
    for mode, found in margins(flips, options.modes).items():
        shown = f", margins {', '.join(f'{margin:.2g}' for margin in found[:10])}" if found else ""
        print(f"{mode:9s} identical on {len(asked) - len(found)} of {len(asked)}{shown}")
    wrong = bugs(flips, options.dtype, options.modes)
    if options.dtype in LIMITS:
        print(f"flips above the limit of {LIMITS[options.dtype]:g} for {options.dtype}: {len(wrong)}")
    base = "exactness" if options.answers == FREE else f"exactness_{options.answers}"
    data: dict[str, Any] = {"tokens": count, "flips": [asdict(flip) for flip in flips]}
    command.finish(options, base, data | mmspec_figures(options.frames, measured, asked, TARGET))
    return 1 if wrong else 0


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
