"""Answers decoded side by side are those of one session, and a packed batch carries them as they were asked."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from adapters_training import wording
from adapters_training.__main__ import main
from adapters_training.answers import CAPACITY, MAX_TOKENS, answer_all
from adapters_training.packing import IGNORE, Packer
from adapters_training.shapes import known_objects
from adapters_training.sources.mixture import open_mixture
from speculation.frames import decode_jpeg
from speculation.language.grammar import Grammars, grammar_for
from speculation.language.prompts import MOTIONS, VOCABULARY_FILE, ResponseOrder, compose, parse_answer
from speculation.vlm.cache import KVCache
from speculation.vlm.load import load_vlm
from speculation.vlm.session import VlmSession
from tests.adapters_training.frames import make_frame
from tests.adapters_training.targets import chats
from tests.datasets import lerobot, shade, shades
from tests.models import tiny_model, tiny_text_model
from tests.system.parrot import TURN_LEFT, parrot


def test_a_ragged_batch_answers_under_each_prompts_grammar(tmp_path: Path) -> None:
    vlm = load_vlm(tiny_model(tmp_path), dtype="float64")
    rng, of = np.random.default_rng(3), Grammars(vlm.tokenizer, vlm.vocabulary)
    orders = (ResponseOrder.ACTION_FIRST, ResponseOrder.REASON_FIRST)
    done = (MOTIONS[4], MOTIONS[7], MOTIONS[4])
    prompts = [compose("find the red ball", done[:count], order) for order in orders for count in (0, 3)]
    questions = [(prompt, make_frame(rng).jpeg) for prompt in prompts]
    session = VlmSession(vlm, 256)
    alone = [session.answer(prompt, jpeg, 20, of.of(grammar_for(prompt), vlm.eos)) for prompt, jpeg in questions]
    assert answer_all(vlm, KVCache(vlm, 4, 256), questions, 20, of) == alone
    actions = [parse_answer(text).action for text in alone]
    assert None not in actions and not any(action.radians for action in actions[1::2] if action is not None)


@pytest.mark.parametrize("order", ResponseOrder)
def test_a_frame_with_answers_is_packed_as_it_was_asked(tmp_path: Path, order: ResponseOrder) -> None:
    vlm = load_vlm(tiny_model(tmp_path))
    frame, rng = make_frame(np.random.default_rng(0)), random.Random(1)
    task = frame.tasks[0]
    words = wording.answer(frame, task, rng, order)
    assert len(vlm.tokenizer(words)["input_ids"]) < MAX_TOKENS
    answered = replace(task, prompt="go and look", answer=words)
    frame = replace(frame, tasks=[answered, frame.tasks[1]])
    batch = Packer(vlm.tokenizer, known_objects(), questions=3).batch([frame], random.Random(2))
    labels = batch.labels[0]
    assert vlm.tokenizer.decode(labels[labels != IGNORE]) == words + "<|im_end|>"
    assert "go and look" in vlm.tokenizer.decode(batch.ids[0])
    heavy = vlm.tokenizer.decode(labels[batch.weights[0] > 1]).strip()
    action = parse_answer(words).action
    assert action is not None and heavy == action.text


def test_a_language_model_answers_a_file_of_conversations_and_goes_on_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_text_model(tmp_path / "llama")
    asked, out = chats(tmp_path / "chat.json", 7), tmp_path / "answers.jsonl"
    command = ["answers", "--model", str(folder), "--data", str(asked), "--frames", "6", "--rows", "2"]
    command += ["--max-tokens", "8", "--dtype", "float64"]
    assert main([*command, "--out", str(out)]) == 0
    records = [json.loads(line)["conversations"] for line in out.read_text().splitlines() if line]
    session = VlmSession(load_vlm(folder, dtype="float64"), 256)
    assert [[turn["from"] for turn in turns] for turns in records] == [["human", "gpt"]] * len(records)
    assert 3 <= len(records) <= 6
    for question, answer in records:
        assert question["value"].startswith("find the red ball")
        assert answer["value"] == session.answer(question["value"], None, 8).strip()
    # What a run leaves that is killed in the midst of the fifth line.
    whole = out.read_text()
    lines, other = whole.splitlines(keepends=True), tmp_path / "again.jsonl"
    other.with_suffix(".part").write_text("".join(lines[:4]) + lines[4][:9])
    assert main([*command, "--out", str(other)]) == 0
    assert other.read_text() == whole and not other.with_suffix(".part").exists()
    other_model = tiny_text_model(tmp_path / "another", seed=1)
    monkeypatch.setattr("adapters_training.answers.load_vlm", None)
    assert main([*command, "--out", str(other)]) == 0
    capsys.readouterr()
    assert main([*command, "--out", str(other), "--model", str(other_model)]) == 0
    assert f"{other} holds answers of other settings (model: " not in capsys.readouterr().err  # nothing is kept there
    for changes, sentence in (
        (["--model", str(other_model)], "answers of other settings (model: "),
        (["--dtype", "float32"], "answers of other settings (dtype: float64 there, float32 now)"),
    ):
        assert main([*command, "--out", str(out), *changes]) == 2
        assert f"{out} holds {sentence}" in capsys.readouterr().err
    out.with_suffix(".answers.json").write_text("3")
    assert main([*command, "--out", str(out)]) == 2
    assert "does not say what the answers are of" in capsys.readouterr().err
    assert other.read_text() == whole


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["--out", "answers"], "give a name that ends in .jsonl"),
        (["--max-tokens", str(CAPACITY)], f"setting max_tokens is '{CAPACITY}': Expected `int` <= {CAPACITY - 1}"),
        ([], "sees images; conversations without one are for a language model alone"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(
    tmp_path: Path, changes: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model, asked = tiny_model(tmp_path / "seeing"), chats(tmp_path / "chat.json", 2)
    command = ["answers", "--model", str(model), "--data", str(asked), "--out", str(tmp_path / "answers.jsonl")]
    assert main([*command, *changes]) == 2
    assert sentence in capsys.readouterr().err


# --- about recorded walks


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("pyarrow", "av"):
        pytest.importorskip(package, reason="the extra `lerobot` is not installed")
    tasks = [("find the red ball", shades(9)), ("open the door", shades(3, 9)), ("find the blue chair", shades(4, 12))]
    return lerobot(tmp_path_factory.mktemp("lerobot") / "walks", tasks, "bytes")


@pytest.fixture(scope="module")
def answering(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parrot(tmp_path_factory.mktemp("target"), TURN_LEFT)


def answer(target: Path, walks: Path, out: Path, *more: str) -> int:
    words = ["--model", str(target), "--data", str(walks), "--out", str(out), "--rows", "3", "--max-tokens", "24"]
    return main(["answers", *words, *more])


def test_answers_are_training_data_and_a_killed_run_goes_on(
    walks: Path, answering: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(answering, walks, tmp_path / "out", "--frames", "8") == 0
    said = capsys.readouterr()
    assert "7 answers; 0 named no action, 1 frames or files were left out" in said.out
    assert "frame 10: " in said.err and "'open the door' names no known object" in said.err
    path = tmp_path / "out" / "conversations.jsonl"
    mixture = open_mixture([str(path)], "data")
    samples = [mixture.sample(index, random.Random(0)) for index in range(len(mixture))]
    assert [sample.turns[0].text for sample in samples] == ["find the red ball"] * 5 + ["find the blue chair"] * 2
    assert {sample.turns[1].text for sample in samples} == {TURN_LEFT}
    pictures = [sample.image for sample in samples if isinstance(sample.image, Path)]
    assert [shade(decode_jpeg(each.read_bytes())) for each in pictures] == [0, 2, 4, 6, 8, 12, 14]
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    path.write_text("".join(lines[:2]) + lines[2][:30])
    assert answer(answering, walks, tmp_path / "out", "--frames", "8") == 0
    assert path.read_text() == whole and "7 answers" in capsys.readouterr().out


def test_a_target_without_a_list_of_objects_is_asked_any_task_with_the_guide(
    walks: Path, answering: Path, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    for file in answering.iterdir():
        if file.name != VOCABULARY_FILE:
            (tmp_path / "model" / file.name).symlink_to(file)
    assert answer(tmp_path / "model", walks, tmp_path / "out", "--frames", "4") == 0
    records = map(json.loads, (tmp_path / "out" / "conversations.jsonl").read_text().splitlines())
    asked = {record["conversations"][0]["value"] for record in records}
    assert asked == {compose(task, guide=True) for task in ("find the red ball", "find the blue chair")}
