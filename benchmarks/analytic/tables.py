"""Formula, paper and engine side by side: tables whose cells are figures, so that text and JSON say the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.analytic import dssd, early_exits, picospec, specedge
from benchmarks.analytic.engine import Ran
from edge_drafter import Mode
from edge_drafter.controller import balanced_gamma
from evaluation import tables
from speculation.acceptance import expected_tokens

Cell = float | str | None


@dataclass(frozen=True)
class Table:
    """A table: `columns` are names with format specifications, a cell that is None is a dash."""

    title: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the table, with its notes, as aligned text."""
        specs = [spec for _, spec in self.columns]
        cells = [
            ["-" if cell is None else cell if isinstance(cell, str) else format(cell, spec)
             for cell, spec in zip(row, specs, strict=True)]
            for row in self.rows
        ]  # fmt: skip
        body = tables.table([name for name, _ in self.columns], cells)
        return "\n".join([self.title, body, *(f"* {note}" for note in self.notes)])

    def data(self) -> dict[str, Any]:
        """Return the table for JSON."""
        return {
            "title": self.title,
            "columns": [name for name, _ in self.columns],
            "rows": self.rows,
            "notes": self.notes,
        }


def speed_ups(ran: Mapping[str, Mapping[str, Ran]]) -> Table:
    """Return Table 4 at the times of Tables 5 and 8(a), beside the printed speed-ups and the engine's."""
    gamma, n = early_exits.GAMMA, early_exits.TOKENS
    rows = []
    for name, system in early_exits.SYSTEMS.items():
        measured, found = early_exits.MEASURED[name], ran[name]
        sd = early_exits.sd_s(system, n, gamma, measured.tau)
        fsd = early_exits.fsd_s(system, n, gamma, measured.tau, measured.miss)
        rows.append(
            (
                system.label,
                system.draft_s / system.verify_s,
                system.c,
                early_exits.cloud_s(system, n) / sd,
                found[Mode.CLOUD.value].token_s / found[Mode.SD.value].token_s,
                measured.ar_to_sd,
                1e3 * early_exits.decode_s_for(measured.ar_to_sd, system, n, gamma, measured.tau),
                system.verify_ms,
                sd / fsd,
                found[Mode.SD.value].token_s / found[Mode.FSD.value].token_s,
                measured.sd_to_fsd,
                1e3 * early_exits.sync_s_for(measured.sd_to_fsd, system, gamma, measured.miss),
                found[Mode.FSD.value].miss,
                measured.miss,
            )
        )
    columns = (
        ("Early Exits", ""), ("c", ".3f"), ("printed", ".2f"), ("AR->SD: formula", ".2f"), ("engine", ".2f"),
        ("printed", ".2f"), ("decode asked ms", ".0f"), ("T_q ms", ".0f"), ("SD->FSD: formula", ".2f"),
        ("engine", ".2f"), ("printed", ".2f"), ("T_r asked ms", ".0f"), ("misses: engine", ".2f"), ("printed", ".2f"),
    )  # fmt: skip
    notes = (
        "decode asked: the plain decode with which Table 4 gives the printed AR->SD. It is 0.57 to 0.81 of the printed "
        "verification latency: if Table 4 holds, a token of cloud decoding took less time than a verification.",
        "T_r asked: the thread synchronisation with which Table 4 gives the printed SD->FSD; a negative one cannot be. "
        "The Go2's 1.34 is what Table 4 gives for a miss rate of 0, not of 55.63 %.",
        "Engine: facts drawn with the acceptance that gives the printed tau, the printed miss rate and mean exit. It "
        "misses more often where the early tokens leave no time for four draft forwards; Table 4 takes r as given.",
    )
    return Table("Early Exits, Table 4 at Tables 5 and 8(a)", columns, tuple(rows), notes)


