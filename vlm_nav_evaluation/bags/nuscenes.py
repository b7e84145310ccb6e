"""nuScenes-like data: JSON tables that link camera pictures in files, read in order of time.

    v1.0-mini/sensor.json               channels: CAM_FRONT, CAM_BACK, LIDAR_TOP, ...
    v1.0-mini/calibrated_sensor.json    which mounted sensor is which channel
    v1.0-mini/sample.json               the moments that were annotated, about two a second
    v1.0-mini/sample_data.json          a file per sensor and moment, and those between
    samples/CAM_FRONT/*.jpg             the pictures

The tables may also lie beside the pictures. Source: the schema of nuScenes (Caesar et al., arXiv 1903.11027). Pictures
of the moments (`is_key_frame`) are read, those between (`sweeps/`) are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from adapters_training.sources import LeftOut, Shot
from speculation.images import file_jpeg

CAMERA = "CAM_FRONT"
SENSORS, MOUNTED, SAMPLES, DATA = "sensor.json", "calibrated_sensor.json", "sample.json", "sample_data.json"


class _Sensor(msgspec.Struct):
    token: str
    channel: str
    modality: str


class _Mounted(msgspec.Struct):
    token: str
    sensor_token: str


class _Sample(msgspec.Struct):
    token: str


class _Data(msgspec.Struct):
    sample_token: str
    calibrated_sensor_token: str
    timestamp: int
    """Microseconds."""
    filename: str
    is_key_frame: bool = True


Row = TypeVar("Row", _Sensor, _Mounted, _Sample, _Data)


def tables(folder: Path) -> Path | None:
    """Return the folder of the tables of a data set: itself, or its only `v*` folder with them; None where it has none.

    Raises ValueError for a folder with several versions.
    """
    if (folder / DATA).is_file():
        return folder
    found = sorted(path.parent for path in folder.glob(f"v*/{DATA}"))
    if len(found) > 1:
        raise ValueError(
            f"{folder} has several versions ({', '.join(path.name for path in found)}); give a folder with one, and "
            "samples/ beside it"
        )
    return found[0] if found else None


class NuScenes:
    """The pictures of one camera. The tables' rows of that camera are in memory, the pictures are not.

    `camera` is a channel, CAM_FRONT by default. Raises ValueError, in one sentence naming file and field, for tables
    that cannot be read.
    """

    def __init__(self, folder: Path, camera: str = "") -> None:
        path = tables(folder)
        if path is None:
            raise ValueError(f"{folder} has no {DATA}, neither in itself nor in a folder v*")
        self.folder, self.camera = folder, camera or CAMERA
        sensors = _read(path / SENSORS, _Sensor)
        cameras = [sensor.channel for sensor in sensors if sensor.modality == "camera"]
        if self.camera not in cameras:
            raise ValueError(f"{path / SENSORS} has no camera {self.camera}; its cameras are {', '.join(cameras)}")
        channels = {sensor.token for sensor in sensors if sensor.channel == self.camera}
        mounted = {row.token for row in _read(path / MOUNTED, _Mounted) if row.sensor_token in channels}
        self._samples = {row.token for row in _read(path / SAMPLES, _Sample)}
        rows = [row for row in _read(path / DATA, _Data) if row.calibrated_sensor_token in mounted and row.is_key_frame]
        self._rows = sorted(rows, key=lambda row: (row.timestamp, row.filename))
        self._data = path / DATA
        self.count = len(self._rows)
        self.seconds = (self._rows[-1].timestamp - self._rows[0].timestamp) * 1e-6 if self._rows else 0.0

    def shots(self) -> Iterator[Shot | LeftOut]:
        """Yield the pictures in order of time; one of no known sample is a `LeftOut`."""
        for index, row in enumerate(self._rows):
            if row.sample_token not in self._samples:
                yield LeftOut(f"{self._data}: sample_token {row.sample_token!r} is not in {SAMPLES}", index)
            else:
                yield Shot(index, row.timestamp * 1000, partial(self._picture, row.filename))

    def _picture(self, name: str) -> bytes:
        path = (self.folder / name).resolve()
        if not path.is_relative_to(self.folder.resolve()):
            raise ValueError(f"{self._data}: filename {name!r} leads out of {self.folder}")
        try:
            return file_jpeg(path.read_bytes(), path.suffix.lstrip("."))
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def _read(path: Path, kind: type[Row]) -> list[Row]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[kind])  # type: ignore[valid-type]
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ValueError(f"{path}: {error}") from None
