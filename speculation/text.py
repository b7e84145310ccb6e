"""Makes text of somebody else, and errors, fit for a log line, a terminal or a ROS message."""

from __future__ import annotations


def printable(text: str, most: int = 300) -> str:
    """Return `text` on one line: what is not printable is escaped, and what is longer than `most` characters is cut.

    >>> printable("done\\n[ERROR] forged\\x1b[2J")
    'done\\\\n[ERROR] forged\\\\x1b[2J'
    """
    line = text[:most]
    if not line.isprintable():
        line = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)
    return line[:most] if len(text) <= most else f"{line[:most]}... ({len(text)} characters)"


def first_line(error: Exception) -> str:
    """Return the first line of what an error says, or its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
