"""`top`: the sessions of one or more verifiers as a live table, from their `/load`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from speculation.text import printable

TIMEOUT_S = 3.0
PIPED_WIDTH = 160
"""Columns where the output is no terminal: a table is wider than the 80 that are assumed there."""
MOST_BYTES = 4 << 20
"""Of a `/load`; 1024 sessions take some 400 kB."""
Fetch = Callable[[str], Mapping[str, Any]]


class Unreachable(Exception):
    """Why a verifier's load cannot be shown, in one sentence."""


def fetch(url: str) -> Mapping[str, Any]:
    """Return the load of the verifier whose pages are at `url`. Raises Unreachable."""
    if not url.startswith(("http://", "https://")):
        url = f"http://{url}"
    try:
        with urlopen(f"{url.rstrip('/')}/load", timeout=TIMEOUT_S) as reply:
            held = json.loads(reply.read(MOST_BYTES))
        if not isinstance(held, dict) or not isinstance(held.get("robots"), list):
            raise ValueError
    except HTTPError as error:
        raise Unreachable(f"answers {error.code} to /load; is this a verifier's --http address?") from None
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise Unreachable(f"not reached: {reason}; was it started with --http?") from None
    except ValueError:
        raise Unreachable("its /load is no JSON of a verifier") from None
    return held


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


def table(url: str, load: Mapping[str, Any]) -> Table:
    """Return the table of one verifier's load."""
    problem = str(load.get("problem") or "")
    violations = sum(load.get("deadline_violations", {}).values())
    commits = sum(load.get("class_commits", {}).values())
    title = (
        f"{url}  {load.get('phase')}{f' ({problem})' if problem and problem != load.get('phase') else ''}  sessions "
        f"{load.get('sessions')}/{load.get('session_places')}  running {load.get('requests_running')}  waiting "
        f"{load.get('requests_waiting')}  memory {_share(load.get('kv_cache_usage'))}  late "
        f"{_share(violations / commits if commits else None)}"
    )
    made = Table(title=escape(title), title_justify="left", expand=False)
    for column, justify in (
        ("session", "right"), ("robot", "left"), ("class", "left"), ("state", "left"), ("step", "right"),
        ("tokens", "right"), ("tokens/s", "right"), ("accepted", "right"), ("credit", "right"),
        ("round trip", "right"), ("silent", "right"),
    ):  # fmt: skip
        made.add_column(column, justify=justify)  # type: ignore[arg-type]
    for each in load["robots"]:
        made.add_row(
            str(each.get("session")), escape(printable(str(each.get("robot") or "-"), 24)),
            str(each.get("service_class")), str(each.get("state")), _number(each.get("step"), "d"),
            _number(each.get("tokens"), "d"), _number(each.get("tokens_per_s"), ".1f"),
            _share(each.get("acceptance")), _number(each.get("credit"), "+.1f"),
            _ms(each.get("round_trip_s")), _number(each.get("silent_s"), ".0f", " s"),
        )  # fmt: skip
    return made


def _number(value: Any, how: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{how}}{unit}"


def _ms(seconds: Any) -> str:
    return "-" if not seconds else f"{seconds * 1e3:.0f} ms"


def _share(value: Any) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
