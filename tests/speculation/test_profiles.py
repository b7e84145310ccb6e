"""Device profiles: the shipped file, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from speculation.profiles import RAW, TIMES, DeviceProfile, load_profile, load_profiles


def test_the_shipped_profiles_keep_the_papers_ratios() -> None:
    profiles = load_profiles()
    paper, scaled = profiles["go2_a100"], profiles["go2_a100_scaled"]
    assert (4 * paper.draft_s, paper.verify_s, paper.one_way_s) == pytest.approx((0.288, 0.620, 0.120))
    for field in TIMES:
        assert getattr(scaled, field) == pytest.approx(getattr(paper, field) / 10)
    assert profiles["raw"].is_raw and RAW.is_raw and not paper.is_raw


@pytest.mark.parametrize(("name", "tokens_per_s"), [("orin_nano_llama_cpp", 38), ("orin_nano_tensorrt", 60)])
def test_a_draft_engines_profile_changes_the_draft_alone_and_names_its_source(name: str, tokens_per_s: int) -> None:
    engine, go2 = load_profile(name), load_profile("go2_a100")
    assert engine.draft_s == pytest.approx(1 / tokens_per_s, abs=0.001)
    assert replace(engine, name="", draft_s=0.0, scale="") == replace(go2, name="", draft_s=0.0, scale="")
    assert "vlm-benchmarks, April 2026" in engine.scale


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown device profile 'orin'.*raw, go2_a100"):
        load_profile("orin")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"p": {"draft_s": -1}}', "'p': draft_s = -1 s is outside 0 to 60 s"),
        ('{"p": {"verify_s": NaN}}', "verify_s = nan s"),
        ('{"p": {"one_way_s": "fast"}}', "one_way_s = 'fast' is no number"),
        ('{"p": {"verify_s": true}}', "verify_s = True is no number"),
        ('{"p": {"speed": 1}}', "profile 'p'.*speed"),
        ('{"p": 3}', "profile 'p'"),
        ("[]", "expected an object"),
        ("{", "no valid JSON"),
    ],
)
def test_a_bad_file_is_one_clear_sentence(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "profiles.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=complaint) as caught:
        load_profiles(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.json"):
        load_profiles(tmp_path / "nowhere.json")


def test_every_field_of_a_file_arrives(tmp_path: Path) -> None:
    fields = {"draft_s": 1.0, "verify_s": 2.0, "one_way_s": 3.0, "server_draft_s": 4.0, "fed_s": 5.0, "scale": "made"}
    path = tmp_path / "profiles.json"
    path.write_text(json.dumps({"p": fields}))
    assert load_profile("p", path) == DeviceProfile("p", 1.0, 2.0, 3.0, 4.0, 5.0, "made")
