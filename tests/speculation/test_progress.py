"""Progress bars are for terminals."""

from __future__ import annotations

import io
import sys

import pytest

from speculation.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    shown, hidden = (Terminal(), Terminal()) if terminal else (io.StringIO(), io.StringIO())
    monkeypatch.setattr(sys, "stderr", shown)
    assert list(progress(range(1000), unit="step", mininterval=0.0)) == list(range(1000))
    with progress(total=3, unit="step") as bar:
        bar.update(3)
    assert ("1000/1000" in shown.getvalue()) == terminal and (terminal or not shown.getvalue())
    monkeypatch.setattr(sys, "stderr", hidden)
    list(progress(range(3), hidden=True))
    assert not hidden.getvalue()
