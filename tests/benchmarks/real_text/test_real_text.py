"""The published text pair's benchmark on tiny models: every stage works, goes on where it was stopped, and is reported.

The packages of weights and conversations are not needed: a small model and a few conversations stand in for them.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks import peers
from benchmarks.real_text import __main__ as real_text
from benchmarks.real_text import corpus, packages
from benchmarks.real_text.__main__ import Sizes, main, stages
from benchmarks.real_text.corpus import Conversation, read_chatterbot, read_chitchat, usable, write
from benchmarks.real_text.model import convert_gguf
from speculation.vlm.inputs import prepare
from speculation.vlm.load import load_vlm
from tests.models import scratch_logits, tiny_text_model

SMALL = Sizes(2, 6, 6, 3, 6, ("--steps", "2"), 2, 2, 2)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two packages in the form of the real ones."""
    chats = {
        str(number): {
            "messages": [
                [{"text": "find the ball", "sender": "a"}, {"text": f"now {number}", "sender": "a"}],
                [{"text": f"I see ball {number}.", "sender": "b"}],
                [{"text": "", "sender": "a"}],
            ]
        }
        for number in range(60)
    }
    talk = tmp_path / packages.CHITCHAT
    talk.mkdir()
    (talk / "dataset.json").write_text(json.dumps(chats))
    other = tmp_path / packages.CHATTERBOT / "data" / corpus.LANGUAGE
    other.mkdir(parents=True)
    lines = [f"- - do I see chair {number} there\n  - stop\n" for number in range(60)]
    (other / "ai.yml").write_text(
        "categories:\n- ai\nconversations:\n- a text alone\n- - how old are you\n  - 42\n" + "".join(lines)
    )
    monkeypatch.setattr(packages, "installed", lambda name: tmp_path / name)
    return tmp_path


def records(path: Path) -> list[list[str]]:
    return [[turn["value"] for turn in json.loads(line)["conversations"]] for line in path.read_text().splitlines()]


def test_nothing_that_is_measured_is_learned_from(installed: Path, tmp_path: Path) -> None:
    found = usable([*read_chitchat(installed / packages.CHITCHAT), *read_chatterbot(installed / packages.CHATTERBOT)])
    again = Conversation("ai", (found[0].turns[0], "another answer"))
    for folder in (tmp_path / "one", tmp_path / "two"):
        counts = write([*found, again], folder, 6)
    assert counts == {name: len((folder / name).read_text().splitlines()) for name in counts}
    for name in counts:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    learned = {
        text for name in (corpus.TRAIN, corpus.QUESTIONS) for turns in records(folder / name) for text in turns[::2]
    }
    asked = {json.loads(line)["turns"][0] for line in (folder / corpus.PROMPTS).read_text().splitlines()}
    later = {turns[0] for name in (corpus.HELD_OUT, corpus.QUESTIONS_HELD_OUT) for turns in records(folder / name)}
    assert len(asked) == 6 and not learned & (asked | later)
    assert not asked & {turns[0] for turns in records(folder / corpus.QUESTIONS_HELD_OUT)}
    with pytest.raises(ValueError, match="500 held-out questions are needed as prompts, the packages have"):
        write(found, tmp_path / "three", 500)


@pytest.mark.skipif(not find_spec("gguf"), reason="needs the package gguf")
def test_a_gguf_file_becomes_a_folder_that_answers_alike(tmp_path: Path) -> None:
    from tests.gguf_models import write_gguf

    source = load_vlm(tiny_text_model(tmp_path / "source", tied=True), dtype="float32")
    convert_gguf(write_gguf(source, tmp_path / "model.gguf"), tmp_path / "made")
    made = load_vlm(tmp_path / "made", dtype="float32")
    inputs = prepare(source, "find the red ball", None)
    torch.testing.assert_close(
        torch.from_numpy(scratch_logits(made, prepare(made, "find the red ball", None))),
        torch.from_numpy(scratch_logits(source, inputs)), rtol=0, atol=0,
    )  # fmt: skip
    assert made.eos == source.eos and made.tokenizer_fingerprint == source.tokenizer_fingerprint
    no_template = write_gguf(source, tmp_path / "other.gguf", {"tokenizer.chat_template": ""})
    with pytest.raises(ValueError, match="has no chat template"):
        convert_gguf(no_template, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return --out with a tiny target where the first stage would put it; what is done about it is little."""
    tiny_text_model(tmp_path / "out" / "target", layers=3, hidden=96)
    monkeypatch.setattr(real_text, "FULL", SMALL)
    monkeypatch.setattr(real_text, "EXIT_LAYERS", (0, 1))
    monkeypatch.setattr("vlm_nav_evaluation.results.RESULTS", tmp_path / "kept")
    monkeypatch.setattr("vlm_nav_evaluation.plots.KEPT", tmp_path / "kept")
    return tmp_path / "out"


@pytest.mark.usefixtures("forked_verifiers", "installed")
def test_all_stages_then_none_of_them_again(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["all", "--out", str(out), "--threads", "1", "--save"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    every = [stage for stage in stages(out, SMALL, 1) if stage.in_all]
    assert all(stage.made is None or stage.is_done for stage in every) and not list(out.rglob("*.part"))
    (kept,) = (out.parent / "kept").glob("peers_text_float32*.json")
    found = json.loads(kept.read_text())
    arms = found["figures"]
    assert {*peers.OURS, peers.GREEDY, peers.ASSISTED, peers.ALONE} <= arms.keys() | found["refused"].keys()
    assert all(arms[name]["frames_other_than_target"] == 0 for name in peers.OURS)
    assert found["settings"]["steps"] == "2" and printed.count(" s\n") >= len(every) - 1
    times = {stage.name: stage.made.stat().st_mtime_ns for stage in every if stage.made is not None}
    answers = (out / "journal" / "answers.jsonl").read_text()
    assert main(command) == 0 and (out / "journal" / "answers.jsonl").read_text() == answers
    assert times == {stage.name: stage.made.stat().st_mtime_ns for stage in every if stage.made is not None}
