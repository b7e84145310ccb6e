"""The comparison with peers: our answers are transformers' greedy ones, refusals are shown, figures are of what ran."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.peers import ALONE, ASSISTED, FORGETFUL, GREEDY, LOOKUP, MODES, SIGHTED
from speculation.vlm.model import Vlm
from tests.models import tiny_text_model
from vlm_nav_evaluation.experiment.questions import questions
from vlm_nav_evaluation.experiment.reference_answers import ModelAlone
from vlm_nav_evaluation.experiment.run import take_turns

pytestmark = pytest.mark.usefixtures("forked_verifiers")


def test_our_own_loop_is_transformers_greedy(target: Vlm, draft: Vlm) -> None:
    asked, alone = questions("random", 2), ModelAlone(target, 16)
    run = take_turns([*peers.peers_of(target, draft, 16), alone.arm(ALONE)], asked)
    assert not alone.flips(run, asked, ALONE)
    assert set(run.answers) == {GREEDY, ASSISTED, SIGHTED, ALONE, LOOKUP}
    assert [each.tokens for each in run.answers[GREEDY]] == [each.tokens for each in run.answers[ALONE]]
    assert run.stats(GREEDY)[0].rounds == run.stats(ALONE)[0].rounds


@pytest.mark.parametrize("source", ["random", "text"])
def test_the_whole_comparison_over_real_sockets(
    source: str, pair: list[str], tmp_path: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if source == "text":
        pair[1] = str(tiny_text_model(tmp_path / "big", layers=3))
        pair[3] = str(tiny_text_model(tmp_path / "small", layers=2))
    asked = [*pair, "--frames", source, "--steps", "3", "--max-tokens", "12", "--dtype", "float64", "--save"]
    cores, result, plot = "free", "peers_float64", "peers"
    if source == "text":
        cores, result, plot = "one", "peers_text_cores_one_float64", "peers_text_one_core"
    assert peers.main([*asked, "--cores", cores]) == 0
    saved = json.loads((kept / f"{result}.json").read_text())
    assert saved["flips"] == [] and {GREEDY, ALONE, *MODES, FORGETFUL} <= saved["figures"].keys()
    assert (SIGHTED in saved["figures"]) == (source == "random")
    assert all(len(times) == 3 for times in saved["step_s"].values())
    assert all(entry["frames_other_than_target"] == 0 for entry in saved["figures"].values())
    assert (kept / f"{plot}.png").stat().st_size < 200_000
    printed = capsys.readouterr().out
    assert "1 thread(s) in each process" in printed
