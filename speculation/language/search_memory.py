"""Remembers a search in a few lines of a prompt: what the robot has looked at, doorways, and where the object was.

A model sees one frame and remembers nothing. The robot does: odometry gives the pose of every frame that was looked at,
and the model's own answers give what stood there ("a doorway on the left, about 2 m away"). `SearchMemory` joins both
and writes them as seen from where the robot stands now:

    Seen: here 3/8, behind 2 m 8/8
    Doors: left 2 m, behind 3 m passed
    Last seen: right 1 m

`Seen` counts, for a place and of eight directions there, those that some frame has shown. A robot that walks on for
long without a new direction, a new doorway or the object gets one more line:

    Searched: nothing new in 24 frames
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple

import msgspec

from speculation.language.prompts import MEMORY_LINE

SIDE_PHRASES: dict[str, tuple[str, ...]] = {
    "left": ("on the left", "to my left"),
    "slightly left": ("slightly left", "a little to the left"),
    "ahead": ("straight ahead", "in front of me"),
    "slightly right": ("slightly right", "a little to the right"),
    "right": ("on the right", "to my right"),
}
"""Sides of a frame, from left to right, and how answers word them."""
GO2_CAMERA = 0.33
"""The Go2's front camera ahead of its base, metres."""
DOORWAY = "doorway"
"""What answers call an opening that leads on."""

_SIDE_BEARINGS = dict(zip(SIDE_PHRASES, map(math.radians, (33.0, 16.0, 0.0, -16.0, -33.0)), strict=True))
"""The middle of each side, at the camera, counter-clockwise."""
_HALF_VIEW = math.radians(42.0)
SECTORS = 8
"""Directions of a place that are counted."""
_NAMES = ("ahead", "ahead left", "left", "behind left", "behind", "behind right", "right", "ahead right")
PLACE_METRES = 1.5
"""Frames that were taken nearer to each other than this belong to one place."""
_SAME_DOOR = 1.3
_THROUGH = 0.55
_LISTED = 3
_DOORS_LINE, _PASSED, _LAST_LINE = "Doors: ", " passed", "Last seen: "
_SEARCHED_LINE = "Searched: "
SEARCHED_FRAMES = 3 * SECTORS
"""A search that has shown nothing new for so many frames, three whole turns' worth, walks in circles. The actions that
a prompt lists are too few to tell."""
_MISSED_BEARING, _MISSED_METRES = math.radians(25.0), 3.0
_PHRASE_SIDES = {phrase: side for side, phrases in SIDE_PHRASES.items() for phrase in phrases}
_WHERE = rf"[^.]*?\b({'|'.join(map(re.escape, _PHRASE_SIDES))})\b[^.]*?\babout (\d+(?:\.5)?) m\b"
_DOOR = re.compile(rf"\b{DOORWAY}\b{_WHERE}", re.IGNORECASE)


def describe_distance(metres: float) -> str:
    """Return a distance as answers name it, in half metres, at least one: '0.5 m', '1 m', '1.5 m' ..."""
    halves = max(1, round(metres * 2))
    return f"{halves // 2} m" if halves % 2 == 0 else f"{halves // 2}.5 m"


def named_place(answer: str, colour: str, object_class: str) -> tuple[float, float] | None:
    """Return where an answer says that an object is (an empty word: any): radians off the axis of its frame,
    counter-clockwise, as they are at a field of view of 90 degrees, and metres from the camera to its surface.

    None where it does not name a side and a distance of it in one sentence, and where both words are empty.
    """
    kind, name = (re.escape(word.lower()) if word else "[a-z]+" for word in (colour, object_class))
    found = re.search(rf"\b{kind} {name}\b{_WHERE}", answer, re.IGNORECASE)
    if found is None or not (colour or object_class):
        return None
    return _SIDE_BEARINGS[_PHRASE_SIDES[found[1].lower()]], float(found[2])


class View(NamedTuple):
    """Where a frame was taken: metres and radians (counter-clockwise) in any frame that stays."""

    x: float
    y: float
    yaw: float


