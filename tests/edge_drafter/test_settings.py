from __future__ import annotations

from pathlib import Path

import pytest

from edge_drafter import DraftingConfig, Mode
from edge_drafter.settings import MAX_RTT_S, EdgeConfig
from speculation.sampling import Coupled, Point, SamplingScheme, Sparse, Split, Whole


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gamma": 65}, "gamma is 65; give 0 to 64, 'auto' or 'balance'"),
        ({"gamma": "much"}, "gamma is 'much'"),
        ({"patience_s": float("nan")}, "patience_s nan is outside 0 to any"),
        ({"drafts": False, "ngrams": True}, "ngrams needs drafts"),
        ({"draft_tokens": 65}, "draft_tokens 65 is outside 0 to 64"),
    ],
)
def test_bad_settings_are_named(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        DraftingConfig(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", [Whole(1.0), Split(1.0), Sparse(1.0)])
def test_rejection_sampling_takes_one_chain_at_a_time(how: SamplingScheme) -> None:
    for mode in (Mode.SD, Mode.FSD, Mode.CLOUD, Mode.EDGE):
        DraftingConfig.of(mode).check_sampling(how)
    needed = "idle=wait,width=1,draft_tokens=0,ahead=off,truncate=off,extend=off,ngrams=off"
    with pytest.raises(ValueError, match=f"take mode sd or fsd with a fixed gamma, or set {needed}"):
        DraftingConfig.of(Mode.FULL).check_sampling(how)
    DraftingConfig.of(Mode.FULL, needed).check_sampling(how)
    with pytest.raises(ValueError, match="one drafted chain at a time: take mode sd or fsd$"):
        DraftingConfig.of(Mode.SERVER_SD).check_sampling(how)
    with pytest.raises(ValueError, match="set gamma=4 or another number"):
        DraftingConfig.of(Mode.SD, gamma="auto").check_sampling(how)
    with pytest.raises(ValueError, match="set preverify=off"):
        DraftingConfig.of(Mode.SD, preverify=True).check_sampling(how)
    for free in (Coupled(1.0), Point(1.0)):
        DraftingConfig.of(Mode.FULL).check_sampling(free)


def test_an_unknown_mode_names_the_known_ones() -> None:
    known = ", ".join(mode.value for mode in Mode)
    assert known.startswith("cloud, edge, sd, fsd, server_sd, ")
    with pytest.raises(ValueError, match=f"'magic'; known modes are {known}"):
        DraftingConfig.of("magic")


# --- what one robot starts with

DRAFT = Path("draft")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(TypeError, match="EdgeConfig has no setting treads_"):
        EdgeConfig.flat(DRAFT, treads_=2)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("extra_rtt_s", MAX_RTT_S + 1, "extra_rtt_s 11.0 is outside 0 to 10"),
        ("mode", "magic", "known modes are cloud, edge"),
        ("gamma", 65, "gamma is 65; give 0 to 64"),
        ("drafting", "interrupt=maybe", "interrupt='maybe' is unknown; give on, off"),
        ("max_tokens", 0, "max_tokens 0 is outside 1 to 4096"),
        ("max_tokens", 2048, "a capacity of 2048 must hold prompt and frames, too; raise capacity or lower"),
        ("dtype", "float8", "dtype"),
        ("sampling", "hot", "sampling 'hot' is unknown"),
        ("sampling", "split(temperature=1.0)", "one drafted chain at a time"),
        ("service_class", "royal", r"service class 'royal' is none of batch \(1 tokens/s\), economy \(2"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(name: str, value: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        EdgeConfig.flat(DRAFT, **{name: value})
