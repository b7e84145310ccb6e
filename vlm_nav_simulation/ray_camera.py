"""Camera images without any GL: MuJoCo casts the rays, numpy shades what they hit.

Follows what MuJoCo's GL renderer shows (a headlight at the eye, spot lights, texture times colour; the placing of
textures was measured from its images), so that a room looks the same through either camera.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vlm_nav_simulation.gl import mujoco

Array = npt.NDArray[np.float64]
Image: TypeAlias = npt.NDArray[np.uint8]
Labels: TypeAlias = npt.NDArray[np.int32]
_FAR = 60.0
_DEFAULT_GROUPS = (1, 1, 1, 0, 0, 0)
_LIFT = 0.02
"""A shadow needs something this much nearer to the light, metres."""
_SOFT_EDGE = 0.12
_CUBE_FACES = 6


@lru_cache(maxsize=8)
def _rays(width: int, height: int, fovy: float) -> Array:
    """Unit directions of the pixels' centres in the camera's frame (right, up, back), [height * width, 3]."""
    scale = math.tan(math.radians(fovy) / 2) / (height / 2)
    x, y = (np.arange(width) + 0.5 - width / 2) * scale, (height / 2 - np.arange(height) - 0.5) * scale
    across, up = np.meshgrid(x, y)
    rays = np.stack([across, up, -np.ones_like(across)], axis=-1).reshape(-1, 3)
    unit: Array = rays / np.linalg.norm(rays, axis=1, keepdims=True)
    unit.flags.writeable = False
    return unit


def _outlines(geoms: Labels) -> npt.NDArray[np.bool_]:
    """Return which pixels of [height, width] have another geom as a neighbour."""
    across, down = geoms[:, 1:] != geoms[:, :-1], geoms[1:] != geoms[:-1]
    edges = np.zeros(geoms.shape, bool)
    edges[:, 1:] |= across
    edges[:, :-1] |= across
    edges[1:] |= down
    edges[:-1] |= down
    return edges


class RayCamera:
    """Renders one compiled model without GL; the same methods as `Camera`, in any thread.

    `groups` maps geom groups to visibility where it differs from MuJoCo's default.
    """

    def __init__(self, model: Any, groups: dict[int, bool] | None = None) -> None:
        self._model = model
        self._groups = np.array(_DEFAULT_GROUPS, np.uint8)
        for group, shown in (groups or {}).items():
            self._groups[group] = shown
        materials = model.geom_matid
        painted = materials >= 0
        # the extra last entries are what geom -1 (nothing hit) and material -1 (none) read
        rgba = np.where(painted[:, None], np.vstack([model.mat_rgba, np.ones(4)])[materials], model.geom_rgba)
        self._rgb = np.vstack([rgba[:, :3], np.zeros(3)]).astype(np.float64)
        self._gloss = np.append(np.where(painted, np.append(model.mat_specular, 0.5)[materials], 0.5), 0.0)
        self._shine = np.append(np.where(painted, np.append(model.mat_shininess, 0.5)[materials], 0.5), 0.0)
        role = int(mujoco.mjtTextureRole.mjTEXROLE_RGB)
        textures = np.append(model.mat_texid[:, role], -1)[materials] if model.nmat else np.full(model.ngeom, -1)
        self._pyramids = {int(texture): _pyramid(model, int(texture)) for texture in np.unique(textures[textures >= 0])}
        self._textures = {int(geom): int(textures[geom]) for geom in np.flatnonzero(textures >= 0)}
        self._eye, self._axes, self._fovy = np.zeros(3), np.eye(3), 45.0
        self._data = mujoco.MjData(model)

    def aim(self, data: Any, camera: str) -> None:
        """Look through a named camera of the model at everything as it is now.

        It is copied: while the rays are cast another thread may move the robot, which sets every place anew, step by
        step.
        """
        mujoco.mj_copyData(self._data, self._model, data)
        index = mujoco.mj_name2id(self._model, mujoco.mjtObj.mjOBJ_CAMERA, camera)
        self._eye, self._axes = data.cam_xpos[index].copy(), data.cam_xmat[index].reshape(3, 3).copy()
        self._fovy = float(self._model.cam_fovy[index])

    def bodies(self, width: int, height: int) -> Labels:
        """Return the body id of every pixel of the aimed view [height, width], -1 for none."""
        geoms = self._cast(self._eye, _rays(width, height, self._fovy) @ self._axes.T)[0]
        table = np.append(self._model.geom_bodyid, -1).astype(np.int32)
        labels: Labels = table[geoms].reshape(height, width)
        return labels

    def colour(self, width: int, height: int, *, shadows: bool = False) -> Image:
        """Return the aimed view, RGB [height, width, 3]; outlines are rendered from four rays a pixel."""
        rays = _rays(width, height, self._fovy) @ self._axes.T
        pixel = 2 * math.tan(math.radians(self._fovy) / 2) / height
        hits = self._cast(self._eye, rays)
        canvas = self._shade(rays, *hits, pixel, shadows)
        rows, columns = np.nonzero(_outlines(hits[0].reshape(height, width)))
        if len(rows):
            corners = [(2 * rows + i) * 2 * width + 2 * columns + j for i in (0, 1) for j in (0, 1)]
            finer = _rays(2 * width, 2 * height, self._fovy)[np.concatenate(corners)] @ self._axes.T
            shades = self._shade(finer, *self._cast(self._eye, finer), pixel, shadows)
            canvas[rows * width + columns] = shades.reshape(4, -1, 3).mean(axis=0)
        return (np.clip(canvas, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8).reshape(height, width, 3)

    def close(self) -> None:
        """Free nothing: there is nothing to free."""

    def _cast(self, origin: Array, rays: Array) -> tuple[Labels, Array, Array]:
        """Return geom (-1: none), distance and normal of what each ray [n, 3] from one origin hits."""
        count = len(rays)
        geoms, distances, normals = np.empty(count, np.int32), np.empty(count), np.zeros((count, 3))
        mujoco.mj_multiRay(
            self._model, self._data, origin, rays.ravel(), self._groups, True, -1, geoms, distances, normals.ravel(),
            count, _FAR,
        )  # fmt: skip
        return geoms, distances, normals

    def _shade(
        self, rays: Array, geoms: Labels, distances: Array, normals: Array, pixel: float, shadows: bool
    ) -> Array:
        """Return colours [n, 3] (1 is full) of what rays from the eye hit; `pixel` is a pixel's width at 1 m."""
        points = self._eye + rays * distances[:, None]
        facing = np.einsum("ij,ij->i", normals, rays)
        head = self._model.vis.headlight
        light = np.asarray(head.ambient, float) + np.outer(np.maximum(-(normals @ -self._axes[:, 2]), 0), head.diffuse)
        gloss, shine = self._gloss[geoms], self._shine[geoms] * 128.0
        glint = np.outer(gloss * np.maximum(-facing, 0) ** shine, head.specular)
        for index in range(self._model.nlight):
            lit, reflected = self._light(index, points, normals, rays, shine, shadows)
            light += np.outer(lit, self._model.light_diffuse[index])
            glint += np.outer(gloss * reflected, self._model.light_specular[index])
        # GL cuts off at full light before it looks at the texture
        canvas = np.minimum(self._rgb[geoms] * light + glint, 1.0)
        self._paint(canvas, geoms, points, distances * pixel / np.maximum(-facing, 0.2))
        canvas[geoms < 0] = 0.0
        colours: Array = canvas
        return colours

    def _light(
        self, index: int, points: Array, normals: Array, rays: Array, shine: Array, shadows: bool
    ) -> tuple[Array, Array]:
        """Return how much of a spot light falls on each point, diffuse and mirrored to the eye."""
        model, position = self._model, self._data.light_xpos[index]
        to_light = position - points
        far = np.linalg.norm(to_light, axis=1)
        to_light /= np.maximum(far, 1e-9)[:, None]
        near, linear, square = model.light_attenuation[index]
        off_axis = -(to_light @ self._data.light_xdir[index])
        edge = math.cos(math.radians(float(model.light_cutoff[index])))
        # GL lights the corners of large quads and blends between them, which makes the cone's edge soft
        inside = np.clip((off_axis - edge + _SOFT_EDGE) / (2 * _SOFT_EDGE), 0.0, 1.0)
        strength = inside * np.maximum(off_axis, edge + _SOFT_EDGE) ** float(model.light_exponent[index])
        strength /= near + linear * far + square * far**2
        facing = np.einsum("ij,ij->i", normals, to_light)
        strength *= facing > 0
        if shadows and model.light_castshadow[index]:
            hit = self._cast(np.array(position), -to_light)[1]
            strength *= (hit < 0) | (hit > far - _LIFT)
        halfway = to_light - rays
        halfway /= np.maximum(np.linalg.norm(halfway, axis=1), 1e-9)[:, None]
        mirrored = np.maximum(np.einsum("ij,ij->i", normals, halfway), 0.0) ** shine
        return strength * np.maximum(facing, 0.0), strength * mirrored

    def _paint(self, canvas: Array, geoms: Labels, points: Array, spread: Array) -> None:
        """Multiply textures into the light [n, 3] of points. `spread` is a pixel's width at each of them, metres."""
        order = np.argsort(geoms, kind="stable")
        ids, starts = np.unique(geoms[order], return_index=True)
        for geom, chosen in zip(ids, np.split(order, starts[1:]), strict=True):
            texture = self._textures.get(int(geom))
            if texture is None:
                continue
            local = (points[chosen] - self._data.geom_xpos[geom]) @ self._data.geom_xmat[geom].reshape(3, 3)
            canvas[chosen] *= self._texels(int(geom), texture, local, spread[chosen])

    def _texels(self, geom: int, texture: int, local: Array, spread: Array) -> Array:
        """Return the texture's colours [n, 3] (0..1) at points of a geom's own frame."""
        model, pyramid = self._model, self._pyramids[texture]
        material = model.geom_matid[geom]
        repeat, size = model.mat_texrepeat[material], _extent(model, geom)
        uniform = model.mat_texuniform[material]
        if _is_flat(model, texture):
            scale = repeat / 2 if uniform else repeat / (2 * size[:2])
            s, t = (size[0] + local[:, 0]) * scale[0], (size[1] - local[:, 1]) * scale[1]
            face, per_metre = np.zeros(len(local), int), float(scale.max())
        else:
            s, t, face = _cube(local if uniform else local / size)
            per_metre = float(1 / (2 * np.median(size)))
        width = pyramid[0].shape[2]
        levels = np.clip(np.rint(np.log2(np.maximum(spread * per_metre * width, 1.0))), 0, len(pyramid) - 1)
        colours = np.empty((len(local), 3))
        for level in np.unique(levels).astype(int):
            at = np.flatnonzero(levels == level)
            colours[at] = _bilinear(pyramid[level], face[at], s[at], t[at])
        return colours


