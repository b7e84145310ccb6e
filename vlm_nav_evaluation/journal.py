"""What a long evaluation has finished, one JSON line a piece, so that the same command goes on where it ended."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class Journal:
    """The pieces in `folder`, which belong to one set of settings; `restart` throws away what is there.

    Raises ValueError, naming what differs, where the settings changed.
    """

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any], restart: bool = False) -> None:
        self._path = folder / f"{name}.jsonl"
        note = folder / f"{name}.settings.json"
        if restart:
            self._path.unlink(missing_ok=True)
            note.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        written = json.dumps(settings, indent=1)
        if note.exists():
            _check(note, json.loads(written))
        else:
            note.write_text(written + "\n", encoding="utf-8")
        if self._path.exists():
            self._cut_off_half_a_line()

    def add(self, piece: Mapping[str, Any]) -> None:
        """Append a finished piece; it is in the file, and nowhere else, when this returns."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(piece) + "\n")

    def pieces(self) -> Iterator[dict[str, Any]]:
        """Yield what is finished, in the order in which it was."""
        if self._path.exists():
            with self._path.open(encoding="utf-8") as lines:
                yield from (dict(json.loads(line)) for line in lines)

    def _cut_off_half_a_line(self) -> None:
        """Remove a line that was not written to its end when the process was killed: it would spoil the next one."""
        whole = 0
        with self._path.open("r+b") as file:
            for line in file:
                try:
                    dict(json.loads(line))
                except ValueError:
                    break
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
            file.truncate(whole)


def _check(note: Path, settings: dict[str, Any]) -> None:
    try:
        before = dict(json.loads(note.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise ValueError(f"{note} is no JSON object; begin again with --restart") from None
    names = [name for name in {**before, **settings} if before.get(name) != settings.get(name)]
    if names:
        changes = ", ".join(f"{name} was {before.get(name)} and is {settings.get(name)}" for name in names)
        raise ValueError(
            f"{note.parent} holds results with other settings: {changes}; give another folder, or throw the old ones "
            "away with --restart"
        )
