"""Tables of the pages that must equal the code, and what every page must have."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from edge_drafter import Mode
from tests.test_dependencies import FOLDERS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
COMMAND_PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "benchmarks" / "README.md",
    *PAGES,
]
MODES = sorted(mode.value for mode in Mode)


def table(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its head."""
    text = (ROOT / page).read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n", 1)[1]
    lines = section[section.index("\n|") :].strip().split("\n\n", 1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_the_readme_has_every_mode_once() -> None:
    assert sorted(row[0].strip("`") for row in table("README.md", "Modes")) == MODES


def test_the_page_on_decoding_has_every_mode_once_and_the_one_of_virtual_time() -> None:
    assert sorted(row[0].strip("`") for row in table("docs/decoding.md", "Modes")) == sorted([*MODES, "layer_split"])


def test_the_readme_has_five_figures_each_with_its_command() -> None:
    rows = table("README.md", "Where it pays, and where not")
    assert len(rows) == 5
    assert all(re.fullmatch(r"`python -m [a-z_.]+( .*)?`", row[2]) for row in rows)


def test_the_glossary_is_sorted_and_names_sources_that_are_listed() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| ")
    ]
    terms = [row for row in rows if len(row) == 3 and row[0] != "term"]
    papers = {row[0] for row in rows if len(row) == 2}
    names = [row[0].casefold() for row in terms]
    assert len(terms) >= 30
    assert names == sorted(names)
    for term, _, source in terms:
        assert source == "this project" or any(paper in source for paper in papers), f"{term}: {source!r}"


@pytest.mark.parametrize("path", COMMAND_PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_pages_name_modules_that_are_there(path: Path) -> None:
    for name in set(re.findall(r"python3? -m ([a-z_.]+[a-z_])", path.read_text(encoding="utf-8"))):
        assert find_spec(name) or name in {"pip", "mkdocs"}, f"{path.name}: {name}"


@pytest.mark.parametrize("path", COMMAND_PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_files_named_in_pages_are_there(path: Path) -> None:
    files = {
        str(file.relative_to(ROOT))
        for folder in (*FOLDERS.values(), Path("tests"), Path("scripts"), Path("launch"))
        for file in (ROOT / folder).rglob("*.py")
    }
    for name in set(re.findall(r"`([\w./]+\.py)`", path.read_text(encoding="utf-8"))):
        assert any(f"/{file}".endswith(f"/{name}") for file in files), f"{path.name}: {name}"


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    listed = set(re.findall(r"[a-z0-9_]+\.md", str(nav)))
    assert {path.name for path in PAGES} <= listed
    # the others lie beside their subject; scripts/mkdocs_pages.py brings them
    hook = (ROOT / "scripts" / "mkdocs_pages.py").read_text(encoding="utf-8")
    for name in listed - {path.name for path in PAGES}:
        assert f'"{name}"' in hook, name


def test_links_between_pages_lead_to_files() -> None:
    for path in [*COMMAND_PAGES, ROOT / "CHANGELOG.md", ROOT / "models" / "README.md"]:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8")):
            assert ":" in target or (path.parent / target).exists(), f"{path.name}: {target}"


def test_every_target_of_make_has_its_line_of_help() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split())  # type: ignore[index]
    described = set(re.findall(r"^([a-z]+):.*## ", text, re.MULTILINE))
    assert phony == described
    assert {"docs", "wheel"} <= described
