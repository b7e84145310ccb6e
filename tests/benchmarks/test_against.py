"""Two checkouts side by side: this one against itself, with tiny models over real sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.against import main
from spec_vlm_nav.graph import PROJECT


def test_a_checkout_is_as_good_as_itself(
    tiny_target: Path, tiny_draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = f"--target-model {tiny_target} --draft-model {tiny_draft} --frames random --guide never --max-tokens 6"
    assert main(["--with", str(PROJECT), *f"--steps 2 --modes cloud,sd {models}".split()]) == 0
    printed = capsys.readouterr().out
    assert "answers that differ: 0" in printed
    assert [line.split()[0] for line in printed.splitlines()[2:4]] == ["cloud", "sd"]
