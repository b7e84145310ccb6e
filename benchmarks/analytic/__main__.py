"""Command line: the papers' formulas, what the papers print, and the clocked engine, side by side."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.analytic import dssd, engine, pictures, tables
from benchmarks.clocked import PAPERS, Synthetic, Timings
from edge_drafter import Mode
from evaluation.experiment.command import settings_of, write_result
from evaluation.plots import add_outputs, keep
from speculation.acceptance import expected_tokens

GO2 = PAPERS["go2"]
VOCABULARY, BITS, TOP = 151_936, 16, 50
"""Qwen2-VL's vocabulary, half precision, and the entries of a sparse distribution in the picture of bandwidth."""
NTT_S = 0.020
TOKENS_ONLY = "tokens only (coupled, greedy)"
GAMMA = 4
ANSWER, QUICK_ANSWER = 200, 60
"""Tokens of a drawn answer."""
RTTS_MS, QUICK_RTTS_MS = (0, 50, 100, 150, 200, 250, 300), (0, 300)
RATES_BPS = tuple(1e5 * 10.0 ** (step / 2) for step in range(9))


def bandwidth(acceptance: float) -> tuple[dict[str, list[float]], dict[str, list[float]], dict[str, tuple[int, int]]]:
    """Return a round's mean seconds of communication by formula and on the engine's link, and its bytes up and down.

    Bytes are those of a round with a rejection; without one nothing comes down in DSSD and in its sparse form.
    """
    full = dssd.dsd_bits(1, VOCABULARY, BITS)
    sparse = dssd.sparse_bits(TOP, VOCABULARY, BITS)
    rejected = dssd.rejected(acceptance, GAMMA)
    up, down = engine.wire_bytes(GAMMA, expected_tokens(acceptance, GAMMA))
    ways = {
        f"DSD: {GAMMA} distributions up": (GAMMA * full, 0.0, 1.0),
        "DSSD: one down if a token is rejected": (0.0, full, rejected),
        f"sparse: its {TOP} likeliest instead": (0.0, sparse, rejected),
        TOKENS_ONLY: (8.0 * up, 8.0 * down, 1.0),
    }
    lines: dict[str, list[float]] = {name: [] for name in ways}
    dots: dict[str, list[float]] = {name: [] for name in ways}
    for rate in RATES_BPS:
        link = dssd.Link(rate, rate, NTT_S)
        timings = Timings("link", one_way_s=NTT_S / 2.0, up_bits_per_s=rate, down_bits_per_s=rate)
        for name, (bits_up, bits_down, share) in ways.items():
            lines[name].append(dssd.comm_s(bits_up, share * bits_down, link))
            with_it, without = (engine.round_s(round(bits_up / 8), size, timings) for size in (round(bits_down / 8), 0))
            dots[name].append(share * with_it + (1.0 - share) * without)
    return lines, dots, {name: (round(u / 8), round(d / 8)) for name, (u, d, _) in ways.items()}


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(prog="python -m benchmarks.analytic", description=(__doc__ or "").splitlines()[0])
    line.add_argument("--steps", type=int, help="answers of each run of the engine (default: 8, quick: 1)")
    add_outputs(line)
    return line


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables and draw the pictures. Returns the exit code: 0, or 2 after one sentence on stderr."""
    options = parser().parse_args(arguments)
    options.steps = options.steps if options.steps is not None else (1 if options.quick else 8)
    try:
        if options.steps < 1:
            raise ValueError(f"--steps {options.steps}: give at least 1")
        compare(options)
    except (ValueError, OSError) as error:
        print(f"analytic: {error}", file=sys.stderr)
        return 2
    return 0


def compare(options: argparse.Namespace) -> None:
    """Run the engine, print, draw and save."""
    source = Synthetic(tokens=QUICK_ANSWER if options.quick else ANSWER)
    acceptance = source.rates[0]
    rtts_s = [each / 1e3 for each in (QUICK_RTTS_MS if options.quick else RTTS_MS)]
    systems = engine.systems(options.steps, source.tokens)
    pairs = engine.pairs(options.steps, source.tokens)
    trips = engine.round_trips(source, options.steps, rtts_s, GO2)
    ours = {gamma: engine.ran(Mode.FSD.value, source, options.steps, GO2, gamma) for gamma in pictures.HEAT_GAMMAS}
    lines, dots, sizes = bandwidth(acceptance)
    shown = [
        tables.speed_ups(systems), tables.averages(), tables.claims(), tables.pipeline(pairs), tables.dssd_table_1(),
        tables.dssd_table_2(), tables.dssd_table_3(), tables.proactive(),
    ]  # fmt: skip
    print("\n\n".join(each.text() for each in shown))
    told = (
        f"{GAMMA} draft tokens, acceptance {acceptance:g}, {VOCABULARY:,} probabilities of {BITS} bits.\nThe first "
        "three: distributions alone, as the paper counts; the last: "
        f"{' and '.join(map(str, sizes[TOKENS_ONLY]))} bytes of this wire"
    )
    print(f"\nthe engine decoded {options.steps} drawn answers of {source.tokens} tokens in each run, on virtual time")
    keep(pictures.draw_gain(ours), "analytic_fsd_gain", options)
    keep(pictures.draw_papers(systems), "analytic_early_exits", options)
    keep(pictures.draw_round_trips(trips, rtts_s, acceptance, source.miss), "analytic_round_trip", options)
    link = dssd.Link(RATES_BPS[0], RATES_BPS[0], NTT_S)
    keep(pictures.draw_bandwidth(lines, dots, RATES_BPS, link, told), "analytic_bandwidth", options)
    if options.save:
        data = {
            "settings": settings_of(options, "save", "out"),
            "source": repr(source),
            "tables": [each.data() for each in shown],
            "round_trips": {
                "rtt_s": rtts_s,
                "engine": {mode: [vars(each) for each in entries] for mode, entries in trips.items()},
                "formula_token_s": {
                    mode: [pictures.token_s(mode, rtt_s, acceptance, source.miss) for rtt_s in rtts_s] for mode in trips
                },
            },
            "fsd_on_the_engine_by_gamma": {str(gamma): vars(each) for gamma, each in ours.items()},
            "bandwidth": {"rates_bps": RATES_BPS, "ntt_s": NTT_S, "formula_s": lines, "engine_s": dots, "bytes": sizes},
        }
        write_result("analytic", data)


if __name__ == "__main__":
    sys.exit(main())
