"""The whole chain as processes, in every mode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from speculation.trace import load
from tests.system.chain import FIND, Robot, finish, simulated
from tests.system.conftest import Lines, Relay, until
from vlm_nav_evaluation.report.timeline import steps


@pytest.fixture(scope="module")
def stopping(stopping_model: Path, relay: Relay, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Robot]:
    """A robot whose models say stop, for all modes."""
    trace = tmp_path_factory.mktemp("traces") / "trace.json"
    with simulated(stopping_model, relay, "cloud", trace=str(trace)) as robot:
        yield robot


@pytest.mark.parametrize("mode", ["cloud", "edge", "sd", "fsd"])
def test_a_model_that_says_stop_ends_the_goal_in_every_mode(
    mode: str, stopping: Robot, relay: Relay, lines: Lines
) -> None:
    relay.lines = lines
    trace = Path(stopping.arguments["trace"])
    if mode != stopping.arguments["mode"]:
        stopping.change(mode)
        trace.unlink(missing_ok=True)
    end = finish(stopping, stopping.observer.send(FIND))
    answers = steps(load(trace))
    assert end.succeeded and end.actions == 0
    assert answers[-1].action == "stop" and answers[-1].whole.args["tokens"] > 0
    last = stopping.observer.last
    until(lambda: "instruction" in last and last["instruction"].data == FIND, "the instruction on its topic")
    room = {"seed": 3, "difficulty": "middle", "target": "silver bottle", "layout": "room"}
    assert stopping.observer.truth["room"] == room
    until(lambda: "decoding_stats" in last and last["decoding_stats"].mode == mode, "figures of the mode")
    # What the grammar of readable answers wants behind it are the parrot's reasons.
    assert last["decoding_stats"].answer.partition("\n")[0] == "Action: stop"
