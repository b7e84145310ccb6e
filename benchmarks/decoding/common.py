"""What the tables share: what virtual time runs on, an arm's figures, where results are kept."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from vlm_nav_evaluation.experiment.command import result_name, settings_of, write_result
from vlm_nav_evaluation.experiment.run import Run
from vlm_nav_evaluation.formulas import acceptance_for
from vlm_nav_evaluation.virtual_time import Recording, Synthetic, Timings, load_timings
from vlm_nav_evaluation.virtual_time.figures import figures_of
from vlm_nav_evaluation.virtual_time.timings import DEFAULT_COST

VIRTUAL = "virtual time: every forward, message and prefill takes the time that is declared for it"
GO2_SYNTHETIC = Synthetic()
"""As Early Exits, Table 8 has its run on the Go2: tau 2.92, 55.6 % of verdicts named by no exit, mean exit 8."""
GSM8K_SYNTHETIC = Synthetic(
    acceptance=acceptance_for(1.96, 4), miss=0.124, mean_exit=13.0, layers=32, variety=0.7, image_bytes=0
)
"""As Early Exits, Table 6 has GSM8K with Vicuna-68M/7B on RTX: tau 1.96, 12.4 % of verdicts named by no exit, mean
exit 13. Seven of ten exits that are wrong name another token than the one before: the paper does not print it."""


def declared(name: str, cost: str = DEFAULT_COST) -> Timings:
    """Return timings of this name with a draft model beside the target; `cost` as in `load_timings`."""
    return load_timings(name, cost).with_server_draft()


def go2(cost: str = DEFAULT_COST) -> Timings:
    """Return the times of Early Exits, Table 8."""
    return declared("go2", cost)


def arm_figures(run: Run, timings: Timings, *names: str) -> dict[str, dict[str, Any]]:
    """Return every arm's milliseconds a token in the median step, and the figures of `figures_of` that are named."""
    every = {arm: figures_of(answers, timings) for arm, answers in run.answers.items()}
    return {
        arm: {"ms_per_token": 1e3 * each["per_token_s"]["median"], **{name: each[name] for name in names}}
        for arm, each in every.items()
    }


def save(
    name: str,
    options: argparse.Namespace,
    data: Mapping[str, Any],
    timings: Timings | None = None,
    recording: Recording | None = None,
) -> None:
    """Write benchmarks/results/decoding_NAME.json where --save was given."""
    if options.save:
        declared = {} if timings is None else {"timings": asdict(timings)}
        source = {} if recording is None else {"source": dict(recording.notes)}
        base = result_name("decoding", getattr(options, "frames", ""))
        settings = settings_of(options, "exits", "predictor")
        write_result(f"{base}_{name}", {"settings": settings, **declared, **source, **data})
