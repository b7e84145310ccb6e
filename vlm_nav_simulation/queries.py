"""What is asked for: queries by colour and class, or by where an object stands, and queries for what is not there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from speculation.language.instructions import Relation, Understood
from speculation.language.prompts import Target
from vlm_nav_simulation.ground_truth import Sighting
from vlm_nav_simulation.objects import CLASSES, COLOURS
from vlm_nav_simulation.scene import Scene

_APART, _IN_LINE, _NEXT_TO, _NEARER = math.radians(8.0), math.radians(10.0), 0.6, 0.6
"""What relations mean, in bearings (radians) and distances (metres)."""


@dataclass(frozen=True)
class Query:
    """What is asked for: a colour and a class, or one of them alone (the other is empty), and where it is."""

    colour: str
    object_class: str
    relation: Relation | None = None

    @property
    def text(self) -> str:
        """The instruction, in the one wording that models of prompt form 2 are asked in."""
        return Understood(self.colour, self.object_class, self.relation).instruction

    def objects(self, scene: Scene) -> tuple[int, ...]:
        """Return the objects any of which is right by colour and class; a relation depends on where one looks from."""
        return tuple(
            item.index
            for item in scene.objects
            if self.colour in ("", item.colour) and self.object_class in ("", item.object_class)
        )


def _near(scene: Scene, one: Sighting, other: Sighting) -> bool:
    a, b = scene.objects[one.index], scene.objects[other.index]
    return math.hypot(a.x - b.x, a.y - b.y) - a.radius - b.radius <= _NEXT_TO


def _before(one: Sighting, other: Sighting) -> bool:
    return abs(one.bearing - other.bearing) <= _IN_LINE and other.distance - one.distance >= _NEARER


RELATIONS: dict[str, Callable[[Scene, Sighting, Sighting], bool]] = {
    "left of": lambda _, one, other: one.bearing - other.bearing >= _APART,
    "right of": lambda _, one, other: other.bearing - one.bearing >= _APART,
    "next to": _near,
    "in front of": lambda _, one, other: _before(one, other),
    "behind": lambda _, one, other: _before(other, one),
}


def related_query(scene: Scene, sightings: Sequence[Sighting], rng: np.random.Generator) -> tuple[Query, int] | None:
    """Return a query for something by where it is ('the chair left of the lamp'), and the one object that is right.

    Seen from the frame; first for objects of whose class others are in view. None where no two are in view that one
    word tells from the others.
    """
    seen = [sighting for sighting in sightings if sighting.visible]
    pairs = [(one, other) for one in seen for other in seen if one.index != other.index]
    rng.shuffle(pairs)
    pairs.sort(key=lambda pair: all(s.object_class != pair[0].object_class for s in seen if s.index != pair[0].index))
    for one, other in pairs:
        words = [word for word, holds in RELATIONS.items() if holds(scene, one, other)]
        colour = other.colour if sum(s.object_class == other.object_class for s in seen) > 1 else ""
        alike = [s for s in seen if s.object_class == one.object_class and s.index not in (one.index, other.index)]
        words = [word for word in words if not any(RELATIONS[word](scene, each, other) for each in alike)]
        if words and (one.object_class != other.object_class or colour):
            relation = Relation(pick(words, rng), colour, other.object_class)
            return Query("", one.object_class, relation), one.index
    return None


def absent_query(scene: Scene, rng: np.random.Generator) -> Query:
    present = {item.target for item in scene.objects}
    pairs = [Target(c, k) for c in COLOURS for k in CLASSES if Target(c, k) not in present]
    target = pairs[int(rng.integers(len(pairs)))]
    classes = [k for k in CLASSES if all(item.object_class != k for item in scene.objects)]
    if classes and rng.random() < 0.15:
        return Query("", pick(classes, rng))
    return Query(target.colour, target.object_class)


def absent_targets(scene: Scene, sightings: list[Sighting], rng: np.random.Generator) -> tuple[Target, Target]:
    """Return two pairs that the scene lacks: a look-alike of something in view (where there is any), and any other."""
    present = {item.target for item in scene.objects}
    seen = [s for s in sightings if s.visible] or sightings
    like = seen[int(rng.integers(len(seen)))]
    alike = [Target(colour, like.object_class) for colour in COLOURS] + [Target(like.colour, name) for name in CLASSES]
    alike = [target for target in alike if target not in present]
    first = alike[int(rng.integers(len(alike)))]
    others = [Target(c, k) for c in COLOURS for k in CLASSES if Target(c, k) not in present and Target(c, k) != first]
    return first, others[int(rng.integers(len(others)))]


def pick(words: Sequence[str], rng: np.random.Generator) -> str:
    return words[int(rng.integers(len(words)))]
