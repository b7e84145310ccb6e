"""Arguments of a process graph as flags, and what a run of it adds."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from spec_vlm_nav.graph import SIM_GRAPH
from vlm_nav_evaluation.graph_options import DECODING, add_graph_flags, prepare


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Flags of two model folders; the environment and the signal handler are as before afterwards."""
    for name in ("ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE"):
        monkeypatch.setenv(name, os.environ.get(name, "7"))
    before = signal.getsignal(signal.SIGTERM)
    for name in ("target", "draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    yield ["--target-model", str(tmp_path / "target"), "--draft-model", str(tmp_path / "draft")]
    signal.signal(signal.SIGTERM, before)


def options(*words: str) -> argparse.Namespace:
    line = argparse.ArgumentParser()
    add_graph_flags(line, SIM_GRAPH, "seed", "layout", *DECODING, seed="3")
    return line.parse_args(words)


def test_a_run_gets_an_address_and_paths_that_hold_in_other_folders(models: list[str]) -> None:
    arguments = prepare(SIM_GRAPH, options(*models, "--mode", "sd"), trace="t.json")
    assert (arguments["seed"], arguments["mode"], arguments["trace"]) == ("3", "sd", "t.json")
    assert arguments["verifier"].startswith("tcp://127.0.0.1:") and Path(arguments["draft_model"]).is_absolute()
    assert SIM_GRAPH.values(arguments)["server_draft"] == ""
    again = prepare(SIM_GRAPH, options(*models, "--mode", "server_sd"))
    assert again["verifier"] != arguments["verifier"] and again["server_draft"] == again["draft_model"]


def test_a_missing_model_is_one_sentence(tmp_path: Path, models: list[str]) -> None:
    with pytest.raises(ValueError, match="no draft model in"):
        prepare(SIM_GRAPH, options(*models[:2], "--draft-model", str(tmp_path)))
