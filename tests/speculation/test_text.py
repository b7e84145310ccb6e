"""What somebody else writes is one line, printable and short, whatever it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from speculation.text import printable


@given(st.text(max_size=400), st.integers(0, 300))
def test_it_is_printable_and_bounded(text: str, most: int) -> None:
    line = printable(text, most)
    assert line.isprintable() and len(line) <= most + 40
    if text.isprintable() and len(text) <= most:
        assert line == text


def test_forged_lines_and_escape_codes_are_shown_for_what_they_are() -> None:
    assert printable("done\n[ERROR] x\x1b[2J\u2028") == r"done\n[ERROR] x\x1b[2J\u2028"
    assert printable("abcdef", 3) == "abc... (6 characters)"
