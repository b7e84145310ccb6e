"""Whether classes' speeds are kept, and what that takes."""

from __future__ import annotations

import msgspec
import pytest

from cloud_verifier.slo import HALF_LIFE_S, Promises
from speculation.service import SERVICE_CLASSES
from speculation.wire import Commit, Masses

FAST, SLOW = SERVICE_CLASSES["interactive"], SERVICE_CLASSES["economy"]


def commit(tokens: int, queue_s: float, compute_s: float, prefill_s: float = 0.0) -> Commit:
    return Commit(1, 1, 0, [7] * tokens, bytes(8), False, 1, queue_s, compute_s, prefill_s)


def test_a_commit_is_late_that_took_the_verifier_longer_than_its_class_allows() -> None:
    promises = Promises()
    assert promises.late(0.0) == 0.0
    promises.committed(commit(4, 0.3, 0.1), FAST, 0.0)  # 4 tokens at 8 a second: half a second
    assert promises.late(0.0) == 0.0
    promises.committed(commit(4, 0.3, 0.3), FAST, 0.0)
    assert promises.late(0.0) == pytest.approx(0.5)
    promises.committed(commit(4, 0.3, 0.3), SLOW, 0.0)
    assert promises.late(0.0) == pytest.approx(1 / 3)


def test_the_token_that_a_robot_draws_itself_has_its_time() -> None:
    promises = Promises()
    for tokens in (0, 3):
        given = msgspec.structs.replace(commit(tokens, 0.0, 0.1 * (tokens + 1)), rest=Masses(bytes(4), 1.0))
        promises.committed(given, FAST, 0.0)
    assert promises.late(0.0) == 0.0


def test_what_was_late_long_ago_counts_no_more() -> None:
    promises = Promises()
    promises.committed(commit(1, 9.0, 0.0), FAST, 0.0)
    assert promises.late(1.0) == 1.0 and promises.late(10 * HALF_LIFE_S) == 0.0


def test_steady_work_comes_to_its_own_rate() -> None:
    promises = Promises()
    for tick in range(1000):
        promises.asked(0.6, 0.1, tick / 10)
        if tick % 20 == 0:
            promises.committed(commit(1, 0.0, 0.1, prefill_s=0.4), FAST, tick / 10)
    assert promises.utilisation(100.0) == pytest.approx(0.6 + 0.4 / 2.0, rel=0.1)
    assert promises.utilisation(100.0 + 10 * HALF_LIFE_S) < 0.01
