"""A recipe's sections are settings of its commands, checked before anything runs; its stages follow from them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adapters_training.recipe.config import load
from adapters_training.recipe.stages import Plan

CONFIG = Path(__file__).resolve().parents[3] / "config"


def changed(folder: Path, **values: Any) -> Path:
    """Return the shipped recipe with other values."""
    shutil.copytree(CONFIG, folder, dirs_exist_ok=True)
    path = folder / "embedded_pair.yaml"
    held = msgspec.yaml.decode(path.read_bytes())
    path.write_bytes(msgspec.yaml.encode(held | values))
    return path


def test_a_section_begins_with_the_file_that_it_names() -> None:
    recipe = load(CONFIG / "embedded_pair.yaml")
    assert (recipe.exits["rank"], recipe.exits["minutes"], recipe.exits["layers"]) == (64, 0, [0, 1, 2, 3, 4, 5, 6])
    assert "device" not in recipe.exits and "config" not in recipe.exits


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"target": {"steps": 0}}, "section target: setting steps is 0"),
        ({"exits": {"rank": 8, "stops": 2}}, "section exits: unknown setting `stops`|section exits: .*stops"),
        ({"draft": {"out": "here"}}, "section draft: leave out out, which the recipe gives"),
        ({"data": {"scenes": 0}}, "setting data.scenes is 0"),
        ({"rounds": -1}, "setting rounds is -1"),
        ({"tea": 1}, "tea"),
        ({"fed_head": {"config": "nothing.yaml"}}, "nothing.yaml cannot be read"),
    ],
)
def test_what_no_command_takes_is_named(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(changed(tmp_path, **values))


def test_a_target_that_walks_is_corrected_and_goes_on(tmp_path: Path) -> None:
    plan = Plan(load(changed(tmp_path, rounds=2, walk_times=1)), tmp_path / "out", 0)
    names = [stage.name for stage in plan.stages]
    assert names[3:8] == ["target", "walk-1", "target-1", "walk-2", "target-2"]
    walks = [plan.named(f"walk-{number}").file for number in (1, 2)]
    assert [each["walker"] for each in walks] == [f"{tmp_path}/out/{name}/model" for name in ("target", "target-1")]
    assert [each["first_seed"] for each in walks] == [400_000, 400_200], "every round has rooms of its own"
    last = plan.named("target-2").file
    assert last["start_from"].endswith("target-1/checkpoint.pt")
    assert [Path(folder).name for folder in last["data"]] == ["data", "walk-1", "walk-2"]
    twice = Plan(load(changed(tmp_path, rounds=2, walk_times=2)), tmp_path / "out", 0).named("target-2")
    folders = [Path(folder).name for folder in twice.file["data"]]
    assert folders == ["data", "walk-1", "walk-1", "walk-2", "walk-2"]
    assert plan.named("distil").file["teacher"] == plan.named("exits").file["target"]
    assert plan.named("exits").file["target"].endswith("target-2/model")
