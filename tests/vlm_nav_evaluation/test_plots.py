"""Bars and heat maps that the reports share."""

from __future__ import annotations

import pytest

from vlm_nav_evaluation.plots import heat_map, name_rows, new_figure, stacked_bars


@pytest.mark.parametrize("upright", [False, True])
def test_parts_of_a_bar_stand_on_one_another(upright: bool) -> None:
    axes = new_figure(2.0).add_subplot()
    first, second = stacked_bars(axes, range(2), {"a": ("red", [1.0, 2.0]), "b": ("blue", [3.0, 0.5])}, upright=upright)
    assert [bar.get_y() if upright else bar.get_x() for bar in second] == [1.0, 2.0]
    assert [bar.get_height() if upright else bar.get_width() for bar in second] == [3.0, 0.5]
    assert axes.get_legend_handles_labels()[1] == ["a", "b"] and len(first) == 2


def test_the_first_row_is_on_top() -> None:
    axes = new_figure(2.0).add_subplot()
    name_rows(axes, ["above", "below"])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["above", "below"]
    bottom, top = axes.get_ylim()
    assert bottom > 1 > 0 > top


def test_every_cell_of_a_heat_map_has_its_text() -> None:
    axes = new_figure(2.0).add_subplot()
    heat_map(axes, [[0.9, 0.1, float("nan")]], [["9", "1", "-"]], "Blues", dark=0.5)
    shown = {text.get_position(): (text.get_text(), text.get_color()) for text in axes.texts}
    assert shown == {(0, 0): ("9", "w"), (1, 0): ("1", "k"), (2, 0): ("-", "k")}