def _is_flat(model: Any, texture: int) -> bool:
    return int(model.tex_type[texture]) == int(mujoco.mjtTexture.mjTEXTURE_2D)


def _pyramid(model: Any, texture: int) -> list[Array]:
    """Return the texture at halved sizes, each [faces, height, width, 3] in 0..1."""
    height, width = int(model.tex_height[texture]), int(model.tex_width[texture])
    channels, start = int(model.tex_nchannel[texture]), int(model.tex_adr[texture])
    data = model.tex_data[start : start + height * width * channels].reshape(-1, height, width, channels)
    if not _is_flat(model, texture):
        data = data.reshape(_CUBE_FACES, -1, width, channels)
    levels = [data[..., :3].astype(np.float64) / 255.0]
    while min(levels[-1].shape[1:3]) > 1 and not any(side % 2 for side in levels[-1].shape[1:3]):
        last = levels[-1]
        levels.append((last[:, ::2, ::2] + last[:, 1::2, ::2] + last[:, ::2, 1::2] + last[:, 1::2, 1::2]) / 4)
    return levels


def _extent(model: Any, geom: int) -> Array:
    """Return the half sizes of a geom along its own axes, as its texture is scaled; a mesh is not."""
    kind, size = mujoco.mjtGeom(int(model.geom_type[geom])), model.geom_size[geom]
    if kind is mujoco.mjtGeom.mjGEOM_MESH:
        return np.ones(3)
    if kind is mujoco.mjtGeom.mjGEOM_SPHERE:
        return np.full(3, float(size[0]))
    if kind in (mujoco.mjtGeom.mjGEOM_CYLINDER, mujoco.mjtGeom.mjGEOM_CAPSULE):
        return np.array([size[0], size[0], size[1]], float)
    extent: Array = np.maximum(np.array(size, float), 1e-6)
    return extent


