"""The search for a mode's best drafts: its candidates, its answers, and that it finds the fastest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from edge_drafter import DraftingConfig, Mode, StepResult
from edge_drafter.settings import read_changes
from vlm_nav_evaluation.virtual_time import Recording, Synthetic, Timings, load_timings, run_mode, tuning
from vlm_nav_evaluation.virtual_time.tuning import (
    BUDGET,
    NO_NGRAMS,
    TUNED,
    arms_at_best,
    candidates,
    changes_of,
    is_tuned,
    split,
    tune,
)

DRAFTING = [mode.value for mode in Mode if is_tuned(mode.value)]


@pytest.mark.parametrize("mode", DRAFTING)
def test_every_mode_has_as_many_candidates_and_is_among_them_as_shipped(mode: str) -> None:
    found = candidates(mode)
    assert found[0] == "" and len(found) == len(set(found)) == BUDGET
    settings = [DraftingConfig.of(mode, **read_changes(text)) for text in found]
    shipped = settings[0]
    shape = {name: getattr(shipped, name) for name in ("gamma", "width", "draft_tokens", "leaves", "idle")}
    for each in settings:
        assert with_fields(each, **shape) == shipped, "a candidate is another shape of drafts, and no other mode"
    assert {each.gamma for each in settings} >= {1, 12} and {each.draft_tokens for each in settings} >= {0, 16}


def test_what_is_tuned_on_is_not_reported() -> None:
    recording = Synthetic(tokens=4).draw(60)
    for count, on in ((60, 12), (40, 12), (8, 2), (3, 1), (2, 1)):
        first, shown = split(replace(recording, steps=recording.steps[:count]))
        assert (*first.steps, *shown.steps) == recording.steps[:count] and len(first.steps) == on
    with pytest.raises(ValueError, match="two at least"):
        split(replace(recording, steps=recording.steps[:1]))


@pytest.mark.parametrize("mode", ["sd", "server_sd"])
def test_the_search_finds_the_fastest_of_all(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against every candidate on every answer."""
    monkeypatch.setattr(tuning, "BUDGET", 8)
    monkeypatch.setattr(tuning, "RUNGS", ((1, 4), (2, 2), (4, 1)))
    recording, timings = Synthetic(tokens=12, acceptance=0.85).draw(4), load_timings("go2").with_server_draft()
    decoded = []

    def counted(mode: str, recording: Recording, timings: Timings, **changes: Any) -> list[StepResult]:
        decoded.append(len(recording.steps))
        return run_mode(mode, recording, timings, **changes)

    monkeypatch.setattr(tuning, "run_mode", counted)
    best = tune(mode, recording, timings)
    seconds = {
        text: sum(each.stats.total_s for each in run_mode(mode, recording, timings, **changes_of(mode, text)))
        for text in candidates(mode)
    }
    assert decoded == [1] * 8 + [2] * 4 + [4] * 2
    assert seconds[best] <= 1.03 * min(seconds.values()) and seconds[best] < seconds[""]


def test_arms_have_names_changes_and_earlier_answers_off(few: None) -> None:
    recording, timings = Synthetic(tokens=8).draw(2), load_timings("go2")
    arms, drafting = arms_at_best(["cloud", "full"], recording, timings, "interrupt=off", gamma=3)
    assert [arm.name for arm in arms] == ["cloud", "full", f"full, {TUNED}", f"full, {NO_NGRAMS}",
                                          f"full, {NO_NGRAMS}, {TUNED}"]  # fmt: skip
    by_name = {arm.name: arm for arm in arms}
    assert by_name["cloud"].changes == {"gamma": 3}
    assert by_name["full"].changes == {"gamma": 3, "text": "interrupt=off"}
    for name in (f"full, {NO_NGRAMS}", f"full, {NO_NGRAMS}, {TUNED}"):
        own = DraftingConfig.of("full", by_name[name].changes["text"])
        assert not own.ngrams and not own.interrupt
    assert set(drafting) == {f"full, {TUNED}", f"full, {NO_NGRAMS}, {TUNED}"}
