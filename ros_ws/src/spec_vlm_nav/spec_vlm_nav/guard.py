"""The collision guard: no speed ahead where something stands in the way, and less where something is near.

Zones are polygons in base_link (REP 103: metres, x ahead, y left, z up, origin at the centre of the body), as those of
nav2's collision monitor; by default rectangles ahead of the robot. A source that is silent or wrong stops the robot as
an obstacle does: what is not seen may be there. Turning on the spot, going back and going sideways are never limited.
No ROS; messages are read by their fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from spec_vlm_nav.diagnostics import Arrivals, Level, Status
from spec_vlm_nav.safety import Velocity, Watchdog
from speculation.settings import check

Points: TypeAlias = npt.NDArray[np.float64]

_METRES = "m, in base_link"
_RADIANS = "rad, fixed axes x, y, z in this order, as in URDF"
FARTHEST = 10.0
"""Metres: no zone needs a corner farther away."""
_NUMBERS = {7: "f4", 8: "f8"}
"""`PointField.datatype` of what coordinates can be."""


class GuardSettings(msgspec.Struct, frozen=True):
    """What the guard sees with, where that is mounted, and its zones. Raises ValueError, naming the field."""

    guard: Annotated[
        Literal["off", "cloud", "scan", "range"],
        Meta(description="sensor of the collision guard: PointCloud2, LaserScan, Range, or off"),
    ] = "off"
    guard_timeout: Annotated[
        float, Meta(ge=0.05, le=2.0, description="silence of the sensor that ends motion ahead, s")
    ] = 0.5
    guard_x: Annotated[float, Meta(ge=-2.0, le=2.0, description=f"where the sensor is, ahead, {_METRES}")] = 0.0
    guard_y: Annotated[float, Meta(ge=-2.0, le=2.0, description=f"where the sensor is, left, {_METRES}")] = 0.0
    guard_z: Annotated[float, Meta(ge=-2.0, le=2.0, description=f"where the sensor is, up, {_METRES}")] = 0.0
    guard_roll: Annotated[float, Meta(ge=-3.15, le=3.15, description=f"how it is turned about x, {_RADIANS}")] = 0.0
    guard_pitch: Annotated[float, Meta(ge=-3.15, le=3.15, description=f"how it is turned about y, {_RADIANS}")] = 0.0
    guard_yaw: Annotated[float, Meta(ge=-3.15, le=3.15, description=f"how it is turned about z, {_RADIANS}")] = 0.0
    guard_low: Annotated[
        float, Meta(ge=-2.0, le=2.0, description=f"what is lower counts as floor, {_METRES}: -0.33 is a Go2's floor")
    ] = -0.22
    guard_high: Annotated[float, Meta(ge=-2.0, le=2.0, description=f"what is higher is passed under, {_METRES}")] = 0.25
    guard_from: Annotated[
        float, Meta(ge=0.0, le=2.0, description=f"where both zones begin, {_METRES}: what is nearer is the robot")
    ] = 0.36
    guard_half_width: Annotated[float, Meta(ge=0.05, le=2.0, description="half the width of both zones, m")] = 0.22
    stop_ahead: Annotated[float, Meta(ge=0.05, le=5.0, description="length of the stop zone, m")] = 0.25
    slow_ahead: Annotated[float, Meta(ge=0.05, le=5.0, description="length of the slow-down zone, m")] = 0.7
    slow_ratio: Annotated[
        float, Meta(ge=0.3, le=1.0, description="part of the speed in the slow-down zone; less would look blocked")
    ] = 0.5
    stop_polygon: Annotated[
        str, Meta(description=f"the stop zone instead of the rectangle, as nav2 has it, [[x, y], ...], {_METRES}")
    ] = ""
    slow_polygon: Annotated[
        str, Meta(description=f"the slow-down zone instead of the rectangle, [[x, y], ...], {_METRES}")
    ] = ""
    guard_points: Annotated[
        int, Meta(ge=1, le=1000, description="points in a zone that count as something; of a Range one is enough")
    ] = 4

    def __post_init__(self) -> None:
        check(self)
        if not self.guard_low < self.guard_high:
            raise ValueError(f"guard_low {self.guard_low:g} is not below guard_high {self.guard_high:g}")
        if self.slow_ahead < self.stop_ahead:
            raise ValueError(f"slow_ahead {self.slow_ahead:g} is less than stop_ahead {self.stop_ahead:g}")
        for name in ("stop_polygon", "slow_polygon"):
            if getattr(self, name):
                _polygon(name, getattr(self, name))

    @property
    def zones(self) -> tuple[Points, Points]:
        """Corners [k, 2] of the stop zone and of the slow-down zone."""
        stop = _polygon("stop_polygon", self.stop_polygon) if self.stop_polygon else self._rectangle(self.stop_ahead)
        slow = _polygon("slow_polygon", self.slow_polygon) if self.slow_polygon else self._rectangle(self.slow_ahead)
        return stop, slow

    def _rectangle(self, ahead: float) -> Points:
        near, far, side = self.guard_from, self.guard_from + ahead, self.guard_half_width
        return np.array([[near, -side], [far, -side], [far, side], [near, side]])


class Guard:
    """Limits velocities by what the newest message of its sensor shows. Time: steady clock, seconds."""

    def __init__(self, settings: GuardSettings) -> None:
        self._settings = settings
        self._watchdog = Watchdog(settings.guard_timeout)
        self._arrivals = Arrivals()
        self._turn = _rotation(settings.guard_roll, settings.guard_pitch, settings.guard_yaw)
        self._place = np.array([settings.guard_x, settings.guard_y, settings.guard_z])
        self._zones = settings.zones
        self._counts = (0, 0)
        self._fault = ""
        self._enough = 1 if settings.guard == "range" else settings.guard_points

    def on_message(self, message: Any, now: float) -> str:
        """Take a message of the sensor; return what is wrong with it, in a sentence, empty if nothing is."""
        try:
            points = READERS[self._settings.guard][1](message)
        except ValueError as error:
            self._fault = str(error)
        else:
            self._fault = ""
            self.see(points, now)
        return self._fault

    def see(self, points: Points, now: float) -> None:
        """Take points [n, 3] in the sensor's frame, metres; those that are not finite are left out."""
        chosen, ahead = self._settings, points[np.isfinite(points).all(axis=1)] @ self._turn.T + self._place
        standing = ahead[(ahead[:, 2] >= chosen.guard_low) & (ahead[:, 2] <= chosen.guard_high), :2]
        stop, slow = self._zones
        self._counts = int(_within(stop, standing).sum()), int(_within(slow, standing).sum())
        self._watchdog.feed(now)
        self._arrivals.note(now)

    def limit(self, velocity: Velocity, now: float) -> Velocity:
        """Return `velocity` with as much speed ahead as the zones allow."""
        if velocity.vx <= 0.0:
            return velocity
        return replace(velocity, vx=velocity.vx * self._share(now))

    def health(self, now: float) -> Status:
        """Return what `/diagnostics` reports."""
        share = self._share(now)
        level, message = Level.OK, "the way ahead is free"
        if self._watchdog.expired(now):
            level = Level.ERROR
            message = self._fault or f"no motion ahead: the sensor ({self._settings.guard}) is silent"
        elif not share:
            level, message = Level.WARN, "no motion ahead: something is in the stop zone"
        elif share < 1.0:
            level, message = Level.WARN, "slower: something is in the slow-down zone"
        stop, slow = self._counts
        values = {"messages a second": self._arrivals.rate(now), "points to stop": stop, "points to slow down": slow}
        return Status("guard", level, message, values)

    def _share(self, now: float) -> float:
        stop, slow = self._counts
        if self._watchdog.expired(now) or stop >= self._enough:
            return 0.0
        return self._settings.slow_ratio if slow >= self._enough else 1.0


