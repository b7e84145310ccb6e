"""Recordings of any kind as questions: rosbag2 bags, LeRobot v3 data sets, nuScenes-like folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from adapters_training.sources import LeftOut, Shot
from adapters_training.sources.lerobot import LeRobotData, is_lerobot
from speculation.language.prompts import Vocabulary, compose
from speculation.settings import expanded
from vlm_nav_evaluation.bags.files import BagReader
from vlm_nav_evaluation.bags.frames import BagFrame, FrameSource, Selection, asked_sentence, choose, find_camera
from vlm_nav_evaluation.bags.nuscenes import NuScenes, tables

KINDS = "rosbag2 folder, a single .mcap or .db3, a LeRobot v3 or a nuScenes-like folder"
"""What is read, for help texts."""


class Questions(Protocol):
    """The frames of one recording as questions; may be iterated again and gives the same. A context manager."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: object) -> None: ...

    def __len__(self) -> int:
        """About how many frames come, for a progress bar."""
        ...

    def __iter__(self) -> Iterator[BagFrame | LeftOut]:
        """Yield the frames in order of time."""
        ...


class Dataset(Protocol):
    """A camera's frames that are no bag."""

    camera: str
    count: int

    @property
    def seconds(self) -> float:
        """Time from the first frame to the last."""
        ...

    def shots(self) -> Iterator[Shot | LeftOut]:
        """Yield them in order of time."""
        ...


def open_dataset(path: Path, camera: str = "") -> Dataset | None:
    """Open a folder of a kind that is no bag; None where it is none. Raises ValueError, in one sentence, as they do."""
    path = expanded(path)
    if not path.is_dir():
        return None
    if is_lerobot(path):
        return LeRobotData(path, camera)
    return NuScenes(path, camera) if tables(path) is not None else None


def open_questions(path: Path, selection: Selection, vocabulary: Vocabulary | None = None) -> Questions:
    """Open a recording of any kind. Raises ValueError, in one sentence, for what cannot be read."""
    dataset = open_dataset(path, selection.topic)
    if dataset is None:
        return FrameSource(path, selection, vocabulary)
    return DatasetQuestions(dataset, selection, vocabulary)


def check_recording(path: Path, camera: str, option: str) -> None:
    """Raise ValueError, in one sentence, for what is no recording of any kind or has not the one camera.

    `option` is what names another camera of a bag.
    """
    if open_dataset(path, camera) is None:
        with BagReader(path) as bag:
            find_camera(bag, camera, option)


def files_of(path: Path) -> list[Path]:
    """Return the files whose contents decide which recording it is: of nuScenes-like data the tables alone."""
    path = expanded(path)
    if not path.is_dir():
        return [path]
    root = tables(path)
    return sorted(file for file in (root.glob("*.json") if root is not None else path.rglob("*")) if file.is_file())


def shots_of(dataset: Dataset, left_out: Callable[[LeftOut], None]) -> Iterator[Shot]:
    """Yield the frames of a data set; what is none is handed to `left_out` when its turn comes."""
    for item in dataset.shots():
        if isinstance(item, LeftOut):
            left_out(item)
        else:
            yield item


class DatasetQuestions:
    """The questions of one data set: its own tasks, or the selection's instruction."""

    def __init__(self, dataset: Dataset, selection: Selection, vocabulary: Vocabulary | None) -> None:
        self._dataset, self._selection, self._vocabulary = dataset, selection, vocabulary

    def __enter__(self) -> DatasetQuestions:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held open between two iterations."""

    def __len__(self) -> int:
        return self._selection.expected(self._dataset.count, self._dataset.seconds)

    def __iter__(self) -> Iterator[BagFrame | LeftOut]:
        selection = self._selection
        problems: list[LeftOut] = []
        for shot in choose(shots_of(self._dataset, problems.append), selection):
            yield from problems
            problems.clear()
            instruction = selection.instruction or shot.instruction
            try:
                sentence = asked_sentence(instruction, self._vocabulary)
                jpeg = shot.jpeg()
            except ValueError as error:
                yield LeftOut(str(error), shot.index)
                continue
            prompt = compose(sentence, (), selection.order, selection.guide)
            yield BagFrame(shot.index, shot.stamp_ns, jpeg, instruction, prompt)
        yield from problems
