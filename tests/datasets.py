"""Small data sets for tests, laid out as other software writes them: LeRobot v3."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

FPS = 10
CAMERA = "observation.images.front"
Walk = tuple[str, Sequence[npt.NDArray[np.uint8]]]
"""A task and the frames of an episode, RGB [H, W, 3]."""


def shades(count: int, first: int = 0, size: tuple[int, int] = (48, 64)) -> list[npt.NDArray[np.uint8]]:
    """Return grey frames, each 12 brighter than the one before: which is which survives any encoder."""
    return [np.full((*size, 3), 12 * (first + index) + 10, np.uint8) for index in range(count)]


def shade(pixels: npt.NDArray[np.uint8]) -> int:
    """Return which of `shades` a frame is."""
    return round((float(pixels.mean()) - 10) / 12)


def video(path: Path, frames: Sequence[npt.NDArray[np.uint8]]) -> None:
    """Encode frames as LeRobot does: a key frame every second one."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=FPS, options={"g": "2", "crf": "10"})
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt, stream.time_base = "yuv420p", Fraction(1, FPS)
        for index, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    return bytes(cv2.imencode(".png", pixels[..., ::-1])[1])


def lerobot(
    folder: Path, walks: Sequence[Walk], stored: str = "video", per_file: int = 2, answers: Sequence[str] = ()
) -> Path:
    """Write a LeRobot v3 data set and return its folder.

    stored: 'video', or 'bytes' or 'path' of pictures in the tables; per_file: episodes in a file of rows or frames;
    answers: one a frame, in a feature of its own.
    """
    import pyarrow
    from pyarrow import parquet

    def write(name: str, columns: dict[str, Any]) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.table(columns), folder / name)

    height, width = walks[0][1][0].shape[:2]
    tasks = list(dict.fromkeys(task for task, _ in walks))
    features: dict[str, Any] = {
        "action": {"dtype": "float32", "shape": [3], "names": ["vx", "vy", "wz"]},
        "observation.depth": {"dtype": "video", "shape": [1, 1, 1], "info": {"video.is_depth_map": True}},
        CAMERA: {"dtype": "video" if stored == "video" else "image", "shape": [height, width, 3],
                 "names": ["height", "width", "channels"], "info": {"video.fps": FPS}},
        "timestamp": {"dtype": "float32", "shape": [1], "names": None},
        "episode_index": {"dtype": "int64", "shape": [1], "names": None},
        "task_index": {"dtype": "int64", "shape": [1], "names": None},
    }  # fmt: skip
    if answers:
        features["answer"] = {"dtype": "string", "shape": [1], "names": None}
    info = {
        "codebase_version": "v3.0", "robot_type": "go2", "fps": FPS, "features": features,
        "total_episodes": len(walks), "total_frames": sum(len(frames) for _, frames in walks),
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }  # fmt: skip
    (folder / "meta").mkdir(parents=True)
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    write("meta/tasks.parquet", {"task_index": range(len(tasks)), "__index_level_0__": tasks})
    episodes: dict[str, list[Any]] = {}
    count = 0
    for first in range(0, len(walks), per_file):
        file, shown = first // per_file, list[npt.NDArray[np.uint8]]()
        rows: dict[str, list[Any]] = {name: [] for name in ("timestamp", "episode_index", "task_index", "action")}
        pictures: list[dict[str, Any]] = []
        for number, (task, frames) in enumerate(walks[first : first + per_file], first):
            entry = {
                "episode_index": number, "tasks": [task], "length": len(frames), "data/chunk_index": 0,
                "data/file_index": file, "dataset_from_index": count, "dataset_to_index": count + len(frames),
                f"videos/{CAMERA}/chunk_index": 0, f"videos/{CAMERA}/file_index": file,
                f"videos/{CAMERA}/from_timestamp": len(shown) / FPS,
                f"videos/{CAMERA}/to_timestamp": (len(shown) + len(frames)) / FPS,
            }  # fmt: skip
            for name, value in entry.items():
                episodes.setdefault(name, []).append(value)
            for index, pixels in enumerate(frames):
                rows["timestamp"].append(index / FPS)
                rows["episode_index"].append(number)
                rows["task_index"].append(tasks.index(task))
                rows["action"].append([0.5, 0.0, 0.1])
                name = f"images/frame-{count + index:06d}.png"
                pictures.append({"bytes": png(pixels) if stored == "bytes" else None, "path": name})
                if stored == "path":
                    (folder / "images").mkdir(exist_ok=True)
                    (folder / name).write_bytes(png(pixels))
            shown += frames
            count += len(frames)
        columns: dict[str, Any] = dict(rows)
        columns["timestamp"] = pyarrow.array(rows["timestamp"], pyarrow.float32())
        if stored == "video":
            video(folder / "videos" / CAMERA / "chunk-000" / f"file-{file:03d}.mp4", shown)
        else:
            kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
            columns[CAMERA] = pyarrow.array(pictures, kind)
        if answers:
            columns["answer"] = list(answers[count - len(shown) : count])
        write(f"data/chunk-000/file-{file:03d}.parquet", columns)
    write("meta/episodes/chunk-000/file-000.parquet", episodes)
    return folder
