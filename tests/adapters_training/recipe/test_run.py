"""Stages one after the other: passed over when done, taken up when broken, refused when of other settings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adapters_training.__main__ import main
from adapters_training.recipe import run as runner
from adapters_training.recipe.stages import Plan
from speculation.worker_processes import terminable

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / "config" / "embedded_pair.yaml"


WORK = """
import pathlib, sys
out, name = pathlib.Path(sys.argv[1]), sys.argv[2]
with (out / "order.txt").open("a") as file:
    file.write(name + "\\n")
(out / name).mkdir(exist_ok=True)
if (out / "break").exists() and (out / "break").read_text() == name:
    sys.exit(3)
"""
"""What stands in for every stage's command: it notes its name, makes its folder, and fails where it is asked to."""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """Return a recipe of a few stages; `target` and `draft` need all cores."""
    path = tmp_path / "recipe.yaml"
    write(path)
    return path


def write(path: Path, **changes: dict[str, Any]) -> None:
    """Write the recipe, with other settings of some stages."""
    pair = {"command": "pair", "torchrun": 2, "processor": "{processor}", "steps": 600, "batch_frames": 6}
    stages: dict[str, dict[str, Any]] = {
        "data": {"command": "data", "scenes": 25},
        "held_out": {"command": "data", "scenes": 25, "held_out": True},
        "processor": {"command": "processor"},
        "target": {**pair, "role": "target", "data": ["{data}"], "export": "{target}/model"},
        "draft": {**pair, "role": "draft", "data": ["{data}"], "export": "{draft}/model"},
        "answers": {"command": "answers", "model": "{target}/model", "data": "{data}"},
        "exits": {"command": "exits", "target": "{target}/model", "data": ["{data}"]},
        "measured": {"command": "measure-exits", "target": "{target}/model", "draft": "{draft}/model",
                     "exits": "{exits}", "held_out": ["{held_out}"]},
    }  # fmt: skip
    stages = {name: values | changes.get(name, {}) for name, values in stages.items()}
    ships = {"target": ["{target}/model/*"], "exits": ["{exits}/exits.*"]}
    path.write_bytes(msgspec.yaml.encode({"stages": stages, "ships": ships}))


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runner, "machine", lambda device: "here")
    works(monkeypatch, WORK, tmp_path)


def works(monkeypatch: pytest.MonkeyPatch, work: str, out: Path) -> None:
    """Let a program stand in for every stage's command."""
    monkeypatch.setattr(runner, "command_of", lambda plan, stage: [sys.executable, "-c", work, str(out), stage.name])


def ran(out: Path) -> list[str]:
    """Return the stages that ran since this was last asked."""
    path = out / "order.txt"
    names = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return names


def names(plan: Plan) -> list[str]:
    return [stage.name for stage in plan.stages]


def test_a_broken_recipe_goes_on_and_a_finished_one_is_passed_over(recipe: Path, tmp_path: Path) -> None:
    plan = Plan(recipe, tmp_path)
    (tmp_path / "break").write_text("draft")
    with pytest.raises(ValueError, match="stage draft ended with status 3"):
        runner.run(plan)
    before = names(plan).index("draft")
    assert ran(tmp_path) == names(plan)[: before + 1]
    (tmp_path / "break").unlink()
    runner.run(plan)
    assert ran(tmp_path) == names(plan)[before:]
    runner.run(plan)
    assert ran(tmp_path) == []
    rows = json.loads((tmp_path / runner.RECORD_FILE).read_text())
    assert list(rows) == names(plan) and all(row["done"] and row["machine"] == "here" for row in rows.values())
    assert rows["draft"]["runs"] == 2 and rows["target"]["runs"] == 1
    assert rows["draft"]["seconds"] > 0.0