class Place(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Where frames were taken near each other. Raises ValueError for another number of directions."""

    x: float
    y: float
    """Metres, by the odometry that the views have."""
    looked: list[bool]
    """Is true for every direction that some frame has shown, `SECTORS` of them from yaw 0 on."""

    def __post_init__(self) -> None:
        if len(self.looked) != SECTORS:
            raise ValueError(f"a place has not {SECTORS} directions")

    def add(self, view: View) -> None:
        """Note which directions a frame shows."""
        for sector in range(SECTORS):
            if abs(_wrap(sector * math.tau / SECTORS - view.yaw)) <= _HALF_VIEW:
                self.looked[sector] = True

    @property
    def count(self) -> int:
        """Return the number of directions that some frame has shown."""
        return sum(self.looked)


class SearchMemory(msgspec.Struct, forbid_unknown_fields=True):
    """What one search has looked at so far. `look` at each frame, `lines` for its prompt, `read` its answer.

    It may be written to a file as it is. Distances in answers count from the camera, `GO2_CAMERA` ahead of the point
    whose pose is given.
    """

    views: list[View] = []
    places: list[Place] = []
    doors: list[tuple[float, float]] = []
    """Where doorways were seen, in metres."""
    last: tuple[float, float] | None = None
    """Where the object was last seen, in the frame of the views; None: nowhere."""
    in_vain: int = 0
    """Frames since the last one that showed something new."""

    def copy(self) -> SearchMemory:
        """Return another memory of the same: for a frame that may not count in the end."""
        return deepcopy(self)

    def look(self, x: float, y: float, yaw: float) -> None:
        """Note that a frame was taken here: metres, radians. It is `here` until the next one."""
        view = View(x, y, yaw)
        self.views.append(view)
        place = self._place_of(view)
        if place is None:
            place = Place(view.x, view.y, [False] * SECTORS)
            self.places.append(place)
        before = place.count
        place.add(view)
        self.in_vain = self.in_vain + 1 if place.count == before else 0

    def read(self, answer: str, colour: str = "", object_class: str = "") -> None:
        """Note what an answer about the last frame says of doorways and of the object (empty words: any).

        Only things whose side and distance it names count. Raises ValueError before the first `look`.
        """
        for side, metres in _DOOR.findall(answer):
            self.door(_SIDE_BEARINGS[_PHRASE_SIDES[side.lower()]], float(metres))
        found = named_place(answer, colour, object_class)
        if found is None:
            self.missed()
        else:
            self.found(*found)

    def door(self, bearing: float, metres: float) -> None:
        """Note a doorway in the last frame: radians off its axis, counter-clockwise, and metres from the robot."""
        at = self._at(bearing, metres)
        for index, known in enumerate(self.doors):
            if math.dist(at, known) <= _SAME_DOOR:
                self.doors[index] = at
                return
        self.doors.append(at)
        self.in_vain = 0

    def found(self, bearing: float, metres: float) -> None:
        """Note the object in the last frame."""
        self.last = self._at(bearing, metres)
        self.in_vain = 0

    def missed(self) -> None:
        """Note that the last frame does not show the object: a place right ahead and near is no longer where it is."""
        if self.last is None:
            return
        bearing, metres = self._seen_from_here(self.last)
        if abs(bearing) <= _MISSED_BEARING and metres <= _MISSED_METRES:
            self.last = None

    @property
    def metres_to_object(self) -> float:
        """Metres from the robot at its last view to where the object was last seen; infinite where that is nowhere."""
        return math.inf if self.last is None else self._seen_from_here(self.last)[1]

    def lines(self) -> tuple[str, ...]:
        """Return the lines of a prompt, as seen from the last view. Raises ValueError before the first `look`."""
        here = self._place_of(self._here)
        others = sorted(
            (place for place in self.places if place is not here), key=lambda place: place.count, reverse=True
        )[:_LISTED]
        seen = [] if here is None else [f"here {here.count}/{SECTORS}"]
        seen += [f"{self._where((place.x, place.y))} {place.count}/{SECTORS}" for place in others]
        lines = [f"{MEMORY_LINE}{', '.join(seen)}"]
        doors = sorted(self.doors, key=lambda at: (self._passed(at), self._seen_from_here(at)[1]))[:_LISTED]
        if doors:
            texts = (f"{self._where(at)}{_PASSED if self._passed(at) else ''}" for at in doors)
            lines.append(f"{_DOORS_LINE}{', '.join(texts)}")
        if self.last is not None:
            lines.append(f"{_LAST_LINE}{self._where(self.last)}")
        if self.in_vain >= SEARCHED_FRAMES:
            lines.append(f"{_SEARCHED_LINE}nothing new in {self.in_vain} frames")
        return tuple(lines)

    @property
    def _here(self) -> View:
        if not self.views:
            raise ValueError("nothing was looked at yet: call look() with the first frame's pose")
        return self.views[-1]

    def _place_of(self, view: View) -> Place | None:
        near = [(math.dist((place.x, place.y), view[:2]), index) for index, place in enumerate(self.places)]
        distance, index = min(near, default=(math.inf, 0))
        return self.places[index] if distance <= PLACE_METRES else None

    def _at(self, bearing: float, metres: float) -> tuple[float, float]:
        here, along = self._here, self._here.yaw + bearing
        x, y = here.x + GO2_CAMERA * math.cos(here.yaw), here.y + GO2_CAMERA * math.sin(here.yaw)
        return x + metres * math.cos(along), y + metres * math.sin(along)

    def _seen_from_here(self, at: tuple[float, float]) -> tuple[float, float]:
        """Return bearing and distance of a point."""
        here = self._here
        dx, dy = at[0] - here.x, at[1] - here.y
        return _wrap(math.atan2(dy, dx) - here.yaw), math.hypot(dx, dy)

    def _where(self, at: tuple[float, float]) -> str:
        bearing, metres = self._seen_from_here(at)
        sector = round(bearing / (math.tau / SECTORS)) % SECTORS
        return f"{_NAMES[sector]} {round(metres)} m"

    def _passed(self, at: tuple[float, float]) -> bool:
        """Whether the way led through a doorway: some straight piece of it came near."""
        return any(_gap(at, a, b) <= _THROUGH for a, b in zip(self.views, self.views[1:], strict=False))


def all_seen(prompt: str) -> bool:
    """Return whether the memory that a prompt lists leaves nothing to look at: every place was seen all around, every
    doorway passed, and the object is nowhere. False for a prompt without a memory."""
    lines = prompt.split("\n")[1:]
    places = [line.removeprefix(MEMORY_LINE) for line in lines if line.startswith(MEMORY_LINE)]
    doors = [line.removeprefix(_DOORS_LINE) for line in lines if line.startswith(_DOORS_LINE)]
    return (
        bool(places)
        and all(place.endswith(f" {SECTORS}/{SECTORS}") for line in places for place in line.split(", "))
        and all(door.endswith(_PASSED) for line in doors for door in line.split(", "))
        and not any(line.startswith(_LAST_LINE) for line in lines)
    )


def searched_long(prompt: str) -> bool:
    """Return whether a prompt says that the last `SEARCHED_FRAMES` or more showed nothing new."""
    return any(line.startswith(_SEARCHED_LINE) for line in prompt.split("\n")[1:])


def mirrored(line: str) -> str:
    """Return a line of `SearchMemory.lines` with left and right exchanged."""
    return re.sub(r"\b(left|right)\b", lambda word: "right" if word[0] == "left" else "left", line)


def _gap(at: tuple[float, float], a: Sequence[float], b: Sequence[float]) -> float:
    """Return how near the piece of way from `a` to `b` comes to a point."""
    along = (b[0] - a[0], b[1] - a[1])
    length = along[0] ** 2 + along[1] ** 2
    share = 0.0
    if length > 0.0:
        share = min(1.0, max(0.0, ((at[0] - a[0]) * along[0] + (at[1] - a[1]) * along[1]) / length))
    return math.dist(at, (a[0] + share * along[0], a[1] + share * along[1]))


def _wrap(angle: float) -> float:
    return (angle + math.pi) % math.tau - math.pi
