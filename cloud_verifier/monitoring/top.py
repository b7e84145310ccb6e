"""`top`: the sessions of one or more verifiers as a live table, from their `/load`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cloud_verifier.monitoring.watched import Load
from speculation.text import printable

TIMEOUT_S = 3.0
PIPED_WIDTH = 160
"""Columns where the output is no terminal: a table is wider than the 80 that are assumed there."""
MOST_BYTES = 4 << 20
"""Of a `/load`; 1024 sessions take some 400 kB."""
Fetch = Callable[[str], Load]


class Unreachable(Exception):
    """Why a verifier's load cannot be shown, in one sentence."""


def fetch(url: str) -> Load:
    """Return the load of the verifier whose pages are at `url`. Raises Unreachable."""
    if not url.startswith(("http://", "https://")):
        url = f"http://{url}"
    try:
        with urlopen(f"{url.rstrip('/')}/load", timeout=TIMEOUT_S) as reply:
            return msgspec.json.decode(reply.read(MOST_BYTES), type=Load)
    except HTTPError as error:
        raise Unreachable(f"answers {error.code} to /load; is this a verifier's --http address?") from None
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise Unreachable(f"not reached: {reason}; was it started with --http?") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreachable(f"its /load is not that of a verifier of this version: {error}") from None


def show(urls: Sequence[str], interval_s: float, once: bool, console: Console | None = None) -> None:
    """Show the verifiers at `urls` every `interval_s` seconds until Ctrl-C, or once."""
    console = console or Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    if once:
        console.print(screen(urls))
        return
    with Live(screen(urls), console=console, screen=console.is_terminal, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(interval_s)
                live.update(screen(urls), refresh=True)
        except KeyboardInterrupt:
            return


def screen(urls: Sequence[str], look: Fetch = fetch) -> RenderableType:
    """Return a table for each verifier, or a line where one cannot be reached."""
    parts: list[RenderableType] = []
    for url in urls:
        try:
            parts.append(table(url, look(url)))
        except Unreachable as problem:
            parts.append(Text(f"{url}: {problem}", style="bold red"))
    return Group(*parts)


def table(url: str, load: Load) -> Table:
    """Return the table of one verifier's load."""
    violations, commits = sum(load.deadline_violations.values()), sum(load.class_commits.values())
    why = f" ({load.problem})" if load.problem not in ("", load.phase) else ""
    title = (
        f"{url}  {load.phase}{why}  sessions {load.sessions}/{load.session_places}  running {load.requests_running}  "
        f"waiting {load.requests_waiting}  memory {_share(load.kv_cache_usage)}  late "
        f"{_share(violations / commits if commits else None)}"
    )
    made = Table(title=escape(title), title_justify="left", expand=False)
    for column, justify in (
        ("session", "right"), ("robot", "left"), ("class", "left"), ("state", "left"), ("step", "right"),
        ("tokens", "right"), ("tokens/s", "right"), ("accepted", "right"), ("credit", "right"),
        ("round trip", "right"), ("silent", "right"),
    ):  # fmt: skip
        made.add_column(column, justify=justify)  # type: ignore[arg-type]
    for each in load.robots:
        made.add_row(
            str(each.session), escape(printable(each.robot or "-", 24)), escape(printable(each.service_class, 24)),
            escape(printable(each.state, 24)), _number(each.step, "d"), _number(each.tokens, "d"),
            _number(each.tokens_per_s, ".1f"), _share(each.acceptance), _number(each.credit, "+.1f"),
            f"{each.round_trip_s * 1e3:.0f} ms" if each.round_trip_s else "-", f"{each.silent_s:.0f} s",
        )  # fmt: skip
    return made


def _number(value: float | None, how: str) -> str:
    return "-" if value is None else f"{value:{how}}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
