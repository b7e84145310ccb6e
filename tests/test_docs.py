"""Tables of the pages that must equal the code, and what every page must have."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from edge_drafter import Mode
from spec_vlm_nav.graph import GRAPHS, PROJECT
from spec_vlm_nav.nodes.web import WEB
from spec_vlm_nav.parameters import GUARD, Parameters
from spec_vlm_nav.preflight import PARTS
from spec_vlm_nav.process_graph import Argument
from speculation.settings import Field
from tests.test_dependencies import FOLDERS
from vlm_nav_evaluation.__main__ import COMMANDS
from vlm_nav_evaluation.__main__ import parser as evaluation_parser

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
NODES: dict[str, tuple[Parameters[Any], ...]] = {**PARTS, "web": (WEB,)}


def table(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading of any level, without its head."""
    text = (ROOT / page).read_text(encoding="utf-8")
    section = text.split(f"# {heading}\n", 1)[1]
    lines = section[section.index("\n|") :].strip().split("\n\n", 1)[0].splitlines()
    return [cells(line) for line in lines[2:]]


def cells(line: str) -> list[str]:
    """Return the cells of a table's line."""
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_readme_names_every_mode() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Modes\n", 1)[1].split("\n## ", 1)[0]
    assert set(MODES) <= set(quoted(section))


def test_the_page_on_decoding_has_every_mode_once() -> None:
    assert sorted(row[0].strip("`") for row in table("docs/decoding.md", "Modes")) == MODES


def test_the_readme_has_five_figures_each_with_its_command() -> None:
    rows = table("README.md", "Where it pays, and where not")
    assert len(rows) == 5
    assert all(re.fullmatch(r"`python -m [a-z_.]+( .*)?`", row[2]) for row in rows)


@pytest.mark.parametrize("path", COMMAND_PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_pages_name_modules_that_are_there(path: Path) -> None:
    for name in set(re.findall(r"python3? -m ([a-z_.]+[a-z_])", path.read_text(encoding="utf-8"))):
        assert find_spec(name) or name in {"pip", "mkdocs"}, f"{path.name}: {name}"


def test_python_files_named_in_pages_are_there() -> None:
    files = {
        str(file.relative_to(ROOT))
        for folder in (*FOLDERS.values(), Path("tests"), Path("scripts"), Path("launch"))
        for file in (ROOT / folder).rglob("*.py")
    }
    for path in COMMAND_PAGES:
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


def shown(default: object) -> str:
    """Return a default as tables have it."""
    plain = getattr(default, "value", default)
    return str(plain).lower() if isinstance(plain, bool) else str(plain)


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def parameter_tables() -> list[tuple[str, str, list[str], list[str]]]:
    """Return page, node, names and defaults of every row of a table of parameters."""
    found = []
    for path in PAGES:
        node = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            head = re.fullmatch(r"\| parameter of `(\w+)` \| default \| means \|", line)
            if head:
                node = head[1]
            elif not line.startswith("|"):
                node = ""
            elif node and not line.startswith("|---"):
                names, defaults, _ = cells(line)
                found.append((path.name, node, quoted(names), [each.strip(' "') for each in defaults.split(",")]))
    return found


@pytest.mark.parametrize("row", parameter_tables(), ids=lambda row: f"{row[1]}-{row[2][0]}")
def test_parameters_in_tables_exist_and_have_their_defaults(row: tuple[str, str, list[str], list[str]]) -> None:
    _, node, names, defaults = row
    fields: dict[str, Field] = {name: field for part in NODES[node] for name, field in part.fields().items()}
    known = {name: shown(field.default) for name, field in fields.items()}
    assert {name: known.get(name) for name in names} == dict(zip(names, defaults, strict=True))


def test_every_node_with_parameters_has_a_table_and_the_bridges_guard_a_whole_one() -> None:
    tables = parameter_tables()
    assert {node for _, node, _, _ in tables} == set(NODES)
    guard = {name for page, _, names, _ in tables for name in names if page == "robot_safety.md"}
    assert guard == set(GUARD.fields())


def place(argument: Argument) -> str:
    """Return the default of a launch argument, a path as it is in the project."""
    text = argument.default.removeprefix(f"{PROJECT}/")
    return text[text.index("config/") :] if text.endswith("config/verifier.yaml") else text


def test_the_page_on_ros_has_launch_arguments_with_their_defaults_and_files() -> None:
    written = {}
    for cell, default, files, _ in table("docs/ros.md", "Launch arguments"):
        graphs = list(GRAPHS) if files == "all" else files.split(", ")
        written |= {(name, graph): default for name in quoted(cell) for graph in graphs}
    known = {(argument.name, name): place(argument) for name, graph in GRAPHS.items() for argument in graph.arguments}
    assert written and written.items() <= known.items()


@pytest.mark.parametrize("path", COMMAND_PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_launch_commands_in_pages_give_arguments_that_are_declared(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    for name, rest in re.findall(r"ros2 launch spec_vlm_nav (\w+)\.launch\.py([^\n`#]*)", text):
        declared = {argument.name for argument in GRAPHS[name].arguments}
        assert set(re.findall(r"(\w+):=", rest)) <= declared, f"{path.name}: {name}{rest}"


def test_commands_of_evaluation_in_pages_have_flags_that_they_take() -> None:
    (commands,) = (action for action in evaluation_parser()._actions if isinstance(action.choices, dict))
    taken = {name: line._option_string_actions for name, line in commands.choices.items()}  # type: ignore[attr-defined]
    assert len(taken) == len(COMMANDS)
    for path in COMMAND_PAGES:
        text = path.read_text(encoding="utf-8")
        for name, rest in re.findall(r"python -m vlm_nav_evaluation ([a-z-]+)([^\n`#]*)", text):
            assert name in taken, f"{path.name}: {name}"
            assert set(re.findall(r"(--[a-z-]+)", rest)) <= set(taken[name]), f"{path.name}: {name}{rest}"
