from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_drafter import DraftingConfig, Mode
from speculation.sampling import Coupled, Point, SamplingScheme, Sparse, Split, Whole
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
        ({"gamma": 65}, "gamma is 65; give 0 to 64, 'auto' or 'balance'"),
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
import importlib.util, pathlib, sys
path = pathlib.Path("edge_drafter/config.py")
text = path.read_text(encoding="utf-8")
entry = '    TOY = "toy", {"own_guess": True, "leaves": 2}\\n'
assert text.count("    FULL = (\\n") == 1
module = importlib.util.module_from_spec(importlib.util.spec_from_file_location("edge_drafter.config", path))
sys.modules["edge_drafter.config"] = module
exec(compile(text.replace("    FULL = (\\n", entry + "    FULL = (\\n"), str(path), "exec"), module.__dict__)

from edge_drafter import DraftingConfig
from edge_drafter.settings import EdgeConfig
from spec_vlm_nav import graph
from speculation.settings import fields_of
from tests.edge_drafter.fakes import Bench, Weather, alone, hashed_draft, hashed_target, request

assert "toy" in graph.MODE.choices
assert "toy" in next(field.description for field in fields_of(EdgeConfig) if field.name == "mode")
assert EdgeConfig.flat(pathlib.Path("draft"), mode="toy").decoding.settings("toy").leaves == 2
target = hashed_target(1)
result = Bench(target, hashed_draft(target, 1, 0.8), Weather(), DraftingConfig.of("toy", "width=2")).run(request())
assert result.tokens == alone(target, 24) and result.stats.predraft_s > 0.0
"""
"""Adds an entry to the table of modes in a process of its own, before anything else is imported."""


def test_a_new_mode_is_one_entry_in_the_table() -> None:
    found = subprocess.run(
        [sys.executable, "-c", NEW_MODE], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "ros_ws/src/spec_vlm_nav")])},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
