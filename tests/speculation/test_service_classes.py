"""Service classes by name."""

from __future__ import annotations

import pytest

from speculation.service_classes import SERVICE_CLASSES, service_class
from speculation.wire import Hello


def test_the_papers_four_speeds_have_names_and_a_robot_asks_for_the_fastest_by_default() -> None:
    assert [each.tokens_per_s for each in SERVICE_CLASSES.values()] == [2.0, 4.0, 6.0, 8.0]
    assert service_class(Hello("t", 5).service_class).tokens_per_s == 8.0


def test_an_unknown_class_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match=r"'gold' is none of economy \(2 tokens/s\), standard"):
        service_class("gold")
