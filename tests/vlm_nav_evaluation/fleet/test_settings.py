"""The papers' settings: SpecEdge's depths, WISP's ratios, and the command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from speculation.pass_cost import Load
from vlm_nav_evaluation.__main__ import main
from vlm_nav_evaluation.fleet import specedge, wisp
from vlm_nav_evaluation.fleet.candidates import MODELS
from vlm_nav_evaluation.fleet.figures import Figures, Window, run
from vlm_nav_evaluation.fleet.systems import Setting
from vlm_nav_evaluation.fleet.wisp import CLASSES, capacity_table, mean_of, mixed_report, mixed_run, ratios
from vlm_nav_evaluation.fleet.workload import Workload


def test_drafts_are_as_deep_as_figure_10_has_them() -> None:
    pair = specedge.PAIRS["Qwen3 32B/1.7B"]
    assert [specedge.depth_of(pair.verify_s, rtt_s) for rtt_s in (0.015, 0.040, 0.050)] == [7, 5, 4]
    assert specedge.depth_of(0.01, 0.05) == 1
    for declared in specedge.PAIRS.values():
        tree = Load.row(1 + specedge.TREE, specedge.CONTEXT)
        assert specedge.cost_of(declared).seconds(tree) == pytest.approx(declared.verify_s)


def test_no_edge_passes_the_ceiling_nor_the_oracle_and_ours_reaches_more_than_one_path() -> None:
    pair, model = specedge.PAIRS["Qwen3 32B/1.7B"], MODELS["embedded"]
    window = Window(3.0, 9.0)
    found = {
        name: specedge.cell(*specedge.edge_run(pair, model, 1, name), 0, window)["tokens_per_s"]
        for name in ("none", specedge.SPECEDGE, *specedge.OURS, specedge.ORACLE)
    }
    most = specedge.ceiling(pair, model)
    assert found["none"] < found[specedge.SPECEDGE] < min(found[name] for name in specedge.OURS)
    assert max(found.values()) == found[specedge.ORACLE] < 1.02 * most


def test_the_parts_of_figure_8_are_each_worth_something_and_layer_split_meets_its_two_printed_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One robot after another is held up by the link, and the second cohort doubles what the server does, not a robot's
    own speed."""
    monkeypatch.setattr(specedge, "window_of", lambda robots, quick: Window(2.0, 8.0))
    pair = specedge.PAIRS["Qwen3 14B/1.7B"]
    by_place = specedge.parts(pair, "embedded", True, (0,), 1)
    assert list(by_place) == ["parts"]
    found = {arm: row["itl_s"] for arm, row in by_place["parts"].items()}
    assert found[specedge.PROACTIVE] <= 1.01 * found[specedge.BASIC] and found[specedge.SERVER] < found[specedge.BASIC]
    busy = {arm: row["busy"] for arm, row in by_place["parts"].items()}
    assert busy[specedge.BOTH] > 0.98 > busy[specedge.PROACTIVE]
    assert found[specedge.PROACTIVE] < found[specedge.BOTH]
    assert [specedge.layer_split_s(rtt_s) for rtt_s in (0.015, 0.05)] == pytest.approx([0.09963, 0.1349], rel=0.003)


def test_ratios_compare_with_the_centralised_verifier_and_with_sled_not() -> None:
    capacities = {
        name: {"interactive": {"robots": robots}}
        for name, robots in {"sled": [3, 4], "central": [7, 8], "full_budget": [20, 24]}.items()
    }
    load = {name: {8: {"goodput": 10.0 * place}, 16: {"goodput": 5.0}} for place, name in enumerate(capacities, 1)}
    found = ratios(capacities, load)
    assert found == {"central": {"capacity interactive": 3.0, "goodput": 1.5}}
    assert "20 / 24" in capacity_table(capacities)


