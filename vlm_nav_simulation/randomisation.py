"""Domain randomisation: how far scenes and images of training frames deviate, and the sampling of it.

What a camera and a house do to an image (Tobin et al., "Domain Randomization for Transferring Deep Neural Networks
from Simulation to the Real World", IROS 2017). It is off by default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np

from vlm_nav_simulation.mujoco_scene import Look
from vlm_nav_simulation.ray_camera import Image
from vlm_nav_simulation.scene import Scene

JPEG_QUALITY = 90
_LIMITS = {
    "light": 0.6, "exposure": 1.0, "balance": 0.25, "pitch": 10.0, "height": 0.08, "view": 12.0, "noise": 20.0,
    "jpeg": 70, "scale": 0.12,
}  # fmt: skip


@dataclass(frozen=True)
class Randomisation:
    """The largest deviation of each kind; 0 leaves it alone. Raises ValueError for one beyond its limit."""

    light: float = 0.0
    """Per scene, share of the lights' strength."""
    textures: bool = False
    """Per scene, other floors, walls, wall pictures and tints."""
    pitch: float = 0.0
    """Per scene, of the camera, degrees."""
    height: float = 0.0
    """Per scene, of the camera, metres."""
    view: float = 0.0
    """Per scene, of the camera's field of view, degrees."""
    scale: float = 0.0
    """Per object, share of its size."""
    exposure: float = 0.0
    """Per frame, stops."""
    balance: float = 0.0
    """Per frame, share of red against blue."""
    noise: float = 0.0
    """Per frame, standard deviation in grey levels of 255."""
    jpeg: int = 0
    """Per frame, quality below 90."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value, limit = getattr(self, item.name), _LIMITS.get(item.name)
            if limit is not None and not 0 <= value <= limit:
                raise ValueError(f"randomisation {item.name} {value} is outside 0..{limit:g}")

    def look(self, rng: np.random.Generator) -> Look:
        """Sample how a scene is rendered."""
        light, tilt, lift, widening = rng.uniform(-1, 1, 4) * (self.light, self.pitch, self.height, self.view)
        textures = int(rng.integers(2**31)) if self.textures else None
        return Look(1.0 + light, textures, math.radians(tilt), lift, widening)

    def rescale(self, scene: Scene, rng: np.random.Generator) -> Scene:
        """Return the scene with each object a little larger or smaller, where it stands."""
        factors = 1.0 + self.scale * rng.uniform(-1, 1, len(scene.objects))
        objects = tuple(replace(o, scale=o.scale * float(f)) for o, f in zip(scene.objects, factors, strict=True))
        return replace(scene, objects=objects) if self.scale else scene

    def sense(self, image: Image, rng: np.random.Generator) -> Image:
        """Return a frame (RGB [H, W, 3]) as another camera would have taken it."""
        gain, balance = 2.0 ** (self.exposure * rng.uniform(-1, 1)), self.balance * rng.uniform(-1, 1)
        noise = self.noise * rng.uniform(0, 1)
        if gain == 1.0 and not balance and not noise:
            return image
        scaled = image * (gain * np.array([1.0 + balance, 1.0, 1.0 - balance]))
        if noise:
            scaled += rng.normal(0.0, noise, image.shape)
        sensed: Image = np.clip(scaled + 0.5, 0, 255).astype(np.uint8)
        return sensed

    def quality(self, rng: np.random.Generator) -> int:
        """Sample a frame's JPEG quality."""
        return JPEG_QUALITY - int(rng.integers(self.jpeg + 1))


TRAINING = Randomisation(
    light=0.3, textures=True, pitch=4.0, height=0.03, view=6.0, scale=0.08,
    exposure=0.35, balance=0.08, noise=6.0, jpeg=40,
)  # fmt: skip
"""What `--randomise` means: colours still match their names, and the robot stays a Go2."""
