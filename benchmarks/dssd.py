"""DSD, DSSD, sparse and coupled on virtual time over a vocabulary of 50,272, beside DSSD's Tables 2 and 3.

    python -m benchmarks.dssd --save

Every scheme runs as in production, mode `sd`, with its messages encoded; their bytes then take their time on each link.
Target and draft are distributions that overlap by the printed acceptance
(`vlm_nav_evaluation/virtual_time/sampled.py`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np

from edge_drafter import DraftingConfig, Mode, StepResult
from speculation.acceptance import expected_tokens
from speculation.progress import progress
from speculation.sampling import Coupled, SamplingScheme, Sparse, Split, Whole
from vlm_nav_evaluation.experiment.command import command_line, main_of, settings_of, write_result
from vlm_nav_evaluation.formulas import dsd_s, dssd_s
from vlm_nav_evaluation.plots import add_outputs
from vlm_nav_evaluation.tables import Column, figures_table
from vlm_nav_evaluation.virtual_time import Timings
from vlm_nav_evaluation.virtual_time.sampled import SILENT_S, SampledPair, sampled_answers

TOKENS = 128
TOP_K = 10
"""DSSD samples from the ten likeliest tokens at temperature 1 (Sec. 4)."""
Place = tuple[float, float, int]
"""NTT in ms, rate in Mbit/s each way, gamma."""


@dataclass(frozen=True)
class Pair:
    """A pair of models: acceptance, c = T_SLM / T_LLM (Sec. 4.2), and DSSD's speed-ups in Table 3."""

    acceptance: float
    ratio: float
    speed_up: Mapping[Place, float]


PLACES: tuple[Place, ...] = (
    (0, 100, 8), (20, 100, 8), (50, 10, 8), (20, 50, 8), (50, 50, 8), (50, 10, 6), (20, 100, 4), (20, 100, 6),
)  # fmt: skip
_TABLE_3: tuple[Place, ...] = ((0, 100, 8), (20, 100, 8), (20, 50, 8), (20, 100, 4), (20, 100, 6))
PAIRS = {
    "6.7B": Pair(0.61, 0.10, dict(zip(_TABLE_3, (0.98, 0.92, 0.92, 1.11, 1.14), strict=True))),
    "13B": Pair(0.53, 0.05, dict(zip(_TABLE_3, (1.17, 1.13, 1.12, 1.44, 1.58), strict=True))),
}
"""(20, 100, 8) stands twice in Table 3, the second time with 1.04 and 1.30."""
DSD_SPEED_UP = dict(zip(_TABLE_3, (0.88, 0.85, 0.72, 1.10, 1.12), strict=True))
_TABLE_2 = PLACES[:6]
COMMUNICATION = {
    ("6.7B", "DSD"): dict(zip(_TABLE_2, (3.91, 4.60, 41.44, 8.59, 9.52, 8.12), strict=True)),
    ("6.7B", "DSSD"): dict(zip(_TABLE_2, (0.01, 0.62, 1.55, 0.62, 1.55, 0.40), strict=True)),
    ("13B", "DSSD"): dict(zip(_TABLE_2, (1.40, 9.21, 2.30, 0.92, 2.30, 2.01), strict=True)),
}
"""Table 2: seconds of communication for 128 tokens, on two equal devices."""
SCHEMES: Mapping[str, SamplingScheme] = {
    "DSD": Whole(1.0),
    "DSSD": Split(1.0),
    "sparse": Sparse(1.0),
    "coupled": Coupled(1.0),
    f"DSD, top {TOP_K}": Whole(1.0, top_k=TOP_K),
    f"DSSD, top {TOP_K}": Split(1.0, top_k=TOP_K),
}
"""Over the whole vocabulary, and as the paper samples."""
OWN = ("sparse", "coupled", f"DSD, top {TOP_K}", f"DSSD, top {TOP_K}")
"""What the paper has no figures of."""
SPEED_COLUMNS = (
    Column("DSD", "DSD.speed_up"), Column("Eq. 4", "DSD.formula"), Column("printed", "DSD.printed_speed_up"),
    Column("DSSD", "DSSD.speed_up"), Column("Eq. 13", "DSSD.formula"), Column("printed", "DSSD.printed_speed_up"),
    *(Column(name, f"{name}.speed_up") for name in OWN),
)  # fmt: skip
COMMUNICATION_COLUMNS = (
    Column("DSD", "DSD.communication_s"), Column("Eq. 5", "DSD.formula_s"), Column("printed", "DSD.printed_s"),
    Column("DSSD", "DSSD.communication_s"), Column("Eq. 9", "DSSD.formula_s"), Column("printed", "DSSD.printed_s"),
    *(Column(name, f"{name}.communication_s") for name in OWN),
)  # fmt: skip
BYTES_COLUMNS = (
    Column("B up/round", "up", ".0f"), Column("B down/round", "down", ".0f"), Column("accepted/round", "accepted"),
    Column("tokens/round", "tau"), Column("fetches/100 rounds", "fetches", ".1f", 100.0),
)  # fmt: skip


