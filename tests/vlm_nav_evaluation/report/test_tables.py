"""Decoding figures as text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from spec_vlm_nav.messages import figures
from tests.vlm_nav_evaluation.report.recording import FIGURES
from vlm_nav_evaluation.report.tables import decoding_table, step_lines


def stats_message(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"profile": "", "link_rtt_s": 0.002, **figures(FIGURES), **changes})


def test_figures_as_text_say_what_was_measured() -> None:
    first, second = step_lines(stats_message())
    assert first == "24 tokens, tau 3.00, 8 cloud passes, hits 3/7, early exit layer 2 x3"
    assert "140 ms" in second and "rtt 2" in second
    table = decoding_table([stats_message(), stats_message(total_s=0.5, early_layers=[2, 4], early_hits=[1, 1])])
    rows = dict(line.split("  ", 1) for line in table.splitlines())
    values = {name.strip(): value.strip() for name, value in rows.items()}
    assert values["tokens per commit (tau)"] == "3.00"
    assert values["early tokens; hits by exit layer"] == "18; layer 2 x4, layer 4 x1"
    assert values["answer, median and longest"] == "320 ms, 500 ms"
    assert decoding_table([]) == "no answer was decoded"
