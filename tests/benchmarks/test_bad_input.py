"""What a program cannot do is one sentence that names the option, before anything is loaded or started."""

from __future__ import annotations

from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("program", "flags", "named"),
    [
        ("ablation", "--steps 1 --target-model config", "--target-model config"),
        ("ablation", "--recording config/links.json", "config/links.json"),
        ("against", "--frames random --with nowhere", "no checkout of this project"),
        ("break_even", "--gammas 0", "--gammas 0"),
        ("break_even", "--gammas four", "--gammas four"),
        ("break_even", "--cost 0.175", "wisp-32b-main"),
        ("break_even", "--verify-ms 0", "--verify-ms 0: give more than 0"),
        ("break_even", "--recording none.npz", "none.npz"),
        ("break_even", "--recording none.npz --synthetic tokens=4", "--synthetic and --recording"),
        ("break_even", "--synthetic speed=1", "speed"),
        ("exactness", "--gamma 900", "gamma is 900"),
        ("exactness", "--frames mmspec:nowhere", "prompts nowhere cannot be read"),
        ("latency", "--rtt-ms 20000", "--rtt-ms 20000 is outside 0 to 10000"),
        ("latency", "--profile warp", "unknown device profile"),
        ("model_timings", "--repeats 0", "--repeats 0: give at least 1"),
        ("model_timings", "--device nonsense", "device type"),
        ("peers", "--steps -1", "--steps -1: give at least 1"),
        ("peers", "--frames text:nowhere.jsonl", "asks in words, and target"),
        ("peers", "--draft-model nowhere", "nowhere"),
        ("recordings", "--out recording.json", ".npz"),
        ("recordings", "--out recording.npz --count 0", "--count"),
        ("robots", "--rounds 0", "--rounds 0: give at least 1"),
        ("sampling", "--temperature 0", "--temperature 0: give more than 0"),
        ("sampling", "--keep 0", "keep is 0; give 1 to 4096"),
        ("tune", "--setting orin", "orin"),
        ("tune", "--times draft_s=fast", "draft_s=fast"),
        ("tune", "--times verify_token_s=0.1", "--cost 0"),
        ("tune", "--synthetic tokens=12 --steps 1", "two at least"),
    ],
)
def test_bad_input_is_one_sentence(program: str, flags: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert import_module(f"benchmarks.{program}").main(flags.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"{program}: ") and named in error and error.count("\n") == 1
