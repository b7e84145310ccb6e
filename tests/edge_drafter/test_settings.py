from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edge_drafter import DraftingConfig, Mode
from edge_drafter.settings import MAX_RTT_S, Connection, EdgeConfig
from speculation.sampling import Coupled, Point, SamplingScheme, Sparse, Split, Whole
from speculation.settings import add_flags, fields_of, from_flags
from speculation.wire import Idle


def test_the_modes_are_settings_of_one_drafter() -> None:
    flags = {
        mode.value: (c.drafts, c.predrafts, c.own_guess, c.early_tokens, c.idle, c.needs_link)
        for mode in Mode
        for c in [DraftingConfig.of(mode)]
    }
    known: dict[str, tuple[object, ...]] = {
        "cloud": (False, False, False, False, Idle.DECODE, True),
        "edge": (False, False, False, False, Idle.WAIT, False),
        "sd": (True, False, False, False, Idle.WAIT, True),
        "fsd": (True, True, False, True, Idle.WAIT, True),
        "proactive": (True, True, True, False, Idle.WAIT, True),
        "pipelined": (True, True, True, False, Idle.WAIT, True),
        "full": (True, True, True, True, Idle.LEDGER, True),
        "server_sd": (False, False, False, False, Idle.DECODE, True),
    }
    assert known.items() <= flags.items()
    assert [mode for mode in Mode if DraftingConfig.of(mode).self_draft] == [Mode.SERVER_SD]
    assert DraftingConfig.of("fsd", gamma=2, branches=1).gamma == 2
    assert DraftingConfig.of("server_sd").draft_tokens == 32, "SpecEdge's tree"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gamma": 65}, "gamma is 65; give 0 to 64 or 'auto'"),
        ({"gamma": "much"}, "gamma is 'much'"),
        ({"branches": -1}, "branches -1 is outside 0 to any"),
        ({"stop_below": 1.5}, "stop_below 1.5 is outside 0 to 1"),
        ({"patience_s": float("nan")}, "patience_s nan is outside 0 to any"),
        ({"drafts": False, "ngrams": True}, "ngrams needs drafts"),
        ({"draft_tokens": 65}, "draft_tokens 65 is outside 0 to 64"),
        ({"ahead_above": 2.0}, "ahead_above 2.0 is outside 0 to 1"),
        ({"leaves": 0}, "leaves 0 is outside 1 to any"),
    ],
)
def test_bad_settings_are_named(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        DraftingConfig(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", [Whole(1.0), Split(1.0), Sparse(1.0)])
def test_rejection_sampling_takes_one_chain_at_a_time(how: SamplingScheme) -> None:
    for mode in (Mode.SD, Mode.FSD, Mode.CLOUD, Mode.EDGE):
        DraftingConfig.of(mode).check_sampling(how)
    needed = "idle=wait,width=1,draft_tokens=0,ahead=off,truncate=off,extend=off,ngrams=off"
    with pytest.raises(ValueError, match=f"take mode sd or fsd with a fixed gamma, or set {needed}"):
        DraftingConfig.of(Mode.FULL).check_sampling(how)
    DraftingConfig.of(Mode.FULL, needed).check_sampling(how)
    with pytest.raises(ValueError, match="one drafted chain at a time: take mode sd or fsd$"):
        DraftingConfig.of(Mode.SERVER_SD).check_sampling(how)
    with pytest.raises(ValueError, match="set gamma=4 or another number"):
        DraftingConfig.of(Mode.SD, gamma="auto").check_sampling(how)
    for free in (Coupled(1.0), Point(1.0)):
        DraftingConfig.of(Mode.FULL).check_sampling(free)


def test_an_unknown_mode_names_the_known_ones() -> None:
    known = ", ".join(mode.value for mode in Mode)
    assert known.startswith("cloud, edge, sd, fsd, server_sd, ")
    with pytest.raises(ValueError, match=f"'magic'; known modes are {known}"):
        DraftingConfig.of("magic")


ROOT = Path(__file__).resolve().parents[2]
NEW_MODE = """
from pathlib import Path
from edge_drafter import DraftingConfig
from edge_drafter.settings import EdgeConfig
from spec_vlm_nav import graph
from speculation.settings import fields_of
from tests.edge_drafter.fakes import Bench, Weather, alone, hashed_draft, hashed_target, request

assert "toy" in graph.MODE.choices
assert "toy" in next(field.description for field in fields_of(EdgeConfig) if field.name == "mode")
assert EdgeConfig.flat(Path("draft"), mode="toy").decoding.settings("toy").leaves == 2
target = hashed_target(1)
result = Bench(target, hashed_draft(target, 1, 0.8), Weather(), DraftingConfig.of("toy", "width=2")).run(request())
assert result.tokens == alone(target, 24) and result.stats.predraft_s > 0.0
"""


def test_a_new_mode_is_one_entry_in_the_table(tmp_path: Path) -> None:
    """Added to a copy of the package, in a process of its own."""
    shutil.copytree(ROOT / "edge_drafter", tmp_path / "edge_drafter")
    table = tmp_path / "edge_drafter" / "settings.py"
    text, entry = table.read_text(encoding="utf-8"), '    TOY = "toy", {"own_guess": True, "leaves": 2}\n'
    assert text.count("    FULL = (\n") == 1
    table.write_text(text.replace("    FULL = (\n", entry + "    FULL = (\n"), encoding="utf-8")
    paths = [str(tmp_path), str(ROOT), str(ROOT / "ros_ws/src/spec_vlm_nav")]
    found = subprocess.run(
        [sys.executable, "-c", NEW_MODE], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]


# --- what one robot starts with

DRAFT = Path("draft")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(TypeError, match="EdgeConfig has no setting treads_"):
        EdgeConfig.flat(DRAFT, treads_=2)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("rtt_s", -1.0, "rtt_s -1.0 is outside 0 to 10"),
        ("extra_rtt_s", MAX_RTT_S + 1, "extra_rtt_s 11.0 is outside 0 to 10"),
        ("seed", -1, "seed -1 is outside 0 to"),
        ("mode", "magic", "known modes are cloud, edge"),
        ("gamma", 65, "gamma is 65; give 0 to 64"),
        ("drafting", "interrupt=maybe", "interrupt='maybe' is unknown; give on, off"),
        ("max_tokens", 0, "max_tokens 0 is outside 1 to 4096"),
        ("max_tokens", 2048, "a capacity of 2048 must hold prompt and frames, too; raise capacity or lower"),
        ("dtype", "float8", "dtype"),
        ("threads", 0, "threads 0 is outside 1 to 1024"),
        ("sampling", "hot", "sampling 'hot' is unknown"),
        ("sampling", "split(temperature=1.0)", "one drafted chain at a time"),
        ("service_class", "royal", r"service class 'royal' is none of economy \(2 tokens/s\)"),
        ("verifier", "tcp://10.0.0.5:5555", "allow_plain"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(name: str, value: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        EdgeConfig.flat(DRAFT, **{name: value})


def test_flags_are_made_of_the_settings() -> None:
    line = argparse.ArgumentParser()
    add_flags(line, EdgeConfig)
    options = line.parse_args(["--draft-model", "d", "--mode", "sd", "--rtt-s", "0.5", "--allow-plain"])
    config = from_flags(EdgeConfig, options)
    assert (config.decoding.mode, config.connection) == ("sd", Connection(rtt_s=0.5, allow_plain=True))
    assert all(field.description for field in fields_of(EdgeConfig))
    assert "one of " + ", ".join(mode.value for mode in Mode) in line.format_help().replace("\n", " ").replace(
        "                        ", ""
    )