def fitted_s(pair: Pair, vocabulary: int) -> float:
    """Return the T_LLM with which Eq. 13 is nearest to Table 3's speed-ups of DSSD, by the ratios' logarithms."""

    def apart(target_s: float) -> float:
        every = (formula_speed_up(pair, "DSSD", place, target_s, vocabulary) / printed
                 for place, printed in pair.speed_up.items())  # fmt: skip
        return float(sum(np.log(each) ** 2 for each in every))

    return float(min(np.geomspace(0.005, 1.0, 400), key=apart))


def formula_speed_up(pair: Pair, scheme: str, place: Place, target_s: float, vocabulary: int) -> float:
    """Return E(gamma) T_LLM over a round's time (DSSD, Eq. 4, 5 and 13)."""
    ntt_ms, rate, gamma = place
    link = (1e6 * rate, ntt_ms / 1e3, vocabulary)
    around = dsd_s(gamma, *link) if scheme == "DSD" else dssd_s(gamma, pair.acceptance, *link)
    tokens = expected_tokens(pair.acceptance, gamma)
    return tokens * target_s / ((gamma * pair.ratio + 1.0) * target_s + around)


@dataclass(frozen=True)
class Traffic:
    """What answers of a scheme took: counts and bytes. Where each draft waits for its verdict no time decides them."""

    tokens: int
    rounds: int
    fetches: int
    accepted: int
    draft_forwards: int
    cloud_passes: int
    bytes_up: int
    bytes_down: int

    @classmethod
    def of(cls, results: Sequence[StepResult]) -> Traffic:
        """Return the sums over answers."""
        return cls(**{each.name: sum(getattr(result.stats, each.name) for result in results) for each in fields(cls)})

    def communication_s(self, place: Place) -> float:
        """Return the seconds on a link: bytes at its rate, and its delay for every exchange."""
        ntt_ms, rate, _ = place
        return 8.0 * (self.bytes_up + self.bytes_down) / (1e6 * rate) + (self.rounds + self.fetches) * ntt_ms / 1e3

    def figures(self, pair: Pair, place: Place, target_s: float) -> dict[str, float]:
        """Return speed-up over the target alone, which has no link in the paper, and communication of 128 tokens."""
        around = self.communication_s(place)
        computing = (self.draft_forwards * pair.ratio + self.cloud_passes) * target_s
        return {
            "speed_up": self.tokens * target_s / (computing + around),
            "communication_s": around * TOKENS / self.tokens,
            "up": self.bytes_up / self.rounds,
            "down": self.bytes_down / self.rounds,
            "accepted": self.accepted / self.rounds,
            "tau": self.tokens / self.rounds,
            "fetches": self.fetches / self.rounds,
        }


def timings_at(pair: Pair, place: Place, target_s: float) -> Timings:
    """Return the times of a place, half of the NTT each way."""
    ntt_ms, rate, _ = place
    return Timings(
        "dssd", pair.ratio * target_s, verify_s=target_s, one_way_s=ntt_ms / 2e3,
        up_bits_per_s=1e6 * rate, down_bits_per_s=1e6 * rate,
    )  # fmt: skip


