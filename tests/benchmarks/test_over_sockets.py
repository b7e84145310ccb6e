"""Programs that decode over real sockets, with tiny models: latency, exactness, sampling, two checkouts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import against, exactness, latency, sampling
from spec_vlm_nav.graph import PROJECT
from tests.photographs import TASKS, write_mmspec

pytestmark = pytest.mark.usefixtures("forked_verifiers")


@pytest.fixture
def line(asked: list[str], kept: Path) -> list[str]:
    """Return the flags with which figures of two frames are saved."""
    return [*asked, "--gamma", "2", "--steps", "2", "--save"]


def test_modes_are_timed_in_turns_and_a_round_trip_is_declared(
    line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = ["--journal", str(tmp_path / "journal")]
    slow = [*line, *journal, "--profile", "raw", "--rtt-ms", "40", "--modes", "cloud,full,edge"]
    assert latency.main(slow) == 0
    printed = capsys.readouterr().out
    assert "round trip 40 ms in place of the profile's" in printed and "95 % interval" in printed
    saved = json.loads((tmp_path / "latency_raw_rtt_40_ms_float32.json").read_text())
    assert saved["frames_with_different_tokens"] == 0 and list(saved["figures"]) == [
        "cloud", "full", "edge", "full, n-grams off",
    ]  # fmt: skip
    assert saved["figures"]["cloud"]["total_s"]["min"] > 0.04
    assert "journal" not in saved["settings"] and saved["settings"]["rtt_ms"] == "40.0"
    assert len((tmp_path / "journal" / "answers.jsonl").read_text().splitlines()) == 8
    assert latency.main(slow) == 0
    again = json.loads((tmp_path / "latency_raw_rtt_40_ms_float32.json").read_text())
    assert again["step_s"] == saved["step_s"]
    assert latency.main([*slow, "--gamma", "3"]) == 2
    assert "gamma was 2 and is 3" in capsys.readouterr().err


def test_server_sd_has_a_verifier_of_its_own(line: list[str], tmp_path: Path) -> None:
    assert latency.main([*line, "--profile", "raw", "--modes", "server_sd,full"]) == 0
    saved = json.loads((tmp_path / "latency_raw_float32.json").read_text())
    assert set(saved["figures"]) == {"server_sd", "full", "full, n-grams off"}
    assert saved["frames_with_different_tokens"] == 0
    assert saved["figures"]["server_sd"]["forwards_per_token"] == 0.0 < saved["figures"]["full"]["cpu_s_per_step"]


def test_every_mode_is_exact(line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exactness.main(line) == 0
    printed = capsys.readouterr().out
    assert printed.count("identical on 2 of 2") == len(exactness.MODES)
    saved = json.loads((tmp_path / "exactness_float64.json").read_text())
    assert saved["flips"] == [] and saved["tokens"] > 0


def test_questions_in_mmspecs_form_are_timed_and_exact_in_all_their_turns(
    line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--frames", f"mmspec:{write_mmspec(tmp_path / 'own')}", "--steps", "3"]
    assert exactness.main([*line, *asked, "--modes", "cloud,sd,full"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("identical on 5 of 5") == 3 and "3 samples (mmspec:" in printed
    exact = json.loads((tmp_path / "exactness_mmspec_float64.json").read_text())["mmspec"]
    assert list(exact) == [*TASKS, "all"] and [arms["sd"]["turns"] for arms in exact.values()] == [1, 1, 3, 5]
    slow = [*line, *asked, "--profile", "raw", "--modes", "cloud,sd,edge", "--dtype", "float64"]
    assert latency.main(slow) == 0
    assert "walltime against 'cloud', prefill included" in capsys.readouterr().out
    saved = json.loads((tmp_path / "latency_mmspec_raw_float64.json").read_text())
    assert saved["frames_with_different_tokens"] == 0 and len(saved["step_s"]["sd"]) == 5
    timed = saved["mmspec"]["all"]
    assert list(timed) == ["cloud", "sd"], "edge is not verified"
    assert timed["cloud"]["mean_accepted_tokens"] == timed["cloud"]["walltime_ratio"] == 1.0
    assert timed["sd"]["tokens"] == exact["all"]["sd"]["tokens"] and timed["sd"]["mean_accepted_tokens"] >= 1.0
    assert latency.main([*slow, "--capacity", "200"]) == 2
    assert "the 200 of a session" in capsys.readouterr().err


pytestmark = pytest.mark.usefixtures("forked_verifiers")


def test_bytes_are_measured_on_the_socket(line: list[str], kept: Path) -> None:
    assert sampling.main(line) == 0
    data = json.loads((kept / "sampling_raw_float32.json").read_text())
    up = {name: each["bytes_up_per_round"] for name, each in data["figures"].items()}
    down = {name: each["bytes_down_per_round"] for name, each in data["figures"].items()}
    # Two float64 probabilities, or two distributions of float32, on top of the tokens.
    assert up["coupled sd"] < up["split sd"] < up["coupled sd"] + 40
    assert up["whole sd"] > data["vocabulary"] * 4
    assert down["split sd"] > down["coupled sd"] + 200
    assert (kept / "sampling.png").is_file()


def test_a_checkout_is_as_good_as_itself(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert against.main(["--with", str(PROJECT), "--steps", "1", "--modes", "cloud,sd", *asked]) == 0
    printed = capsys.readouterr().out
    assert "answers that differ: 0" in printed
    assert [line.split()[0] for line in printed.splitlines()[2:4]] == ["cloud", "sd"]