def test_a_capacity_is_that_of_all_seeds_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 2 alone allows ten robots, all three together twenty, and what is late in one seed alone decides nothing."""
    late = {1: (1000, 1000), 2: (10, 20), 3: (1000, 1000)}
    asked, sizes = list[tuple[int, int]](), dict.fromkeys(late, 100)

    def one_run(setting: Setting, robots: int, seed: int, window: Window, enough: float) -> Figures:
        assert setting.workload.seed == seed and enough == pytest.approx(3 * wisp.ALLOWED[-1])
        asked.append((robots, seed))
        good, fair = late[seed]
        share = 0.0 if robots <= good else 0.12 if robots <= fair else 1.0
        return Figures(
            robots, sizes[seed], share, dict.fromkeys(CLASSES, share), 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0
        )

    monkeypatch.setattr(wisp, "run", one_run)
    setting = Setting(wisp.systems()["fcfs"], wisp.times_of("appendix C"), Workload(), ("interactive",))
    found = wisp.capacity_cell(setting, Window(), range(1, 4), 0.0)
    assert found["robots"] == [10, 20] and found["figures"]["requests"] == 300
    assert found["violations"][20] == pytest.approx(0.04) and found["violations"][21] is None
    late[1] = (11, 1000)  # beyond ten it has 12 late of 100, and seed 2 as many
    assert wisp.capacity_cell(setting, Window(), range(1, 4), 0.0)["robots"] == [10, 11]
    late.update({1: (1000, 1000), 2: (10, 10)})
    sizes.update({1: 10_000})
    assert wisp.capacity_cell(setting, Window(), range(1, 4), 0.0)["robots"] == [10, 10], "a run was broken off"
    assert (21, 3) not in asked, "the second seed has shown already that it is too many"


def test_sled_carries_21_robots_at_8_tokens_a_second_as_printed_and_with_longer_answers_fewer() -> None:
    setting, robots, seed, window = mixed_run("appendix C", "sled", 21, 2, quick=False)
    assert window.end - window.begin == pytest.approx(170 * 128 / 190.0)
    assert run(setting, robots, seed, window).by_class["interactive"] <= 0.05
    longer = replace(setting, workload=Workload(seed=seed))
    assert run(longer, robots, seed, window, enough=0.05).violations > 0.05


def test_a_mixed_fleet_is_the_mean_of_its_seeds() -> None:
    runs: list[dict[str, Any]] = [
        {"robots": 4, "requests": 10 * place, "by_class": dict.fromkeys(CLASSES, 0.1 * place), "goodput": 8.0 * place}
        | dict.fromkeys(("tokens_per_pass", "rows", "pass_s", "queue_s"), 1.0)
        for place in (1, 2, 3)
    ]
    del runs[0]["by_class"]["standard"]  # a short window has no request of some class
    found = mean_of(runs)
    assert (found["requests"], found["goodput"], found["each"]) == (60, 16.0, 4.0)
    assert found["by_class"]["economy"] == pytest.approx(0.2) and found["by_class"]["standard"] == pytest.approx(0.25)
    printed = mixed_report({"workload": {}, "systems": {}, "mixed": {"14B": {"wisp": {4: runs}}}})
    assert printed.splitlines()[-1].split()[:6] == ["14B:", "wisp,", "4", "60", "4.00", "16"]


def test_the_command_prints_ratios_and_keeps_a_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(specedge, "window_of", lambda robots, quick: Window(1.0, 4.0))
    assert main(["fleet", "specedge", "--quick", "--jobs", "1", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "server_sd" in printed and "no edge is faster at batch 1 than" in printed
    assert "settings: setting specedge" in printed and "quick True" in printed
    assert (tmp_path / "fleet_specedge.png").stat().st_size > 1000
    assert main(["fleet", "specedge", "--parts", "--quick", "--jobs", "1", "--out", str(tmp_path)]) == 0
    assert specedge.BOTH in capsys.readouterr().out
    assert main(["fleet", "specedge", "--jobs", "0", "--out", str(tmp_path)]) == 2
    assert "--jobs 0" in capsys.readouterr().err
