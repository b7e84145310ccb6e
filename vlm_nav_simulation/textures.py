"""Floor, wall, picture and metal textures, made by a random generator: uint8 [n, n, 3]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]
_SIZE = 64


def _finish(image: npt.NDArray[np.float64]) -> Image:
    return np.clip(image, 0, 255).astype(np.uint8)


def _muted(rng: np.random.Generator, low: float, high: float, spread: float) -> npt.NDArray[np.float64]:
    """A colour close to grey or beige, so that no wall or floor passes for an object's colour."""
    value = rng.uniform(low, high)
    warmth = rng.uniform(-0.5, 1.0) * spread
    return np.array([value + warmth, value + rng.uniform(-0.2, 0.3) * spread, value - warmth])


def planks(rng: np.random.Generator) -> Image:
    """Wooden floor."""
    base = np.array([132.0, 98.0, 66.0]) * rng.uniform(0.75, 1.2) + rng.uniform(-8, 8, 3)
    image = np.empty((_SIZE, _SIZE, 3))
    rows = np.arange(_SIZE) // (_SIZE // 4)
    grain = np.cumsum(rng.normal(0, 1.0, (4, _SIZE)), axis=1)
    shade = rng.uniform(0.85, 1.1, 4)
    image[:] = base * shade[rows][:, None, None] + (grain - grain.mean(1, keepdims=True))[rows][:, :, None]
    image[:: _SIZE // 4] *= 0.6
    return _finish(image)


def tiles(rng: np.random.Generator) -> Image:
    """Stone tiles."""
    image = np.ones((_SIZE, _SIZE, 3)) * _muted(rng, 105, 165, 10)
    half = _SIZE // 2
    for i in (0, half):
        for j in (0, half):
            image[i : i + half, j : j + half] *= rng.uniform(0.9, 1.05)
    image[::half] *= 0.65
    image[:, ::half] *= 0.65
    return _finish(image + rng.normal(0, 3, (_SIZE, _SIZE, 1)))


def carpet(rng: np.random.Generator) -> Image:
    """Speckled carpet."""
    return _finish(np.ones((_SIZE, _SIZE, 3)) * _muted(rng, 85, 150, 16) + rng.normal(0, 11, (_SIZE, _SIZE, 1)))


def plaster(rng: np.random.Generator) -> Image:
    """Painted wall."""
    return _finish(np.ones((_SIZE, _SIZE, 3)) * _muted(rng, 160, 205, 18) + rng.normal(0, 2, (_SIZE, _SIZE, 1)))


def wallpaper(rng: np.random.Generator) -> Image:
    """Striped wall."""
    image = np.ones((_SIZE, _SIZE, 3)) * _muted(rng, 165, 205, 16)
    image[:, (np.arange(_SIZE) // 8) % 2 == 0] *= rng.uniform(0.88, 0.96)
    return _finish(image)


def bricks(rng: np.random.Generator) -> Image:
    """Whitewashed bricks."""
    image = np.ones((_SIZE, _SIZE, 3)) * _muted(rng, 150, 190, 14)
    course = _SIZE // 8
    for i in range(8):
        row = slice(i * course, (i + 1) * course)
        for j in range(4):
            left = (j * 16 + (i % 2) * 8) % _SIZE
            image[row, left : left + 16] *= rng.uniform(0.93, 1.04)
            image[row, left] *= 0.82
        image[i * course] *= 0.82
    return _finish(image)


def picture(rng: np.random.Generator) -> Image:
    """A framed painting: a pale landscape of two bands."""
    sky, ground = _muted(rng, 130, 200, 30), _muted(rng, 70, 140, 35)
    image = np.ones((_SIZE, _SIZE, 3)) * sky
    hills = 34 + 9 * np.sin(np.arange(_SIZE) / rng.uniform(6, 16) + rng.uniform(0, 6))
    image[np.arange(_SIZE)[:, None] > hills[None, :]] = ground
    image[:5], image[-5:], image[:, :5], image[:, -5:] = 60, 60, 60, 60
    return _finish(image)


def metal() -> Image:
    """Bright and dark streaks around the vertical axis: what brushed metal shows of a room."""
    along = np.linspace(0, 1, _SIZE, endpoint=False)
    streaks = 0.62 + 0.30 * np.cos(2 * np.pi * 2 * along) + 0.12 * np.cos(2 * np.pi * 5 * along + 1.0)
    image = np.ones((_SIZE, _SIZE, 3)) * np.array([238.0, 244.0, 255.0]) * streaks[None, :, None]
    return _finish(image)


FLOORS: tuple[Callable[[np.random.Generator], Image], ...] = (planks, planks, tiles, carpet)
WALLS: tuple[Callable[[np.random.Generator], Image], ...] = (plaster, plaster, wallpaper, bricks)
