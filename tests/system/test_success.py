"""The whole chain as processes in the default mode, to a goal that succeeds."""

from __future__ import annotations

from pathlib import Path

from speculation.trace import load
from tests.system.chain import FIND, finish, simulated
from tests.system.conftest import Lines, until
from vlm_nav_evaluation.report.timeline import steps


def test_a_model_that_says_stop_ends_the_goal_and_leaves_figures_and_a_trace(
    stopping_model: Path, lines: Lines, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    with simulated(stopping_model, lines, "full", trace=str(trace)) as robot:
        end = finish(robot, robot.send())
        answers = steps(load(trace))
        assert end.succeeded and end.actions == 0
        assert answers[-1].action == "stop" and answers[-1].whole.args["tokens"] > 0
        last = robot.observer.last
        until(lambda: "instruction" in last and last["instruction"].data == FIND, "the instruction on its topic")
        room = {"seed": 3, "difficulty": "middle", "target": "silver bottle", "layout": "room"}
        assert robot.observer.truth["room"] == room
        until(lambda: "decoding_stats" in last and last["decoding_stats"].mode == "full", "figures of the answer")
        # What the grammar of readable answers wants behind it are the parrot's reasons.
        assert last["decoding_stats"].answer.partition("\n")[0] == "Action: stop"
