"""DSSD's tables: bytes and sums over a small vocabulary, and the fitted time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import dssd
from benchmarks.dssd import PAIRS, SCHEMES, Place, Traffic, decoded
from speculation.sampling import Sparse
from vlm_nav_evaluation.experiment import command

SMALL = 600
PLACE: Place = (20.0, 1.0, 4)
TARGET_S = 0.05


@pytest.mark.parametrize("name", ["DSD", "DSSD", "sparse", "coupled"])
def test_the_sums_are_what_virtual_time_takes_on_another_link(name: str) -> None:
    """The first message of an answer leaves beside the first draft forward: less than a millisecond an answer."""
    pair = PAIRS["6.7B"]
    traffic = Traffic.of(decoded(pair, SCHEMES[name], (0.0, 100.0, 4), TARGET_S, SMALL, 2))
    there = decoded(pair, SCHEMES[name], PLACE, TARGET_S, SMALL, 2)
    seconds = sum(each.stats.total_s for each in there)
    assert traffic == Traffic.of(there)
    computing = (traffic.draft_forwards * pair.ratio + traffic.cloud_passes) * TARGET_S
    assert computing + traffic.communication_s(PLACE) == pytest.approx(seconds, abs=2e-3)


def test_whole_distributions_are_as_long_as_the_vocabulary_and_top_k_makes_them_short() -> None:
    pair = PAIRS["13B"]
    whole, short = (
        Traffic.of(decoded(pair, SCHEMES[name], PLACE, TARGET_S, SMALL, 1)) for name in ("DSD", "DSD, top 10")
    )
    assert whole.bytes_up / whole.draft_forwards == pytest.approx(4 * SMALL, rel=0.05)
    assert short.bytes_up / short.draft_forwards < 4 * SMALL / 10


def test_a_head_that_holds_little_is_followed_by_the_rest() -> None:
    few = Traffic.of(decoded(PAIRS["13B"], Sparse(1.0, keep=1), PLACE, TARGET_S, SMALL, 1))
    many = Traffic.of(decoded(PAIRS["13B"], Sparse(1.0, keep=500), PLACE, TARGET_S, SMALL, 1))
    assert few.fetches > many.fetches


def test_the_fitted_time_gives_a_column_that_it_made() -> None:
    known = {place: dssd.formula_speed_up(PAIRS["13B"], "DSSD", place, 0.1, 50_272) for place in dssd.PLACES}
    made = dssd.Pair(PAIRS["13B"].acceptance, PAIRS["13B"].ratio, known)
    assert dssd.fitted_s(made, 50_272) == pytest.approx(0.1, rel=0.02)


def test_the_command_prints_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    monkeypatch.setattr(dssd, "PLACES", dssd.PLACES[:2])
    assert dssd.main(["--answers", "1", "--vocabulary", "600", "--target-ms", "50", "--save"]) == 0
    printed = capsys.readouterr().out
    assert "OPT 125M/6.7B" in printed and "0 ms, 100 Mbit/s, 8" in printed
    saved = json.loads((tmp_path / "dssd.json").read_text())
    assert set(saved["13B"]["places"]) == {"0 ms, 100 Mbit/s, 8", "20 ms, 100 Mbit/s, 8"}


@pytest.mark.parametrize("bad", [["--answers", "0"], ["--target-ms", "-3"], ["--vocabulary", "3"]])
def test_bad_input_is_one_sentence(bad: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert dssd.main(["--quick", *bad]) == 2
    error = capsys.readouterr().err
    assert bad[0].strip("-").split("-")[0] in error and error.count("\n") == 1
