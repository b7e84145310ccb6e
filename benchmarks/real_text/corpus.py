"""Conversations of people out of two Python packages -> files to train on, files to measure on, and prompts.

A conversation is in one of the two halves, and no question of the second half is in the first.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from adapters_training.files import replacing

HELD_OUT_EVERY = 10
LANGUAGE = "english"
TURNS = 8
"""A conversation has at most so many; the rest would be cut at the context."""
QUESTION_WORDS = (4, 60)
"""Least and most words of what a model is asked by itself: less is an answer to what was before."""
CHITCHAT = "chitchat"
TRAIN, HELD_OUT = "conversations.jsonl", "conversations_held_out.jsonl"
QUESTIONS, QUESTIONS_HELD_OUT = "questions.jsonl", "questions_held_out.jsonl"
PROMPTS = "prompts.jsonl"


@dataclass(frozen=True)
class Conversation:
    """What two people say in turns, and which part of which package it comes from."""

    category: str
    turns: tuple[str, ...]


class _Utterance(msgspec.Struct):
    text: str


class _Chat(msgspec.Struct):
    messages: list[list[_Utterance]]


class _Topic(msgspec.Struct):
    conversations: list[Any]


def read_chitchat(package: Path) -> Iterator[Conversation]:
    """Yield the conversations of the package chitchat-dataset. Raises ValueError for a file of another form."""
    path = package / "dataset.json"
    for chat in _decoded(msgspec.json.decode, path, dict[str, _Chat]).values():
        turns = tuple(" ".join(each.text.strip() for each in message).strip() for message in chat.messages)
        yield Conversation(CHITCHAT, turns)


def read_chatterbot(package: Path) -> Iterator[Conversation]:
    """Yield the English conversations of the package chatterbot-corpus. Raises ValueError as `read_chitchat`."""
    folder = package / "data" / LANGUAGE
    paths = sorted(folder.glob("*.yml"))
    if not paths:
        raise ValueError(f"{folder} holds no conversations; install chatterbot-corpus again")
    for path in paths:
        for turns in _decoded(msgspec.yaml.decode, path, _Topic).conversations:
            # Some are a text alone, and YAML takes an answer such as 42 or yes for no text.
            if isinstance(turns, list) and all(isinstance(text, str) for text in turns):
                yield Conversation(path.stem, tuple(text.strip() for text in turns))


def usable(conversations: Iterable[Conversation]) -> list[Conversation]:
    """Return those with an answer, each once, at most `TURNS` turns of them, up to the first empty one."""
    found = dict[tuple[str, ...], Conversation]()
    for each in conversations:
        full = next((place for place, text in enumerate(each.turns) if not text), len(each.turns))
        turns = each.turns[: min(full, TURNS) // 2 * 2]
        if turns:
            found.setdefault(turns, Conversation(each.category, turns))
    return list(found.values())


def write(conversations: Sequence[Conversation], out: Path, prompts: int, seed: int = 0) -> dict[str, int]:
    """Write all files into `out`, the one of prompts last; return how many records each has.

    Prompts are held-out questions, chitchat's and the others' by turns. Raises ValueError for too few of them.
    """
    rng = random.Random(seed)
    shuffled = rng.sample(list(conversations), len(conversations))
    kept, held_out = list[Conversation](), list[Conversation]()
    for number, each in enumerate(shuffled):
        (kept if number % HELD_OUT_EVERY else held_out).append(each)
    asked_later = {text for each in held_out for text in each.turns if _is_question(text)}
    kept = [each for each in kept if not asked_later.intersection(each.turns)]
    questions, later = _questions(kept, rng), _questions(held_out, rng)
    chosen = _by_turns(later, prompts)
    taken = {text for _, text, _ in chosen}
    files = {
        TRAIN: [_record(*each.turns) for each in kept],
        HELD_OUT: [_record(*each.turns) for each in held_out],
        QUESTIONS: [_record(text, answer) for _, text, answer in questions],
        QUESTIONS_HELD_OUT: [_record(text, answer) for _, text, answer in later if text not in taken],
        PROMPTS: [{"category": category, "turns": [text]} for category, text, _ in chosen],
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, records in files.items():
        with replacing(out / name) as file:
            file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return {name: len(records) for name, records in files.items()}


def _decoded(decode: Callable[..., Any], path: Path, kind: Any) -> Any:
    try:
        return decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise ValueError(f"{path} cannot be read ({error}); install the package again") from None


def _is_question(text: str) -> bool:
    least, most = QUESTION_WORDS
    return least <= len(text.split()) <= most


def _questions(conversations: Iterable[Conversation], rng: random.Random) -> list[tuple[str, str, str]]:
    """Return (category, question, what a person answered), at most one of a conversation, each question once."""
    found = dict[str, tuple[str, str, str]]()
    for each in conversations:
        places = [place for place in range(0, len(each.turns), 2) if _is_question(each.turns[place])]
        if places:
            place = rng.choice(places)
            text = each.turns[place]
            found.setdefault(text, (each.category, text, each.turns[place + 1]))
    return list(found.values())


def _by_turns(questions: Sequence[tuple[str, str, str]], count: int) -> list[tuple[str, str, str]]:
    talk = [each for each in questions if each[0] == CHITCHAT]
    other = [each for each in questions if each[0] != CHITCHAT]
    half = min(count // 2, len(other))
    chosen = [*other[:half], *talk[: count - half]]
    if len(chosen) < count:
        raise ValueError(f"{count} held-out questions are needed as prompts, the packages have {len(chosen)}")
    return chosen


def _record(*turns: str) -> dict[str, Any]:
    speakers = ("human", "gpt")
    return {"conversations": [{"from": speakers[place % 2], "value": text} for place, text in enumerate(turns)]}
