"""What a program cannot do is one sentence that names the option, before anything is loaded or started."""

from __future__ import annotations

from importlib import import_module

import pytest

BAD = {
    "ablation": (
        ("--steps 1 --target-model config", "--target-model config"),
        ("--draft-model none", "--draft-model none"),
        ("--steps -2", "--steps -2"),
        ("--recording config/links.json", "config/links.json"),
    ),
    "against": (
        ("--frames random --with nowhere", "no checkout of this project"),
        ("--with . --steps 0", "--steps 0: give at least 1"),
    ),
    "break_even": (
        ("--gammas 0", "--gammas 0"),
        ("--gammas four", "--gammas four"),
        ("--steps 0", "--steps 0"),
        ("--cost 0.175", "wisp-32b-main"),
        ("--recording none.npz", "none.npz"),
        ("--recording none.npz --synthetic tokens=4", "--synthetic and --recording"),
        ("--synthetic speed=1", "speed"),
    ),
    "exactness": (
        ("--steps 0", "--steps 0: give at least 1"),
        ("--gamma 900", "gamma is 900"),
        ("--frames mmspec:nowhere", "prompts nowhere cannot be read"),
    ),
    "latency": (
        ("--steps 0", "--steps 0: give at least 1"),
        ("--rtt-ms 20000", "--rtt-ms 20000 is outside 0 to 10000"),
        ("--profile warp", "unknown device profile"),
        ("--draft-model nowhere", "nowhere"),
    ),
    "model_timings": (
        ("--repeats 0", "--repeats 0: give at least 1"),
        ("--device nonsense", "device type"),
    ),
    "peers": (
        ("--steps -1", "--steps -1: give at least 1"),
        ("--frames text:nowhere.jsonl", "asks in words, and target"),
        ("--draft-model nowhere", "nowhere"),
    ),
    "recordings": (
        ("--out recording.json", ".npz"),
        ("--out recording.npz --count 0", "--count"),
        ("--out recording.npz --target-model none", "none"),
    ),
    "robots": (("--rounds 0", "--rounds 0: give at least 1"),),
    "sampling": (
        ("--steps 0", "--steps 0: give at least 1"),
        ("--temperature 0", "--temperature 0: give more than 0"),
        ("--keep 0", "keep is 0; give 1 to 4096"),
    ),
    "tune": (
        ("--setting orin", "orin"),
        ("--times speed=2", "speed"),
        ("--times draft_s=fast", "draft_s=fast"),
        ("--times verify_token_s=0.1", "--cost 0"),
        ("--times link=string", "unknown link 'string'"),
        ("--synthetic miss=2", "miss"),
        ("--synthetic tokens=12 --steps 1", "two at least"),
        ("--recording config/links.json", "config/links.json"),
    ),
}


@pytest.mark.parametrize(
    ("program", "flags", "named"), [(program, *case) for program, cases in BAD.items() for case in cases]
)
def test_bad_input_is_one_sentence(program: str, flags: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert import_module(f"benchmarks.{program}").main(flags.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"{program}: ") and named in error and error.count("\n") == 1
