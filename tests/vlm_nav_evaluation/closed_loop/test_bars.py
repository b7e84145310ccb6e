"""The bars: counted rightly from episodes that were written by hand, and walked by a real model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from speculation.language.prompts import Vocabulary
from tests.system.parrot import TURN_LEFT, parrot
from vlm_nav_evaluation.__main__ import main
from vlm_nav_evaluation.closed_loop.bars import walks
from vlm_nav_evaluation.closed_loop.episodes import ORACLE, TARGET, Episode
from vlm_nav_simulation.episode import Outcome
from vlm_nav_simulation.objects import CLASSES, COLOURS

FOUND = Episode(
    "hard", 0, TARGET, target="red ball", object_class="ball", outcome=Outcome.FOUND.value, success=True,
    actions=("stop",), path_m=2.0, collisions=1, gap_m=0.4,
)  # fmt: skip
LOST = replace(FOUND, seed=1, success=False, outcome=Outcome.NOT_FOUND.value, collisions=0)
UNSOLVABLE = replace(LOST, seed=2)
ORACLES = [replace(FOUND, policy=ORACLE), replace(FOUND, policy=ORACLE, seed=1),
           replace(LOST, policy=ORACLE, seed=2)]  # fmt: skip


def test_found_counts_rooms_that_the_oracle_solves() -> None:
    found, collisions, false = walks([FOUND, LOST, UNSOLVABLE, *ORACLES], ["hard"])
    assert (found.measured, found.count, found.met) == (0.5, 2, False)
    assert (collisions.measured, collisions.count, collisions.met) == (1 / 3, 3, False)
    assert (false.measured, false.count, false.met) == (2 / 3, 3, False), "of all rooms that hold the object"


def test_one_command_walks_and_writes_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = parrot(tmp_path / "turning", TURN_LEFT, form=2)
    Vocabulary(tuple(COLOURS), tuple(CLASSES), 2).save(model)
    flags = ["--target-model", str(model), "--seeds", "3", "--cases", "easy,absent", "--max-actions", "2",
             "--processes", "1", "--out", str(tmp_path / "out")]  # fmt: skip
    assert main(["bars", *flags]) == 0
    text = capsys.readouterr().out
    assert "easy: found, of the oracle's" in text and "middle, asked for what is absent: said 'not here'" in text
    data = json.loads((tmp_path / "out" / "bars.json").read_text())
    assert data["seeds"] == [3] and {row["met"] for row in data["rows"]} >= {True}
    assert "SPL" in text and data["walked"][0]["episodes"] == 1
    assert {name: list(ended) for name, ended in data["rooms"].items()}["easy"] == ["3"]
    walked = (tmp_path / "out" / "bars.jsonl").read_text()
    assert main(["bars", *flags]) == 0
    assert (tmp_path / "out" / "bars.jsonl").read_text() == walked, "what is done is not done again"
    assert main(["bars", *flags, "--cases", "easy,questions"]) == 0
    assert "not asked: --held-out names no frames" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["bars", *flags, "--cases", "moon"])
    assert "give one or more of easy,middle" in capsys.readouterr().err
