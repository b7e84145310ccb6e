"""Describes a family of models to all who load, run or train one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from speculation.vlm.positions import Grid, Ints, text_positions

if TYPE_CHECKING:
    from torch import Tensor

    from speculation.frames import Frame

Pixels = npt.NDArray[np.float32]


class FrameProcessor(ABC):
    """How a family turns frames into what its vision tower reads, and what stands for them in the prompt.

    A grid describes one image in three numbers, whose meaning is the family's own: no other file reads them.
    """

    place: ClassVar[str]
    """The special token that a chat template renders for an image, and that is repeated in the prompt."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, config: dict[str, Any]) -> FrameProcessor:
        """Read the image processor's files of a folder whose config.json is `config`.

        Raises OSError, ValueError or KeyError for files that do not load, or do not fit what `config` says.
        """

    @abstractmethod
    def encode(self, frame: Frame) -> tuple[Pixels, Grid]:
        """Return pixel values, concatenated along their first axis with those of other images, and the grid of a frame.

        frame: RGB [H, W, 3], resized as the model wants it. Raises ValueError for one that cannot be used.
        """

    def patchify(self, frames: npt.NDArray[np.uint8]) -> tuple[Pixels, Grid]:
        """Return pixel values of all frames [B, H, W, 3], and the grid that each of them has. Raises as `encode`."""
        encoded = [self.encode(frame) for frame in frames]
        return np.concatenate([pixels for pixels, _ in encoded]), encoded[0][1]

    @abstractmethod
    def grid(self, height: int, width: int) -> Grid:
        """Return the grid of a frame of so many pixels. Raises as `encode`."""

    @abstractmethod
    def tokens(self, grid: Grid) -> int:
        """Return how many tokens of the prompt stand for an image."""

    def placeholder(self, grid: Grid) -> str:
        """Return the text that takes an image's place in the rendered chat: `place` repeated, perhaps in a frame."""
        return self.place * self.tokens(grid)

    @property
    @abstractmethod
    def resize_rule(self) -> tuple[int, int, int]:
        """The unit of a resized frame's sides, and its least and most pixels; see `speculation.vlm.frame_size`.

        Robots send frames in that size. 1 and all sizes, where a frame is not resized by that rule.
        """

    @abstractmethod
    def check_images(self) -> list[tuple[Pixels, Grid]]:
        """Return random pixel values and grids of the small images that the check at load asks about."""

    @abstractmethod
    def limit(self, least: int, most: int) -> None:
        """Bound the pixels of resized frames; 0 leaves the folder's own bound. Raises ValueError where it cannot."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write preprocessor_config.json into a folder."""


@dataclass(frozen=True)
class Seen:
    """What a vision tower makes of the k tokens of a prompt's images, or of some that follow one another."""

    features: Tensor
    """[k, hidden], fed in the place of the tokens' embeddings."""
    added: tuple[Tensor, ...] = ()
    """Added to what the decoder's first layers put out at the same places, each [k, hidden]: DeepStack."""

    def __getitem__(self, part: slice) -> Seen:
        """Return what stands for some of the tokens."""
        return Seen(self.features[part], tuple(level[part] for level in self.added))


class Family:
    """One family: which class loads it, how it sees, how images stand in its prompt, which positions tokens get."""

    classes: ClassVar[dict[str, str]]
    """Name of transformers' class for each model_type of config.json."""
    decoder: ClassVar[str] = "model"
    """Where the decoder is in the model."""
    vision: ClassVar[tuple[str, ...]] = ()
    """Where the parts are that see; without any it is a language model alone."""
    tower: ClassVar[str] = ""
    """Is the path to the vision tower's layers in the model, between which its work can be given up."""
    processor: ClassVar[type[FrameProcessor] | None] = None
    """Is the class that prepares frames; None for a language model alone."""
    decoders: ClassVar[tuple[str, ...]] = ()
    """The model_type that text_config may have; empty: any, as the family has one decoder only."""
    uses_mrope: ClassVar[bool] = False
    """Whether a token has three positions; otherwise it has one."""
    template: ClassVar[str] = ""
    """The chat template of folders that have none."""

    @property
    def sees_images(self) -> bool:
        """Whether the family has a vision tower."""
        return bool(self.vision)

    def model_class(self, kind: str) -> Any:
        """Return transformers' class for a model_type of the family."""
        import transformers  # late: names of families are asked for where no model is loaded

        return getattr(transformers, self.classes[kind])

    def frames(self, folder: Path, config: dict[str, Any]) -> FrameProcessor | None:
        """Return what prepares frames, None for a language model alone. Raises as `FrameProcessor.load`."""
        return None if self.processor is None else self.processor.load(folder, config)

    def see(self, model: Any, pixels: Tensor, grids: Sequence[Grid]) -> Seen:
        """Return what the vision tower makes of images; `pixels` are those of all, on its device."""
        raise NotImplementedError(f"{type(self).__name__} is a language model alone")

    def vision_layers(self, model: Any) -> Sequence[Any]:
        """Return the vision tower's layers."""
        layers: Sequence[Any] = attrgetter(self.tower)(model)
        return layers

    def positions(self, model: Any, ids: Ints, image_token: int, grids: Sequence[Grid]) -> tuple[Ints, int]:
        """Return positions [3, n] of a prompt's tokens [n], and what later tokens add to their count to get theirs.

        Raises ValueError for image tokens that do not fit the images.
        """
        return text_positions(len(ids)), 0

    def arguments(self, ids: Tensor, image_token: int, pixels: Tensor | None, grids: Sequence[Grid]) -> dict[str, Any]:
        """Return what the model's own forward and `generate` take for a prompt [1, n] with its images, if any."""
        given = {"input_ids": ids, "attention_mask": ids.new_ones(ids.shape)}
        return given if pixels is None else given | {"pixel_values": pixels}

    def forget(self, model: Any) -> None:
        """Make the model forget what it keeps of an earlier prompt, before its own forward is called with another."""
