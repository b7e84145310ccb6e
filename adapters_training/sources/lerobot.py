"""LeRobot data sets, format v3: tables in parquet files, camera frames in them or in mp4 videos.

    meta/info.json                               format, frames per second, features, names of files
    meta/tasks.parquet                           texts of the tasks, by `task_index`
    meta/episodes/chunk-000/file-000.parquet     where each episode's rows and frames are
    data/chunk-000/file-000.parquet              a row per frame: `timestamp`, `episode_index`, `task_index`, ...
    videos/KEY/chunk-000/file-000.mp4            the frames of camera KEY, many episodes in a file

Source: "LeRobotDataset v3.0" of huggingface/lerobot. The task is the instruction. `action` is not used: it holds what a
controller was given (joint positions, velocities), not which of this project's actions was right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from adapters_training.sources import LeftOut, Shot
from speculation.images import file_jpeg, pixels_jpeg
from speculation.optional_packages import need

INFO = Path("meta") / "info.json"
TASKS = Path("meta") / "tasks.parquet"
EPISODES = Path("meta") / "episodes"
VERSION = "v3."
_NAMELESS = "__index_level_0__"
"""What pandas calls the column of an index without a name."""
_ROWS = 64
"""Rows of a table in memory at a time: with images in them they are large."""
_SEEK_S = 5.0
"""A frame that far ahead is sought; a nearer one is reached by decoding what lies between."""


class _Feature(msgspec.Struct):
    dtype: str
    info: dict[str, Any] | None = None
    video_info: dict[str, Any] | None = None

    @property
    def is_camera(self) -> bool:
        """Whether these are pictures; depth maps are none."""
        more = {**(self.video_info or {}), **(self.info or {})}
        return self.dtype in ("image", "video") and not (more.get("video.is_depth_map") or more.get("is_depth_map"))


class _Info(msgspec.Struct):
    codebase_version: str
    fps: float
    features: dict[str, _Feature]
    data_path: str = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    video_path: str | None = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"


@dataclass(frozen=True)
class _Episode:
    number: int
    length: int
    data: tuple[int, int]
    """Chunk and file in which its rows stand."""
    tasks: tuple[str, ...]
    video: tuple[int, int] | None
    from_s: float
    """Where it begins in its video."""
    start_s: float
    """Where it begins when all episodes follow one another."""


def is_lerobot(path: Path) -> bool:
    """Return whether a folder is laid out as LeRobot does, of whichever version."""
    return (path / INFO).is_file()


class LeRobotData:
    """The frames of one camera of a data set, read file by file.

    `camera` is a key such as 'observation.images.front', or its last part; empty: the first key. Raises ValueError, in
    one sentence naming file and field, for what cannot be read at all; what is missing or damaged later is a `LeftOut`.
    """

    def __init__(self, folder: Path, camera: str = "") -> None:
        try:
            need("lerobot", "pyarrow", "av")
        except ImportError as error:
            raise ValueError(f"{folder} is a LeRobot data set: {error}") from None
        self.folder = folder
        self._info = _read_info(folder / INFO)
        self.cameras = [name for name, feature in self._info.features.items() if feature.is_camera]
        self.camera = self._camera(camera)
        self._in_video = self._info.features[self.camera].dtype == "video"
        self._tasks = self._read_tasks()
        self._episodes = self._read_episodes()
        self.count = sum(episode.length for episode in self._episodes.values())

    @property
    def seconds(self) -> float:
        """How long all episodes take, one after the other."""
        return self.count / self._info.fps

    def shots(self) -> Iterator[Shot | LeftOut]:
        """Yield the frames in order, episode by episode; a file that cannot be read is a `LeftOut`, and so is a row."""
        video: _Video | None = None
        lost = set[str]()
        try:
            for index, row in self._rows():
                if isinstance(row, LeftOut):
                    yield row
                    continue
                try:
                    episode, seconds = self._place(row)
                    jpeg = partial(self._picture, row.get(self.camera))
                    if self._in_video:
                        path = self._video_path(episode)
                        if path in lost:
                            continue
                        if video is None or video.path != path:
                            if video is not None:
                                video.close()
                            try:
                                video = _Video(path, 0.5 / self._info.fps)
                            except ValueError as error:
                                video = None
                                lost.add(path)
                                yield LeftOut(f"{error}; the frames in it are left out")
                                continue
                        jpeg = partial(video.jpeg, episode.from_s + seconds)
                except ValueError as error:
                    yield LeftOut(str(error), index)
                    continue
                stamp_ns = round((episode.start_s + seconds) * 1e9)
                task = self._tasks.get(row.get("task_index", -1), next(iter(episode.tasks), "")).strip()
                yield Shot(index, stamp_ns, jpeg, task)
        finally:
            if video is not None:
                video.close()

    def _camera(self, wanted: str) -> str:
        path, listed = self.folder / INFO, ", ".join(self.cameras) or "none"
        found = [key for key in self.cameras if wanted in ("", key)]
        found = found or [key for key in self.cameras if key.rpartition(".")[2] == wanted]
        if not found:
            what = f"no camera {wanted!r}" if wanted else "no feature of dtype image or video"
            raise ValueError(f"{path} has {what}; its cameras are {listed}")
        return found[0]

    def _read_tasks(self) -> dict[int, str]:
        path = self.folder / TASKS
        rows = _rows_of(path, ["task_index"], ("task", _NAMELESS)) if path.exists() else iter(())
        return {row["task_index"]: str(row.get("task") or row.get(_NAMELESS) or "") for row in rows}

    def _read_episodes(self) -> dict[int, _Episode]:
        paths = sorted((self.folder / EPISODES).glob("*/*.parquet"))
        if not paths:
            raise ValueError(f"{self.folder / EPISODES} holds no parquet file; without it no frame can be found")
        names = ["episode_index", "length", "data/chunk_index", "data/file_index"]
        place = f"videos/{self.camera}/"
        if self._in_video:
            names += [f"{place}{name}" for name in ("chunk_index", "file_index", "from_timestamp")]
        entries = [(path, row) for path in paths for row in _rows_of(path, names, ["tasks"])]
        episodes: dict[int, _Episode] = {}
        count = 0
        for path, row in sorted(entries, key=lambda entry: entry[1]["episode_index"] or 0):
            missing = next((name for name in names if row[name] is None), None)
            if missing is not None:
                raise ValueError(f"{path}: {missing} of episode {row['episode_index']} is empty")
            video = (int(row[f"{place}chunk_index"]), int(row[f"{place}file_index"])) if self._in_video else None
            episodes[int(row["episode_index"])] = _Episode(
                number=int(row["episode_index"]),
                length=int(row["length"]),
                data=(int(row["data/chunk_index"]), int(row["data/file_index"])),
                tasks=tuple(map(str, row.get("tasks") or ())),
                video=video,
                from_s=float(row[f"{place}from_timestamp"]) if video else 0.0,
                start_s=count / self._info.fps,
            )
            count += int(row["length"])
        return episodes

    def _rows(self) -> Iterator[tuple[int, dict[str, Any] | LeftOut]]:
        """Yield every row with the number of its frame, files in the order of their episodes."""
        names = ["timestamp", "episode_index"] + ["task_index"] * ("task_index" in self._info.features)
        names += [self.camera] * (not self._in_video)
        index = 0
        for place, group in groupby(self._episodes.values(), key=lambda episode: episode.data):
            episodes = list(group)
            end = index + sum(episode.length for episode in episodes)
            path = self.folder / self._info.data_path.format(chunk_index=place[0], file_index=place[1])
            try:
                for row in _rows_of(path, names):
                    yield index, row
                    index += 1
            except ValueError as error:
                numbers = f"{episodes[0].number} to {episodes[-1].number}"
                yield index, LeftOut(f"{error}; what was not read of episodes {numbers} is left out")
            # Frames keep their numbers where a file before them is missing.
            index = max(index, end)

    def _place(self, row: dict[str, Any]) -> tuple[_Episode, float]:
        """Return the episode of a row and its time in it. Raises ValueError where it has none."""
        episode, seconds = self._episodes.get(row["episode_index"]), row["timestamp"]
        # Some writers store numbers in lists of one.
        seconds = seconds[0] if isinstance(seconds, list) and len(seconds) == 1 else seconds
        if episode is None:
            raise ValueError(f"episode_index {row['episode_index']} is in no file of {self.folder / EPISODES}")
        if not isinstance(seconds, (int, float)) or not math.isfinite(seconds) or seconds < 0:
            raise ValueError(f"timestamp of a frame of episode {episode.number} is {seconds!r}; seconds are needed")
        return episode, float(seconds)

    def _video_path(self, episode: _Episode) -> str:
        assert episode.video is not None
        chunk, file = episode.video
        name = str(self._info.video_path).format(video_key=self.camera, chunk_index=chunk, file_index=file)
        return str(self.folder / name)

    def _picture(self, stored: Any) -> bytes:
        """Return the JPEG of a picture in a table: a struct of the file's bytes, or of its path in the data set."""
        data, name = (stored.get("bytes"), stored.get("path")) if isinstance(stored, dict) else (stored, None)
        if not isinstance(data, bytes):
            path = (self.folder / str(name)).resolve()
            if not name or not path.is_relative_to(self.folder.resolve()):
                raise ValueError(f"{self.camera} of a frame has neither bytes nor a path inside {self.folder}")
            try:
                data = path.read_bytes()
            except OSError as error:
                raise ValueError(f"{path} cannot be read: {error.strerror}") from None
        try:
            return file_jpeg(data, Path(str(name)).suffix.lstrip(".") if name else "")
        except ValueError as error:
            raise ValueError(f"{self.camera}: {error}") from None


