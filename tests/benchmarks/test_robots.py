"""Many robots on real sockets: what is counted of their answers, and the whole command with tiny models."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.robots import main
from edge_drafter import DecodingStats
from vlm_nav_evaluation.experiment.fleets import Served, drive, figures
from vlm_nav_evaluation.experiment.run import Question

ASKED = [Question(f"question {number}", b"") for number in range(3)]


def served(robot: int, began: float, ended: float, tokens: int = 10, question: int = 0, **stats: float) -> Served:
    filled: Any = {"cloud_passes": 5, "server_compute_s": 0.5, **stats}
    return Served(robot, question, began, ended, (1,) * tokens, DecodingStats(**filled))


FLEET = [
    served(0, 0.0, 2.0), served(0, 2.0, 4.0), served(0, 4.0, 6.0),
    served(1, 0.5, 3.0, 5), served(1, 3.0, 8.0, 10, 1, draft_forwards=4, draft_s=0.1, predraft_s=0.1, busy=2),
]  # fmt: skip
"""Robot 0 is twice as fast; robot 1's second answer is under way when it has two."""


def test_a_fleets_figures_are_rates_in_the_window_and_every_wrong_answer() -> None:
    truths = [(1,) * 10, (1,) * 10]
    found = figures(FLEET, 2, truths)
    # The window ends when robot 0 has two answers, and cuts robot 1's second one, of which a fifth is in it.
    assert found["tokens_per_s"] == pytest.approx(27 / 4.0)
    assert found["least_share"] == pytest.approx(2 * 7 / 27)
    assert found["passes_per_token"] == pytest.approx(20 / 35) and found["pass_s"] == pytest.approx(0.1)
    assert found["draft_forward_s"] == pytest.approx(0.05) and found["busy"] == 2
    assert found["step_p50_s"] == pytest.approx(2.25)
    assert found["wrong"] == 1 and found["answers"] == 5, "the one of five tokens, in the window or not"
    assert figures(FLEET[:3], 3, truths)["draft_forward_s"] is None
    with pytest.raises(ValueError, match="no robot has 4 answers"):
        figures(FLEET, 4, truths)


class Robot:
    """An edge whose answer is the question's last character; it fails at its turn number `fails`."""

    def __init__(self, fails: int = -1) -> None:
        self.asked: list[str] = []
        self._fails = fails

    def decode(self, prompt: str, jpeg: bytes) -> Any:
        if len(self.asked) == self._fails:
            raise RuntimeError("the verifier is gone")
        self.asked.append(prompt)
        return SimpleNamespace(tokens=(int(prompt[-1]),), stats=DecodingStats(tokens=1))


@pytest.mark.parametrize("fails", [0, 2])
def test_one_robot_that_fails_ends_the_fleet_with_its_reason(fails: int) -> None:
    robots: Any = [Robot(), Robot(fails), Robot()]
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="the verifier is gone"):
        drive(robots, ASKED, Question("warm up 9", b""), 10_000)
    assert threading.active_count() == before


@pytest.mark.usefixtures("forked_verifiers")
def test_the_whole_command_serves_robots_their_own_answers(
    asked: list[str], kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = "--policies fcfs --robots 2 --rounds 1 --steps 1 --dtype float64 --save"
    assert main([*asked, *few.split()]) == 0
    printed = capsys.readouterr().out
    assert "2 robots" in printed and "answers that are not the target's own: 0 of" in printed
    saved = json.loads((kept / "robots_raw_float64.json").read_text())
    assert saved["wrong"] == 0 and saved["answers"] >= 4 and "cores" in saved["machine"]
    assert list(saved["robots"]["2"]) == ["cloud", "full fcfs"]
    assert (kept / "robots_raw.png").stat().st_size > 10_000
