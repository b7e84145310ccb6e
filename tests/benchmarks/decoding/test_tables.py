"""The tables' rows: ablation and sweeps, on few synthetic answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.decoding import ablation, sweeps
from benchmarks.decoding.common import GSM8K_SYNTHETIC, go2
from benchmarks.decoding.plots import plot_ablation, plot_sweeps
from benchmarks.decoding.sweeps import GSM8K_RTX
from benchmarks.recordings import MANY_EXITS, first_answers
from edge_drafter import DraftingConfig
from vlm_nav_evaluation.virtual_time import Recording, Synthetic, Timings, load_timings
from vlm_nav_evaluation.virtual_time.tuning import split

RTX = load_timings("rtx_vicuna_7b")


def synthetic(tokens: int = 40, **changes: float) -> Recording:
    return replace(GSM8K_SYNTHETIC, tokens=tokens, **changes).draw(2)


@pytest.mark.parametrize(("mode", "changes"), [(ablation.FULL, ablation.WITHOUT), (ablation.SD, ablation.WITH)])
def test_every_variant_of_the_ablation_changes_its_mode(mode: str, changes: dict[str, str]) -> None:
    found = [DraftingConfig.of(mode, text, stop_below=0.4) for text in changes.values()]
    assert DraftingConfig.of(mode, stop_below=0.4) not in found
    assert len(set(found)) == len(found)


def test_the_ablation_compares_with_the_whole_mode_answer_by_answer(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"early tokens": "early_tokens=off", "earlier answers": "ngrams=off"}
    early = {"early tokens": "early_tokens=on,branches=6,leaves=6"}
    ways = {way: changes if way.startswith("full") else early for way in ablation.WAYS}
    monkeypatch.setattr(ablation, "WAYS", ways)
    found = ablation.ablate(*split(Synthetic(tokens=60).draw(3)), load_timings("go2"))
    assert list(found) == ["full", "full, tuned", "full, n-grams off, tuned", "sd", "sd, tuned"]
    whole, without, _ = found["full"]
    assert whole["slower"] == (1.0, 1.0, 1.0) and without["slower"][0] > 1.0
    sd, fsd = found["sd"]
    assert sd["miss_rate"] == 1.0 and fsd["miss_rate"] < 1.0 and fsd["slower"][2] < 1.0
    assert without["drafting"] == "early_tokens=off" and 0.0 < without["target_busy"] <= 1.0
    own = found["full, n-grams off, tuned"]
    assert [row["name"] for row in own] == [ablation.WHOLE, "early tokens"], "nothing of earlier answers is left"
    assert own[1]["drafting"].startswith("ngrams=off,") and own[1]["drafting"].endswith("early_tokens=off")
    assert len(plot_ablation({"synthetic": found["full"][1:]}, "full", "free").axes) == 1


def test_fewer_exits_are_columns_of_the_same_recording() -> None:
    recording = synthetic()
    few = sweeps.thinned(recording, 3)
    assert few.exit_layers == (7, 15, 22) and sweeps.thinned(recording, 1).exit_layers == (15,)
    assert sweeps.thinned(recording, 31).exit_layers == recording.exit_layers
    whole, thin = recording.steps[0], few.steps[0]
    assert whole.agrees is not None and thin.agrees is not None and thin.wrong_choices is not None
    assert np.array_equal(thin.agrees, whole.agrees[:, [7, 15, 22]]) and thin.tokens == whole.tokens
    for count in (0, 32):
        with pytest.raises(ValueError, match="give 1 to 31"):
            sweeps.thinned(recording, count)


def test_fewer_recorded_exits_are_columns_too_and_a_target_of_25_takes_the_tables() -> None:
    recording = first_answers(MANY_EXITS, 2)
    assert len(recording.exit_layers) == 25 and recording.layers == 26
    whole, few = recording.steps[0], sweeps.thinned(recording, 3).steps[0]
    assert whole.exit_tokens is not None and few.exit_tokens is not None
    assert np.array_equal(few.exit_tokens, whole.exit_tokens[:, [5, 12, 18]])
    assert sweeps.within(sweeps.AXES, 25)[2][-2:] == (15, 25)


def test_sweeps_have_a_row_for_each_value() -> None:
    data = sweeps.swept(synthetic(), RTX, ((1, 30), (1, 4), (1, 31)))
    assert [row["threads"] for row in data["threads_fifo"]] == [1, 30]
    assert [row["gamma"] for row in data["gammas"]] == [1, 4] and [row["exits"] for row in data["exits"]] == [1, 31]
    assert [row["threads"] for row in data["threads_finish"]] == [1, 30]
    one, many = data["threads_fifo"]
    assert many["miss_rate"] < one["miss_rate"]
    # The largest number of threads, gamma 4 and all exits are one and the same run.
    assert data["threads"][-1]["fsd_over_sd"] == data["gammas"][-1]["fsd_over_sd"] == data["exits"][-1]["fsd_over_sd"]
    assert len(plot_sweeps(data, GSM8K_RTX, "free", "synthetic").axes) == 6


def test_a_forward_of_eight_takes_what_table_9_says() -> None:
    """Early Exits, Table 9: 8.97 ms over a batch of 8, 7.76 ms over one."""
    for timings in (go2(), RTX):
        ratio = timings.draft_forward_s(8) / timings.draft_forward_s(1)
        assert ratio == pytest.approx(8.97 / 7.76, abs=0.001)


def test_timings_of_all_devices_have_a_draft_beside_the_target() -> None:
    assert go2().server_draft_s == pytest.approx(0.011)
    assert Timings(server_draft_s=0.5).with_server_draft().server_draft_s == 0.5
