"""ShareGPT and LLaVA conversations: a JSON array or JSON lines, indexed once, then read record by record.

Known shapes of a record (others are reported and left out):
    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}       ShareGPT
    {"image": "rooms/1.jpg", "conversations": [{"from": "human", "value": "<image>\\n..."}, ...]}   LLaVA, SpaceLLaVA
    {"images": ["1.jpg"], "messages": [{"role": "user", "content": [{"type": "text", "text": "..."}, ...]}, ...]}
The last is how VQASynth's own set is laid out.
"""

from __future__ import annotations

import codecs
import json
import os
import random
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL import Image

from adapters_training.sources import ASSISTANT, SYSTEM, USER, BadRecord, Sample, Turn

IMAGE_MARK = "<image>"
ROLES = {
    "human": USER, "user": USER, "gpt": ASSISTANT, "chatgpt": ASSISTANT, "assistant": ASSISTANT, "bard": ASSISTANT,
    "bing": ASSISTANT, "model": ASSISTANT, "system": SYSTEM,
}  # fmt: skip
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
CHUNK = 1 << 20
MAX_RECORD_BYTES = 64 << 20
"""A JSON array is read record by record; one that does not end within this is taken for a broken file."""


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


class ConversationFile:
    """The usable records of one JSON or JSON lines file. Only where they stand in the file is held in memory.

    `images` is the folder that image paths are relative to; `forbidden` are texts that no turn may contain (a
    tokenizer's special tokens: in a conversation they would end it). Raises ValueError for an unreadable file.
    """

    def __init__(self, path: Path, images: Path | None = None, forbidden: tuple[str, ...] = ()) -> None:
        self.path, self.problems = path, list[str]()
        self.has_images = False
        self._images, self._forbidden = images or path.parent, forbidden
        places: list[tuple[int, int, int]] = []
        with _open(path) as file:
            self._array = _is_array(file)
            for number, begin, length, raw in _json_array(file) if self._array else _json_lines(file):
                try:
                    sample = self._check(self._parse(raw, number))
                except BadRecord as problem:
                    self.problems.append(str(problem))
                    continue
                self.has_images |= sample.image is not None
                places.append((number, begin, length))
        self._places = np.array(places, dtype=np.int64).reshape(-1, 3)
        self.blocks = [len(places)]
        self._descriptor = -1

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Return record `index`. Raises BadRecord if the file was changed since it was indexed."""
        number, begin, length = (int(value) for value in self._places[index])
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, os.O_RDONLY)
        return self._parse(os.pread(self._descriptor, length, begin), number)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            os.close(self._descriptor)

    def _parse(self, raw: bytes, number: int) -> Sample:
        where = f"{self.path}:{'record ' if self._array else ''}{number}"
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


def _open(path: Path) -> Any:
    try:
        return path.open("rb")
    except OSError as error:
        raise ValueError(f"data file {path} cannot be read: {error.strerror}") from None


def _is_array(file: Any) -> bool:
    head = file.read(CHUNK).lstrip(codecs.BOM_UTF8).lstrip()
    file.seek(0)
    return bool(head.startswith(b"["))


def _json_lines(file: Any) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield (line number, offset, length, bytes) of every line that is not empty."""
    begin = 0
    for number, line in enumerate(file, start=1):
        if line.strip():
            mark = len(codecs.BOM_UTF8) if number == 1 and line.startswith(codecs.BOM_UTF8) else 0
            yield number, begin + mark, len(line) - mark, line[mark:]
        begin += len(line)


def _json_array(file: Any) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield (record number from 1, offset, length, bytes) of the elements of a JSON array, a piece of it at a time.

    What is no JSON cannot be stepped over: there the file ends, with a record that decodes to that complaint.
    """
    scan = json.JSONDecoder()
    pieces = _Text(file)
    pieces.skip(_OPENING)
    for number in count(1):
        pieces.skip(_BETWEEN)
        if pieces.text.startswith("]", pieces.at):
            return
        stop = -1
        while stop < 0:
            try:
                _, stop = scan.raw_decode(pieces.text, pieces.at)
            except (ValueError, RecursionError):
                if not pieces.more():
                    rest = pieces.take(min(len(pieces.text), pieces.at + 200))
                    yield number, pieces.begin, 0, rest or b'{"the array does not end": '
                    return
        begin, raw = pieces.begin, pieces.take(stop)
        yield number, begin, len(raw), raw


_OPENING = re.compile(r"\s*\[")
_BETWEEN = re.compile(r"[\s,]*")


class _Text:
    """A window on a file's text: `at` is where reading goes on in `text`, `begin` the same place in bytes."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        mark = file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
        self.begin = file.seek(len(codecs.BOM_UTF8) if mark else 0)
        self.text, self.at = self._decoder.decode(file.read(CHUNK)), 0

    def skip(self, pattern: re.Pattern[str]) -> None:
        """Go behind what matches, if anything, reading on where it reaches the window's end."""
        while True:
            match = pattern.match(self.text, self.at)
            if match is not None:
                self.take(match.end())
            if self.at < len(self.text) or not self.more():
                return

    def more(self) -> bool:
        """Read on; False at the file's end or where one record grows too large."""
        rest = self.text[self.at :]
        piece = b"" if len(rest) > MAX_RECORD_BYTES else self._file.read(max(CHUNK, len(rest)))
        self.text, self.at = rest + self._decoder.decode(piece), 0
        return bool(piece)

    def take(self, stop: int) -> bytes:
        """Return the bytes up to `stop` and go there."""
        raw = self.text[self.at : stop].encode("utf-8", "surrogateescape")
        self.at, self.begin = stop, self.begin + len(raw)
        return raw
