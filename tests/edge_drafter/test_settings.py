"""EdgeConfig: flat names, nested homes, limits, and what does not fit together."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from edge_drafter import Mode
from edge_drafter.settings import MAX_RTT_S, Connection, EdgeConfig
from speculation.settings import add_flags, fields_of, from_flags

DRAFT = Path("draft")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(TypeError, match="EdgeConfig has no setting treads_"):
        EdgeConfig.flat(DRAFT, treads_=2)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("rtt_s", -1.0, "rtt_s -1.0 is outside 0 to 10"),
        ("extra_rtt_s", MAX_RTT_S + 1, "extra_rtt_s 11.0 is outside 0 to 10"),
        ("seed", -1, "seed -1 is outside 0 to"),
        ("mode", "magic", "known modes are cloud, edge"),
        ("gamma", 65, "gamma is 65; give 0 to 64"),
        ("drafting", "interrupt=maybe", "interrupt='maybe' is unknown; give on, off"),
        ("max_tokens", 0, "max_tokens 0 is outside 1 to 512"),
        ("dtype", "float8", "dtype"),
        ("threads", 0, "threads 0 is outside 1 to 1024"),
        ("sampling", "hot", "sampling 'hot' is unknown"),
        ("sampling", "split(temperature=1.0)", "one drafted chain at a time"),
        ("service_class", "royal", r"service class 'royal' is none of economy \(2 tokens/s\)"),
        ("verifier", "tcp://10.0.0.5:5555", "allow_plain"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(name: str, value: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        EdgeConfig.flat(DRAFT, **{name: value})


def test_flags_are_made_of_the_settings() -> None:
    line = argparse.ArgumentParser()
    add_flags(line, EdgeConfig)
    options = line.parse_args(["--draft-model", "d", "--mode", "sd", "--rtt-s", "0.5", "--allow-plain"])
    config = from_flags(EdgeConfig, options)
    assert (config.decoding.mode, config.connection) == ("sd", Connection(rtt_s=0.5, allow_plain=True))
    assert all(field.description for field in fields_of(EdgeConfig))
    assert "one of " + ", ".join(mode.value for mode in Mode) in line.format_help().replace("\n", " ").replace(
        "                        ", ""
    )
