"""What cannot work is refused before the simulated robot has stood up, with a status and without leftovers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spec_vlm_nav.graph import PROJECT
from spec_vlm_nav.runner import free_address, main


@pytest.mark.usefixtures("forked_nodes")
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"draft_model": "/no/such"}, "model folder /no/such does not exist"),
        ({"verifier": "tcp://10.9.8.7:5555", "start_verifier": "false"}, "allow_plain"),
    ],
)
def test_the_robot_does_not_stand_up_for_a_node_that_cannot_be_configured(
    given: dict[str, str],
    sentence: str,
    turning_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    models = {"target_model": str(turning_model), "draft_model": str(turning_model), "verifier": free_address()}
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the tests' own handlers stay
    assert main(["sim", *(f"{name}:={value}" for name, value in {**models, **given}.items())]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.out + printed.err
    assert "stand" not in printed.out.replace("understand", "")


def test_an_argument_that_does_not_parse_starts_nothing() -> None:
    path = os.pathsep.join([str(PROJECT), str(PROJECT / "ros_ws/src/spec_vlm_nav"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "spec_vlm_nav.runner", "sim", "seed:=abc"]
    environment = {**os.environ, "PYTHONPATH": path}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "error: argument seed:=abc is no whole number\n"
