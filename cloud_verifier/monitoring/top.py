"""Shows the sessions of verifiers, and the replicas of a cluster's gateway, as live tables from their `/load`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cloud_verifier.monitoring.gateway_health import GatewayLoad
from cloud_verifier.monitoring.health import Load
from speculation.text import printable

TIMEOUT_S = 3.0
PIPED_WIDTH = 160
"""Output that is no terminal has so many columns: a table is wider than the 80 that are assumed there."""
MOST_BYTES = 4 << 20
"""A `/load` may have so many; 1024 sessions take some 400 kB."""


class Unreachable(Exception):
    """A verifier's load cannot be shown; the text is the reason, in one sentence."""


def fetch(url: str) -> Load | GatewayLoad:
    """Return the load of the verifier or gateway whose pages are at `url`. Raises Unreachable."""
    if not url.startswith(("http://", "https://")):
        url = f"http://{url}"
    try:
        with urlopen(f"{url.rstrip('/')}/load", timeout=TIMEOUT_S) as reply:
            body = reply.read(MOST_BYTES)
    except HTTPError as error:
        raise Unreachable(f"answers {error.code} to /load; is this a verifier's --http address?") from None
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise Unreachable(f"not reached: {reason}; was it started with --http?") from None
    except (HTTPException, ValueError) as error:  # a port that speaks something else, or no address at all
        text = printable(str(error), 100)
        raise Unreachable(f"no verifier's --http address, which is HOST:PORT ({text})") from None
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.json.decode(body, type=GatewayLoad)
    try:
        return msgspec.json.decode(body, type=Load)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreachable(f"its /load is not that of a verifier of this version: {error}") from None


def show(urls: Sequence[str], interval_s: float, once: bool, console: Console | None = None) -> None:
    """Show the verifiers at `urls` every `interval_s` seconds until Ctrl-C, or once."""
    console = console or Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    if once:
        console.print(screen(urls))
        return
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(screen(urls), console=console, screen=console.is_terminal, auto_refresh=False) as live,
    ):
        while True:
            time.sleep(interval_s)
            live.update(screen(urls), refresh=True)


def screen(urls: Sequence[str]) -> RenderableType:
    """Return a table for each verifier, or a line where one cannot be reached."""
    parts: list[RenderableType] = []
    for url in urls:
        try:
            load = fetch(url)
            parts.append(sessions(url, load) if isinstance(load, Load) else replicas(url, load))
        except Unreachable as problem:
            parts.append(Text(f"{url}: {problem}", style="bold red"))
    return Group(*parts)


def replicas(url: str, load: GatewayLoad) -> Table:
    """Return the table of a gateway's load."""
    title = (
        f"{url}  gateway{f' ({load.problem})' if load.problem else ''}  sessions {load.sessions}/{load.session_places}"
        f"  sent on {load.redirected}  turned away {load.turned_away}"
    )
    made = _table(title, ("replica", "phase", "address"), ("sessions", "memory", "work", "late"))
    for each in load.replicas:
        made.add_row(
            *(escape(printable(text, 48)) for text in (each.name, each.phase.value, each.address)),
            f"{each.sessions}/{each.session_places}", _share(each.memory), f"{each.utilisation:.2f}", _share(each.late),
        )  # fmt: skip
    return made


def sessions(url: str, load: Load) -> Table:
    """Return the table of a verifier's load."""
    violations, commits = sum(load.deadline_violations.values()), sum(load.class_commits.values())
    why = f" ({load.problem})" if load.problem not in ("", load.phase) else ""
    title = (
        f"{url}  {load.phase}{why}  sessions {load.sessions}/{load.session_places}  running {load.requests_running}  "
        f"waiting {load.requests_waiting}  memory {_share(load.kv_cache_usage)}  late "
        f"{_share(violations / commits if commits else None)}"
    )
    made = _table(
        title, ("session", "robot", "class", "state"),
        ("step", "tokens", "tokens/s", "accepted", "credit", "round trip", "silent"),
    )  # fmt: skip
    for each in load.robots:
        made.add_row(
            str(each.session), escape(printable(each.robot or "-", 24)), escape(printable(each.service_class, 24)),
            escape(printable(each.state, 24)), _number(each.step, "d"), _number(each.tokens, "d"),
            _number(each.tokens_per_s, ".1f"), _share(each.acceptance), _number(each.credit, "+.1f"),
            f"{each.round_trip_s * 1e3:.0f} ms" if each.round_trip_s else "-", f"{each.silent_s:.0f} s",
        )  # fmt: skip
    return made


def _table(title: str, words: Sequence[str], numbers: Sequence[str]) -> Table:
    made = Table(title=escape(title), title_justify="left", expand=False)
    for column in words:
        made.add_column(column)
    for column in numbers:
        made.add_column(column, justify="right")
    return made


def _number(value: float | None, how: str) -> str:
    return "-" if value is None else f"{value:{how}}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
