from __future__ import annotations

import pytest

from spec_vlm_nav.robot import Answer, Confirmed
from spec_vlm_nav.robots import robot_of


def test_a_request_is_repeated_until_the_robot_confirms_one_of_its_identities() -> None:
    identities = iter(range(10, 100))
    request = Confirmed(lambda identity: identity, lambda: next(identities), 1.0)
    first = request.due(0.0)
    assert first == 10
    assert request.due(0.5) is None
    assert request.due(1.0) == 11
    request.answered(Answer(99))
    request.answered(Answer(first, "it must stand first"))
    assert not request.done
    request.answered(Answer(first))
    assert request.done and request.due(9.0) is None
    request.reopen()
    assert request.due(9.5) is not None


def test_an_unknown_robot_is_refused_with_what_is_known() -> None:
    with pytest.raises(ValueError, match="robot 'spot' is none of go2"):
        robot_of("spot")
