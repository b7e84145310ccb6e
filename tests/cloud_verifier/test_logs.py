"""Log lines: one a record, so many a second, in files of bounded size."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud_verifier import logs
from cloud_verifier.logs import FloodFilter, JsonFormatter, LineFormatter, event, start_logging
from cloud_verifier.sessions import Session


@pytest.fixture(autouse=True)
def _hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave the test run its own hooks for what nobody catches."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    yield
    logging.captureWarnings(False)


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
    flood = FloodFilter(lambda: now)
    passed = [flood.filter(record("line %d", n)) for n in range(logs.LINES_AT_ONCE + 7)]
    assert passed == [True] * logs.LINES_AT_ONCE + [False] * 7
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


def test_one_event_of_one_peer_does_not_take_the_lines_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PEER_LINES_AT_ONCE", 2)
    flood = FloodFilter(lambda: 0.0)

    def let_through(kind: str, number: int, name: str = "") -> bool:
        about = record("line")
        about.__dict__.update(event(kind, Session(number, "t", 0, None, 0.0, 0.0, client=name)))
        return flood.filter(about)

    assert [let_through("refused", 1) for _ in range(4)] == [True, True, False, False]
    assert let_through("refused", 2) and let_through("step", 1), "another peer, another event"
    assert [let_through("refused", number, "go2-7") for number in (3, 4, 5)] == [True, True, False], "one robot"
    assert all(flood.filter(record("no event")) for _ in range(100))


def test_json_lines_hold_the_event_and_what_it_names() -> None:
    session = Session(7, "secret", 0, None, 0.0, 0.0, client="go2-7")
    about = record("session %d step 3 done\nforged", 7)
    about.__dict__.update(event("step", session, step=3, trace="ab", code=None, how="done", message="not this"))
    line = JsonFormatter().format(about)
    held = json.loads(line)
    assert "\n" not in line and "secret" not in line
    assert held.pop("time").endswith("Z") and held == {
        "level": "WARNING", "logger": "cloud_verifier", "event": "step", "message": r"session 7 step 3 done\nforged",
        "session": 7, "robot": "go2-7", "step": 3, "trace": "ab", "how": "done",
    }  # fmt: skip


def test_what_ends_the_process_or_a_thread_is_a_json_line_too(tmp_path: Path) -> None:
    program = """if True:
        import sys, threading, warnings
        from cloud_verifier.__main__ import main
        code = main(["serve", "--model", sys.argv[1], "--log-format", "json"])
        warnings.warn("an old call")
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        raise RuntimeError(f"code {code}")
        """
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "nowhere")], capture_output=True, text=True, timeout=60
    )
    refused, warned, *failed = (json.loads(line) for line in done.stderr.splitlines())
    assert "nowhere" in refused["message"] and "an old call" in warned["message"]
    assert [each["message"] for each in failed] == [
        "ZeroDivisionError was not caught: division by zero", "RuntimeError was not caught: code 2"
    ]  # fmt: skip
    assert all("Traceback" in each["traceback"] for each in failed)