def averages() -> Table:
    """Return Table 6's printed averages that its own rows contradict by more than rounding (half a digit each)."""
    rows: list[tuple[Cell, ...]] = []
    kinds = {"ar_to_sd": 0.011, "sd_to_fsd": 0.011, "tau": 0.011, "miss_percent": 0.011}
    for name, printed in early_exits.TABLE_6_AVERAGE.items():
        own = early_exits.averages(name)
        for kind, tolerance in kinds.items():
            if abs(getattr(own, kind) - getattr(printed, kind)) > tolerance:
                rows.append((early_exits.SYSTEMS[name].label, kind, getattr(own, kind), getattr(printed, kind)))
    columns = (("Early Exits, Table 6", ""), ("figure", ""), ("mean of its rows", ".2f"), ("printed average", ".2f"))
    return Table("Early Exits, Table 6: printed averages that are not its rows' means", columns, tuple(rows))


def claims() -> Table:
    """Return what App. B says of Eq. 9 in words, beside Eq. 9."""
    rows: list[tuple[Cell, ...]] = [
        ("c > 0.5, miss < 10 %: over 5x", gamma, 0.5, 0.1, early_exits.fsd_gain(gamma, 0.5, 0.1), 5.0,
         early_exits.miss_for(5.0, gamma, 0.5))
        for gamma in (4, 7, 10)
    ]  # fmt: skip
    for gamma, said in ((4, 0.10), (7, 0.25), (10, 0.35)):
        c = early_exits.LARGER_C
        gain = early_exits.fsd_gain(gamma, c, said)
        rows.append((f"2x needs a miss rate below {said:.0%}", gamma, c, said, gain, 2.0,
                     early_exits.miss_for(2.0, gamma, c)))  # fmt: skip
    columns = (
        ("Early Exits, App. B", ""), ("gamma", "d"), ("c", ".2f"), ("miss", ".2f"), ("Eq. 9", ".2f"), ("said", ".1f"),
        ("miss that gives it", ".2f"),
    )  # fmt: skip
    notes = ("A negative miss rate: no miss rate gives that gain. 5x at c = 0.5 needs gamma 10 and misses below 4 %.",)
    return Table("Early Exits, what App. B says of Eq. 9", columns, tuple(rows), notes)


def pipeline(ran: Mapping[str, Mapping[str, Ran]]) -> Table:
    """Return PicoSpec's Eq. 5 to 10 at its own times, beside its Tables 1 to 3 and the engine."""
    gamma, rows = picospec.GAMMA, list[tuple[Cell, ...]]()
    for name, pair in picospec.PAIRS.items():
        alpha = picospec.acceptance_for(pair.accepted, gamma)
        times = (pair.drafting_s, 2.0 * pair.one_way_s, pair.decode_s)
        serial, piped = (rate(alpha, gamma, *times) for rate in (picospec.serial_rate, picospec.pipelined_rate))
        found = ran[name]
        rows.append(
            (
                pair.label, pair.accepted, pair.rate * pair.round_s, alpha, 1e3 * pair.draft_s,
                2e3 * pair.one_way_s, serial, 1.0 / found[Mode.SD.value].token_s, pair.serial_rate,
                pair.vanilla * pair.ar_rate, piped, 1.0 / found[Mode.PIPELINED.value].token_s, pair.rate,
                picospec.largest_gain(*times), pair.rate / pair.serial_rate,
            )
        )  # fmt: skip
    columns = (
        ("PicoSpec", ""), ("length", ".2f"), ("rate x TPOT", ".2f"), ("alpha", ".2f"), ("T_p ms", ".1f"),
        ("T_rtt ms", ".1f"), ("serial Eq. 7", ".1f"), ("engine sd", ".1f"), ("w/o para-draft", ".1f"),
        ("vanilla", ".1f"), ("Eq. 9", ".1f"), ("engine pipelined", ".1f"), ("printed", ".1f"), ("Eq. 10", ".2f"),
        ("gain printed", ".2f"),
    )  # fmt: skip
    notes = (
        "Rates are tokens per second. T_rtt is derived: the stop-and-wait round's wait less a token of cloud decoding.",
        "length: average acceptance length, taken as E of Eq. 5. rate x TPOT should be 1; it is a round's tokens, "
        "so the printed TPOT is the time of a round. On Llama and HumanEval it is above the 5 that gamma = 4 allows.",
        "Eq. 8 counts a hit with alpha^gamma; a draft made ahead must have guessed the target's extra token as well, "
        "and the engine asks for that.",
        "Qwen's printed rates are far above Eq. 9 and the engine, Llama's below Eq. 9.",
        "Sec. 4.4 says that drafting takes from 82.11 ms (3 tokens) to 145.40 ms (6); in Table 4 82.11 is in another "
        "column, drafting 3 tokens takes 73.41 ms.",
    )
    return Table("PicoSpec, Eq. 5 to 10 at the times of its Tables 1 to 3", columns, tuple(rows), notes)