def decoded(
    pair: Pair, scheme: SamplingScheme, place: Place, target_s: float, vocabulary: int, answers: int
) -> list[StepResult]:
    """Decode answers of 128 tokens on virtual time."""
    source = SampledPair(pair.acceptance, vocabulary, support=scheme.top_k)
    config = DraftingConfig.of(Mode.SD, gamma=place[2], resend_s=SILENT_S, patience_s=SILENT_S)
    return sampled_answers(source, timings_at(pair, place, target_s), config, scheme, range(answers), TOKENS)


def compared(
    label: str, places: Sequence[Place], target_s: float, vocabulary: int, answers: int
) -> dict[str, dict[str, Any]]:
    """Return for each place what every scheme does there, with what the formulas give and what is printed.

    Decoded once for each draft length: mode `sd` drafts the same wherever it waits.
    """
    pair, found = PAIRS[label], {}
    first = {place[2]: place for place in reversed(places)}
    runs = [(name, place) for place in first.values() for name in SCHEMES]
    traffic = {
        (name, place[2]): Traffic.of(decoded(pair, SCHEMES[name], place, target_s, vocabulary, answers))
        for name, place in progress(runs, unit="run", desc=label)
    }
    for place in places:
        ntt_ms, rate, gamma = place
        row: dict[str, Any] = {name: traffic[name, gamma].figures(pair, place, target_s) for name in SCHEMES}
        link = (1e6 * rate, ntt_ms / 1e3, vocabulary)
        rounds = TOKENS / expected_tokens(pair.acceptance, gamma)
        seconds = {"DSD": dsd_s(gamma, *link), "DSSD": dssd_s(gamma, pair.acceptance, *link)}
        printed = {"DSD": DSD_SPEED_UP if label == "6.7B" else {}, "DSSD": pair.speed_up}
        for name, around in seconds.items():
            row[name] |= {
                "formula": formula_speed_up(pair, name, place, target_s, vocabulary),
                "formula_s": around * rounds,
                "printed_speed_up": printed[name].get(place),
                "printed_s": COMMUNICATION.get((label, name), {}).get(place),
            }
        found[f"{ntt_ms:g} ms, {rate:g} Mbit/s, {gamma}"] = row
    return found


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command_line("benchmarks.dssd", __doc__)
    line.add_argument(
        "--answers", type=int, default=4, help=f"answers of {TOKENS} tokens a scheme and place (default: 4)"
    )
    line.add_argument("--vocabulary", type=int, default=50_272, help="tokens (default: OPT's 50272)")
    line.add_argument("--target-ms", type=float, default=0.0, help="T_LLM; 0: what Eq. 13 needs for Table 3 (default)")
    add_outputs(line)
    return line


def run(options: argparse.Namespace) -> None:
    """Print the tables of both pairs and save what was asked. Raises ValueError, naming the option."""
    if not 1 <= options.answers <= 1000:
        raise ValueError(f"--answers {options.answers} is outside 1 to 1000")
    if options.target_ms and not 0.1 <= options.target_ms <= 1e5:
        raise ValueError(f"--target-ms {options.target_ms:g} is outside 0.1 to 100000")
    places, answers = (PLACES[:2], 1) if options.quick else (PLACES, options.answers)
    data: dict[str, Any] = {}
    for label, pair in PAIRS.items():
        target_s = options.target_ms / 1e3 or fitted_s(pair, options.vocabulary)
        found = compared(label, places, target_s, options.vocabulary, answers)
        how = f"acceptance {pair.acceptance:g}, c {pair.ratio:g}, {options.vocabulary} tokens, {answers} answers each"
        print(f"\nOPT 125M/{label}: {how}; formulas with 16 bits a probability, the wire has 32")
        print(f"speed-ups at T_LLM {1e3 * target_s:.0f} ms (printed: Table 3)")
        print(figures_table("NTT, rate, gamma", found, SPEED_COLUMNS))
        print(f"\nseconds of communication for {TOKENS} tokens (printed: Table 2)")
        print(figures_table("NTT, rate, gamma", found, COMMUNICATION_COLUMNS))
        print(f"\nat {next(iter(found))}")
        print(figures_table("scheme", {name: next(iter(found.values()))[name] for name in SCHEMES}, BYTES_COLUMNS))
        data[label] = {"target_s": target_s, "places": found}
    if options.save:
        write_result("dssd", {"settings": settings_of(options), **data})


main = partial(main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
