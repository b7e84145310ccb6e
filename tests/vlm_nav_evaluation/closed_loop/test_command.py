"""The closed-loop command with a tiny model that always turns."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from speculation.language.prompts import VOCABULARY_FILE
from vlm_nav_evaluation.__main__ import main, parser
from vlm_nav_evaluation.closed_loop import command as closed_loop


@pytest.fixture(scope="module")
def turning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model that always answers 'turn left small'."""
    from tests.system.parrot import TURN_LEFT, parrot

    return parrot(tmp_path_factory.mktemp("turning"), TURN_LEFT)


def options(*flags: str) -> argparse.Namespace:
    return parser().parse_args(["closed-loop", *flags])


def command(model: Path, out: Path, *flags: str) -> list[str]:
    folders = ["--target-model", str(model), "--draft-model", str(model), "--out", str(out)]
    return ["closed-loop", *folders, "--max-actions", "2", *flags]


def test_every_camera_walks_every_room() -> None:
    cameras = ("--camera-height-m", "0.25,0.6", "--camera-pitch-deg=-10,10", "--crop", "none,view")
    keys = closed_loop.episode_keys(options("--seeds", "3", "--models", "target", *cameras))
    assert len(keys) == len(set(keys)) == 2 * 4 * 2
    assert {(key.mount.height_m, key.mount.pitch_deg, key.mount.fov_deg, key.crop) for key in keys} == {
        (height, pitch, 90.0, crop) for height in (0.25, 0.6) for pitch in (-10.0, 10.0) for crop in ("none", "view")
    }


def test_a_target_named_by_its_hub_name_decides_the_guide(hub: Path, tiny_draft: Path) -> None:
    chosen = options("--target-model", "me/tiny", "--draft-model", str(tiny_draft))
    assert closed_loop.settings(chosen)["guide"] is False
    (hub / VOCABULARY_FILE).unlink()
    assert closed_loop.settings(chosen)["guide"] is True
    nobody = options("--target-model", "nobody/nothing", "--draft-model", str(tiny_draft), "--models", "draft")
    assert closed_loop.guided(nobody) is False


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--target", "bottle"), "must be a colour and a class"),
        (("--max-actions", "0"), "give at least 1"),
        ((), "does not exist; give the path of a model's folder"),
        (("--seeds", "9-3"), "argument --seeds: '9-3' is no seed and no range"),
        (("--seeds", "0-999999999"), "argument --seeds: '0-999999999' has more than 100,000 rooms"),
        (("--models", ","), "argument --models: ',': give one or more of target,draft"),
        (("--camera-pitch-deg=nan",), "argument --camera-pitch-deg: 'nan': give numbers from -45 to 45, with commas"),
    ],
)
def test_wrong_options_are_one_sentence(
    flags: tuple[str, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(command(tmp_path / "nothing", tmp_path / "out", *flags))
    except SystemExit as refused:
        status = int(refused.code or 0)
    assert status == 2 and sentence in capsys.readouterr().err.strip().splitlines()[-1]


def test_a_run_walks_scores_and_goes_on_where_it_ended(
    turning: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    flags = ("--models", "target,draft", "--target", "random", "--answers", "free")
    assert main(command(turning, out, "--seeds", "3", *flags)) == 0
    assert "oracle" in capsys.readouterr().out
    data = json.loads((out / "closed_loop.json").read_text())
    rows: dict[Any, Any] = {row["policy"]: row for row in data["figures"]}
    assert set(rows) == {"oracle", "target", "draft"}
    assert all(row["outcomes"] == {"ran out of actions": 1} for row in rows.values() if row["policy"] != "oracle")
    lines = (out / "closed_loop.jsonl").read_text().splitlines()
    assert len(lines) == 3
    # As if it had been killed while it wrote its last episode.
    (out / "closed_loop.jsonl").write_text("\n".join(lines[:2]) + "\n" + lines[2][:40], encoding="utf-8")
    assert main(command(turning, out, "--seeds", "3", *flags)) == 0
    again = (out / "closed_loop.jsonl").read_text().splitlines()
    assert again == lines
    capsys.readouterr()
    for more, sentence in (
        (("--max-tokens", "95"), "max_tokens was 96 and is 95"),
        (("--response-order", "action_first"), "response_order was reason_first and is action_first"),
        (("--guide", "always"), "guide was False and is True"),
    ):
        assert main(command(turning, out, "--seeds", "3", *flags, *more)) == 2
        assert sentence in capsys.readouterr().err


def test_several_processes_walk_the_same_way_as_one(turning: Path, tmp_path: Path) -> None:
    walks = []
    for processes in ("1", "2"):
        out = tmp_path / processes
        assert main(command(turning, out, "--seeds", "0-1", "--models", "draft", "--processes", processes)) == 0
        rows = [json.loads(line) for line in (out / "closed_loop.jsonl").read_text().splitlines()]
        walks.append([(row["seed"], row["policy"], row["actions"], row["path_m"]) for row in rows])
    assert walks[0] == walks[1] and len(walks[0]) == 4
