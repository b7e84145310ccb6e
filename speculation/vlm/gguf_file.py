"""The metadata of a GGUF file, llama.cpp's checkpoint in one file: architecture, tokenizer, chat template; no weights.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from speculation.vlm.folder import ModelFolderError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""struct formats by GGUF's number of a type."""
_STRING, _ARRAY = 8, 9
_EYES = "clip"
"""What general.architecture calls a vision tower, in a file of its own."""


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the metadata of a GGUF file by its keys, e.g. general.architecture.

    Raises ModelFolderError, in one sentence, for a file that is none or is cut off.
    """
    try:
        with path.open("rb") as file:
            start = file.read(8)
            if start[:4] != MAGIC:
                raise ModelFolderError(
                    f"{path} is no GGUF file (an unfinished download or a Git LFS pointer?); fetch it again"
                )
            version = int.from_bytes(start[4:], "little")
            if version not in VERSIONS:
                raise ModelFolderError(
                    f"{path} is GGUF of version {version}; known are {', '.join(map(str, VERSIONS))}: convert it again "
                    "with a llama.cpp of today"
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(data).pairs()
    except OSError as error:
        raise ModelFolderError(f"{path}: {error.strerror or error}") from None
    except (struct.error, UnicodeDecodeError, KeyError, RecursionError, EOFError):
        raise ModelFolderError(
            f"{path}: its metadata cannot be read, the file is cut off or damaged; fetch it again"
        ) from None


def check_language_model(path: Path, metadata: dict[str, Any]) -> None:
    """Raise ModelFolderError for a vision tower where a language model is wanted."""
    if metadata.get("general.architecture") == _EYES:
        raise ModelFolderError(
            f"{path} is a vision tower (mmproj); name the language model first: MODEL.gguf,{path.name}"
        )


def check_eyes(path: Path, metadata: dict[str, Any]) -> None:
    """Raise ModelFolderError for anything but a vision tower."""
    found = metadata.get("general.architecture")
    if found != _EYES:
        raise ModelFolderError(
            f"{path} holds a model of type {found!r}, not a vision tower; give the mmproj file that was converted with "
            "the model"
        )


class _Reader:
    """Walks over the metadata of a file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 16  # behind magic, version and the number of tensors

    def pairs(self) -> dict[str, Any]:
        """Return all keys with their values."""
        found = {}
        for _ in range(self._number("Q")):
            key = self._string()
            found[key] = self._value(self._number("I"))
        return found

    def _number(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(f"<{form}")
        return value

    def _string(self) -> str:
        size = self._number("Q")
        end = self._at + size
        if end > len(self._data):
            raise EOFError
        text = self._data[self._at : end]
        self._at = end
        return text.decode("utf-8", "surrogateescape")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._number(_SCALARS[kind])
        of, count = self._number("I"), self._number("Q")
        if count > len(self._data):
            raise EOFError
        if of in _SCALARS:
            return list(self._numbers(_SCALARS[of], count))
        return [self._value(of) for _ in range(count)]

    def _numbers(self, form: str, count: int) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{count}{form}", self._data, self._at)
        self._at += struct.calcsize(f"<{count}{form}")
        return values
