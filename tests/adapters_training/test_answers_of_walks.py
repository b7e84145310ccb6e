"""A target's answers about a recorded walk become conversations; a killed run goes on."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from adapters_training.__main__ import main
from adapters_training.sources.mixture import open_mixture
from speculation.frames import decode_jpeg
from speculation.language.prompts import VOCABULARY_FILE, compose
from tests.datasets import lerobot, shade, shades
from tests.system.parrot import TURN_LEFT, parrot

pytest.importorskip("pyarrow", reason="the extra `lerobot` is not installed")
pytest.importorskip("av", reason="the extra `lerobot` is not installed")


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tasks = [("find the red ball", shades(9)), ("open the door", shades(3, 9)), ("find the blue chair", shades(4, 12))]
    return lerobot(tmp_path_factory.mktemp("lerobot") / "walks", tasks, "bytes")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parrot(tmp_path_factory.mktemp("target"), TURN_LEFT)


def answer(target: Path, walks: Path, out: Path, *more: str) -> int:
    words = ["--model", str(target), "--data", str(walks), "--out", str(out), "--rows", "3", "--max-tokens", "24"]
    return main(["answers", *words, *more])


def test_answers_are_training_data_and_a_killed_run_goes_on(
    walks: Path, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(target, walks, tmp_path / "out", "--frames", "8") == 0
    said = capsys.readouterr()
    assert "7 answers; 0 named no action, 1 frames or files were left out" in said.out
    assert "frame 10: " in said.err and "'open the door' names no known object" in said.err
    path = tmp_path / "out" / "conversations.jsonl"
    mixture = open_mixture([str(path)], "data")
    samples = [mixture.sample(index, random.Random(0)) for index in range(len(mixture))]
    assert [sample.turns[0].text for sample in samples] == ["find the red ball"] * 5 + ["find the blue chair"] * 2
    assert {sample.turns[1].text for sample in samples} == {TURN_LEFT}
    pictures = [sample.image for sample in samples if isinstance(sample.image, Path)]
    assert [shade(decode_jpeg(each.read_bytes())) for each in pictures] == [0, 2, 4, 6, 8, 12, 14]
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    path.write_text("".join(lines[:2]) + lines[2][:30])
    assert answer(target, walks, tmp_path / "out", "--frames", "8") == 0
    assert path.read_text() == whole and "7 answers" in capsys.readouterr().out


def test_a_target_without_a_list_of_objects_is_asked_any_task_with_the_guide(
    walks: Path, target: Path, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    for file in target.iterdir():
        if file.name != VOCABULARY_FILE:
            (tmp_path / "model" / file.name).symlink_to(file)
    assert answer(tmp_path / "model", walks, tmp_path / "out", "--frames", "4") == 0
    records = map(json.loads, (tmp_path / "out" / "conversations.jsonl").read_text().splitlines())
    asked = {record["conversations"][0]["value"] for record in records}
    assert asked == {compose(task, guide=True) for task in ("find the red ball", "find the blue chair")}
