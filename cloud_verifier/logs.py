"""Log lines that nobody can forge or flood: one line a record, so many a second, in files of bounded size."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path

from cloud_verifier.limits import Allowance
from speculation.text import printable

LINES_PER_S, LINES_AT_ONCE = 50.0, 500
FILE_BYTES, FILES = 10 << 20, 5


def start_logging(file: Path | None) -> None:
    """Log to stderr or, where a `file` is given, there: FILE_BYTES at most, and FILES older ones beside it.

    Raises OSError for a file that cannot be written.
    """
    handler: logging.Handler = logging.StreamHandler()
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = RotatingFileHandler(file, maxBytes=FILE_BYTES, backupCount=FILES, encoding="utf-8")
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(FloodFilter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class LineFormatter(logging.Formatter):
    """One record, one line: control characters are escaped and long messages cut. Tracebacks keep their lines."""

    MOST_CHARS = 1000

    def formatMessage(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        return printable(super().formatMessage(record), self.MOST_CHARS)

    def formatException(self, ei: object) -> str:
        """See `logging.Formatter`."""
        lines = super().formatException(ei)  # type: ignore[arg-type]
        return "\n".join(printable(line, self.MOST_CHARS) for line in lines.splitlines())


class FloodFilter(logging.Filter):
    """Lets so many records a second through; the next one has the number of those that were kept back."""

    def __init__(
        self, rate: float = LINES_PER_S, burst: int = LINES_AT_ONCE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._allowance = Allowance(rate, burst)
        self._clock = clock
        self._lock = threading.Lock()
        self._kept_back = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        with self._lock:
            if not self._allowance.take(None, self._clock()):
                self._kept_back += 1
                return False
            if self._kept_back:
                record.msg = f"({self._kept_back} lines left out) {record.getMessage()}"
                record.args = ()
                self._kept_back = 0
        return True
