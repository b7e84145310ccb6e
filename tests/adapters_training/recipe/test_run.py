"""Stages one after the other: passed over when done, taken up when broken, refused when of other settings."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from adapters_training.__main__ import main
from adapters_training.recipe import run as runner
from adapters_training.recipe.config import Recipe, load, quick
from adapters_training.recipe.stages import Plan, Stage

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / "config" / "embedded_pair.yaml"


def here() -> str:
    return "here"


WORK = """
import pathlib, sys
out, name, folders = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
with (out / "order.txt").open("a") as file:
    file.write(name + "\\n")
for folder in folders:
    (out / folder).mkdir(exist_ok=True)
if (out / "break").exists() and (out / "break").read_text() == name:
    sys.exit(3)
"""
"""What stands in for every stage's command: it notes its name, makes its folders, and fails where it is asked to."""


@pytest.fixture
def recipe() -> Recipe:
    return load(CONFIG)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def command(stage: Stage) -> list[str]:
        return [sys.executable, "-c", WORK, str(tmp_path), stage.name, *stage.folders]

    monkeypatch.setattr(runner, "command_of", command)


def ran(out: Path) -> list[str]:
    """Return the stages that ran since this was last asked."""
    path = out / "order.txt"
    names = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return names


def names(plan: Plan) -> list[str]:
    return [stage.name for stage in plan.stages]


def test_a_broken_recipe_goes_on_and_a_finished_one_is_passed_over(recipe: Recipe, tmp_path: Path) -> None:
    plan = Plan(recipe, tmp_path, 0)
    (tmp_path / "break").write_text("draft")
    with pytest.raises(ValueError, match="stage draft ended with status 3"):
        runner.run(plan, here)
    before = names(plan).index("draft")
    assert ran(tmp_path) == names(plan)[: before + 1]
    (tmp_path / "break").unlink()
    runner.run(plan, here)
    assert ran(tmp_path) == names(plan)[before:]
    runner.run(plan, here)
    assert ran(tmp_path) == []
    rows = {row["stage"]: row for row in json.loads((tmp_path / runner.RECORD_FILE).read_text())}
    assert list(rows) == names(plan) and all(row["done"] and row["machine"] == here() for row in rows.values())
    assert rows["draft"]["runs"] == 2 and rows["target"]["runs"] == 1
    assert rows["draft"]["seconds"] > 0.0


SLOW_WORK = """
import pathlib, sys, time
PAIR = {"answers", "exits"}
out, name, folders = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
def note(what):
    with (out / "order.txt").open("a") as file:
        file.write(f"{what}:{name}\\n")
note("begins")
for folder in folders:
    (out / folder).mkdir(exist_ok=True)
deadline = time.monotonic() + 60.0
while name in PAIR and not all(f"begins:{each}\\n" in (out / "order.txt").read_text() for each in PAIR):
    if time.monotonic() > deadline:
        sys.exit("the other one never began")
    time.sleep(0.01)
time.sleep(0.1)
note("ends")
print("said by", name)
if (out / "break").exists() and (out / "break").read_text() == name:
    sys.exit(3)
"""
"""Two stages that may run side by side end only when both have begun, so that no load of the machine parts them."""


def test_stages_of_one_core_run_side_by_side(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        runner, "command_of", lambda stage: [sys.executable, "-c", SLOW_WORK, str(tmp_path), stage.name, *stage.folders]
    )
    plan = Plan(recipe, tmp_path, 0)
    runner.run(plan, here, jobs=2)
    at_work: set[str] = set()
    done: set[str] = set()
    most = 0
    for line in ran(tmp_path):
        what, _, name = line.partition(":")
        if what == "ends":
            at_work.remove(name)
            done.add(name)
            continue
        at_work.add(name)
        most = max(most, len(at_work))
        assert {stage.name for stage in plan.named(name).after} <= done
        assert len(at_work) == 1 or all(plan.named(each).beside for each in at_work)
    assert most == 2 and done == set(names(plan))
    assert all(row["done"] for row in json.loads((tmp_path / runner.RECORD_FILE).read_text()))
    logs = {path.stem: path.read_text() for path in (tmp_path / runner.LOGS).iterdir()}
    assert set(logs) == {stage.name for stage in plan.stages if stage.beside}
    assert logs["exits"] == "said by exits\n"