def dssd_table_1() -> Table:
    """Return Table 1 recomputed from Eq. 9."""
    rows = []
    for (gamma, alpha), (share, milliseconds) in dssd.TABLE_1.items():
        chance = dssd.rejected(alpha, gamma)
        formula = 1e3 * dssd.comm_s(0.0, chance * dssd.TABLE_1_BITS, dssd.TABLE_1_LINK)
        rows.append((f"gamma {gamma}, alpha {alpha:g}", chance, share, formula, milliseconds))
    columns = (
        ("DSSD, Table 1", ""),
        ("1 - alpha^gamma", ".3f"),
        ("printed", ".2f"),
        ("Eq. 9 ms", ".2f"),
        ("printed ms", ".2f"),
    )
    notes = ("20 ms NTT, 800,000 bits at 100 Mbit/s: the paper names neither; its figures ask for them.",)
    return Table("DSSD, Table 1", columns, tuple(rows), notes)


def dssd_table_2(bits: int = 16) -> Table:
    """Return T_com of Table 2 from Eq. 5 and 9, over as many rounds as 128 tokens take, beside the printed one."""
    rows = []
    for row in dssd.TABLE_2:
        link = dssd.Link.symmetric(row.mbps, row.ntt_ms / 1e3)
        rounds = [
            dssd.TABLE_2_TOKENS / expected_tokens(alpha, row.gamma)
            for alpha in (dssd.TABLE_2_ALPHA, dssd.TABLE_2_ALPHA_13B)
        ]
        vocabulary = dssd.OPT_VOCABULARY
        split = [
            count * dssd.dssd_comm_s(alpha, row.gamma, vocabulary, bits, link)
            for count, alpha in zip(rounds, (dssd.TABLE_2_ALPHA, dssd.TABLE_2_ALPHA_13B), strict=True)
        ]
        rows.append(
            (
                f"{row.ntt_ms:g} ms, {row.mbps:g} Mbit/s, gamma {row.gamma}", rounds[0],
                rounds[0] * dssd.dsd_comm_s(row.gamma, vocabulary, bits, link), row.dsd[0], row.dsd[1], split[0],
                row.dssd[0], row.dssd[1], split[1], row.dssd_13b[0], row.dssd_13b[1],
            )
        )  # fmt: skip
    columns = (
        ("DSSD, Table 2", ""), ("rounds", ".1f"), ("DSD Eq. 5 s", ".2f"), ("printed", ".2f"), ("speed-up", ".2f"),
        ("DSSD Eq. 9 s", ".2f"), ("printed", ".2f"), ("speed-up", ".2f"), ("13B Eq. 9 s", ".2f"), ("printed", ".2f"),
        ("speed-up", ".2f"),
    )  # fmt: skip
    up = dssd.dsd_bits(8, dssd.OPT_VOCABULARY, bits) / 8
    notes = (
        f"128 tokens, OPT's {dssd.OPT_VOCABULARY} probabilities of {bits} bits, rounds by Leviathan et al., Eq. 1.",
        "At gamma 8 DSSD's printed T_com is NTT times 31 (6.7B) or 46 (13B) and does not change with the rate: "
        "the distribution that comes down is not in it. 1.40 and 9.21 s of the first rows fit neither that nor Eq. 9.",
        f"Sec. 4.1 says {dssd.DSD_ROUND_BYTES:,} bytes a round go up in DSD; Eq. 4 gives {up:,.0f}; one distribution "
        f"alone is {up / 8:,.0f}.",
    )
    return Table("DSSD, Table 2: seconds of communication", columns, tuple(rows), notes)


