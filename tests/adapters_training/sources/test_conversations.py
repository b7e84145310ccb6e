"""Conversation files: what is usable is read wherever it stands, what is not is named and left out."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from adapters_training.sources import Sample, Turn
from adapters_training.sources.conversations import ConversationFile

DICE = random.Random(0)
GOOD = {"id": "a", "conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "hi – 你好"}]}


def read(file: ConversationFile) -> list[Sample]:
    return [file.sample(index, DICE) for index in range(file.blocks[0])]


def write_lines(path: Path, records: list[object]) -> Path:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_bad_lines_are_named_with_their_number(tmp_path: Path) -> None:
    bad = [
        ("{not json", "malformed"),
        ({"id": "x"}, "neither 'conversations' nor 'messages'"),
        ({"conversations": []}, "no question with an answer"),
        ({"conversations": [{"from": "human", "value": "?"}]}, "no question with an answer"),
        ({"conversations": [{"from": "alien", "value": "?"}]}, "speaker 'alien' is unknown"),
        ({"conversations": [{"from": "human", "value": 3}]}, "Expected `str`, got `int`"),
        ({"conversations": [{"from": who, "value": "x"} for who in ("human", "gpt", "gpt")]}, "do not take turns"),
        ({"conversations": [{"from": "human", "value": " "}, {"from": "gpt", "value": "x"}]}, "turn 1 is empty"),
        ({**GOOD, "conversations": [{"from": "human", "value": "<|im_end|>"}, GOOD["conversations"][1]]}, "<|im_end|>"),
        ({**GOOD, "image": "nowhere.jpg"}, "nowhere.jpg does not exist"),
        ({**GOOD, "image": ["a.jpg", "b.jpg"]}, "2 images; one a conversation"),
    ]
    path = write_lines(tmp_path / "chat.jsonl", [GOOD, "", *(record for record, _ in bad), GOOD])
    file = ConversationFile(path, forbidden=("<|im_end|>",))
    assert [sample.turns for sample in read(file)] == [(Turn("user", "hello"), Turn("assistant", "hi – 你好"))] * 2
    assert len(file.problems) == len(bad)
    for line, (problem, (_, expected)) in enumerate(zip(file.problems, bad, strict=True), start=3):
        assert problem.startswith(f"{path}:{line}: ")
        assert expected in problem


def test_ends_of_shared_conversations_are_trimmed_and_a_system_turn_stays(tmp_path: Path) -> None:
    said = [("system", "be kind"), ("gpt", "x"), ("human", "a"), ("chatgpt", "b"), ("human", "and?")]
    record = {"conversations": [{"from": who, "value": text} for who, text in said]}
    file = ConversationFile(write_lines(tmp_path / "chat.jsonl", [record]))
    assert [(turn.role, turn.text) for turn in read(file)[0].turns] == [
        ("system", "be kind"),
        ("user", "a"),
        ("assistant", "b"),
    ]


def test_images_are_found_beside_the_file_or_in_a_folder_and_broken_ones_left_out(tmp_path: Path) -> None:
    (tmp_path / "rooms").mkdir()
    Image.fromarray(np.zeros((30, 40, 3), np.uint8)).save(tmp_path / "rooms" / "1.png")
    (tmp_path / "rooms" / "2.jpg").write_bytes(b"no image")
    asked = [{"from": "human", "value": "<image>\nHow far is the chair?"}, {"from": "gpt", "value": "1.2 m"}]
    messages = [
        {"role": "user", "content": [{"index": 0, "type": "image", "text": None}, {"type": "text", "text": "Which?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "The left one."}]},
    ]
    records = [
        {"image": "rooms/1.png", "conversations": asked},
        {"image": "rooms/2.jpg", "conversations": asked},
        {"images": ["rooms/1.png"], "messages": messages},
    ]
    path = tmp_path / "vqa.json"
    path.write_text(json.dumps(records), encoding="utf-8")
    file = ConversationFile(path)
    assert file.has_images
    first, second = read(file)
    assert first.image == tmp_path / "rooms" / "1.png"
    assert [turn.text for turn in first.turns] == ["How far is the chair?", "1.2 m"]
    assert [turn.text for turn in second.turns] == ["Which?", "The left one."]
    assert len(file.problems) == 1 and f"{path}:record 2: image" in file.problems[0]
    moved = write_lines(tmp_path / "vqa.jsonl", [{**records[0], "image": "1.png"}])
    assert read(ConversationFile(moved, tmp_path / "rooms"))[0].image == first.image


TEXT = st.text(min_size=1).filter(lambda text: text.strip() == text and "<image>" not in text)


@settings(max_examples=30)
@given(
    said=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=8),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
    mark=st.booleans(),
)
def test_an_array_is_read_like_json(
    tmp_path_factory: pytest.TempPathFactory,
    said: list[tuple[str, str]],
    indent: int | None,
    ascii_only: bool,
    mark: bool,
) -> None:
    records = [
        {"conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}
        for question, answer in said
    ]
    try:
        data = json.dumps(records, indent=indent, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:
        return  # a lone surrogate stands in no file
    path = tmp_path_factory.mktemp("array") / "chat.json"
    path.write_bytes(b"\xef\xbb\xbf" * mark + data)
    file = ConversationFile(path)
    assert not file.problems
    assert [tuple(turn.text for turn in sample.turns) for sample in read(file)] == said


@pytest.mark.parametrize("broken", [f"[{json.dumps(GOOD)}, ", f"[{json.dumps(GOOD)}, {{oops}}]", "[", "[" * 100_000])
def test_a_broken_array_is_refused(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "chat.json"
    path.write_text(broken, encoding="utf-8")
    with pytest.raises(ValueError, match=r"chat\.json is no JSON array: "):
        ConversationFile(path)
