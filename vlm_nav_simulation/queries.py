"""What is asked for: queries by colour and class, and queries for what is not there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from speculation.language.instructions import Understood
from speculation.language.prompts import Target
from vlm_nav_simulation.ground_truth import Sighting
from vlm_nav_simulation.objects import CLASSES, COLOURS
from vlm_nav_simulation.scene import Scene


@dataclass(frozen=True)
class Query:
    """What is asked for: a colour and a class, or one of them alone (the other is empty)."""

    colour: str
    object_class: str

    @property
    def text(self) -> str:
        """The instruction, in the one wording that models of prompt form 2 are asked in."""
        return Understood(self.colour, self.object_class).instruction

    def objects(self, scene: Scene) -> tuple[int, ...]:
        """Return the objects any of which is right by colour and class."""
        return tuple(
            item.index
            for item in scene.objects
            if self.colour in ("", item.colour) and self.object_class in ("", item.object_class)
        )


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
