"""HTML pages of sections (`page.html`), with plots beside the page or in it: reports of runs and of replays."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from matplotlib.figure import Figure
from PIL import Image

from speculation.images import file_pixels

FORMATS = ((b"\x89PNG", "png"), (b"\xff\xd8", "jpeg"))
THUMBNAIL, JPEG_QUALITY = 360, 82
PAGES = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True)


@dataclass(frozen=True)
class Section:
    """A part of a page; what is empty is left out, and all text is plain."""

    title: str
    note: str = ""
    text: str = ""
    """Aligned lines, shown as they are."""
    plots: Sequence[tuple[str, str]] = ()
    """(source, description); a source is a file beside the page or `embedded` data. Several stand side by side."""
    rows: Sequence[Sequence[str]] = ()
    """Cells of a table."""
    cards: Sequence[tuple[str, str, str, str]] = ()
    """Small images with captions: (source as `embedded` returns it, empty for none, title, text, detail)."""
    lines: Sequence[str] = ()
    """A list."""
    links: Sequence[tuple[str, str, str]] = ()
    """(target, name, description); targets are relative to the page."""


def write_page(path: Path, title: str, sections: Sequence[Section], lead: Sequence[str] = ()) -> Path:
    """Write a page and return its path; `lead` are the lines under the title. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    page = PAGES.get_template("page.html").render(title=title, lead=lead, sections=sections)
    path.write_text(page, encoding="utf-8")
    return path


def png(figure: Figure) -> bytes:
    """Return a figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=110, bbox_inches="tight", facecolor="white")
    return buffer.getvalue()


def embedded(data: bytes) -> str:
    """Return a PNG or JPEG as the source of an image that the page carries. Raises ValueError for other data."""
    kind = next((name for start, name in FORMATS if data.startswith(start)), None)
    if kind is None:
        raise ValueError("the data is neither PNG nor JPEG")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def thumbnail(data: bytes | None) -> str:
    """Return a camera frame at most `THUMBNAIL` pixels wide as an image's source; empty if it is no image."""
    try:
        image = Image.fromarray(file_pixels(data or b""))
        if image.width <= THUMBNAIL:
            return embedded(data or b"")
    except ValueError:
        return ""
    small = image.resize((THUMBNAIL, round(image.height * THUMBNAIL / image.width)), Image.Resampling.BOX)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=JPEG_QUALITY)
    return embedded(buffer.getvalue())
