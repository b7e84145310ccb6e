"""Split layers: one round trip a token, hidden states on the link."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vlm_nav_evaluation.formulas import layer_split_s
from vlm_nav_evaluation.virtual_time import PAPERS, Synthetic, Timings
from vlm_nav_evaluation.virtual_time.layer_split import LayerSplit


def test_layer_split_takes_one_round_trip_a_token() -> None:
    recording = Synthetic(tokens=20).draw(2)
    timings = PAPERS["go2"]
    for result in LayerSplit(share=0.25, slowdown=3.0).decode(recording, timings):
        assert result.stats.total_s == pytest.approx(layer_split_s(timings, 20, 0.25, 3.0))
        assert result.stats.rounds == result.stats.cloud_passes == 20


def test_hidden_states_take_their_time_on_a_slow_link() -> None:
    recording = Synthetic(tokens=20).draw(1)
    timings = Timings(verify_s=0.1, one_way_s=0.01, up_bits_per_s=1e6, cloud_prefill_s=0.0)
    fast = LayerSplit(hidden_bytes=1000).decode(recording, replace(timings, up_bits_per_s=0.0))[0].stats
    slow = LayerSplit(hidden_bytes=1000).decode(recording, timings)[0].stats
    assert slow.bytes_up == 20_000
    assert slow.total_s - fast.total_s == pytest.approx(20_000 * 8 / 1e6)
    prompt = LayerSplit(hidden_bytes=1000, prompt_tokens=10).decode(recording, timings)[0].stats
    assert prompt.bytes_up == 30_000
    assert prompt.total_s > slow.total_s
