"""What a replay measured: one line of JSON per (bag, frame, mode, round trip), appended as it goes and read back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from speculation.drafting import DecodingStats
from speculation.prompts import ACTIONS, NavigationAction

TARGET_ALONE = "target"
"""Stands for a mode where the target model answered by itself, without edge or link."""
SETTINGS, STEPS = "settings.json", "steps.jsonl"
_STATS = {field.name for field in fields(DecodingStats)}
_ACTIONS = {action.text: action for action in ACTIONS}


@dataclass(frozen=True)
class Arm:
    """One way of decoding that is compared with others. `rtt_ms` is declared on top of the profile's round trip."""

    mode: str
    rtt_ms: float = 0.0

    @property
    def label(self) -> str:
        """E.g. 'fsd +40 ms'."""
        return f"{self.mode} +{self.rtt_ms:g} ms" if self.rtt_ms else self.mode


@dataclass(frozen=True)
class FrameKey:
    """Which frame: the bag's name in this run, and the frame's number in it."""

    bag: str
    index: int


@dataclass(frozen=True)
class Step:
    """One frame decoded in one arm. `action` and `oracle` are action texts, empty where there is none.

    `stamp_ns`: when the frame was received, by the bag. `image`: digest of its JPEG. `rtt_s`: the link's measured
    round trip, negative if unknown.
    """

    frame: FrameKey
    arm: Arm
    stamp_ns: int
    image: str
    instruction: str
    tokens: tuple[int, ...]
    text: str
    action: str
    oracle: str
    rtt_s: float
    stats: DecodingStats

    def to_json(self) -> str:
        """Return one line."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> Step:
        """Read a line. Raises ValueError or a subclass of LookupError or TypeError for anything else."""
        data = json.loads(line)
        stats = {name: value for name, value in data["stats"].items() if name in _STATS}
        stats["early_hits"] = {int(layer): count for layer, count in stats["early_hits"].items()}
        changed = {
            "frame": FrameKey(**data["frame"]),
            "arm": Arm(**data["arm"]),
            "tokens": tuple(data["tokens"]),
            "stats": DecodingStats(**stats),
        }
        return cls(**{**data, **changed})


def to_action(text: str) -> NavigationAction | None:
    """Return the action of `Step.action` or `Step.oracle`; None for an empty one."""
    return _ACTIONS.get(text)


class Results:
    """The steps of one output folder. An interrupted run goes on where it stood, with the same settings only."""

    def __init__(self, folder: Path, settings: dict[str, Any], restart: bool = False) -> None:
        """Open or create. Raises ValueError, naming the first setting that differs, for results of other settings."""
        folder.mkdir(parents=True, exist_ok=True)
        self._path, note = folder / STEPS, folder / SETTINGS
        if restart:
            self._path.unlink(missing_ok=True)
            note.unlink(missing_ok=True)
        settings = json.loads(json.dumps(settings))
        if note.exists():
            _compare(folder, json.loads(note.read_text(encoding="utf-8")), settings)
        elif self._path.exists() and self._path.stat().st_size:
            raise ValueError(f"{folder} holds results but no {SETTINGS}; choose another --out or say --restart")
        else:
            note.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        self._done = self._repair()
        self._file = self._path.open("a", encoding="utf-8")

    def __contains__(self, key: tuple[FrameKey, Arm]) -> bool:
        return key in self._done

    def __len__(self) -> int:
        return len(self._done)

    def add(self, step: Step) -> None:
        """Append a step; it is on the disk when this returns, as far as this process can tell."""
        self._file.write(step.to_json() + "\n")
        self._file.flush()
        self._done.add((step.frame, step.arm))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def steps(self) -> list[Step]:
        """Return all steps, by frame and arm, whatever order they were measured in."""
        return sorted(
            _read(self._path), key=lambda step: (step.frame.bag, step.frame.index, step.arm.mode, step.arm.rtt_ms)
        )

    def _repair(self) -> set[tuple[FrameKey, Arm]]:
        """Return what is there, and cut off a last line that was not written to its end."""
        if not self._path.exists():
            return set()
        data = self._path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            self._path.write_bytes(whole)
        return {(step.frame, step.arm) for step in _read(self._path)}


def _read(path: Path) -> Iterator[Step]:
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield Step.from_json(line)
            except (ValueError, LookupError, TypeError) as error:
                raise ValueError(f"{path}, line {number} is no step ({error!r}); say --restart to begin anew") from None


def _compare(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    for name in dict.fromkeys([*before, *now]):
        if before.get(name) != now.get(name):
            raise ValueError(
                f"{folder} holds results with {name} = {before.get(name)!r}, now it is {now.get(name)!r}; choose "
                "another --out, or say --restart to throw the old ones away"
            )


def arms_of(modes: Sequence[str], rtts_ms: Sequence[float]) -> list[Arm]:
    """Return every mode with every round trip; mode `edge` has no link, so it comes once."""
    return [Arm(mode, rtt) for rtt in rtts_ms for mode in modes if mode != "edge" or rtt == rtts_ms[0]]