def test_what_ran_beside_a_stage_that_failed_goes_on(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.run(Plan(recipe, tmp_path, 0), here)
    ran(tmp_path)
    wait = "import time; time.sleep(600)"
    monkeypatch.setattr(
        runner, "command_of",
        lambda stage: [sys.executable, "-c", "raise SystemExit(4)" if stage.name == "exits" else wait],
    )  # fmt: skip
    plan = Plan(recipe, tmp_path, 0)
    for name in ("answers", "exits"):
        stamp = runner.stamp_of(plan, plan.named(name))
        assert stamp is not None
        stamp.done = False
        (tmp_path / runner.STAMPS / f"{name}.json").write_bytes(msgspec.json.encode(stamp))
    with pytest.raises(ValueError, match=r"stage exits ended with status 4, its message stands in .*exits\.log"):
        runner.run(plan, here, jobs=2)
    assert runner.state(plan, plan.named("answers")) == "begun"
    stamp = runner.stamp_of(plan, plan.named("answers"))
    assert stamp is not None and stamp.runs == 2


def test_a_gpu_is_for_one_stage_at_a_time(recipe: Recipe, tmp_path: Path) -> None:
    assert not any(stage.beside for stage in Plan(recipe, tmp_path, 1).stages)


def test_other_settings_are_refused_and_made_anew_with_all_that_builds_on_them(recipe: Recipe, tmp_path: Path) -> None:
    runner.run(Plan(recipe, tmp_path, 0), here)
    ran(tmp_path)
    plan = Plan(msgspec.structs.replace(recipe, distil=recipe.distil | {"steps": 9}), tmp_path, 0)
    with pytest.raises(ValueError, match=r"of other settings \(steps: 600 there, 9 now\): give --from distil"):
        runner.run(plan, here)
    assert ran(tmp_path) == []
    (tmp_path / "distil" / "old").touch()
    (tmp_path / "target" / "old").touch()
    runner.run(plan, here, "distil")
    assert not (tmp_path / "distil" / "old").exists() and (tmp_path / "target" / "old").exists()
    assert ran(tmp_path) == ["distil", "measure-exits", "select-exits", "fed-head", "drafts", "predictor"]


def test_what_an_earlier_stage_is_made_of_counts(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.run(Plan(recipe, tmp_path, 0), here)
    more = msgspec.structs.replace(recipe, data=msgspec.structs.replace(recipe.data, scenes=50))
    states = {stage.name: runner.state(Plan(more, tmp_path, 0), stage) for stage in Plan(more, tmp_path, 0).stages}
    assert states["data"] == states["target"] == states["pass-cost"] == "other settings"
    assert states["held-out"] == states["processor"] == "done"
    monkeypatch.setattr("adapters_training.recipe.stages.ROPE_THETA", 7.0)
    plan = Plan(recipe, tmp_path, 0)
    with pytest.raises(ValueError, match="data is made of something else"):
        runner.run(plan, here)


def test_another_device_passes_over_what_is_done(recipe: Recipe, tmp_path: Path) -> None:
    runner.run(Plan(recipe, tmp_path, 0), here)
    plan = Plan(recipe, tmp_path, 1)
    assert all(runner.state(plan, stage) == "done" for stage in plan.stages)
    target = plan.named("target")
    assert target.processes == 1 and target.file["batch_frames"] == 12, "the frames of two processes on a CPU"
    assert target.command[-2:] == ("--device", "cuda")


def test_an_interrupted_stage_ends_and_its_time_counts(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = "import pathlib, os, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
    monkeypatch.setattr(runner, "command_of", lambda stage: [sys.executable, "-c", wait, str(tmp_path / "pid")])
    plan = Plan(recipe, tmp_path, 0)

    def interrupt() -> None:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        runner.run(plan, here)
    thread.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    stamp = runner.stamp_of(plan, plan.stages[0])
    assert stamp is not None and stamp.seconds > 0.0 and not stamp.done
    assert runner.state(plan, plan.stages[0]) == "begun"


def test_a_second_recipe_in_a_folder_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    with (tmp_path / runner.LOCK_FILE).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="still runs there"):
            runner.run(Plan(recipe, tmp_path, 0), here)
    runner.run(Plan(recipe, tmp_path, 0), here)


def finished(plan: Plan, megabytes: int) -> None:
    """Make all that ships, with weights of so many MB in the target."""
    runner.run(plan, here)
    for stage in (plan.target, plan.draft):
        plan.model(stage).mkdir()
        (plan.model(stage) / "config.json").write_text("{}")
    (plan.model(plan.target) / "model.safetensors").write_bytes(bytes(megabytes * 1_000_000))
    for stage, files in ((plan.exits, runner.EXIT_FILES), (plan.fed_head, runner.FED_FILES),
                         (plan.predictor, runner.DRAFT_FILES), (plan.pass_cost, runner.COST_FILES)):  # fmt: skip
        for name in files:
            (plan.folder(stage) / name).write_bytes(b"new")


def test_what_ships_is_copied_whole_and_only_below_the_limit(recipe: Recipe, tmp_path: Path) -> None:
    models = tmp_path / "models"
    (models / "target").mkdir(parents=True)
    (models / "target" / "stale.json").touch()
    plan = Plan(msgspec.structs.replace(recipe, weights_mb=2), tmp_path, 0)
    with pytest.raises(ValueError, match="data, held-out.* not done"):
        runner.export(plan, models)
    finished(plan, 3)
    with pytest.raises(ValueError, match="the weights are 3.0 MB, more than weights_mb 2"):
        runner.export(plan, models)
    assert (models / "target" / "stale.json").exists()
    (plan.model(plan.target) / "model.safetensors").write_bytes(bytes(1_000_000))
    assert "1.0 MB of weights" in runner.export(plan, models)
    found = {path.relative_to(models).as_posix() for path in models.rglob("*") if path.is_file()}
    assert found == {
        "target/config.json", "target/model.safetensors", "draft/config.json",
        *(f"target/{name}" for name in runner.COST_FILES), *(f"draft/{name}" for name in runner.DRAFT_FILES),
        *(f"exits/{name}" for name in runner.EXIT_FILES), *(f"fed_head/{name}" for name in runner.FED_FILES),
    }  # fmt: skip
    (plan.folder(plan.exits) / "exits.json").unlink()
    with pytest.raises(ValueError, match="exits.json is missing"):
        runner.export(plan, models)


def test_the_plan_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "pair"
    assert main(["recipe", "--config", str(CONFIG), "--out", str(out), "--device", "cpu", "--plan"]) == 0
    shown = capsys.readouterr().out
    assert not out.exists() and "minutes are left" in shown
    assert all(f"\n{stage.name} " in shown for stage in Plan(load(CONFIG), out, 0).stages)
    assert main(["recipe", "--config", str(CONFIG), "--out", str(out), "--plan", "--from", "tea"]) == 2
    assert "no stage is named tea; there are data, held-out" in capsys.readouterr().err
    assert main(["recipe", "--config", str(CONFIG), "--out", str(out), "--quick", "--export", str(out)]) == 2


@pytest.mark.slow
def test_a_quick_recipe_goes_through_every_stage(tmp_path: Path) -> None:
    """The real commands, in their own processes, each of them twice: the second time there is nothing to do."""
    command = [sys.executable, "-m", "adapters_training", "recipe", "--config", str(CONFIG), "--out", str(tmp_path),
               "--quick", "--device", "cpu"]  # fmt: skip
    subprocess.run(command, cwd=ROOT, check=True)
    plan = Plan(quick(load(CONFIG)), tmp_path, 0)
    assert all(runner.state(plan, stage) == "done" for stage in plan.stages)
    assert all(len(paths) > 1 for paths in runner.shipped(plan).values())
    again = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert again.stdout.count("done before") == len(plan.stages)
