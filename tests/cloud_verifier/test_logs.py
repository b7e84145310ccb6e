"""Log lines: one a record, so many a second, in files of bounded size."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from cloud_verifier import logs
from cloud_verifier.logs import FloodFilter, LineFormatter, start_logging


def record(text: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("cloud_verifier", logging.WARNING, "file", 1, text, args, None)


def test_a_message_is_one_line_and_a_traceback_keeps_its_own() -> None:
    formatter = LineFormatter("%(levelname)s: %(message)s")
    assert formatter.format(record("it said %s", "a\nERROR: b\x1b[2J")) == r"WARNING: it said a\nERROR: b\x1b[2J"
    assert len(formatter.format(record("x" * 5000))) < 1100
    try:
        raise ValueError("first\x1b[2J\nsecond")
    except ValueError as error:
        failed = record("failed")
        failed.exc_info = (type(error), error, error.__traceback__)
    lines = formatter.format(failed).splitlines()
    assert lines[0] == "WARNING: failed" and lines[1].startswith("Traceback")
    assert lines[-2:] == [r"ValueError: first\x1b[2J", "second"]


def test_a_flood_is_cut_and_the_next_line_has_the_number() -> None:
    now = 0.0
    flood = FloodFilter(rate=1.0, burst=3, clock=lambda: now)
    assert [flood.filter(record("line %d", n)) for n in range(10)] == [True] * 3 + [False] * 7
    now = 1.0
    late = record("100 %% of %s", "it %s")
    assert flood.filter(late) and late.getMessage() == "(7 lines left out) 100 % of it %s"


def test_a_log_file_turns_over_and_is_never_larger_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES", 2000)
    monkeypatch.setattr(logs, "FILES", 2)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    file = tmp_path / "logs" / "verifier.log"
    start_logging(file)
    for number in range(200):
        logging.getLogger("cloud_verifier").warning("line %d of peers\nforged", number)
    for handler in logging.getLogger().handlers:
        handler.close()
    files = sorted(file.parent.iterdir())
    assert [path.name for path in files] == ["verifier.log", "verifier.log.1", "verifier.log.2"]
    assert all(path.stat().st_size <= 2000 for path in files) and "line 199" in file.read_text()
