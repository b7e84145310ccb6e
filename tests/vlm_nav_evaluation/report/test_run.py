"""A run read back from its bag."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.bags import SECOND_NS
from tests.vlm_nav_evaluation.report.recording import Recorder, jpeg, record
from vlm_nav_evaluation.report.run import Place, Run, load_run

ROOM = {"seed": 1, "difficulty": "easy", "target": "silver bottle"}


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated run."""
    return record(tmp_path_factory.mktemp("run") / "bag", ROOM)


def test_a_run_is_read_back_with_its_decisions_frames_figures_and_path(bag: Path) -> None:
    run = load_run(bag)
    assert [decision.action for decision in run.decisions] == ["forward large", "turn left small", "HOLD", "stop"]
    assert run.decisions[0].reasoning == "I see a wall. I go on."
    assert run.decisions[2].reasoning == "no camera frame"
    assert run.decisions[1].frame == jpeg(40).tobytes() and run.decisions[3].frame == jpeg(120).tobytes()
    assert run.decisions[0].stats.tokens == 24 and run.decisions[3].stats is None
    assert len(run.stats) == 2
    assert run.length == pytest.approx(1.0, abs=0.01)
    assert run.path[-1][1:] == pytest.approx((1.0, 0.0, 0.4), abs=0.02)
    place = run.decisions[1].place
    assert place is not None and place.x == pytest.approx(0.9, abs=0.02)


def test_the_headline_goes_by_truth_where_there_is_one(bag: Path) -> None:
    run = load_run(bag)
    assert run.headline() == "FOUND the silver bottle after 4 decisions"
    run.truth["distance"] = 1.7
    assert run.headline() == "NOT FOUND the silver bottle after 4 decisions, the last stop; 1.7 m away, in view"
    run.decisions[-1].action = "not here"
    assert run.headline() == "NOT HERE was the answer after 4 decisions; the silver bottle is 1.7 m away, in view"
    run.decisions[-1].action = "stop"
    run.truth = {}
    assert run.headline() == '"the SILVER bottle, please": 4 decisions, the last stop'
    assert Run(bag).headline() == "a run: nothing was decided"


def test_one_odometry_is_followed_and_nonsense_left_out(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "bag")
    for second, x in enumerate((0.0, np.nan, 1.0)):
        recorder.odometry(second, x, 0.0, 0.0, "/utlidar/robot_odom")
        recorder.odometry(second + 0.5, 50.0 + x, 0.0, 0.0, "/odom_of_another_source")
    recorder.close()
    run = load_run(tmp_path / "bag")
    assert run.path == [Place(0, 0.0, 0.0, 0.0), Place(2 * SECOND_NS, 1.0, 0.0, 0.0)]
