"""The script that makes the pair: every command takes what it is given, and all of them fit together."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from adapters_training.__main__ import COMMANDS, _parser
from adapters_training.settings import read

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "-m adapters_training "
QUICK = {
    "data": "--scenes 25 --frames-per-scene 2",
    "pair": "--steps 2 --batch-frames 2 --questions 2 --vision-share 0 --ground-share 0 --learning-rate 1e-6",
    "answers": "--frames 12 --questions 2",
    "exits": "--steps 2 --batch 2 --held-out-samples 4",
    "measure-exits": "--prompts 6 --list-prompts 4 --repeats 3",
    "select-exits": "--budget 1",
    "fed-head": "--steps 2 --batch 2 --held-out-samples 4 --depths 2",
    "predictor": "--frames 20",
    "profile-verifier": "--quick --runs 1 --warm-up 0",
}
"""Options with which a command goes through all it does in seconds."""
STAND_IN = """#!{python}
import sys
from adapters_training.__main__ import main
quick = {quick!r}
if __name__ == "__main__":
    words = sys.argv[sys.argv.index("adapters_training") + 1 :]
    sys.exit(main([*words, *quick.get(words[0], "").split()]))
"""


def script(out: Path, python: Path, *start: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": str(python), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = ["bash", "scripts/train_pair.sh", str(out), *start]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("start", [(), ("models",)])
def test_every_command_takes_what_it_is_given(tmp_path: Path, start: tuple[str, ...]) -> None:
    said = script(tmp_path, Path("/bin/echo"), *start).stdout.splitlines()
    commands = [line.partition(COMMAND)[2].split() for line in said if COMMAND in line]
    names = [words[0] for words in commands]
    assert len(commands) > 15 and {*QUICK, "processor"} == set(names)
    kinds = {each.name: each.kind for each in COMMANDS}
    for name, words in zip(names, commands, strict=True):
        read(kinds[name], _parser().parse_args(words))


@pytest.mark.slow
def test_all_commands_fit_together_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(STAND_IN.format(python=sys.executable, quick=QUICK), encoding="utf-8")
    python.chmod(0o755)
    for _ in range(2):
        done = script(tmp_path / "pair", python, "models")
        assert done.returncode == 0, done.stderr
        made = {path.name: path for path in (tmp_path / "pair" / "models").iterdir()}
        assert set(made) == {"target", "draft", "exits", "fed_head"}
        weights = {name: sum(each.stat().st_size for each in path.glob("*.safetensors")) for name, path in made.items()}
        assert all(weights.values())
    shutil.rmtree(tmp_path / "pair")
