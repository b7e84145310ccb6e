"""Log lines that nobody can forge or flood: one line an event, so many a second, in files of bounded size.

As text, or as JSON for machines: one object a line with `time` (UTC, RFC 3339), `level`, `logger`, `event`, `message`
and what the event names: `session`, `robot`, `step`, `trace` and others.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType
from typing import Literal

from cloud_verifier.limits import Rate
from cloud_verifier.sessions import Session
from cloud_verifier.start_error import StartError
from speculation.text import printable

_log = logging.getLogger("cloud_verifier")
LINES_PER_S, LINES_AT_ONCE = 50.0, 500
"""All events together may have so many; errors as many again, which robots' lines must not crowd out."""
PEER_LINES_PER_S, PEER_LINES_AT_ONCE = 10.0, 100
"""One kind of event of one peer may have so many: one that is loud leaves the others their lines."""
LogFormat = Literal["text", "json"]
FILE_BYTES, FILES = 10 << 20, 5


def event(kind: str, session: Session | None = None, **fields: str | int | float | None) -> dict[str, object]:
    """Return the `extra` of a log call: what the event is, whose, and what it names besides, but for None."""
    named: dict[str, object] = {}
    if session is not None:
        named = {"session": session.number, "robot": session.client}
    named |= fields
    return {"event": kind, "fields": {name: value for name, value in named.items() if value not in (None, "")}}


def start_logging(file: Path | None, log_format: LogFormat = "text", replica: str = "") -> None:
    """Log to stderr or, where a `file` is given, there: FILE_BYTES at most, and FILES older ones beside it.

    `replica` is which one of a cluster logs: all of a machine share one stderr, so each of its lines has its name.

    Raises StartError for a file that cannot be written.
    """
    handler: logging.Handler = logging.StreamHandler()
    if file is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            handler = RotatingFileHandler(file, maxBytes=FILE_BYTES, backupCount=FILES, encoding="utf-8")
        except OSError as error:
            raise StartError(f"--log-file {file}: {error.strerror or error}") from None
    whose = f" {replica}".replace("%", "%%") if replica else ""
    text = LineFormatter(f"%(asctime)s %(levelname)s %(name)s{whose}: %(message)s")
    handler.setFormatter(JsonFormatter(replica) if log_format == "json" else text)
    handler.addFilter(FloodFilter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    if log_format == "json":  # whoever reads such a log stops at the first line that is none
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        threading.excepthook = lambda failed: _log_uncaught(
            failed.exc_type, failed.exc_value or failed.exc_type(), failed.exc_traceback
        )


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, SystemExit):  # how a thread may end
        return
    _log.critical("%s was not caught: %s", kind.__name__, error, exc_info=(kind, error, traceback))


class LineFormatter(logging.Formatter):
    """Makes a line of a record: control characters are escaped and long messages cut. Tracebacks keep their lines."""

    MOST_CHARS = 1000

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record), self.MOST_CHARS)

    def formatException(self, ei: object) -> str:
        lines = super().formatException(ei)  # type: ignore[arg-type]
        return "\n".join(printable(line, self.MOST_CHARS) for line in lines.splitlines())


class JsonFormatter(logging.Formatter):
    """Makes a JSON object on one line of a record; long texts are cut, a traceback is one field."""

    MOST_CHARS, MOST_TRACEBACK_CHARS = LineFormatter.MOST_CHARS, 16_000

    def __init__(self, replica: str = "") -> None:
        super().__init__()
        self._replica = replica

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, timezone.utc)
        held: dict[str, object] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "event": getattr(record, "event", "log"),
            "message": printable(record.getMessage(), self.MOST_CHARS),
            **({"replica": self._replica} if self._replica else {}),
        }
        for name, value in getattr(record, "fields", {}).items():
            held.setdefault(name, printable(value, self.MOST_CHARS) if isinstance(value, str) else value)
        if record.exc_info:
            held["traceback"] = self.formatException(record.exc_info)[-self.MOST_TRACEBACK_CHARS :]
        return json.dumps(held)


class FloodFilter(logging.Filter):
    """Lets so many records a second through, and of one event of one peer fewer; the next one that passes has the
    number of those that were kept back.

    The event, and its peer, the robot or else the session, are what `event` was given; records without one have the
    common limit alone.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._allowance = Rate.counted(LINES_PER_S, LINES_AT_ONCE)
        self._peers = Rate.counted(PEER_LINES_PER_S, PEER_LINES_AT_ONCE)
        self._clock = clock
        self._lock = threading.Lock()
        self._kept_back = 0

    def filter(self, record: logging.LogRecord) -> bool:
        fields = getattr(record, "fields", {})
        peer = fields.get("robot") or fields.get("session")
        kind = getattr(record, "event", None)
        with self._lock:
            now = self._clock()
            own = kind is None or self._peers.take((kind, peer), now)
            if not (own and self._allowance.take(record.levelno >= logging.ERROR, now)):
                self._kept_back += 1
                return False
            if self._kept_back:
                record.msg = f"({self._kept_back} lines left out) {record.getMessage()}"
                record.args = ()
                self._kept_back = 0
        return True