def _cube(directions: Array) -> tuple[Array, Array, npt.NDArray[np.int64]]:
    """Return where directions [n, 3] meet a cube map: s and t in 0..1 and the face (OpenGL 4.6, table 8.19)."""
    x, y, z = directions.T
    axis = np.abs(directions).argmax(axis=1)
    positive = directions[np.arange(len(directions)), axis] > 0
    sign = np.where(positive, 1.0, -1.0)
    along = np.choose(axis, [-sign * z, x, sign * x])
    down = np.choose(axis, [-y, sign * z, -y])
    major = np.maximum(np.abs(directions).max(axis=1), 1e-12)
    return (along / major + 1) / 2, (down / major + 1) / 2, 2 * axis + ~positive


def _bilinear(image: Array, face: npt.NDArray[np.int64], s: Array, t: Array) -> Array:
    """Read images [faces, height, width, 3] that repeat, between texels."""
    height, width = image.shape[1:3]
    x, y = s * width - 0.5, t * height - 0.5
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    u, v = (x - left)[:, None], (y - top)[:, None]
    left, top, right, bottom = left % width, top % height, (left + 1) % width, (top + 1) % height
    upper = image[face, top, left] * (1 - u) + image[face, top, right] * u
    lower = image[face, bottom, left] * (1 - u) + image[face, bottom, right] * u
    colours: Array = upper * (1 - v) + lower * v
    return colours
