"""Latency and exactness as commands, over real sockets with tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import exactness, latency
from speculation.profiles import DeviceProfile
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.virtual_time import Synthetic, Timings, VirtualTime

pytestmark = pytest.mark.usefixtures("forked_verifiers")
HAD = Timings("had", draft_s=0.01, verify_s=0.05, edge_prefill_s=0.02, cloud_prefill_s=0.03)


@pytest.fixture
def line(tiny_target: Path, tiny_draft: Path, kept: Path) -> list[str]:
    models = f"--target-model {tiny_target} --draft-model {tiny_draft} --frames random --guide never --max-tokens 6"
    return f"{models} --gamma 2 --steps 2 --save".split()


def test_modes_are_timed_in_turns_and_a_round_trip_is_declared(
    few: None, line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = ["--journal", str(tmp_path / "journal"), "--trace", str(tmp_path / "trace.json")]
    slow = [*line, *journal, "--profile", "raw", "--rtt-ms", "40", "--modes", "cloud", "full", "edge", "--as-shipped"]
    assert latency.main(slow) == 0
    printed = capsys.readouterr().out
    assert "round trip 40 ms in place of the profile's" in printed and "95 % interval" in printed
    saved = json.loads((tmp_path / "latency_raw_rtt_40_ms_float32.json").read_text())
    assert saved["frames_with_different_tokens"] == 0 and list(saved["figures"]) == [
        "cloud", "full", "full, n-grams off", "edge",
    ]  # fmt: skip
    assert saved["figures"]["cloud"]["total_s"]["min"] > 0.04
    assert "journal" not in saved["settings"] and saved["settings"]["rtt_ms"] == "40.0"
    assert any(
        event.get("name") == "commit" for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    )
    assert len((tmp_path / "journal" / "answers.jsonl").read_text().splitlines()) == 8
    assert latency.main(slow) == 0
    again = json.loads((tmp_path / "latency_raw_rtt_40_ms_float32.json").read_text())
    assert again["step_s"] == saved["step_s"]
    assert latency.main([*slow, "--gamma", "3"]) == 2
    assert "gamma was 2 and is 3" in capsys.readouterr().err


def test_every_mode_is_there_at_its_best_and_server_sd_has_a_verifier_of_its_own(
    few: None, line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert latency.main([*line, "--profile", "raw", "--modes", "cloud", "server_sd", "full"]) == 0
    printed = capsys.readouterr().out
    assert "tuned on virtual time, on other frames" in printed and "| full, n-grams off, tuned" in printed
    saved = json.loads((tmp_path / "latency_raw_float32.json").read_text())
    assert set(saved["drafting"]) == {"server_sd, tuned", "full, tuned", "full, n-grams off, tuned"}
    assert set(saved["figures"]) == {"cloud", "server_sd", "full", "full, n-grams off", *saved["drafting"]}
    assert saved["frames_with_different_tokens"] == 0
    assert saved["figures"]["server_sd"]["forwards_per_token"] == 0.0 < saved["figures"]["full"]["cpu_s_per_step"]


def test_every_mode_is_exact(line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exactness.main(line) == 0
    printed = capsys.readouterr().out
    assert printed.count("identical on 2 of 2") == len(exactness.MODES)
    saved = json.loads((tmp_path / "exactness_float64.json").read_text())
    assert saved["flips"] == [] and saved["tokens"] > 0


def test_what_is_not_declared_is_as_it_was_measured() -> None:
    run = VirtualTime(Synthetic(tokens=12).draw(2), HAD).run([Arm(mode, mode) for mode in ("cloud", "sd")])
    raw = latency.times_of(DeviceProfile("raw"), run, Path("models/none"))
    assert (raw.draft_s, raw.verify_s, raw.server_draft_s) == pytest.approx((0.01, 0.05, 0.01))
    assert (raw.edge_prefill_s, raw.cloud_prefill_s) == pytest.approx((0.02, 0.03))
    assert raw.draft_leaf > 0.0 and raw.cost is None and raw.one_way_s == 0.0
    priced = latency.times_of(DeviceProfile("raw"), run, Path("models/target"))
    assert priced.cost is not None and priced.name == "raw, as measured"
    declared = latency.times_of(
        DeviceProfile("go2", 0.072, 0.62, 0.12, server_draft_s=0.011), run, Path("models/target")
    )
    assert (declared.draft_s, declared.verify_s, declared.one_way_s) == (0.072, 0.62, 0.12)
    assert declared.cost is None and declared.server_draft_s == 0.011, "a pass that is waited for has no load"
    assert declared.draft_leaf == 0.0 and declared.cloud_prefill_s == pytest.approx(0.03)
