"""What a replay measured: one line of JSON per (bag, frame, mode, round trip), appended as it goes and read back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from edge_drafter import DecodingStats
from evaluation.journal import Journal

TARGET_ALONE = "target"
"""Stands for a mode where the target model answered by itself, without edge or link."""
STEPS = "steps"
"""Name of the journal in the output folder."""
_STATS = {field.name for field in fields(DecodingStats)}


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
    prompt: str
    tokens: tuple[int, ...]
    text: str
    action: str
    oracle: str
    rtt_s: float
    stats: DecodingStats

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Step:
        """Return the step of `dataclasses.asdict`, read back from JSON. Raises LookupError or TypeError for others."""
        stats = {name: value for name, value in data["stats"].items() if name in _STATS}
        stats["early_hits"] = {int(layer): count for layer, count in stats["early_hits"].items()}
        changed = {
            "frame": FrameKey(**data["frame"]),
            "arm": Arm(**data["arm"]),
            "tokens": tuple(data["tokens"]),
            "stats": DecodingStats(**stats),
        }
        return cls(**{**data, **changed})


class Results:
    """The steps of one output folder. An interrupted run goes on where it stood, with the same settings only."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], restart: bool = False) -> None:
        """Open or create. Raises ValueError as `Journal` does, and for a line that is no step."""
        self._journal = Journal(folder, STEPS, settings, restart)
        self._file = folder / f"{STEPS}.jsonl"
        self._done = {(step.frame, step.arm) for step in self._read()}

    def __contains__(self, key: tuple[FrameKey, Arm]) -> bool:
        return key in self._done

    def __len__(self) -> int:
        return len(self._done)

    def add(self, step: Step) -> None:
        """Append a step; it is in the file when this returns."""
        self._journal.add(asdict(step))
        self._done.add((step.frame, step.arm))

    def steps(self) -> list[Step]:
        """Return all steps, by frame and arm, whatever order they were measured in."""
        return sorted(self._read(), key=lambda step: (step.frame.bag, step.frame.index, step.arm.mode, step.arm.rtt_ms))

    def _read(self) -> Iterator[Step]:
        for number, piece in enumerate(self._journal.pieces(), start=1):
            try:
                yield Step.from_dict(piece)
            except (ValueError, LookupError, TypeError) as error:
                raise ValueError(
                    f"{self._file}, line {number} is no step ({error!r}); say --restart to begin anew"
                ) from None


def arms_of(modes: Sequence[str], rtts_ms: Sequence[float]) -> list[Arm]:
    """Return every mode with every round trip; mode `edge` has no link, so it comes once."""
    return [Arm(mode, rtt) for rtt in rtts_ms for mode in modes if mode != "edge" or rtt == rtts_ms[0]]
