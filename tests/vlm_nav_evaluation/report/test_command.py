"""The page of a recorded run, from the bag and the trace alone."""

from __future__ import annotations

import re
from base64 import b64decode
from pathlib import Path

import cv2
import numpy as np
import pytest

from speculation.trace import Kind, Lane, Trace
from tests.vlm_nav_evaluation.report.recording import record
from vlm_nav_evaluation.__main__ import main
from vlm_nav_evaluation.report.command import write_report
from vlm_nav_evaluation.report.timeline import most_useful_step, plot_step, steps


def traced_step(
    trace: Trace, number: int, start: float, rounds: int = 2, action: str = "", useful: int | None = None
) -> None:
    """Add a step: in each round of 100 ms the edge pre-drafts for 60 ms, then it drafts for 20 ms."""
    trace.add(Kind.PREFILL.value, Lane.EDGE, start, start + 0.05, step=number)
    now = start + 0.05
    for turn in range(1, rounds + 1):
        names = {"step": number, "round": turn}
        landing = "hit" if turn % 2 else "miss"
        trace.add(Kind.DRAFT.value, Lane.EDGE, now, now + 0.02, **names)
        now += 0.02
        trace.add(Kind.PREDRAFT.value, Lane.EDGE, now, now + 0.06, **names)
        trace.mark(
            Kind.EARLY.value, Lane.LINK, now + 0.04, **names, layer=2, node=1, token=5, confidence=0.5, used=True
        )
        trace.add(Kind.VERIFY.value, Lane.CLOUD, now + 0.01, now + 0.09, **names)
        now += 0.1
        trace.add(Kind.ROUND.value, Lane.LINK, now - 0.1, now, **names, tokens=3)
        trace.mark(Kind.COMMIT.value, Lane.EDGE, now, **names, tokens=3, landing=landing)
    counts = {} if useful is None else {"useful_forwards": useful}
    trace.add(Kind.STEP.value, Lane.EDGE, start, now, step=number, tokens=3 * rounds, **counts)
    if action:
        trace.mark(Kind.DECISION.value, Lane.EDGE, now + 0.01, goal=1, decision=number - 100, action=action)


def test_the_step_that_is_shown_is_one_in_which_drafts_were_of_use() -> None:
    trace = Trace()
    for place, (rounds, useful) in enumerate(((9, 0), (3, 4), (5, 4), (4, 4), (2, 1))):
        traced_step(trace, 101 + place, 5.0 * place, rounds, useful=useful)
    assert most_useful_step(steps(trace.spans)).number == 104
    old = Trace()
    for place, rounds in enumerate((2, 7, 3)):
        traced_step(old, 101 + place, 5.0 * place, rounds)
    assert most_useful_step(steps(old.spans)).number == 103, "without the counts, the one of median duration"


def test_a_long_step_gets_a_close_up_of_whole_rounds() -> None:
    trace = Trace()
    traced_step(trace, 1, 0.0, 12)
    whole, part = plot_step(steps(trace.spans)[0]).axes
    assert sum(text.get_text().startswith("+3") for text in whole.texts) == 12
    assert 4 <= sum(text.get_text().startswith("+3") for text in part.texts) <= 5
    assert sum(text.get_text() == "exit 2" for text in part.texts) == 4


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
