"""A recipe's stages are commands with settings of theirs, checked before anything runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adapters_training.recipe.stages import Plan

CONFIG = Path(__file__).resolve().parents[3] / "config"
RECIPES = ("embedded_pair.yaml", "embedded_pair_from_models.yaml")


def changed(folder: Path, stage: str, values: dict[str, Any]) -> Path:
    """Return the shipped recipe with other values in a stage."""
    shutil.copytree(CONFIG, folder, dirs_exist_ok=True)
    path = folder / RECIPES[0]
    held = msgspec.yaml.decode(path.read_bytes())
    held["stages"][stage] = held["stages"].get(stage, {}) | values
    path.write_bytes(msgspec.yaml.encode(held))
    return path


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("quick", [False, True])
def test_shipped_recipes_are_read(tmp_path: Path, recipe: str, quick: bool) -> None:
    plan = Plan(CONFIG / recipe, tmp_path, quick=quick)
    assert set(plan.recipe.ships) == {"target", "draft", "exits", "fed_head"}
    if quick:
        pairs = [plan.settings_of(stage) for stage in plan.stages if stage.command == "pair"]
        assert all(each["steps"] == 2 and "start_from" in each for each in pairs)


def test_a_stage_has_the_folders_that_it_names_and_begins_with_the_file_that_it_names(tmp_path: Path) -> None:
    tmp_path = tmp_path / 'a "b" c'
    plan = Plan(CONFIG / RECIPES[0], tmp_path)
    exits, last = plan.named("exits"), plan.named("target-3")
    given = plan.settings_of(exits)
    assert (given["rank"], given["steps"], given["layers"]) == (64, 400, [0, 1, 2, 3, 4, 5, 6])
    assert given["target"] == f"{tmp_path}/target-3/model" and given["out"] == f"{tmp_path}/exits"
    assert {stage.name for stage in exits.after} == {"target-3", "data", "walk-1", "walk-2", "walk-3", "held-out"}
    assert plan.settings_of(last)["start_from"] == f"{tmp_path}/target-2/checkpoint.pt"
    assert "device" not in given and "out" not in plan.settings_of(plan.named("measure-exits"))


@pytest.mark.parametrize(
    ("stage", "values", "message"),
    [
        ("target", {"steps": 0}, "stage target: setting steps is 0"),
        ("exits", {"stops": 2}, "stage exits: unknown setting `stops`"),
        ("data", {"scenes": 0}, "stage data: setting scenes is 0"),
        ("data", {"command": "tea"}, "stage data: command is 'tea'; give one of data, processor, pair"),
        ("draft", {"teacher": "{exits}"}, "stage draft: exits is no stage before it"),
        ("fed-head", {"config": "nothing.yaml"}, "nothing.yaml cannot be read"),
        ("target", {"torchrun": "two"}, "stage target: expected_minutes is 250 and torchrun 'two'; give numbers"),
        ("tea", {}, "stage tea: command is ''"),
    ],
)
def test_what_no_command_takes_is_named(tmp_path: Path, stage: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Plan(changed(tmp_path, stage, values), tmp_path / "out")


def test_what_is_no_part_of_a_recipe_is_named(tmp_path: Path) -> None:
    for text, message in (("stages: {}\nships: {}\ntea: 1", "unknown setting `tea`"),
                          ("stages: {}\nships: {a: ['{b}/c']}", "ships: b is no stage before it")):  # fmt: skip
        (tmp_path / "recipe.yaml").write_text(text)
        with pytest.raises(ValueError, match=message):
            Plan(tmp_path / "recipe.yaml", tmp_path)
