"""One HTML page with pictures beside it: what the demo's report and the evaluations' have in common."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:70em;margin:2em auto;padding:0 1em}img{max-width:100%}"
    "pre{background:#f4f4f4;padding:1em;overflow:auto}"
)


def paragraph(text: str) -> str:
    """Return text as a paragraph."""
    return f"<p>{html.escape(text)}</p>"


def heading(text: str) -> str:
    """Return text as a section's heading."""
    return f"<h2>{html.escape(text)}</h2>"


def preformatted(text: str) -> str:
    """Return aligned text as it is."""
    return f"<pre>{html.escape(text)}</pre>"


def picture(file: str, description: str) -> str:
    """Return a picture that lies beside the page."""
    return f"<img src='{html.escape(file)}' alt='{html.escape(description)}'>"


def bullets(lines: Sequence[str]) -> str:
    """Return lines as a list."""
    return "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"


def write_page(path: Path, headline: str, parts: Sequence[str]) -> Path:
    """Write a page of parts (HTML) under a headline (text) and return its path."""
    path.write_text(
        f"<!doctype html><meta charset=utf-8><title>spec-vlm-nav</title><style>{_STYLE}</style>"
        f"<h1>{html.escape(headline)}</h1>" + "\n".join(parts),
        encoding="utf-8",
    )
    return path
