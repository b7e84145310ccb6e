"""Device profiles: the shipped file, and what is refused."""

from pathlib import Path

import pytest

from speculation.profiles import RAW, TIMES, load_profile, load_profiles


def test_the_shipped_profiles_keep_the_papers_ratios() -> None:
    profiles = load_profiles()
    paper, scaled = profiles["go2_a100"], profiles["go2_a100_scaled"]
    assert (4 * paper.draft_s, paper.verify_s, paper.one_way_s) == pytest.approx((0.288, 0.620, 0.120))
    for field in TIMES:
        assert getattr(scaled, field) == pytest.approx(getattr(paper, field) / 10)
    assert profiles["raw"].is_raw and RAW.is_raw and not paper.is_raw


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown device profile 'orin'.*raw, go2_a100"):
        load_profile("orin")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"p": {"draft_s": -1}}', "'p': draft_s = -1 is outside 0 to 60 s"),
        ('{"p": {"verify_s": NaN}}', "verify_s = nan is outside"),
        ('{"p": {"verify_s": true}}', "verify_s = True is outside"),
        ('{"p": {"speed": 1}}', "profile 'p'.*speed"),
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
