"""The ablation: its rows on few synthetic answers, its recording, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import ablation, exit_queues, picospec, recordings
from vlm_nav_evaluation.virtual_time import Recording, Synthetic, load_timings
from vlm_nav_evaluation.virtual_time.tuning import split


def test_a_missing_recording_is_made_once_and_that_of_others_refused(
    few: None, pair: list[str], kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recordings, "COUNT", 3)
    plotted = ("full", "full, n-grams off, tuned")
    monkeypatch.setattr(ablation, "WAYS", {way: {"early tokens": "early_tokens=off"} for way in plotted})
    monkeypatch.setattr(ablation, "SYNTHETIC", Synthetic(tokens=20))
    file = kept / "new" / "recording.npz"
    same = ["--recording", str(file), "--frames", "random", "--max-tokens", "8", "--save"]
    assert ablation.main([*same, *pair, "--steps", "2"]) == 0
    assert len(Recording.load(file).steps) == 3 and "recording 3 frames" in capsys.readouterr().out
    saved = json.loads((kept / "decoding_ablation.json").read_text())
    assert set(saved["sources"]["embedded pair"]) == set(plotted)
    assert saved["timings"]["verify_s"] == pytest.approx(0.62)
    assert saved["pair"].keys() == {"target", "draft"} and saved["commit"] and saved["machine"]
    assert {path.name for path in kept.glob("*.png")} == {"decoding_ablation.png"}
    refusals = (
        ([*pair, "--steps", "4"], "has 3 steps, 4 are needed"),
        ([*pair, "--steps", "2", "--response-order", "action_first"], "order reason_first"),
        ([*pair[:2], "--draft-model", pair[1]], "another draft model"),
    )
    for flags, reason in refusals:
        assert ablation.main([*same, *flags]) == 2
        error = capsys.readouterr().err
        assert reason in error and error.count("\n") == 1


def recorded_with_exits() -> Recording:
    """Return answers of 24 tokens whose draft is right in all but every third place, and two exits: the first names a
    token of its own everywhere, the second is the target."""
    drawn = Synthetic(tokens=24, acceptance=(1.0, 1.0, 0.0), exits=(2, 5), layers=8, mean_exit=3.0).draw(2)
    steps = []
    for step in drawn.steps:
        tokens = np.array(step.tokens)
        exits, sure = np.stack([tokens + 1, tokens], axis=1), np.tile([0.9, 0.6], (len(tokens), 1))
        steps.append(replace(step, exit_tokens=exits, exit_probabilities=sure, agrees=None, confidences=None))
    return Recording(tuple(steps), 600, (1,), 8, (2, 5), 24)


def test_queues_are_those_of_table_7_and_exits_name_what_was_recorded(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded_with_exits().save(kept / "of_others.npz")
    monkeypatch.setattr(exit_queues, "THREADS", (1, 3))
    assert ablation.main(["--queues", "--recording", str(kept / "of_others.npz"), "--save"]) == 0
    saved = json.loads((kept / "decoding_queues.json").read_text())
    misses = saved["misses"]
    assert [*misses] == [*(", ".join(order) for order in exit_queues.TABLE_7), "priority, priority"]
    assert misses["confidence, priority"][0] == 1.0, "one thread is taken by the exit that is surer, and wrong"
    assert misses["confidence, priority"][1] < 1.0
    assert "(79.85)" in capsys.readouterr().out
    assert saved["different"] == 2.0 and saved["right"] == [0.0, 1.0] and saved["by then"] == [0.0, 1.0]
    # A verification commits two drafted tokens and the target's third: the prefill has the first of 24.
    assert saved["verifications"] == 2 * 8


def test_a_variant_is_compared_with_the_whole_mode_answer_by_answer(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"early tokens": "early_tokens=off", "earlier answers": "ngrams=off"}
    early = {"early tokens": "early_tokens=on,branches=6,leaves=6"}
    ways = {way: changes if way.startswith("full") else early for way in ablation.WAYS}
    monkeypatch.setattr(ablation, "WAYS", ways)
    found = ablation.ablate(*split(Synthetic(tokens=40).draw(2)), load_timings("go2"))
    assert list(found) == ["full", "full, tuned", "full, n-grams off, tuned", "sd", "sd, tuned"]
    whole, without, _ = found["full"]
    assert whole["slower"] == (1.0, 1.0, 1.0) and without["slower"][0] > 1.0
    sd, fsd = found["sd"]
    assert sd["miss_rate"] == 1.0 and fsd["miss_rate"] < 1.0 and fsd["slower"][2] < 1.0
    assert without["drafting"] == "early_tokens=off" and 0.0 < without["target_busy"] <= 1.0
    own = found["full, n-grams off, tuned"]
    assert [row["name"] for row in own] == [ablation.WHOLE, "early tokens"], "nothing of earlier answers is left"
    assert own[1]["drafting"].startswith("ngrams=off,") and own[1]["drafting"].endswith("early_tokens=off")


def test_picospecs_rows_have_its_times_and_lose_what_is_left_out(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, row = next(iter(picospec.PAIRS.items()))
    assert sum(row.acceptance**place for place in range(1, 5)) == pytest.approx(2.50, abs=0.001)
    assert row.timings.draft_s == pytest.approx(0.09746 / 4)
    assert row.timings.verify_s + 2.0 * row.timings.one_way_s == pytest.approx(0.11981)
    for each in picospec.PAIRS.values():
        printed = dict(zip(picospec.PARTS, each.printed, strict=True))
        assert 1.0 / each.split_token_s == pytest.approx(printed[picospec.SPLIT], rel=0.1)
    monkeypatch.setattr(picospec, "PAIRS", {name: row})
    monkeypatch.setattr(picospec, "GAMMAS", (2,))
    assert ablation.main(["--picospec", "--steps", "2", "--save"]) == 0
    found = json.loads((kept / "picospec_ablation.json").read_text())["found"][name]
    assert list(found) == list(picospec.PARTS)
    rates = {part: each["rate"] for part, each in found.items()}
    assert rates["cloud"] == pytest.approx(13.89, rel=0.05)
    assert max(rates, key=rates.__getitem__) == "all" and rates[picospec.WHOLE_ROWS] < 0.8 * rates["all"]
    assert rates["without PreVerify"] < 0.97 * rates["all"] and found["all"]["gamma"] == 2
