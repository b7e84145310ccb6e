from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
import pytest

from benchmarks.overhead import StepCost, figures, main, median_forward, parser, report
from benchmarks.stopwatch import Part, Seconds, Stopwatch, TimedLink, TimedModel, timing
from speculation.cancellation import Abandoned, Stop
from speculation.distributions import Logits
from speculation.wire import AnyMessage, EndStep

READING_S = 0.5
"""What the fake CPU clock costs: half of it before it has looked, half of it after."""


class Machine:
    """Two clocks set by hand. While another thread runs, only the wall's goes on."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0

    def wall(self) -> float:
        return self.wall_s

    def cpu(self) -> float:
        self.work(READING_S / 2)
        seen = self.cpu_s
        self.work(READING_S / 2)
        return seen

    def work(self, seconds: float, stolen: float = 0.0) -> None:
        self.cpu_s += seconds
        self.wall_s += seconds + stolen

    def watch(self) -> Stopwatch:
        return Stopwatch(self.wall, self.cpu)


class SlowModel:
    """Prefill 100 s, forwards 10 s and 1 s more a token, half of it before `stop` is asked; a commit takes 3 s."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def begin(self, prompt: str, image: bytes, committed: Sequence[int] = ()) -> None:
        self._machine.work(100.0)

    def root_logits(self, stop: Stop | None = None) -> Logits:
        return self._forward(0, stop)

    def extend(self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None) -> Logits:
        return self._forward(len(tokens), stop)

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        self._machine.work(3.0)
        return {}

    def _forward(self, count: int, stop: Stop | None) -> Logits:
        self._machine.work((10.0 + count) / 2)
        if stop is not None and stop():
            raise Abandoned
        self._machine.work((10.0 + count) / 2)
        return np.zeros((count, 2))


class SlowLink:
    """Sending takes 2 s, listening 1 s and then 5 s in which the thread sleeps."""

    bytes_up = 7
    bytes_down = 9

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def send(self, message: AnyMessage) -> None:
        self._machine.work(2.0)

    def receive(self, timeout: float) -> AnyMessage | None:
        self._machine.work(1.0, stolen=5.0)
        return None


def cpu(parts: dict[Part, Seconds]) -> dict[Part, float]:
    return {part: spent.cpu for part, spent in parts.items() if spent.cpu}


def test_every_second_belongs_to_the_innermost_part_and_clocks_cost_nothing() -> None:
    machine = Machine()
    watch = machine.watch()
    model, link = TimedModel(SlowModel(machine), watch), TimedLink(SlowLink(machine), watch)

    def poll() -> bool:
        machine.work(0.25)
        link.receive(0.0)
        return False

    model.begin("", b"")
    machine.work(1.0)
    model.extend([1], [-1], poll)
    model.extend([1, 2], [0, 0])
    machine.work(4.0, stolen=1000.0)
    model.commit((), 1)
    model.root_logits()
    link.send(EndStep(1, ""))
    assert (link.bytes_up, link.bytes_down) == (7, 9)
    parts = watch.stop()
    assert cpu(parts) == {
        Part.PREFILL: 100.0, Part.FORWARD: 11.0 + 12.0 + 10.0, Part.CACHE: 3.0, Part.LINK: 3.0, Part.POLICY: 5.25,
    }  # fmt: skip
    assert parts[Part.LINK].wall == pytest.approx(8.0) and parts[Part.POLICY].wall == pytest.approx(1005.25)
    assert model.single == [Seconds(11.0, 11.0)]
    watch.restart()
    assert cpu(watch.stop()) == {}


def test_functions_of_a_module_are_timed_while_they_shall_be() -> None:
    machine = Machine()
    watch = machine.watch()
    module = ModuleType("functions")
    module.halve = halve = lambda value: (machine.work(2.0), value / 2)[1]  # type: ignore[attr-defined]
    with timing(watch, Part.READ, module, "halve"):
        assert module.halve(6.0) == 3.0
        machine.work(1.0)
    assert module.halve is halve
    assert cpu(watch.stop()) == {Part.READ: 2.0, Part.POLICY: 1.0}


def test_a_forward_that_is_given_up_counts_and_is_no_measure() -> None:
    machine = Machine()
    watch = machine.watch()
    model = TimedModel(SlowModel(machine), watch)
    with pytest.raises(Abandoned):
        model.extend([1], [-1], lambda: True)
    machine.work(2.0)
    assert cpu(watch.stop()) == {Part.FORWARD: 5.5, Part.POLICY: 2.0} and model.single == []


def test_a_paced_forward_is_told_from_its_pacing() -> None:
    machine = Machine()
    watch = machine.watch()
    inner = TimedModel(SlowModel(machine), watch)

    class Paced(SlowModel):
        def extend(
            self, tokens: Sequence[int], parents: Sequence[int], stop: Callable[[], bool] | None = None
        ) -> Logits:
            machine.work(0.0, stolen=20.0)
            return inner.extend(tokens, parents, stop)

    TimedModel(Paced(machine), watch, Part.PACE).extend([1], [-1])
    parts = watch.stop()
    assert parts[Part.PACE] == Seconds(20.0, 0.0) and parts[Part.FORWARD] == Seconds(11.0, 11.0)
    assert inner.single == [Seconds(11.0, 11.0)]


def cost(forwards: int, policy: Seconds) -> StepCost:
    parts = {part: Seconds() for part in Part}
    return StepCost(forwards, 9, {**parts, Part.POLICY: policy, Part.FORWARD: Seconds(8.0, 6.0)}, 1.0)


def test_figures_are_per_draft_forward_and_shares_of_the_measure() -> None:
    costs = [cost(2, Seconds(1.0, 0.4)), cost(4, Seconds(4.0, 3.2)), cost(1, Seconds(0.5, 0.3)), cost(0, Seconds(9, 9))]
    entry = figures(costs, Seconds(wall=2.0, cpu=1.0))
    assert entry["steps"] == 3 and entry["forwards"] == {"min": 1.0, "median": 2.0, "max": 4.0}
    assert entry["policy_cpu_s"] == pytest.approx({"min": 0.2, "median": 0.3, "max": 0.8})
    assert entry["share_cpu"] == pytest.approx({"min": 0.2, "median": 0.3, "max": 0.8})
    assert entry["share_wall"] == pytest.approx({"min": 0.25, "median": 0.25, "max": 0.5})
    assert entry["forward_cpu_s"] == pytest.approx({"min": 1.5, "median": 3.0, "max": 6.0})
    assert "30.0 (20.0-80.0)" in report({"full": entry}) and "300000.0 (200000.0-800000.0)" in report({"full": entry})


def test_without_forwards_there_is_no_measure() -> None:
    assert median_forward([Seconds(3.0, 1.0), Seconds(1.0, 2.0), Seconds(2.0, 9.0)]) == Seconds(2.0, 2.0)
    with pytest.raises(ValueError, match="mode sd drafted no single token"):
        median_forward([])
    with pytest.raises(ValueError, match="no step drafted anything"):
        figures([cost(0, Seconds())], Seconds(1.0, 1.0))


def test_wrong_options_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--steps", "0"]) == 2 and "--steps 0: give at least 1" in capsys.readouterr().err
    assert parser().parse_args([]).modes == ["sd", "fsd", "proactive", "pipelined", "full"]
