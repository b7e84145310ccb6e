"""measure-exits and select-exits from end to end, on tiny random models and hand-made frames."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from adapters_training.__main__ import main
from adapters_training.exit_choice import select as command
from adapters_training.exit_choice.exact_search import select
from adapters_training.exit_choice.report import Measured
from adapters_training.exit_choice.timing import Clock
from adapters_training.exit_choice.verdicts import Verdicts
from adapters_training.records import write_shard
from speculation.exits import ExitHeads, Head, Reliability
from speculation.profiles import load_profile
from speculation.vlm.load import load_vlm
from tests.adapters_training.frames import make_frame


def main_of(command: str, **options: object) -> int:
    return main(
        [command, *(word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", f"{value}"))]
    )


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("held-out")
    rng = np.random.default_rng(0)
    write_shard(folder / "seeds-5000000-5000025.msgpack", [make_frame(rng) for _ in range(8)])
    return folder


@pytest.fixture(scope="module")
def measured(tiny_target: Path, tiny_draft: Path, held_out: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of three exits, measured by the command."""
    folder = tmp_path_factory.mktemp("exits")
    heads = ExitHeads(load_vlm(tiny_target), [0, 1, 2], rank=4)
    heads.set_reliability(dict.fromkeys(heads.layers, Reliability((0.0, 1.0), (0.5,))))
    heads.save(folder)
    status = main_of(
        "measure-exits", target=tiny_target, draft=tiny_draft, exits=folder, held_out=held_out, prompts=4,
        list_prompts=3, coverage=0.9, max_tokens=16, gamma=2, repeats=3,
    )  # fmt: skip
    assert status == 0
    return folder


def test_measured_exits_are_served_with_their_tables(measured: Path, tiny_target: Path) -> None:
    heads = ExitHeads.load(measured, load_vlm(tiny_target))
    verdicts, found = Verdicts.load(measured), Measured.load(measured)
    assert heads.head is Head.SHORT and heads.short_list is not None and found.short_list is not None
    assert found.short_list.tokens == len(heads.short_list) < found.vocabulary
    assert found.short_list.covered == verdicts.covered(heads.short_list.ids)
    for head in Head:
        for index, layer in enumerate(heads.layers):
            spoke = int(verdicts.by_head[head].spoke[index].sum())
            assert sum(heads.tables[head][layer].counts) == spoke
            (figures,) = found.of(head, [layer])
            assert figures.spoke == pytest.approx(spoke / found.verifications)
            assert figures.right == pytest.approx(verdicts.by_head[head].agreed[index].mean())
            assert figures.cost_s > 0.0
    leads = [each.lead_s for each in found.of(Head.FULL)]
    assert leads == sorted(leads, reverse=True) and leads[0] > 0.0 < found.verify_s
    assert found.clock is Clock.PROCESSOR


def test_selected_exits_are_a_folder_of_their_own(
    measured: Path, tiny_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For declared times, so that the machine's own do not decide."""
    status = main_of(
        "select-exits", exits=measured, out=tmp_path, profile="go2_a100", exit_cost=0.01, least=1, most=2,
        budget=0.5,
    )  # fmt: skip
    assert status == 0
    words = capsys.readouterr().out
    assert "T_q 620.00 ms, T_p 72.00 ms x gamma 2, T_c 120.00 ms (declared); " in words
    result = json.loads((tmp_path / "selection.json").read_text())
    heads = ExitHeads.load(tmp_path, load_vlm(tiny_target))
    assert list(heads.layers) == result["chosen"] and heads.head is Head(result["head"])
    assert [len(size["layers"]) for size in result["sizes"]] == [0, 1, 2]
    times = load_profile("go2_a100")
    candidates = command.candidates_of(Verdicts.load(measured), Measured.load(measured), times, heads.head, 0.01)
    assert candidates.lead_s == pytest.approx((0.465, 0.31, 0.155))
    assert candidates.cost_s == pytest.approx((0.0062,) * 3) and candidates.draft_s == pytest.approx(0.144)
    best = max(select(candidates, 2, 0.5)[1:], key=lambda choice: choice.saved_s)
    assert list(best.layers) == result["chosen"]
    assert [each.layer for each in Measured.load(tmp_path).exits] == result["chosen"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"out": "same"}, "the candidates would be lost"),
        ({"least": 4, "most": 3}, "--least 4 and --most 3"),
        ({"budget": 1e-6, "exit_cost": 0.01}, "no 3 exits fit into --budget 1e-06 of a verification, 0 do"),
        ({"profile": "moon"}, "unknown device profile 'moon'"),
    ],
)
def test_what_cannot_be_selected_is_one_sentence(
    measured: Path, tmp_path: Path, changes: dict[str, object], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if changes.get("out"):
        changes = {"out": measured}
    assert main_of("select-exits", **{"exits": measured, "out": tmp_path / "new", **changes}) == 2
    words = capsys.readouterr().err
    assert sentence in words and words.count("\n") == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"prompts": 9}, "has 8 usable records, 12 are needed"),
        ({"exits": "nowhere"}, "has no exits.json"),
        ({"held_out": "nowhere"}, "--held-out nowhere does not exist"),
        ({"capacity": 32}, "give a larger --capacity"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(
    measured: Path, tiny_target: Path, tiny_draft: Path, held_out: Path, changes: dict[str, object], sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    before = {path: path.read_bytes() for path in measured.iterdir()}
    options = {"target": tiny_target, "draft": tiny_draft, "exits": measured, "held_out": held_out, "prompts": 2}
    assert main_of("measure-exits", **{**options, "list_prompts": 3, **changes}) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("adapters_training measure-exits: ") and sentence in error
    assert {path: path.read_bytes() for path in measured.iterdir()} == before
