"""The benchmark of packed attention: both ways give one loss, and the command prints what it compares."""

from __future__ import annotations

import pytest

from benchmarks.packed_attention import main


def test_the_command_prints_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--role", "draft", "--steps", "1", "--frames", "2"]) == 0
    shown = capsys.readouterr().out
    assert "whole rows, s" in shown and "times as fast" in shown
    assert main(["--frames", "0"]) == 2
    assert "--frames 0: give at least 1" in capsys.readouterr().err