class _Video:
    """An mp4 whose frames are asked for by their time, best in order."""

    def __init__(self, path: str, tolerance_s: float) -> None:
        import av

        # FFmpeg's complaints about a damaged file; what matters is raised.
        av.logging.set_level(None)
        self.path, self._tolerance_s = path, tolerance_s
        self._errors: tuple[type[Exception], ...] = (av.error.FFmpegError, OSError, ValueError)
        self._decoder: Iterator[Any] | None = None
        self._frame: Any = None
        try:
            self._container: Any = av.open(path)
        except self._errors as error:
            raise ValueError(f"video {path} cannot be read: {_words_of(error)}") from None
        if not self._container.streams.video:
            self.close()
            raise ValueError(f"video {path} cannot be read: it has no video stream")
        self._stream: Any = self._container.streams.video[0]

    def close(self) -> None:
        """Close the file. Frames that were not asked for cannot be read any more."""
        self._container.close()

    def jpeg(self, seconds: float) -> bytes:
        """Return the frame that is shown at a time of the video. Raises ValueError where none can be read."""
        try:
            frame = self._at(seconds)
        except self._errors as error:
            # The next one is sought anew: behind a damaged part frames may be good again.
            self._decoder = self._frame = None
            raise ValueError(
                f"video {self.path} has no readable frame at {seconds:.3f} s: {_words_of(error)}"
            ) from None
        return pixels_jpeg(frame.to_ndarray(format="rgb24"))

    def _at(self, seconds: float) -> Any:
        shown = self._frame.time if self._frame is not None else None
        if shown is None or not shown - self._tolerance_s <= seconds <= shown + _SEEK_S:
            start = self._stream.start_time or 0
            target = int((seconds - self._tolerance_s) / self._stream.time_base)
            self._container.seek(max(start, target), stream=self._stream, backward=True)
            self._decoder, self._frame = self._container.decode(self._stream), None
        while self._frame is None or self._frame.time < seconds - self._tolerance_s:
            assert self._decoder is not None
            self._frame = next(self._decoder, None)
            if self._frame is None:
                raise ValueError("it ends before")
        if self._frame.time > seconds + self._tolerance_s:
            raise ValueError(f"the next is at {self._frame.time:.3f} s")
        return self._frame


