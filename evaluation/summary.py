"""Decoding figures as text: two lines a step, one table a run; from `DecodingStats` messages, live or of a bag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any


def step_lines(stats: Any) -> list[str]:
    """Return what one answer took: tokens first, then where the time went, in milliseconds."""
    tokens = f"{stats.tokens} tokens, tau {stats.tau:.2f}, {stats.cloud_passes} cloud passes"
    if stats.hits + stats.misses:
        tokens += f", hits {stats.hits}/{stats.hits + stats.misses}"
    if getattr(stats, "ahead_hits", 0):  # bags of older versions know none
        tokens += f" ({stats.ahead_hits} on a draft sent ahead)"
    if len(stats.early_layers):
        tokens += ", early exit " + " ".join(
            f"layer {layer} x{count}" for layer, count in zip(stats.early_layers, stats.early_hits, strict=True)
        )
    edge = f"draft {_ms(stats.prefill_s + stats.draft_s + stats.predraft_s)} wait {_ms(stats.wait_s)}"
    cloud = f"verifier {_ms(stats.server_prefill_s + stats.server_compute_s)} queue {_ms(stats.server_queue_s)}"
    rtt = f" rtt {_ms(stats.link_rtt_s)}" if stats.link_rtt_s >= 0.0 else ""
    return [tokens, f"{_ms(stats.total_s)} ms: {edge} {cloud}{rtt}"]


def decoding_table(stats: Sequence[Any]) -> str:
    """Return a run's figures as aligned text; a sentence if nothing was decoded."""
    if not stats:
        return "no answer was decoded"
    rows = decoding_rows(stats)
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def decoding_rows(stats: Sequence[Any]) -> list[tuple[str, str]]:
    """Return a run's figures, of one answer at least, as names and values."""
    total = {name: sum(getattr(entry, name) for entry in stats) for name in _SUMS}
    early: Counter[int] = Counter()
    for entry in stats:
        early.update(dict(zip(entry.early_layers, entry.early_hits, strict=True)))
    seconds = sorted(entry.total_s for entry in stats)
    first = [entry.first_commit_s for entry in stats if entry.first_commit_s >= 0.0]
    judged = total["hits"] + total["misses"]
    return [
        ("mode, declared conditions", f"{stats[0].mode}, {stats[0].profile or 'raw'}"),
        ("answers, tokens", f"{len(stats)}, {total['tokens']}"),
        ("tokens per commit (tau)", _ratio(total["tokens"], total["rounds"])),
        ("draft tokens accepted", f"{total['accepted']} of {total['drafted']}"),
        ("pre-draft hits", f"{total['hits']} of {judged}" if judged else "none judged"),
        ("hits on a draft sent ahead", str(sum(getattr(entry, "ahead_hits", 0) for entry in stats))),
        ("early tokens; hits by exit layer", f"{total['early_received']}; {_counts(early)}"),
        (
            "draft forwards, wasted",
            f"{total['draft_forwards']}, {total['wasted_forwards']} ({total['wasted_s']:.2f} s)",
        ),
        ("target passes per token", _ratio(total["cloud_passes"], total["tokens"])),
        ("bytes up, down per answer", f"{total['bytes_up'] // len(stats)}, {total['bytes_down'] // len(stats)}"),
        ("answer, median and longest", f"{_ms(median(seconds))} ms, {_ms(seconds[-1])} ms"),
        ("first tokens, median", f"{_ms(median(first))} ms" if first else "none"),
        ("link interruptions", str(total["interruptions"])),
    ]


_SUMS = (
    "tokens", "rounds", "accepted", "drafted", "hits", "misses", "early_received", "draft_forwards", "wasted_forwards",
    "wasted_s", "cloud_passes", "bytes_up", "bytes_down", "interruptions",
)  # fmt: skip


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}"


def _ratio(above: float, below: float) -> str:
    return f"{above / below:.2f}" if below else "-"


def _counts(counter: Counter[int]) -> str:
    return ", ".join(f"layer {layer} x{count}" for layer, count in sorted(counter.items())) or "none"
