"""Prices: the paper's table from them, tokens per dollar, and files that hold none."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.decoding import cost
from benchmarks.decoding.common import go2
from edge_drafter import DecodingStats, Mode
from vlm_nav_evaluation.virtual_time import Synthetic
from vlm_nav_evaluation.virtual_time.tuning import split

PRICES = cost.Prices.load(cost.PRICES)


def test_early_exits_table_1_follows_from_the_prices() -> None:
    rows = cost.paper_table(PRICES)
    assert {row["model"] for row in rows} == set(cost.PRINTED)
    for row in rows:
        assert row["computed"] == pytest.approx(row["paper"], abs=0.5)


def test_specedges_tokens_per_dollar_follow_from_the_rents() -> None:
    """SpecEdge, Table 1, Qwen3 14B/1.7B, multi-turn: tokens/s of the server, A100s, RTX 4090s, 1000 tokens/$."""
    for rate, servers, edges, printed in ((31.78, 1, 0, 28.25), (66.54, 1, 2, 50.60)):
        rent = servers * PRICES.rent.server + edges * PRICES.rent.edge
        assert cost.per_dollar(rate, rent) == pytest.approx(printed, rel=0.005)


def test_a_draft_beside_the_target_is_billed_and_one_on_the_edge_is_not(few: None) -> None:
    (first, shown), timings = split(Synthetic(tokens=40).draw(6)), go2()
    modes = cost.spent(first, shown, timings, (Mode.CLOUD, Mode.SD, Mode.SERVER_SD))
    assert list(modes) == ["cloud", "sd", "sd, tuned", "server_sd", "server_sd, tuned"]
    sd, beside = modes["sd"], modes["server_sd"]
    assert sd["billed_drafts"] == 0.0 and sd["drafts_on_edge"]
    assert beside["billed_drafts"] == pytest.approx(4 * beside["passes_per_token"]) and not beside["drafts_on_edge"]
    assert sd["tokens_per_s"]["4"] > sd["tokens_per_s"]["1"]
    for row in cost.our_table(PRICES, modes):
        assert row["sd"] < row["server_sd"] and row["sd"] < row["cloud"]
        assert row["server_sd"] == row["server_sd, tuned"], "billed as the paper bills it"
    printed = cost.request_table(PRICES, cost.our_table(PRICES, modes), modes)
    dollars = f"{cost.our_table(PRICES, modes)[0]['sd']:.0f}"
    assert f" {dollars} |" in printed and "Qwen1.5-0.5B/72B" in printed and printed.count("`gamma=") == 2
    rents = {(row["mode"], row["robots"]): row for row in cost.rent_table(PRICES, modes)}
    assert rents["sd", 4]["rented_edge"] < rents["sd", 4]["own_edge"]
    assert rents["server_sd", 1]["rented_edge"] == rents["server_sd", 1]["own_edge"]
    assert rents["cloud", 4]["own_edge_x_cloud"] == 1.0 and rents["cloud", 4]["cpu_s"] == 0.0 < rents["sd", 4]["cpu_s"]
    assert rents["server_sd, tuned", 1]["own_edge"] > rents["server_sd", 1]["own_edge"]
    assert rents["sd", 4]["own_edge_x_cloud"] == rents["sd", 4]["own_edge"] / rents["cloud", 4]["own_edge"]


def test_throughput_lasts_until_the_last_robot_is_done() -> None:
    stats = [DecodingStats(tokens=tokens, total_s=total_s) for tokens, total_s in ((10, 1.0), (20, 4.0), (30, 2.0))]
    assert cost.throughput(stats, 1) == pytest.approx(60 / 7.0)
    assert cost.throughput(stats, 2) == pytest.approx(60 / 4.0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("api: [", "holds no prices"),
        ("api: {source: a, date: b, models: [{name: m, provider: p, draft: [1, 1], target: [1, 2]}]}", "`rent`"),
        ("api: {source: a, date: b, models: []}\nrent: {source: a, date: b, server: 1, edge: 1}", "length >= 1"),
        ("api: {source: a, date: b, models: [{name: m, provider: p, draft: [1], target: [1, 2]}]}", "length 2"),
        ("- 1", "holds no prices"),
    ],
)
def test_a_file_without_prices_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason) as refused:
        cost.Prices.load(path)
    assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="No such file"):
        cost.Prices.load(tmp_path / "none.yaml")
