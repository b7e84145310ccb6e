"""Puts the pages that lie outside docs/ on the site of `make docs`, and fits links to the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "models/README.md": "shipped_models.md",
    "benchmarks/README.md": "benchmark_commands.md",
}
"""Where a page of the repository stands on the site."""
_SOURCES = {uri: path for path, uri in PAGES.items()}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that lie outside docs/."""
    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the page with its relative links fitted to the site."""
    return _LINK.sub(lambda match: _fitted(match, page.file.src_uri), markdown)


def _fitted(match: re.Match[str], uri: str) -> str:
    mark, text, target, anchor = match[1], match[2], match[3], match[4] or ""
    if ":" in target:
        return match[0]
    source = _SOURCES.get(uri, f"docs/{uri}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if path in PAGES or path.startswith("docs/"):
        there = PAGES.get(path, path.removeprefix("docs/"))
        return f"{mark}[{text}]({posixpath.relpath(there, posixpath.dirname(uri) or '.')}{anchor})"
    # a file of the repository that is no page; where there is none, the strict build reports the link
    return text if (ROOT / path).exists() else match[0]
