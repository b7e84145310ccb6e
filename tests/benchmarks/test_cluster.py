"""What is counted of a robot whose replica dies, and which flags the cluster takes."""

from __future__ import annotations

import pytest

from benchmarks import cluster
from benchmarks.cluster import Robot
from edge_drafter.link import LinkState

AT = "the verifier at tcp://127.0.0.1:1 serves model"
STATES = [(1.0, LinkState.NOMINAL, AT), (5.5, LinkState.SILENT, "gone"), (6.0, LinkState.CONNECTING, "looking"),
          (7.0, LinkState.NOMINAL, AT), (9.0, LinkState.BUSY, "full"), (9.5, LinkState.NOMINAL, AT)]  # fmt: skip


@pytest.mark.parametrize(
    ("when", "from_loss", "seconds"),
    [(5.0, False, 2.0), (5.0, True, 1.5), (6.5, False, 3.0), (6.5, True, 0.5), (9.5, False, None), (0.5, True, 1.5)],
)
def test_a_robot_is_without_a_verifier_until_it_is_served_again(
    when: float, from_loss: bool, seconds: float | None
) -> None:
    assert Robot(states=list(STATES)).resumed_after(when, from_loss) == seconds


def test_how_long_a_robot_was_away() -> None:
    assert Robot(states=list(STATES)).away(20.0) == [1.5, 0.5]
    assert Robot(states=STATES[:2]).away(20.0) == [14.5]
    assert Robot(states=STATES[2:3]).away(20.0) == []


def test_faults_go_on_for_so_many_minutes_or_so_often() -> None:
    options = cluster.parser().parse_args(["--faults", "kill,drain", "--minutes", "1"])
    times = iter((10.0, 40.0, 65.0, 70.0))
    assert list(cluster._plan(options, 10.0, lambda: next(times))) == ["kill", "drain", "kill"]
    options = cluster.parser().parse_args(["--faults", "kill,drain", "--kills", "2"])
    assert list(cluster._plan(options, 10.0)) == ["kill", "drain"] * 2


def test_where_a_robot_is_served() -> None:
    assert Robot(states=list(STATES)).is_at("tcp://127.0.0.1:1")
    assert not Robot(states=list(STATES)).is_at("tcp://127.0.0.1:11")
    assert not Robot(states=STATES[:2]).is_at("tcp://127.0.0.1:1") and not Robot().is_at("tcp://127.0.0.1:1")


@pytest.mark.parametrize("on", ["local", "ray"])
def test_the_clusters_flags_are_those_that_it_takes(on: str) -> None:
    options = cluster.parser().parse_args(["--on", on, "--robots", "3"])
    _, config, settings, _ = cluster.settings_of(cluster.words_of(options, 2))
    assert (settings.on, settings.count(0), config.limits.max_sessions) == (on, 2, 6)


def test_what_cannot_be_done_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster.main(["--faults", "node"]) == 2
    assert capsys.readouterr().err == "cluster: --faults: --on local has kill, freeze, drain\n"
    assert cluster.main(["--at", "tcp://127.0.0.1:1"]) == 2