def dssd_table_3(bits: int = 16) -> Table:
    """Return Table 3 with the T_LLM that Eq. 13 asks for, and what Sec. 4.2 says of the same settings in words."""
    rows = []
    for row in dssd.TABLE_3:
        link = dssd.Link.symmetric(row.mbps, row.ntt_ms / 1e3)
        asked = [
            1e3 * dssd.target_s_for(
                printed, alpha, row.gamma, c, dssd.dssd_comm_s(alpha, row.gamma, dssd.OPT_VOCABULARY, bits, link)
            )
            for printed, alpha, c in (
                (row.dssd, dssd.TABLE_2_ALPHA, dssd.C_6_7B), (row.dssd_13b, dssd.TABLE_2_ALPHA_13B, dssd.C_13B)
            )
        ]  # fmt: skip
        rows.append(
            (
                f"{row.ntt_ms:g} ms, {row.mbps:g} Mbit/s, gamma {row.gamma}", row.dsd, row.dssd, row.said, asked[0],
                row.dssd_13b, row.said_13b, asked[1],
            )
        )  # fmt: skip
    columns = (
        ("DSSD, Table 3", ""), ("DSD", ".2f"), ("DSSD 6.7B", ".2f"), ("Sec. 4.2", ".2f"), ("T_LLM asked ms", ".0f"),
        ("DSSD 13B", ".2f"), ("Sec. 4.2", ".2f"), ("T_LLM asked ms", ".0f"),
    )  # fmt: skip
    notes = (
        "T_LLM asked: the target's time for a token with which Eq. 13 gives the printed speed-up, at the printed alpha "
        "and c (0.1, 0.05). The paper prints no T_LLM, and no single one fits a column.",
        "The second and the last row are one setting with two results; Sec. 4.2 gives a third. It also says 1.02 and "
        "1.48 for 0 ms, 100 Mbit/s, gamma 6, and 1.38 and 1.24 for 20 ms, 50 Mbit/s, which no row holds.",
    )
    return Table("DSSD, Table 3: speed-ups of unlike devices", columns, tuple(rows), notes)


def proactive() -> Table:
    """Return SpecEdge's depth rule, its split layers and what Eq. 1 asks for, beside the printed figures."""
    edge, rows = specedge.PRINTED, list[tuple[Cell, ...]]()
    for rtt_s, depth in specedge.DEPTHS.items():
        formula = balanced_gamma(edge.verify_s, edge.draft_s, rtt_s)
        rows.append((f"draft depth at {1e3 * rtt_s:g} ms (Sec. 4.3)", formula, float(depth)))
    split = specedge.SPLIT_TOKEN_S
    (near, near_s), (far, far_s) = split.items()
    rows.append(("split layers: round trips a token (Sec. 5.3)", 1.0, (far_s - near_s) / (far - near)))
    ahead = int((edge.verify_s + edge.rtt_s) / edge.draft_s)
    gain = specedge.TAU["SpecEdge"] - specedge.TAU["server only"]
    whole = specedge.proactive_gain(1.0, 1.0, ahead, 1)
    rows.append((f"tokens saved by a complete alignment, {ahead} ahead (Eq. 1)", whole, None))
    rows.append(("tokens a verification, more than server-only (Sec. 5.2)", None, gain))
    rows.append(("P_align P_match that Eq. 1 asks for", gain / whole, None))
    columns = (("SpecEdge", ""), ("formula", ".2f"), ("printed", ".2f"))
    return Table("SpecEdge, Eq. 1 and Sec. 4.3, Qwen3 1.7B/32B", columns, tuple(rows))
