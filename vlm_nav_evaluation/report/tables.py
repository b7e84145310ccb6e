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
    if getattr(stats, "ahead_hits", 0):  # bags of older versions lack it
        tokens += f" ({stats.ahead_hits} on a draft sent ahead)"
    if len(stats.early_layers):
        hits = zip(stats.early_layers, stats.early_hits, strict=True)
        tokens += ", early exit " + " ".join(f"layer {layer} x{count}" for layer, count in hits)
    edge = f"draft {_ms(stats.prefill_s + stats.draft_s + stats.predraft_s)} wait {_ms(stats.wait_s)}"
    cloud = f"verifier {_ms(stats.server_prefill_s + stats.server_compute_s)} queue {_ms(stats.server_queue_s)}"
    rtt = f" rtt {_ms(stats.link_rtt_s)}" if stats.link_rtt_s >= 0.0 else ""
    return [tokens, f"{_ms(stats.total_s)} ms: {edge} {cloud}{rtt}"]


def decoding_table(stats: Sequence[Any]) -> str:
    """Return a run's figures as aligned text; a sentence if nothing was decoded."""
    rows = decoding_rows(stats) if stats else []
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows) or "no answer was decoded"


def decoding_rows(stats: Sequence[Any]) -> list[tuple[str, str]]:
    """Return a run's figures, of one answer at least, as names and values."""

    def total(name: str) -> Any:
        return sum(getattr(entry, name, 0) for entry in stats)

    def ratio(above: str, below: str) -> str:
        return f"{total(above) / total(below):.2f}" if total(below) else "-"

    early: Counter[int] = Counter()
    for entry in stats:
        early.update(dict(zip(entry.early_layers, entry.early_hits, strict=True)))
    layers = ", ".join(f"layer {layer} x{count}" for layer, count in sorted(early.items())) or "none"
    seconds = [entry.total_s for entry in stats]
    first = [entry.first_commit_s for entry in stats if entry.first_commit_s >= 0.0]
    judged = total("hits") + total("misses")
    wasted = f"{total('draft_forwards')}, {total('wasted_forwards')} ({total('wasted_s'):.2f} s)"
    return [
        ("mode, declared conditions", f"{stats[0].mode}, {stats[0].profile or 'raw'}"),
        ("answers, tokens", f"{len(stats)}, {total('tokens')}"),
        ("tokens per commit (tau)", ratio("tokens", "rounds")),
        ("draft tokens accepted", f"{total('accepted')} of {total('drafted')}"),
        ("pre-draft hits", f"{total('hits')} of {judged}" if judged else "none judged"),
        ("hits on a draft sent ahead", str(total("ahead_hits"))),
        ("early tokens; hits by exit layer", f"{total('early_received')}; {layers}"),
        ("draft forwards, wasted", wasted),
        ("target passes per token", ratio("cloud_passes", "tokens")),
        ("bytes up, down per answer", f"{total('bytes_up') // len(stats)}, {total('bytes_down') // len(stats)}"),
        ("answer, median and longest", f"{_ms(median(seconds))} ms, {_ms(max(seconds))} ms"),
        ("first tokens, median", f"{_ms(median(first))} ms" if first else "none"),
        ("link interruptions", str(total("interruptions"))),
    ]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}"
