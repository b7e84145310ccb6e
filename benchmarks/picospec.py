"""The rows of PicoSpec's Tables 1 to 3 at its times: `pipelined` without each part, and what it is compared with."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.recordings import VIRTUAL
from edge_drafter import Mode
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.results import provenance, settings_of, write_result
from vlm_nav_evaluation.tables import Column, markdown
from vlm_nav_evaluation.virtual_time import Recording, Synthetic, Timings, figures_of, run_arms
from vlm_nav_evaluation.virtual_time.tuning import split


class Pipeline(NamedTuple):
    """A pair and task of PicoSpec, as its Tables 1 to 3 print them; times in seconds, rates in tokens a second."""

    gamma: int
    """The printed draft length, or the one that the printed rate asks for where more tokens are accepted than that."""
    accepted: float
    """Draft tokens accepted a round, a + a^2 + ... + a^gamma."""
    drafting_s: float
    """Seconds that drafting gamma tokens takes."""
    around_s: float
    """T_verify + T_rtt of the stop-and-wait round, in which nothing is hidden."""
    whole_s: float
    """Seconds that `around_s` grows by where whole distributions go up."""
    layer_bytes: float
    layers: int
    printed: tuple[float, float, float, float, float, float, float]
    """Rates in the order of `PARTS`; those of Table 1 are printed as multiples of the cloud's."""

    @property
    def timings(self) -> Timings:
        """T_p, T_q = one token of cloud decoding, and T_c = what the stop-and-wait round leaves."""
        verify_s = 1.0 / self.printed[0]
        return Timings(
            "picospec", self.drafting_s / self.gamma, 0.0, verify_s, one_way_s=(self.around_s - verify_s) / 2
        )

    @property
    def acceptance(self) -> float:
        """The chance a that a draft token whose ancestors stand does, too."""
        chances = np.linspace(0.0, 1.0, 10_001)
        accepted = np.sum(chances ** np.arange(1, self.gamma + 1)[:, None], axis=0)
        return float(chances[np.argmin(np.abs(accepted - self.accepted))])

    @property
    def split_token_s(self) -> float:
        """A token of split inference with three layers on the edge: their weights are read there, the others' in the
        cloud, and a hidden state goes up and a token comes down."""
        timings = self.timings
        on_edge_s = EDGE_LAYERS * self.layer_bytes / EDGE_BYTES_PER_S
        return on_edge_s + timings.verify_s * (1.0 - EDGE_LAYERS / self.layers) + 2.0 * timings.one_way_s


EDGE_LAYERS, EDGE_BYTES_PER_S = 3, 204.8e9
"""PicoSpec's split, and the memory of a Jetson AGX Orin."""
QWEN, LLAMA = (0.975e9, 64), (1.711e9, 80)
"""Bytes of a layer in 16 bits, and layers, of Qwen3 32B and Llama 3.1 70B."""
PAIRS = {
    "Qwen3 0.6B/32B, GSM8K": Pipeline(4, 2.50, 0.09746, 0.11981, 0.07963, *QWEN,
                                      (13.89, 8.06, 7.50, 11.92, 17.87, 12.62, 20.19)),
    "Qwen3 0.6B/32B, HumanEval": Pipeline(4, 1.88, 0.09717, 0.11903, 0.09023, *QWEN,
                                          (14.18, 6.24, 7.52, 10.25, 13.86, 10.23, 16.04)),
    "Llama 1B/70B, GSM8K": Pipeline(6, 4.29, 0.17105, 0.19468, 0.11733, *LLAMA,
                                    (6.87, 9.27, 4.33, 12.51, 16.64, 12.12, 17.22)),
    "Llama 1B/70B, HumanEval": Pipeline(7, 4.90, 0.17241, 0.18660, 0.09888, *LLAMA,
                                        (6.86, 9.95, 4.53, 13.60, 19.67, 14.29, 19.88)),
}  # fmt: skip
SPLIT, VANILLA, WHOLE_ROWS = "split inference", "vanilla", "without separate rejection"
PARTS: Mapping[str, tuple[str, str] | None] = {
    "cloud": ("cloud", ""),
    VANILLA: (Mode.SD.value, ""),
    SPLIT: None,
    "without pre-draft": (Mode.PIPELINED.value, "own_guess=off,ahead=off"),
    "without PreVerify": (Mode.PIPELINED.value, "preverify=off,partial=off"),
    WHOLE_ROWS: (Mode.PIPELINED.value, ""),
    "all": (Mode.PIPELINED.value, ""),
}
"""Mode and changes of PicoSpec's rows. Split inference drafts nothing: it has a formula."""
GAMMAS, STEPS, QUICK_TOKENS = (2, 4, 6), 12, 40
COLUMNS = (
    Column("printed tokens/s", "printed", ".1f"), Column("of all", "printed_share"),
    Column("ours", "rate", ".1f"), Column("of all", "share"), Column("passes/token", "passes_per_token"),
    Column("best gamma", "gamma", ".0f"), Column("its tokens/s", "best", ".1f"),
)  # fmt: skip


