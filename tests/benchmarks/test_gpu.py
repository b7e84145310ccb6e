"""The run on a GPU, tried on a CPU: its stages' commands are right, each has its time, and what was found stays."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import pytest
import torch

from benchmarks import break_even, exactness, gpu, model_timings
from benchmarks.gpu import Stage, main
from speculation.pass_cost import COST_FILE, load_cost_profile

QUICK = ["--device", "cpu", "--quick"]
PARSERS = {each.__name__: each.parser for each in (break_even, exactness, gpu, model_timings)}


def stage(name: str, seconds: float, code: str) -> Stage:
    """Return a stage that runs some Python."""
    return Stage(name, seconds, lambda options: ["-c", code])


def summary(out: Path) -> dict[str, str]:
    """Return how each stage ended."""
    found = json.loads((out / "summary.json").read_text())
    assert found["machine"] and found["commit"] and set(found["pair"]) == {"target", "draft"}
    return {name: each["end"] for name, each in found["stages"].items()}


def run_of(stages: list[Stage], out: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    """Run these stages in place of the program's own."""
    monkeypatch.setattr(gpu, "STAGES", stages)
    return main([*QUICK, "--out", str(out), *more])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_ends_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path / "out")]) == 2
    assert "sees no GPU here" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("quick", [[], ["--quick"]])
def test_every_stage_is_a_command_of_its_program(quick: list[str], tmp_path: Path) -> None:
    times = {"models": {"one": {"verify_with_logits_ms": 9.5}}}
    (tmp_path / f"{gpu.TARGETS[0]}_graphs.json").write_text(json.dumps(times))
    options = gpu.parser().parse_args(["--out", str(tmp_path), *quick])
    names = {each.name: each.words(options)[1] for each in gpu.STAGES}
    for each in gpu.STAGES:
        _, module, *words = each.words(options)
        if module != "pytest":
            assert isinstance(PARSERS[module]().parse_args(words), argparse.Namespace)
    assert set(names.values()) == {"pytest", *PARSERS}
    assert sum(each.seconds for each in gpu.STAGES) <= 12 * 60


def test_a_stage_that_fails_or_hangs_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "print(child.pid); child.wait()"
    )
    stages = [stage("hangs", 10.0, hangs), stage("fails", 60.0, "raise SystemExit(3)"),
              stage("works", 60.0, "print(1 + 1)")]  # fmt: skip
    assert run_of(stages, tmp_path, monkeypatch) == 1
    assert summary(tmp_path) == {"hangs": "out of time", "fails": "failed, exit code 3", "works": "done"}
    assert (tmp_path / "works.txt").read_text().splitlines()[1:] == ["2"]
    child = Path("/proc") / (tmp_path / "hangs.txt").read_text().splitlines()[1] / "cmdline"
    until = time.monotonic() + 60.0
    while child.exists() and child.read_bytes():  # empty: it has ended, and nobody has asked how
        assert time.monotonic() < until, "what a stage has started goes on"
        time.sleep(0.1)


def test_what_needs_an_earlier_stage_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--out", str(tmp_path), "--stages", "break_even"]) == 1
    assert summary(tmp_path)["break_even"].startswith("left out")
    assert main([*QUICK, "--out", str(tmp_path), "--minutes", "0"]) == 2
    assert "--minutes 0: give more than 0" in capsys.readouterr().err


def test_what_a_pass_costs_is_fitted_on_a_tiny_shape(tmp_path: Path) -> None:
    assert main([*QUICK, "--out", str(tmp_path), "--profile", "tiny"]) == 0
    assert load_cost_profile(tmp_path / COST_FILE).cost.constant_s >= 0.0


@pytest.mark.slow
def test_tiny_shapes_on_a_cpu(tmp_path: Path) -> None:
    target = gpu.TARGETS[0]
    stages = [f"{target}_plain", "profile", "break_even"]
    assert main([*QUICK, "--out", str(tmp_path), "--stages", *stages]) == 0
    assert summary(tmp_path) == dict.fromkeys(stages, "done")
    (times,) = json.loads((tmp_path / f"{target}_plain.json").read_text())["models"].values()
    assert times["prefill_to_library"] > 0.0 and times["decode_to_library"] > 0.0
    assert load_cost_profile(tmp_path / "pass_cost.json").cost.constant_s >= 0.0
    assert "T_q measured" not in (tmp_path / "break_even.txt").read_text()  # the table names T_q and T_c alone
    assert f"T_q {times['verify_with_logits_ms']:g} ms" in (tmp_path / "break_even.txt").read_text()
    assert (tmp_path / "break_even.png").exists()