def cloud_points(message: Any) -> Points:
    """Return the points [n, 3] of a sensor_msgs/PointCloud2.

    Raises ValueError for one without float x, y and z, with less data than its fields claim, or without any finite
    point: a lidar that works sees at least the floor.
    """
    offsets, formats = [], []
    order = ">" if message.is_bigendian else "<"
    fields = {field.name: field for field in message.fields}
    for name in "xyz":
        field = fields.get(name)
        if field is None or field.datatype not in _NUMBERS:
            raise ValueError(f"the cloud has no field {name} of type FLOAT32 or FLOAT64")
        offsets.append(field.offset)
        formats.append(order + _NUMBERS[field.datatype])
    width, height, step, row = message.width, message.height, message.point_step, message.row_step
    if step < max(offset + int(kind[2]) for offset, kind in zip(offsets, formats, strict=True)) or row < width * step:
        raise ValueError(f"the cloud's point_step {step} or row_step {row} is too small for its fields")
    data = np.frombuffer(message.data, np.uint8)
    if len(data) < height * row:
        raise ValueError(f"the cloud has {len(data)} bytes of {height * row}")
    rows = data[: height * row].reshape(height, row)[:, : width * step]
    kind = np.dtype({"names": list("xyz"), "formats": formats, "offsets": offsets, "itemsize": step})
    records = np.ascontiguousarray(rows).reshape(-1).view(kind)
    points = np.stack([records[name].astype(np.float64) for name in "xyz"], axis=-1)
    points = points[np.isfinite(points).all(axis=1)]
    if not len(points):
        raise ValueError("the cloud has no point")
    return points


