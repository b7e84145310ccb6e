"""The closed-loop command with real processes and a tiny model that always turns."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from speculation.language.prompts import VOCABULARY_FILE
from vlm_nav_evaluation.__main__ import main, parser
from vlm_nav_evaluation.closed_loop import command as closed_loop
from vlm_nav_evaluation.closed_loop.episodes import ORACLE, EpisodeKey

pytestmark = pytest.mark.usefixtures("forked_verifiers")


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


def test_links_are_outermost_modes_innermost_and_only_linked_modes_are_repeated() -> None:
    chosen = options("--seeds", "3,5-6", "--modes", "edge,sd", "--rtt-ms", "40,0", "--difficulty", "all")
    keys = closed_loop.episode_keys(chosen)
    assert len(keys) == len(set(keys)) == 3 * 3 * (2 + 2)
    assert keys[:4] == [
        EpisodeKey("easy", 3, ORACLE, None),
        EpisodeKey("easy", 3, "edge", None),
        EpisodeKey("easy", 3, "sd", 0.0),
        EpisodeKey("easy", 5, ORACLE, None),
    ]
    assert {key.policy for key in keys[27:]} == {"sd"} and {key.rtt_ms for key in keys[27:]} == {40.0}


def test_every_camera_walks_every_room() -> None:
    cameras = ("--camera-height-m", "0.25,0.6", "--camera-pitch-deg=-10,10", "--crop", "none,view")
    keys = closed_loop.episode_keys(options("--seeds", "3", "--modes", "target", *cameras))
    assert len(keys) == len(set(keys)) == 2 * 4 * 2
    assert {(key.mount.height_m, key.mount.pitch_deg, key.mount.fov_deg, key.crop) for key in keys} == {
        (height, pitch, 90.0, crop) for height in (0.25, 0.6) for pitch in (-10.0, 10.0) for crop in ("none", "view")
    }


def test_a_target_named_by_its_hub_name_decides_the_guide(hub: Path, tiny_draft: Path) -> None:
    chosen = options("--target-model", "me/tiny", "--draft-model", str(tiny_draft), "--modes", "sd")
    assert closed_loop.settings(chosen)["guide"] is False
    (hub / VOCABULARY_FILE).unlink()
    assert closed_loop.settings(chosen)["guide"] is True
    nobody = options("--target-model", "nobody/nothing", "--draft-model", str(tiny_draft), "--modes", "edge")
    assert closed_loop.guided(nobody) is False


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--target", "bottle"), "must be a colour and a class"),
        (("--profile", "jetson"), "unknown device profile 'jetson'"),
        (("--link", "string"), "unknown link 'string'; links.json has wifi"),
        (("--max-actions", "0"), "give at least 1"),
        ((), "does not exist; give the path of a model's folder"),
    ],
)
def test_wrong_options_are_one_sentence(
    flags: tuple[str, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "nothing"
    assert main(command(model, tmp_path / "out", *flags)) == 2
    printed = capsys.readouterr().err
    assert sentence in printed and "Traceback" not in printed and len(printed.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--seeds", "9-3"), "'9-3' is no seed and no range"),
        (("--seeds", "x"), "'x' is no seed"),
        (("--processes", "0"), "invalid choice: 0"),
        (("--modes", "sd,fast"), "'sd,fast': give one or more of target,draft,cloud"),
        (("--modes", ","), "',': give one or more of"),
        (("--rtt-ms", "slow"), "'slow': give milliseconds from 0 to 10000"),
        (("--camera-height-m", "0,0.4"), "'0,0.4': give numbers from 0.1 to 1.5, with commas between"),
        (("--camera-pitch-deg=nan",), "'nan': give numbers from -45 to 45"),
        (("--crop", "wide"), "'wide': give one or more of none,view,go2"),
        (("--rtt-ms=-1",), "'-1': give milliseconds from 0 to 10000"),
        (("--gamma", "many"), "'many' is no draft length; give a number or auto or balance"),
    ],
)
def test_lists_that_make_no_sense_name_their_option(
    flags: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        options(*flags)
    printed = capsys.readouterr().err
    assert end.value.code == 2 and f"argument {flags[0].partition('=')[0]}: {sentence}" in printed


def test_a_run_walks_scores_and_goes_on_where_it_ended(
    turning: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    flags = ("--modes", "target,cloud,fsd", "--rtt-ms", "0,20", "--target", "random", "--answers", "free")
    assert main(command(turning, out, "--seeds", "3", *flags)) == 0
    text = capsys.readouterr().out
    assert "oracle" in text and "fsd, 20 ms" in text
    assert "act differently: 0 of 1" in text
    data = json.loads((out / "closed_loop.json").read_text())
    rows: dict[Any, Any] = {(row["policy"], row["rtt_ms"]): row for row in data["figures"]}
    assert set(rows) == {
        ("oracle", None), ("target", None), ("cloud", 0.0), ("cloud", 20.0), ("fsd", 0.0), ("fsd", 20.0),
    }  # fmt: skip
    assert all(row["outcomes"] == {"ran out of actions": 1} for row in rows.values() if row["policy"] != "oracle")
    assert rows["cloud", 20.0]["passes_per_token"] == 1.0 > rows["fsd", 20.0]["passes_per_token"] > 0.0
    assert rows["cloud", 20.0]["answer_s"] > 0.02
    lines = (out / "closed_loop.jsonl").read_text().splitlines()
    assert len(lines) == 6
    # As if it had been killed while it wrote its last episode, of a mode that needs no verifier.
    kept = [line for line in lines if '"target"' not in line.partition('"rtt_ms"')[0]]
    (out / "closed_loop.jsonl").write_text("\n".join(kept) + "\n" + lines[0][:40], encoding="utf-8")

    def never(*_: object) -> None:
        raise AssertionError("no missing episode needs a verifier")

    monkeypatch.setattr(closed_loop, "verifier", never)
    assert main(command(turning, out, "--seeds", "3", *flags)) == 0
    again = (out / "closed_loop.jsonl").read_text().splitlines()
    assert again[:5] == kept and len(again) == 6
    assert main(command(turning, out, "--seeds", "3", *flags, "--gamma", "2")) == 2
    assert "gamma was 4 and is 2" in capsys.readouterr().err
    assert main(command(turning, out, "--seeds", "3", *flags, "--response-order", "action_first")) == 2
    assert "response_order was reason_first and is action_first" in capsys.readouterr().err
    assert main(command(turning, out, "--seeds", "3", *flags, "--guide", "always")) == 2
    assert "guide was False and is True" in capsys.readouterr().err


def test_several_processes_walk_the_same_way_as_one(turning: Path, tmp_path: Path) -> None:
    walks = []
    for processes in ("1", "2"):
        out = tmp_path / processes
        assert main(command(turning, out, "--seeds", "0-1", "--modes", "edge", "--processes", processes)) == 0
        rows = [json.loads(line) for line in (out / "closed_loop.jsonl").read_text().splitlines()]
        walks.append(sorted((row["seed"], row["policy"], row["actions"], row["path_m"]) for row in rows))
    assert walks[0] == walks[1] and len(walks[0]) == 4