def test_other_settings_are_refused_and_made_anew_with_all_that_builds_on_them(recipe: Path, tmp_path: Path) -> None:
    runner.run(Plan(recipe, tmp_path))
    ran(tmp_path)
    write(recipe, draft={"steps": 9})
    plan = Plan(recipe, tmp_path)
    with pytest.raises(ValueError, match=r"of other settings \(steps: 600 there, 9 now\): give --from draft"):
        runner.run(plan)
    assert ran(tmp_path) == []
    (tmp_path / "draft" / "old").touch()
    (tmp_path / "target" / "old").touch()
    runner.run(plan, first="draft")
    assert not (tmp_path / "draft" / "old").exists() and (tmp_path / "target" / "old").exists()
    assert ran(tmp_path) == ["draft", "measured"]
    write(recipe, draft={"steps": 9}, data={"scenes": 50})
    plan = Plan(recipe, tmp_path)
    others = {stage.name for stage in plan.stages if runner.Record(plan).state(stage) == "other settings"}
    assert others == {"data", "target", "draft", "answers", "exits", "measured"}, "what a stage is made of counts"


def test_another_device_passes_over_what_is_done(recipe: Path, tmp_path: Path) -> None:
    runner.run(Plan(recipe, tmp_path))
    plan = Plan(recipe, tmp_path, gpus=1)
    assert all(runner.Record(plan).state(stage) == "done" for stage in plan.stages)
    target = plan.named("target")
    assert plan.processes_of(target) == 1
    assert plan.settings_of(target)["batch_frames"] == 12, "the frames of two processes on a CPU"
    assert runner.words_of(plan, target)[-2:] == ["--device", "cuda"]


def test_an_interrupted_stage_ends_and_its_time_counts(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = "import pathlib, os, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
    works(monkeypatch, wait, tmp_path / "pid")
    plan = Plan(recipe, tmp_path)

    def interrupt() -> None:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt), terminable():
        runner.run(plan)
    thread.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    stamp = runner.Record(plan).stamps["data"]
    assert stamp.seconds > 0.0 and not stamp.done and runner.Record(plan).state(plan.stages[0]) == "begun"


def test_what_ships_is_copied_whole(recipe: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    (models / "target").mkdir(parents=True)
    (models / "target" / "stale.json").touch()
    plan = Plan(recipe, tmp_path)
    with pytest.raises(ValueError, match="data, held_out.* not done"):
        runner.export(plan, models)
    runner.run(plan)
    (tmp_path / "target" / "model").mkdir()
    (tmp_path / "target" / "model" / "config.json").write_text("{}")
    (tmp_path / "target" / "model" / "model.safetensors").write_bytes(bytes(1_000_000))
    with pytest.raises(ValueError, match=r"exits\.\* is missing"):
        runner.export(plan, models)
    assert (models / "target" / "stale.json").exists()
    (tmp_path / "exits" / "exits.json").touch()
    assert "target, exits; 1.0 MB" in runner.export(plan, models)
    found = {path.relative_to(models).as_posix() for path in models.rglob("*") if path.is_file()}
    assert found == {"target/config.json", "target/model.safetensors", "exits/exits.json"}


def test_the_plan_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "pair"
    assert main(["recipe", "--config", str(CONFIG), "--out", str(out), "--device", "cpu", "--plan"]) == 0
    shown = capsys.readouterr().out
    assert not out.exists() and "minutes are left" in shown
    assert all(f"\n{stage.name} " in shown for stage in Plan(CONFIG, out).stages)
    assert main(["recipe", "--config", str(CONFIG), "--out", str(out), "--plan", "--from", "tea"]) == 2
    assert "no stage is named tea; there are data, held-out" in capsys.readouterr().err
    assert main(["recipe", "--config", str(CONFIG), "--out", str(out), "--quick", "--export", str(out)]) == 2


@pytest.mark.slow
def test_a_quick_recipe_goes_through_every_stage(tmp_path: Path) -> None:
    """The real commands, in their own processes, each of them twice: the second time there is nothing to do."""
    command = [sys.executable, "-m", "adapters_training", "recipe", "--config", str(CONFIG), "--out", str(tmp_path),
               "--quick", "--device", "cpu"]  # fmt: skip
    subprocess.run(command, cwd=ROOT, check=True)
    plan = Plan(CONFIG, tmp_path, quick=True)
    assert all(runner.Record(plan).state(stage) == "done" for stage in plan.stages)
    assert all(len(paths) > 1 for paths in runner.shipped(plan).values())
    again = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert again.stdout.count("done before") == len(plan.stages)