def scan_points(message: Any) -> Points:
    """Return the points [n, 3] of a sensor_msgs/LaserScan, at z 0; rays that hit nothing give none.

    Raises ValueError for one whose rays are all NaN, or none, and for figures by which no ray could hit anything.
    """
    ranges = np.asarray(message.ranges, np.float64)
    if np.isnan(ranges).all():
        raise ValueError("the scan has no ray")
    if not 0.0 <= message.range_min < message.range_max:
        raise ValueError(f"the scan has range_min {message.range_min:g} and range_max {message.range_max:g}")
    if not (math.isfinite(message.angle_min) and math.isfinite(message.angle_increment) and message.angle_increment):
        raise ValueError(f"the scan has angle_min {message.angle_min:g}, angle_increment {message.angle_increment:g}")
    angles = message.angle_min + message.angle_increment * np.arange(len(ranges))
    # REP 117: what is too near to measure is -inf.
    ranges = np.where(np.isneginf(ranges), message.range_min, ranges)
    hit = (ranges >= message.range_min) & (ranges <= message.range_max)
    ranges, angles = ranges[hit], angles[hit]
    return np.stack([ranges * np.cos(angles), ranges * np.sin(angles), np.zeros(len(ranges))], axis=-1)


def range_points(message: Any) -> Points:
    """Return the point [1, 3] straight ahead of a sensor_msgs/Range, or [0, 3] where nothing is in its range.

    Raises ValueError for NaN, and for limits that no distance is within.
    """
    distance = float(message.range)
    if math.isnan(distance):
        raise ValueError("the range is not a number")
    if not (0.0 <= message.min_range <= message.max_range and message.max_range > 0.0):
        raise ValueError(f"the range has min_range {message.min_range:g} and max_range {message.max_range:g}")
    if distance > message.max_range:
        return np.zeros((0, 3))
    return np.array([[max(distance, float(message.min_range)), 0.0, 0.0]])


READERS: dict[str, tuple[str, Callable[[Any], Points]]] = {
    "cloud": ("sensor_msgs/msg/PointCloud2", cloud_points),
    "scan": ("sensor_msgs/msg/LaserScan", scan_points),
    "range": ("sensor_msgs/msg/Range", range_points),
}
"""Message type and reader of each sensor, by the setting `guard`."""


def _polygon(name: str, text: str) -> Points:
    try:
        corners = msgspec.json.decode(text.encode(), type=list[tuple[float, float]])
    except msgspec.MsgspecError as error:
        raise ValueError(f"{name} {text!r} is not [[x, y], ...]: {error}") from None
    if len(corners) < 3 or any(abs(each) > FARTHEST for corner in corners for each in corner):
        raise ValueError(f"{name} {text!r} needs three corners or more, each within {FARTHEST:g} m")
    return np.array(corners)


def _within(corners: Points, points: Points) -> npt.NDArray[np.bool_]:
    """Return which of the points [n, 2] are in a polygon [k, 2] -> [n]: whose way to the left crosses an odd number."""
    (x, y), (ends_x, ends_y) = corners.T, np.roll(corners, -1, axis=0).T
    left, up = points[:, :1], points[:, 1:]
    rise = np.where(ends_y == y, 1.0, ends_y - y)
    crossed = ((y > up) != (ends_y > up)) & (left < x + (up - y) / rise * (ends_x - x))
    inside: npt.NDArray[np.bool_] = crossed.sum(axis=1) % 2 == 1
    return inside


def _rotation(roll: float, pitch: float, yaw: float) -> Points:
    (cr, sr), (cp, sp), (cy, sy) = ((math.cos(angle), math.sin(angle)) for angle in (roll, pitch, yaw))
    about_x = np.array([[1.0, 0.0, 0.0], [0.0, cr, -sr], [0.0, sr, cr]])
    about_y = np.array([[cp, 0.0, sp], [0.0, 1.0, 0.0], [-sp, 0.0, cp]])
    about_z = np.array([[cy, -sy, 0.0], [sy, cy, 0.0], [0.0, 0.0, 1.0]])
    turn: Points = about_z @ about_y @ about_x
    return turn
