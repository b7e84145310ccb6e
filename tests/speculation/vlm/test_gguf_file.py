"""Metadata of GGUF files: what a writer wrote is read; what is cut off, damaged or something else is a sentence."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation.vlm.folder import ModelFolderError
from speculation.vlm.gguf_file import read_metadata

TYPES = {"B": 0, "b": 1, "H": 2, "h": 3, "I": 4, "i": 5, "f": 6, "?": 7, "Q": 10, "q": 11, "d": 12}
BOUNDS = {"B": (0, 255), "b": (-128, 127), "h": (-(2**15), 2**15 - 1), "i": (-(2**31), 2**31 - 1), "Q": (0, 2**64 - 1)}


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value_of(form: str, value: Any) -> bytes:
    """Return a value with its type: a text, a list or a number of a struct format."""
    if form == "s":
        return struct.pack("<I", 8) + text(value)
    if form == "[s]":
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    if form.startswith("["):
        return struct.pack(f"<IIQ{len(value)}{form[1]}", 9, TYPES[form[1]], len(value), *value)
    return struct.pack(f"<I{form}", TYPES[form], value)


def file_of(pairs: dict[str, tuple[str, Any]], version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs))
    return head + b"".join(text(key) + value_of(*pair) for key, pair in pairs.items())


def written(folder: Path, data: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return path


WHOLE = {
    "general.architecture": ("s", "qwen2vl"),
    "qwen2vl.block_count": ("I", 28),
    "tokenizer.ggml.tokens": ("[s]", ["a", "Ġb", "é", ""]),
    "tokenizer.ggml.token_type": ("[i]", [1, 1, 3, 5]),
    "flag": ("?", True),
}
NUMBERS = st.sampled_from(sorted(BOUNDS)).flatmap(lambda form: st.tuples(st.just(form), st.integers(*BOUNDS[form])))
LISTS = st.sampled_from(sorted(BOUNDS)).flatmap(
    lambda form: st.tuples(st.just(f"[{form}]"), st.lists(st.integers(*BOUNDS[form]), max_size=9))
)
WORDS = st.text(st.characters(exclude_categories=("Cs",)), max_size=9)
TEXTS = st.tuples(st.just("s"), WORDS) | st.tuples(st.just("[s]"), st.lists(WORDS, max_size=9))


@given(pairs=st.dictionaries(WORDS, NUMBERS | LISTS | TEXTS, max_size=9), version=st.sampled_from((2, 3)))
def test_what_was_written_is_read(
    pairs: dict[str, tuple[str, Any]], version: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = written(tmp_path_factory.mktemp("gguf"), file_of(pairs, version))
    assert read_metadata(path) == {key: value for key, (_, value) in pairs.items()}


@given(end=st.integers(0, len(file_of(WHOLE)) - 1))
def test_a_file_that_is_cut_off_anywhere_is_a_sentence(end: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = written(tmp_path_factory.mktemp("gguf"), file_of(WHOLE)[:end])
    with pytest.raises(ModelFolderError, match="fetch it again|convert it again"):
        read_metadata(path)


@given(place=st.integers(0, len(file_of(WHOLE)) - 1), byte=st.integers(0, 255))
def test_a_damaged_byte_is_read_or_a_sentence(place: int, byte: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    data = bytearray(file_of(WHOLE))
    data[place] = byte
    path = written(tmp_path_factory.mktemp("gguf"), bytes(data))
    try:
        read_metadata(path)
    except ModelFolderError as error:
        assert str(path) in str(error)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is no GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1", "a Git LFS pointer"),
        (file_of({}, version=1), "GGUF of version 1; known are 2, 3"),
        (b"GGUF" + (3).to_bytes(4, "big") + bytes(16), "convert it again"),
    ],
)
def test_other_files_are_refused(data: bytes, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=sentence):
        read_metadata(written(tmp_path, data))
