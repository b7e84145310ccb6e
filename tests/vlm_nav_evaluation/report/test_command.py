"""The page of a recorded run, from the bag alone."""

from __future__ import annotations

import re
from base64 import b64decode
from pathlib import Path

import cv2
import numpy as np
import pytest

from speculation.trace import Trace
from tests.vlm_nav_evaluation.report.recording import record
from tests.vlm_nav_evaluation.report.test_timeline import traced_step
from vlm_nav_evaluation.__main__ import main
from vlm_nav_evaluation.report.command import write_report

ROOM = {"seed": 1, "difficulty": "easy", "target": "silver bottle"}


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    """A run of a real robot: nothing but odometry, frames and decisions."""
    return record(tmp_path / "run" / "bag")


def embedded(page: str) -> list[tuple[str, bytes]]:
    return [(kind, b64decode(data)) for kind, data in re.findall(r'src="data:image/(\w+);base64,([^"]+)"', page)]


def test_the_page_of_a_simulated_run_shows_its_room_and_carries_its_plots(tmp_path: Path) -> None:
    page = write_report(tmp_path / "out", record(tmp_path / "bag", ROOM), headline="FOUND <it>")
    text = page.read_text()
    assert "FOUND &lt;it&gt;" in text and "2 collisions" in text and "the SILVER bottle, please" in text
    assert "Understood: find the silver bottle. " in text
    assert "Odometry alone" not in text
    assert re.findall(r'src="(?!data:)', text) == []
    for name in ("top.png", "latency.png"):
        plot = cv2.imread(str(tmp_path / "out" / name))
        assert plot is not None and plot.std() > 5.0
    kinds = [kind for kind, _ in embedded(text)]
    assert (kinds.count("png"), kinds.count("jpeg")) == (2, 3)
    for _, data in embedded(text):
        assert cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) is not None


def test_the_same_page_for_a_real_robot_has_a_grid(bag: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = Trace()
    traced_step(trace, 5, 0.0)
    trace.write(bag.parent / "trace.json")
    assert main(["report", str(bag)]) == 0
    folder = bag.parent / "bag_report"
    assert str(folder / "report.html") in capsys.readouterr().out
    text = (folder / "report.html").read_text()
    assert "Odometry alone" in text and "4 decisions, the last stop" in text
    assert (folder / "timeline.png").exists()
    for target in ("../bag", "../trace.json"):
        assert f'href="{target}"' in text and (folder / target).exists()
    assert "log.txt" not in text
    for card in ("0: forward large", "1: turn left small", "2: HOLD", "3: stop"):
        assert f"<b>{card}</b>" in text
    assert text.count("no frame") == 1


def test_what_cannot_be_read_is_one_sentence(bag: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(bag.parent)]) == 2
    assert capsys.readouterr().err.startswith(f"report: {bag.parent} is no bag: it holds the bags {bag.name}")
    (bag.parent / "trace.json").write_text("{}")
    assert main(["report", str(bag)]) == 2
    assert "is no trace of this project" in capsys.readouterr().err
    assert not (bag.parent / "bag_report").exists()
