"""ShareGPT and LLaVA conversations: a JSON array or JSON lines.

Known shapes of a record (others are reported and left out):
    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}       ShareGPT
    {"image": "rooms/1.jpg", "conversations": [{"from": "human", "value": "<image>\\n..."}, ...]}   LLaVA, SpaceLLaVA
    {"images": ["1.jpg"], "messages": [{"role": "user", "content": [{"type": "text", "text": "..."}, ...]}, ...]}
The last is how VQASynth's own set is laid out.
"""

from __future__ import annotations

import codecs
import json
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
from PIL import Image

from adapters_training.sources import ASSISTANT, SYSTEM, USER, BadRecord, Sample, Turn

IMAGE_MARK = "<image>"
ROLES = {
    "human": USER, "user": USER, "gpt": ASSISTANT, "chatgpt": ASSISTANT, "assistant": ASSISTANT, "bard": ASSISTANT,
    "bing": ASSISTANT, "model": ASSISTANT, "system": SYSTEM,
}  # fmt: skip
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")


class _Said(msgspec.Struct):
    speaker: str = msgspec.field(name="from")
    value: str = ""


class _Part(msgspec.Struct):
    type: str = "text"
    text: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part]


class _Record(msgspec.Struct):
    conversations: list[_Said] | None = None
    messages: list[_Message] | None = None
    image: str | list[str] | None = None
    images: list[str] | None = None


_decoder = msgspec.json.Decoder(_Record)


def json_line(question: str, answer: str, **more: str) -> str:
    """Return a question and its answer as a line that `ConversationFile` reads."""
    turns = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
    return json.dumps(more | {"conversations": turns}, ensure_ascii=False) + "\n"


class ConversationFile:
    """The usable records of one JSON or JSON lines file, as text in memory.

    `images` is the folder that image paths are relative to; `forbidden` are texts that no turn may contain (a
    tokenizer's special tokens: in a conversation they would end it). Raises ValueError for a file that cannot be
    read, or an array that is no JSON.
    """

    def __init__(self, path: Path, images: Path | None = None, forbidden: tuple[str, ...] = ()) -> None:
        self.path, self.problems = path, list[str]()
        self.has_images = False
        self._images, self._forbidden = images or path.parent, forbidden
        try:
            data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
        except OSError as error:
            raise ValueError(f"data file {path} cannot be read: {error.strerror}") from None
        is_array = data.lstrip().startswith(b"[")
        self._kind = "record " if is_array else ""
        self._records: list[tuple[int, bytes]] = []
        try:
            for number, raw in (_json_array if is_array else _json_lines)(data):
                try:
                    sample = self._check(self._parse(raw, number))
                except BadRecord as problem:
                    self.problems.append(str(problem))
                    continue
                self.has_images |= sample.image is not None
                self._records.append((number, raw))
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"data file {path} is no JSON array: {error}") from None
        self.blocks = [len(self._records)]

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Return record `index`."""
        number, raw = self._records[index]
        return self._parse(raw, number)

    def _parse(self, raw: bytes, number: int) -> Sample:
        where = f"{self.path}:{self._kind}{number}"
        try:
            record = _decoder.decode(raw)
        except msgspec.MsgspecError as error:
            raise BadRecord(f"{where}: {error}") from None
        except UnicodeDecodeError:
            raise BadRecord(f"{where}: the text is not UTF-8") from None
        names = [record.image] if isinstance(record.image, str) else (record.image or record.images or [])
        if len(names) > 1:
            raise BadRecord(f"{where}: {len(names)} images; one a conversation is supported")
        turns = _turns(record, where)
        text = "\n".join(turn.text for turn in turns)
        found = next((token for token in self._forbidden if token in text), None)
        if found is not None:
            raise BadRecord(f"{where}: the text contains the special token {found}")
        return Sample(turns, where, self._images / names[0] if names else None)

    def _check(self, sample: Sample) -> Sample:
        """Look at the header of the image, so that a missing one is known before training."""
        if isinstance(sample.image, Path):
            try:
                with Image.open(sample.image, formats=IMAGE_FORMATS):
                    pass
            except FileNotFoundError:
                raise BadRecord(f"{sample.where}: image {sample.image} does not exist") from None
            except (OSError, SyntaxError, Image.DecompressionBombError) as error:
                raise BadRecord(f"{sample.where}: image {sample.image} cannot be read: {error}") from None
        return sample


def _turns(record: _Record, where: str) -> tuple[Turn, ...]:
    if record.conversations is not None:
        texts = [(entry.speaker, entry.value) for entry in record.conversations]
    elif record.messages is not None:
        texts = [(entry.role, _text(entry.content)) for entry in record.messages]
    else:
        raise BadRecord(f"{where}: neither 'conversations' nor 'messages'")
    turns = []
    for speaker, text in texts:
        if speaker not in ROLES:
            raise BadRecord(f"{where}: speaker {speaker!r} is unknown; known are {', '.join(ROLES)}")
        turns.append(Turn(ROLES[speaker], text.replace(IMAGE_MARK, "").strip()))
    system = [turn for turn in turns[:1] if turn.role == SYSTEM and turn.text]
    rest = turns[1:] if turns and turns[0].role == SYSTEM else turns
    # Shared conversations often begin or end in the middle: FastChat drops such ends too.
    while rest and rest[0].role != USER:
        rest = rest[1:]
    while rest and rest[-1].role != ASSISTANT:
        rest = rest[:-1]
    if not rest:
        raise BadRecord(f"{where}: no question with an answer")
    for index, turn in enumerate(rest):
        if turn.role != (USER, ASSISTANT)[index % 2]:
            raise BadRecord(f"{where}: user and assistant do not take turns")
        if not turn.text:
            raise BadRecord(f"{where}: turn {index + 1} is empty")
    return (*system, *rest)


def _text(content: str | list[_Part]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.text or "" for part in content if part.type == "text")


def _json_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, bytes) of every line that is not empty."""
    return ((number, line) for number, line in enumerate(data.splitlines(), start=1) if line.strip())


def _json_array(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Return (record number from 1, bytes) of the elements of a JSON array. Raises msgspec.DecodeError."""
    return enumerate(map(bytes, msgspec.json.decode(data, type=list[msgspec.Raw])), start=1)
