"""The comparison with peers: our answers are transformers' greedy ones, refusals are shown, figures are of what ran."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.peers import ALONE, ASSISTED, COLUMNS, FORGETFUL, GREEDY, LOOKUP, MODES, SIGHTED
from edge_drafter import DecodingStats
from speculation.vlm.model import Vlm
from tests.models import tiny_text_model
from tests.photographs import TASKS, write_mmspec
from vlm_nav_evaluation.experiment.questions import questions
from vlm_nav_evaluation.experiment.reference_answers import Flip, ModelAlone
from vlm_nav_evaluation.experiment.run import Answer, Run, take_turns
from vlm_nav_evaluation.tables import figures_table

pytestmark = pytest.mark.usefixtures("forked_verifiers")


def answer(tokens: tuple[int, ...], seconds: float, passes: int, rounds: int) -> Answer:
    stats = DecodingStats(tokens=len(tokens), total_s=seconds, cloud_passes=passes, rounds=rounds)
    return Answer(tokens, stats)


def run_of(**answers: Answer) -> Run:
    names = {"generate": GREEDY, "alone": ALONE}
    return Run({names.get(name, name): [each] * 3 for name, each in answers.items()})


def test_figures_are_totals_and_ratios_are_to_generate() -> None:
    run = run_of(generate=answer((1, 2), 1.0, 1, 2), alone=answer((1, 2), 0.5, 2, 2), sd=answer((1, 2), 0.25, 1, 1))
    found = peers.figures_of(run, [Flip(2, "sd", 1, 3.0)])
    assert found["sd"]["ratio_low_median_high"] == (4.0, 4.0, 4.0)
    assert (found["sd"]["tau"], found["sd"]["forwards_per_token"], found["sd"]["tokens_per_s"]) == (2.0, 1.0, 8.0)
    assert (found[ALONE]["tau"], found[ALONE]["forwards_per_token"]) == (1.0, 1.5)
    assert found["sd"]["frames_other_than_target"] == 1 and found["sd"]["largest_margin"] == 3.0
    assert "4.00x (4.00-4.00)" in figures_table("arm", found, COLUMNS)
    alone = peers.figures_of(run_of(alone=answer((1,), 0.5, 1, 1)), [])
    assert alone[ALONE]["ratio_low_median_high"] is None


def test_all_turns_of_a_conversation_are_counted_as_mmspec_does(
    tiny_target: Path, tiny_draft: Path, tmp_path: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_mmspec(tmp_path / "own")
    arguments = ["--target-model", str(tiny_target), "--draft-model", str(tiny_draft), "--frames", f"mmspec:{folder}"]
    assert peers.main([*arguments, "--steps", "3", "--max-tokens", "8", "--dtype", "float64", "--save"]) == 0
    saved = json.loads((kept / "peers_mmspec_float64.json").read_text())
    assert saved["flips"] == [] and list(saved["mmspec"]) == [*TASKS, "all"]
    figures = saved["mmspec"]["all"]
    assert {GREEDY, ALONE, SIGHTED, *MODES, FORGETFUL} <= figures.keys()
    assert len({(entry["turns"], entry["tokens"]) for entry in figures.values()}) == 1
    assert all(figures[name]["mean_accepted_tokens"] == 1.0 for name in (GREEDY, ALONE, "cloud"))
    assert figures[GREEDY]["walltime_ratio"] == figures[GREEDY]["walltime_ratio_of_totals"] == 1.0
    assert figures[SIGHTED]["mean_accepted_tokens"] == saved["figures"][SIGHTED]["tau"], "its prefill verifies, too"
    assert "walltime against 'generate'" in capsys.readouterr().out


def test_our_own_loop_is_transformers_greedy(target: Vlm, draft: Vlm) -> None:
    asked, alone = questions("random", 2), ModelAlone(target, 16)
    run = take_turns([*peers.peers_of(target, draft, 16), alone.arm(ALONE)], asked)
    assert not alone.flips(run, asked, ALONE)
    assert set(run.answers) == {GREEDY, ASSISTED, SIGHTED, ALONE, LOOKUP}
    assert [each.tokens for each in run.answers[GREEDY]] == [each.tokens for each in run.answers[ALONE]]
    assert run.stats(GREEDY)[0].rounds == run.stats(ALONE)[0].rounds


@pytest.mark.parametrize("source", ["random", "text"])
def test_the_whole_comparison_over_real_sockets(
    source: str,
    tiny_target: Path,
    tiny_draft: Path,
    tmp_path: Path,
    kept: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pair = (tiny_target, tiny_draft)
    if source == "text":
        pair = (tiny_text_model(tmp_path / "big", layers=3), tiny_text_model(tmp_path / "small", layers=2))
    arguments = ["--target-model", str(pair[0]), "--draft-model", str(pair[1]), "--frames", source, "--steps", "3"]
    assert peers.main([*arguments, "--max-tokens", "12", "--dtype", "float64", "--save"]) == 0
    name = "peers_text" if source == "text" else "peers"
    saved = json.loads((kept / f"{name}_float64.json").read_text())
    assert saved["flips"] == [] and {GREEDY, ALONE, *MODES, FORGETFUL} <= saved["figures"].keys()
    assert (SIGHTED in saved["figures"]) == (source == "random")
    assert all(len(times) == 3 for times in saved["step_s"].values())
    assert all(entry["frames_other_than_target"] == 0 for entry in saved["figures"].values())
    assert (kept / f"{name}.png").stat().st_size < 120_000
    printed = capsys.readouterr().out
    assert "1 thread(s) in each process" in printed