def picospec(options: argparse.Namespace, steps: int) -> None:
    """Print PicoSpec's ablation for each pair and task, and save what was asked."""
    found: dict[str, dict[str, Any]] = {}
    tokens = QUICK_TOKENS if options.quick else Synthetic().tokens
    for name, row in PAIRS.items():
        synthetic = Synthetic(tokens=tokens, acceptance=row.acceptance, miss=1.0, image_bytes=0, seed=20_000)
        first, shown = split(synthetic.draw(steps))
        found[name] = parts_of(row, first, shown, options.cost)
        print(f"\n{name}: gamma {row.gamma}, acceptance {row.acceptance:.3f}, {row.timings.with_cost(options.cost)}\n")
        print(markdown("", found[name], COLUMNS), flush=True)
    if options.save:
        rows = {name: row._asdict() for name, row in PAIRS.items()}
        about = {"settings": settings_of(options), **provenance(options), "kind": VIRTUAL}
        write_result("picospec_ablation", {**about, "rows": rows, "found": found})


def parts_of(row: Pipeline, first: Recording, shown: Recording, cost: str) -> dict[str, dict[str, Any]]:
    """Return the rates of PicoSpec's rows at its draft length, and of each at the length of `GAMMAS` that is fastest on
    `first`."""
    plain = row.timings.with_cost(cost)
    whole = replace(plain, one_way_s=plain.one_way_s + row.whole_s / 2.0)
    found: dict[str, dict[str, Any]] = {}
    for (name, part), printed in zip(PARTS.items(), row.printed, strict=True):
        found[name] = {"printed": printed}
        if part is None:
            found[name]["rate"] = 1.0 / row.split_token_s
            continue
        timings = whole if name in (VANILLA, WHOLE_ROWS) else plain
        found[name] |= rates(shown, timings, part, [row.gamma])[row.gamma]
        if Mode(part[0]).drafts:
            tried = rates(first, timings, part, GAMMAS)
            best = max(GAMMAS, key=lambda gamma, tried=tried: tried[gamma]["rate"])  # type: ignore[misc]
            found[name] |= {"gamma": best, "best": rates(shown, timings, part, [best])[best]["rate"]}
    for each in found.values():
        each |= {"share": each["rate"] / found["all"]["rate"], "printed_share": each["printed"] / row.printed[-1]}
    return found


def rates(
    recording: Recording, timings: Timings, part: tuple[str, str], gammas: Sequence[int]
) -> dict[int, dict[str, float]]:
    """Return tokens a second and passes a token by draft length, in one of `PARTS`."""
    mode, text = part
    arms = [Arm(str(gamma), mode, {"text": text, "gamma": gamma}) for gamma in gammas]
    figures = figures_of(run_arms(arms, recording, timings), timings)
    return {
        int(gamma): {"rate": 1.0 / each["per_token_s"]["median"], "passes_per_token": each["passes_per_token"]}
        for gamma, each in figures.items()
    }
