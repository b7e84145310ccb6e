"""HTML pages with pictures, beside the page or in it: what the run's report and the evaluations' have in common."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

Image = npt.NDArray[np.uint8]
MAGIC = ((b"\x89PNG", "png"), (b"\xff\xd8", "jpeg"), (b"GIF8", "gif"))
STYLE = """
:root{color-scheme:light}*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;color:#1c2430;background:#fff;max-width:72rem;margin:0 auto;padding:1rem}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}h2{font-size:1.15rem;margin:2rem 0 .5rem}
p{margin:.3rem 0 .8rem;max-width:46rem}.note{color:#5a6675;font-size:.9rem}img{max-width:100%;height:auto;display:block}
.pair{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr));align-items:start}
.scroll{overflow-x:auto}.scroll>img{min-width:42rem;width:100%;max-width:none}
.cards{display:grid;gap:.9rem;grid-template-columns:repeat(auto-fill,minmax(min(100%,11.5rem),1fr))}
figure.card{margin:0;border:1px solid #d8dee6;border-radius:8px;overflow:hidden;background:#fff}
.card img{width:100%}.card figcaption{padding:.5rem .6rem .6rem;font-size:.88rem;line-height:1.35}
.card .bare{background:#f0f2f5;color:#5a6675;padding:2rem .6rem;text-align:center}
.card b{display:block;font-size:.98rem}.card small{display:block;color:#5a6675;margin-top:.3rem}
table{border-collapse:collapse;font-size:.92rem}td,th{padding:.28rem .8rem .28rem 0;text-align:left;vertical-align:top;
border-bottom:1px solid #e6eaef}td+td{font-variant-numeric:tabular-nums}
pre{margin:.3rem 0;padding:.8rem;background:#f0f2f5;font-size:.85rem}
code{background:#f0f2f5;padding:.1em .3em;border-radius:3px;overflow-wrap:anywhere}
"""


def escape(text: str) -> str:
    """Return text that is safe inside a page."""
    return html.escape(text)


def png(drawn: Figure, dpi: int = 110) -> bytes:
    """Return a figure as PNG."""
    buffer = io.BytesIO()
    drawn.savefig(buffer, dpi=dpi, bbox_inches="tight", facecolor="white")
    return buffer.getvalue()


def thumbnail(data: bytes, width: int = 360, quality: int = 82) -> bytes | None:
    """Return a camera frame as a JPEG at most `width` pixels wide; None if it is no picture."""
    frame = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) if data else None
    if frame is None:
        return None
    if frame.shape[1] <= width:
        return data
    size = (width, round(frame.shape[0] * width / frame.shape[1]))
    return _encoded(".jpg", cv2.resize(frame, size, interpolation=cv2.INTER_AREA), cv2.IMWRITE_JPEG_QUALITY, quality)


def image(data: bytes, alt: str) -> str:
    """Return a picture (PNG, JPEG or GIF) as an element that carries its bytes. Raises ValueError for other data."""
    kind = next((name for start, name in MAGIC if data.startswith(start)), None)
    if kind is None:
        raise ValueError(f"the picture {alt!r} is neither PNG, JPEG nor GIF")
    return f'<img src="data:image/{kind};base64,{base64.b64encode(data).decode()}" alt="{html.escape(alt)}">'


def wide(element: str) -> str:
    """Return an element that keeps its size on a narrow screen and scrolls there."""
    return f'<div class="scroll">{element}</div>'


def section(title: str, *elements: str, note: str = "") -> str:
    """Return a part of a page; `note` is plain text under the title."""
    return "".join([heading(title), paragraph(note) if note else "", *elements])


def heading(text: str) -> str:
    """Return plain text as a part's heading."""
    return f"<h2>{html.escape(text)}</h2>"


def preformatted(text: str) -> str:
    """Return aligned text as it is."""
    return f'<div class="scroll"><pre>{html.escape(text)}</pre></div>'


def picture(file: str, description: str) -> str:
    """Return a picture that lies beside the page."""
    return f'<img src="{html.escape(file)}" alt="{html.escape(description)}">'


def bullets(lines: Iterable[str]) -> str:
    """Return plain text as a list."""
    return "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"


def paragraph(text: str) -> str:
    """Return plain text as a note."""
    return f'<p class="note">{html.escape(text)}</p>'


def link(target: str, text: str) -> str:
    """Return a link; `target` is relative to the page."""
    return f'<a href="{html.escape(target)}">{html.escape(text)}</a>'


def table(rows: Iterable[Sequence[str]], header: Sequence[str] = ()) -> str:
    """Return plain text in rows and columns."""
    lines = [_row(header, "th")] if header else []
    return f'<div class="scroll"><table>{"".join([*lines, *(_row(row, "td") for row in rows)])}</table></div>'


def card(frame: bytes | None, title: str, text: str, detail: str = "") -> str:
    """Return a picture with its caption, to stand in `cards`."""
    shown = thumbnail(frame) if frame else None
    top = image(shown, title) if shown is not None else '<div class="bare">no frame</div>'
    small = f"<small>{html.escape(detail)}</small>" if detail else ""
    caption = f"<figcaption><b>{html.escape(title)}</b>{html.escape(text)}{small}</figcaption>"
    return f'<figure class="card">{top}{caption}</figure>'


def grid(elements: Iterable[str], kind: str = "cards") -> str:
    """Return elements side by side, as many as the screen is wide: small `cards`, or a large `pair`."""
    return f'<div class="{kind}">{"".join(elements)}</div>'


def write_page(path: Path, title: str, parts: Iterable[str]) -> Path:
    """Write a page of parts (HTML) under a title (text) and return its path. Raises OSError."""
    head = '<!doctype html><html lang="en"><meta charset="utf-8">'
    head += '<meta name="viewport" content="width=device-width,initial-scale=1">'
    head += f"<title>{html.escape(title)}</title><style>{STYLE}</style>"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{head}<h1>{html.escape(title)}</h1>{''.join(parts)}</html>\n", encoding="utf-8")
    return path


def _row(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _encoded(suffix: str, picture: npt.NDArray[Any], *flags: int) -> bytes:
    ok, data = cv2.imencode(suffix, picture, list(flags))
    if not ok:
        raise RuntimeError(f"a picture could not be encoded as {suffix}")
    return np.asarray(data, np.uint8).tobytes()
