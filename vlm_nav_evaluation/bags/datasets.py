"""Recordings of any kind as questions: rosbag2 bags and LeRobot v3 data sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from adapters_training.sources import LeftOut
from adapters_training.sources.lerobot import LeRobotData, is_lerobot
from speculation.language.prompts import Vocabulary, compose
from speculation.settings import expanded
from vlm_nav_evaluation.bags.files import BagReader
from vlm_nav_evaluation.bags.frames import BagFrame, FrameSource, Selection, asked_sentence, choose, find_camera

KINDS = "rosbag2 folder, a single .mcap or .db3, or a LeRobot v3 folder"
"""What is read, for help texts."""


def open_dataset(path: Path, camera: str = "") -> LeRobotData | None:
    """Open a LeRobot data set; None where a path is none. Raises ValueError, in one sentence, for a damaged one."""
    path = expanded(path)
    return LeRobotData(path, camera) if path.is_dir() and is_lerobot(path) else None


def open_questions(
    path: Path, selection: Selection, vocabulary: Vocabulary | None = None
) -> FrameSource | DatasetQuestions:
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
    """Return the files whose contents decide which recording it is."""
    path = expanded(path)
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


class DatasetQuestions:
    """The questions of one data set: its own tasks, or the selection's instruction.

    As those of a `FrameSource` they may be iterated again and are the same. A context manager.
    """

    def __init__(self, dataset: LeRobotData, selection: Selection, vocabulary: Vocabulary | None) -> None:
        self._dataset, self._selection, self._vocabulary = dataset, selection, vocabulary

    def __enter__(self) -> DatasetQuestions:
        return self

    def __exit__(self, *_: object) -> None:
        """Close nothing: no file is open between two iterations."""

    def __len__(self) -> int:
        return self._selection.expected(self._dataset.count, self._dataset.seconds)

    def __iter__(self) -> Iterator[BagFrame | LeftOut]:
        selection = self._selection
        for shot in choose(self._dataset.shots(), selection):
            if isinstance(shot, LeftOut):
                yield shot
                continue
            instruction = selection.instruction or shot.instruction
            try:
                sentence = asked_sentence(instruction, self._vocabulary)
                jpeg = shot.jpeg()
            except ValueError as error:
                yield LeftOut(str(error), shot.index)
                continue
            prompt = compose(sentence, (), selection.order, selection.guide)
            yield BagFrame(shot.index, shot.stamp_ns, jpeg, instruction, prompt)
