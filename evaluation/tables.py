"""Aligned text tables: of cells, or of figures by columns that are declared as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return aligned text, the first column left, the others right."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


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


def spread_columns(name: str, unit: str = "ms", form: str = ".0f", factor: float = MS) -> tuple[Column, ...]:
    """Return the columns min, median and max of a spread."""
    return tuple(Column(f"{each} {unit}", f"{name}.{each}", form, factor) for each in ("min", "median", "max"))


def figures_table(head: str, figures: Mapping[str, Mapping[str, Any]], columns: Sequence[Column]) -> str:
    """Return a table with a row per entry of `figures`; `head` titles the first column."""
    rows = [(name, *(column.cell(entry) for column in columns)) for name, entry in figures.items()]
    return table((head, *(column.title for column in columns)), rows)