def _words_of(error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error)
    return " ".join(str(reason).split()).rstrip(".") or type(error).__name__


def _read_info(path: Path) -> _Info:
    try:
        info = msgspec.json.decode(path.read_bytes(), type=_Info)
    except (OSError, msgspec.MsgspecError, UnicodeError) as error:
        raise ValueError(f"{path} describes no LeRobot data set: {_words_of(error)}") from None
    if not info.codebase_version.startswith(VERSION):
        raise ValueError(
            f"{path}: codebase_version is {info.codebase_version!r} and v3.0 is read; convert the data set with "
            "LeRobot's convert_dataset_v21_to_v30"
        )
    if not 0 < info.fps < math.inf:
        raise ValueError(f"{path}: fps is {info.fps}; frames per second must be above 0")
    for name, template in (("data_path", info.data_path), ("video_path", info.video_path or "")):
        try:
            template.format(video_key="", chunk_index=0, file_index=0)
        except (LookupError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{path}: {name} is {template!r}, which is no template of chunk_index and file_index ({error})"
            ) from None
    return info


def _rows_of(path: Path, names: list[str], others: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the rows of a parquet file with these columns, and `others` where it has them.

    Raises ValueError, naming the file, where it cannot be read or lacks a column.
    """
    import pyarrow
    from pyarrow import parquet

    if not path.is_file():
        raise ValueError(f"{path} is missing")
    try:
        with parquet.ParquetFile(path) as table:
            there = table.schema_arrow.names
            missing = [name for name in names if name not in there]
            if missing:
                raise ValueError(f"{path} has no column {', '.join(missing)}; it has {', '.join(there)}")
            columns = names + [name for name in others if name in there]
            for batch in table.iter_batches(batch_size=_ROWS, columns=columns):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read: {_words_of(error)}") from None
