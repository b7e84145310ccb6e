"""Tables as aligned text or as Markdown: of cells, or of figures by columns that are declared as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return aligned text, the first column left, the others right."""
    return "\n".join("  ".join(line).rstrip() for line in aligned([header, *rows]))


def aligned(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return rows whose cells are as wide as the widest of their column, the first column left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in rows
    ]


class Column(NamedTuple):
    """One column: its title, where in an entry its value stands ('total_s.median'), how it is formatted, a factor.

    A missing value or None is a dash. A spread is shown as 'median (min-max)', an interval (lower end, median, upper
    end) as 'median (lower-upper)'.
    """

    title: str
    path: str
    form: str = ".2f"
    factor: float = 1.0

    def value(self, entry: Mapping[str, Any]) -> Any:
        """Return the value of an entry, None where it has none."""
        value: Any = entry
        for key in self.path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def cell(self, entry: Mapping[str, Any]) -> str:
        """Return the value of an entry as text."""
        value = self.value(entry)
        if value is None or isinstance(value, str):
            return value or "-"
        if isinstance(value, Mapping):
            value = [value[name] for name in ("min", "median", "max")]
        form = self.form.removesuffix("x")
        times = "x" * (form != self.form)
        if isinstance(value, (tuple, list)):
            low, middle, high = (f"{self.factor * each:{form}}" for each in value)
            return f"{middle}{times} ({low}-{high})"
        return f"{self.factor * value:{form}}{times}"


MS = 1e3
"""Factor of a column in milliseconds."""


def spread_columns(name: str, unit: str = "ms", form: str = ".0f") -> tuple[Column, ...]:
    """Return the columns min, median and max of a spread."""
    return tuple(Column(f"{each} {unit}", f"{name}.{each}", form, MS) for each in ("min", "median", "max"))


def cells_of(head: str, figures: Mapping[str, Mapping[str, Any]], columns: Sequence[Column]) -> list[list[str]]:
    """Return the header and a row per entry of `figures`; `head` titles the first column."""
    rows = [[name, *(column.cell(entry) for column in columns)] for name, entry in figures.items()]
    return [[head, *(column.title for column in columns)], *rows]


def figures_table(head: str, figures: Mapping[str, Mapping[str, Any]], columns: Sequence[Column]) -> str:
    """Return `cells_of` as aligned text."""
    header, *rows = cells_of(head, figures, columns)
    return table(header, rows)


def markdown(head: str, figures: Mapping[str, Mapping[str, Any]], columns: Sequence[Column]) -> str:
    """Return `cells_of` as a Markdown table, its columns aligned for whoever reads it as text."""
    lines = aligned(cells_of(head, figures, columns))
    ruled = [lines[0], ["-" * len(lines[0][0]), *("-" * (len(cell) - 1) + ":" for cell in lines[0][1:])], *lines[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in ruled)
