from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from benchmarks.overhead import COLUMNS, Part, Seconds, Stopwatch, figures, main, median_forward, parser
from edge_drafter import DecodingStats, Mode
from speculation.cancellation import Abandoned, Stop
from speculation.distributions import Logits
from speculation.wire import AnyMessage, EndStep
from vlm_nav_evaluation.experiment.run import Answer
from vlm_nav_evaluation.tables import figures_table

pytestmark = pytest.mark.usefixtures("forked_verifiers")
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

    def begin(self, prompt: str, image: bytes, committed: Sequence[int] = (), stop: Stop | None = None) -> None:
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


class PacedModel(SlowModel):
    """Waits for 20 s before a forward of the model inside."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._inner = SlowModel(machine)

    def extend(self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None) -> Logits:
        self._machine.work(0.0, stolen=20.0)
        return self._inner.extend(tokens, parents, stop)


class SlowLink:
    """Sending takes 2 s, receiving 1 s and then 5 s in which the thread sleeps."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def send(self, message: AnyMessage) -> None:
        self._machine.work(2.0)

    def receive(self, timeout: float) -> AnyMessage | None:
        self._machine.work(1.0, stolen=5.0)
        return None


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def watch(machine: Machine) -> Iterator[Stopwatch]:
    """A stopwatch on the slow model and link, as `overhead` puts one on the real ones."""
    watch = machine.watch()
    with (
        watch.timing(Part.PREFILL, SlowModel, "begin"),
        watch.timing(Part.FORWARD, SlowModel, "root_logits", "extend"),
        watch.timing(Part.CACHE, SlowModel, "commit"),
        watch.timing(Part.PACE, PacedModel, "extend"),
        watch.timing(Part.LINK, SlowLink, "send", "receive"),
    ):
        yield watch
    watch.restart()
    SlowLink(machine).send(EndStep(1, ""))
    assert list(cpu(watch.stop())) == [Part.POLICY]


def cpu(parts: dict[Part, Seconds]) -> dict[Part, float]:
    return {part: spent.cpu for part, spent in parts.items() if spent.cpu}


def test_every_second_belongs_to_the_innermost_part_and_clocks_cost_nothing(machine: Machine, watch: Stopwatch) -> None:
    model, link = SlowModel(machine), SlowLink(machine)

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
    parts = watch.stop()
    assert cpu(parts) == {
        Part.PREFILL: 100.0, Part.FORWARD: 11.0 + 12.0 + 10.0, Part.CACHE: 3.0, Part.LINK: 3.0, Part.POLICY: 5.25,
    }  # fmt: skip
    assert parts[Part.LINK].wall == pytest.approx(8.0) and parts[Part.POLICY].wall == pytest.approx(1005.25)
    assert watch.single == [Seconds(11.0, 11.0)]
    watch.restart()
    assert cpu(watch.stop()) == {} and watch.single == []


def test_functions_of_a_module_are_timed_while_they_shall_be() -> None:
    machine = Machine()
    watch = machine.watch()
    module = ModuleType("functions")
    module.halve = halve = lambda value: (machine.work(2.0), value / 2)[1]  # type: ignore[attr-defined]
    with watch.timing(Part.READ, module, "halve"):
        assert module.halve(6.0) == 3.0
        machine.work(1.0)
    assert module.halve is halve
    assert cpu(watch.stop()) == {Part.READ: 2.0, Part.POLICY: 1.0}


def test_a_forward_that_is_given_up_counts_and_is_no_measure(machine: Machine, watch: Stopwatch) -> None:
    with pytest.raises(Abandoned):
        SlowModel(machine).extend([1], [-1], lambda: True)
    machine.work(2.0)
    assert cpu(watch.stop()) == {Part.FORWARD: 5.5, Part.POLICY: 2.0} and watch.single == []


def test_a_paced_forward_is_separate_from_its_pacing(machine: Machine, watch: Stopwatch) -> None:
    PacedModel(machine).extend([1], [-1])
    parts = watch.stop()
    assert parts[Part.PACE] == Seconds(20.0, 0.0) and parts[Part.FORWARD] == Seconds(11.0, 11.0)
    assert watch.single == [Seconds(11.0, 11.0)]


def answer(forwards: int, policy: tuple[float, float], single: Sequence[tuple[float, float]] = ()) -> Answer:
    parts = {part.value: (0.0, 0.0) for part in Part} | {"policy": policy, "forward": (8.0, 6.0)}
    stats = DecodingStats(draft_forwards=forwards)
    return Answer((1,), stats, {"parts": parts, "single": single, "others": 1.0})


def test_figures_are_per_draft_forward_and_shares_of_the_measure() -> None:
    answers = [answer(2, (1.0, 0.4)), answer(4, (4.0, 3.2)), answer(1, (0.5, 0.3)), answer(0, (9.0, 9.0))]
    entry = figures(answers, Seconds(wall=2.0, cpu=1.0))
    assert entry["steps"] == 3 and entry["forwards"] == {"min": 1.0, "median": 2.0, "max": 4.0}
    assert entry["policy_cpu_s"] == pytest.approx({"min": 0.2, "median": 0.3, "max": 0.8})
    assert entry["share_cpu"] == pytest.approx({"min": 0.2, "median": 0.3, "max": 0.8})
    assert entry["share_wall"] == pytest.approx({"min": 0.25, "median": 0.25, "max": 0.5})
    assert entry["forward_cpu_s"] == pytest.approx({"min": 1.5, "median": 3.0, "max": 6.0})
    assert entry["other_threads_cpu_s"]["max"] == 1.0
    report = figures_table("mode", {"full": entry}, COLUMNS)
    assert "30.0 (20.0-80.0)" in report and "300000.0 (200000.0-800000.0)" in report


def test_without_forwards_there_is_no_measure() -> None:
    answers = [answer(1, (0.0, 0.0), [(3.0, 1.0), (1.0, 2.0)]), answer(1, (0.0, 0.0), [(2.0, 9.0)])]
    assert median_forward(answers) == Seconds(2.0, 2.0)
    with pytest.raises(ValueError, match="mode sd drafted no single token"):
        median_forward([])
    with pytest.raises(ValueError, match="no step drafted anything"):
        figures([answer(0, (0.0, 0.0))], Seconds(1.0, 1.0))


def test_the_policy_of_real_steps_is_measured(
    tiny_target: Path, tiny_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("vlm_nav_evaluation.experiment.command.RESULTS", tmp_path)
    models = f"--target-model {tiny_target} --draft-model {tiny_draft} --frames random --guide never --max-tokens 24"
    assert main(f"{models} --steps 4 --modes full --drafting effort=1,idle=wait --save".split()) == 0
    assert "frames on which the modes' tokens differ: 0 of 4" in capsys.readouterr().out
    saved = json.loads((tmp_path / "overhead_raw_float32.json").read_text())
    assert list(saved["modes"]) == ["sd", "full"]
    for entry in saved["modes"].values():
        assert entry["policy_cpu_s"]["min"] > 0.0 and entry["forward_cpu_s"]["min"] > 0.0
        assert entry["link_cpu_s"]["min"] > 0.0
        # The only forward of a short step may be abandoned, since the verifier was faster.
        assert entry["read_cpu_s"]["min"] > 0.0 or entry["abandoned"]["max"] > 0.0
    assert saved["modes"]["sd"]["abandoned"]["max"] == 0.0


def test_wrong_options_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--steps", "0"]) == 2 and "--steps 0: give at least 1" in capsys.readouterr().err
    assert parser().parse_args([]).modes == [mode.value for mode in Mode if mode.drafts]
