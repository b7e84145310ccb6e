"""The movie of a run: what it shows when."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.bags import SECOND_NS
from tests.vlm_nav_evaluation.report.recording import record
from vlm_nav_evaluation.report.movie import LAST_MS, PANEL, READING_MS, shots, write_movie
from vlm_nav_evaluation.report.run import Run, load_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of a robot in an unknown room."""
    return load_run(record(tmp_path_factory.mktemp("run") / "bag"))


def test_decisions_are_shown_long_enough_to_read_and_standing_is_left_out(run: Run) -> None:
    chosen = shots(run)
    assert [shot.place.at_ns for shot in chosen] == sorted(shot.place.at_ns for shot in chosen)
    reading = [shot for shot in chosen if shot.milliseconds == READING_MS]
    assert [shot.decision.step for shot in reading if shot.decision is not None] == [0, 1, 2, 3]
    moving = [shot.place.at_ns / SECOND_NS for shot in chosen if shot.milliseconds != READING_MS]
    assert 5 <= len(moving) <= 9
    assert all(0.9 <= second <= 2.1 or 2.9 <= second <= 3.5 for second in moving)
    assert chosen[-1].walked == pytest.approx(1.0, abs=0.02)
    assert shots(Run(run.bag)) == []


def test_the_movie_is_a_gif_of_the_run(run: Run, tmp_path: Path) -> None:
    assert write_movie(tmp_path / "run.gif", run, None) == tmp_path / "run.gif"
    with Image.open(tmp_path / "run.gif") as movie:
        count = getattr(movie, "n_frames", 0)
        first = np.asarray(movie.convert("RGB"))
        movie.seek(count - 1)
        last = np.asarray(movie.convert("RGB"))
        assert movie.info["duration"] >= LAST_MS
    assert count == len(shots(run))
    assert first.shape[1] > 2 * PANEL and not np.array_equal(first, last)
    assert abs(int(first[PANEL // 2, PANEL // 2, 0]) - 0) < 30, "the frame of second 0 is black"
    assert abs(int(last[PANEL // 2, PANEL // 2, 0]) - 120) < 30, "the frame of second 3 is grey"


def test_no_run_makes_no_movie(run: Run, tmp_path: Path) -> None:
    assert write_movie(tmp_path / "run.gif", Run(run.bag), None) is None
    assert list(tmp_path.iterdir()) == []
