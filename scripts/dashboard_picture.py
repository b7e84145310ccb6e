"""The dashboard as a page without Grafana, and its picture: the same panels and queries, asked of a Prometheus.

    python scripts/dashboard_picture.py http://localhost:9090 --minutes 20 --page dashboard.html --picture dashboard.png

The picture needs a Chromium; without `--picture` any browser shows the page. Nothing in it is loaded from elsewhere.
"""

from __future__ import annotations

import argparse
import html
import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.dashboard import COLUMNS, PANELS, Panel

WIDTH, HEIGHT = 440, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 8, 22
POINTS = 120
COLOURS = ("#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#8b5cf6", "#06b6d4", "#ec4899", "#84cc16")
STYLE = """
body{margin:16px;background:#111217;color:#ccccdc;font:13px sans-serif;width:1384px}
h1{font-size:19px;margin:0 0 12px} .grid{display:grid;grid-template-columns:repeat(3,1fr);gap:10px}
.panel{background:#181b1f;border:1px solid #2a2d33;border-radius:3px;padding:8px}
h2{font-size:13px;margin:0;font-weight:600} p{margin:2px 0 6px;color:#8e8e9c;font-size:11px}
.legend span{margin-right:10px;font-size:11px;white-space:nowrap} svg text{fill:#8e8e9c;font:10px sans-serif}
"""


class Line(NamedTuple):
    """One line of a panel: Unix times in seconds, and values."""

    name: str
    points: tuple[tuple[float, float], ...]


def ask(prometheus: str, panel: Panel, start: float, end: float) -> list[Line]:
    """Return the lines of a panel over a time. Raises OSError, or ValueError for a query that is refused."""
    lines: list[Line] = []
    for query, legend in panel.queries:
        plain = query.replace("$__rate_interval", "1m").replace("$instance", ".*")
        words = {"query": plain, "start": start, "end": end, "step": max(1.0, (end - start) / POINTS)}
        with urlopen(f"{prometheus.rstrip('/')}/api/v1/query_range?{urlencode(words)}", timeout=30) as reply:
            held = json.load(reply)
        if held.get("status") != "success":
            raise ValueError(f"{panel.title}: {held.get('error')}")
        for each in held["data"]["result"]:
            points = tuple((float(at), float(value)) for at, value in each["values"] if math.isfinite(float(value)))
            lines.append(Line(_name(legend, each["metric"]), points))
    return lines


def _name(legend: str, labels: dict[str, str]) -> str:
    for label, value in labels.items():
        legend = legend.replace(f"{{{{{label}}}}}", value)
    return legend


def page(panels: Sequence[tuple[Panel, Sequence[Line]]], start: float, end: float) -> str:
    """Return the page."""
    assert COLUMNS == 3, "the page has as many columns as the dashboard"
    parts = [
        f'<div class="panel"><h2>{html.escape(panel.title)}</h2><p>{html.escape(panel.about)}</p>'
        f'{chart(panel, lines, start, end)}<div class="legend">{_legend(lines)}</div></div>'
        for panel, lines in panels
    ]
    return (
        f'<!doctype html><meta charset="utf-8"><title>Verifier</title><style>{STYLE}</style><h1>Verifier</h1>'
        f'<div class="grid">{"".join(parts)}</div>\n'
    )


def chart(panel: Panel, lines: Sequence[Line], start: float, end: float) -> str:
    """Return a panel's chart as SVG."""
    values = [value for line in lines for _, value in line.points]
    low = min([0.0, *values])
    high = max([value for value in values if value > low], default=low + 1.0)
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(at: float) -> float:
        return LEFT + wide * (at - start) / max(1e-9, end - start)

    def y(value: float) -> float:
        return TOP + tall * (1.0 - (value - low) / (high - low))

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}">']
    for part in range(5):
        value = low + (high - low) * part / 4
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#2a2d33"/>'
        )
        label = shown(value, panel.unit)
        parts.append(f'<text x="{LEFT - 5}" y="{y(value) + 3:.1f}" text-anchor="end">{label}</text>')
    for part in range(5):
        at = start + (end - start) * part / 4
        clock = time.strftime("%H:%M", time.gmtime(at))
        anchor = "start" if part == 0 else "end" if part == 4 else "middle"
        parts.append(f'<text x="{x(at):.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{clock}</text>')
    for number, line in enumerate(lines):
        way = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in line.points)
        parts.append(
            f'<polyline points="{way}" fill="none" stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="1.5"/>'
        )
    return "".join([*parts, "</svg>"])


def shown(value: float, unit: str) -> str:
    """Return a value of the axis in its unit, Grafana's name of it."""
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s":
        return f"{value:.3g} s" if value >= 1.0 else f"{value * 1e3:.3g} ms"
    return f"{value:.3g}"


def _legend(lines: Sequence[Line]) -> str:
    return "".join(
        f'<span><b style="color:{COLOURS[number % len(COLOURS)]}">&#9644;</b> {html.escape(line.name)}</span>'
        for number, line in enumerate(lines)
    )


def photograph(page_file: Path, picture: Path, rows: int) -> None:
    """Take the picture of a page. Raises OSError where there is no Chromium, CalledProcessError where it fails."""
    browser = next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )
    if browser is None:
        raise FileNotFoundError("no chromium, chromium-browser or google-chrome: leave --picture out and open the page")
    size = f"--window-size=1416,{70 + rows * 330}"
    words = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", size]
    subprocess.run([*words, f"--screenshot={picture.resolve()}", page_file.resolve().as_uri()], check=True, timeout=120,
                   capture_output=True)  # fmt: skip


def main() -> None:
    """Run the command line."""
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("prometheus", help="its address")
    line.add_argument("--minutes", type=float, default=60.0, help="how far back (default: 60)")
    line.add_argument("--page", type=Path, default=Path("dashboard.html"), help="file to write")
    line.add_argument("--picture", type=Path, help="PNG file to write")
    options = line.parse_args()
    end = time.time()
    start = end - 60.0 * options.minutes
    panels = [(panel, ask(options.prometheus, panel, start, end)) for panel in PANELS]
    options.page.write_text(page(panels, start, end), encoding="utf-8")
    if options.picture is not None:
        photograph(options.page, options.picture, math.ceil(len(PANELS) / COLUMNS))


if __name__ == "__main__":
    main()
