"""Seconds of real passes on the engine's own path: layers, and the logits of the rows that are verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Annotated

import numpy as np
import torch
from msgspec import Meta

from adapters_training.exit_choice.timing import Timer
from adapters_training.verifier_profile.configurations import Configuration
from speculation.pass_cost import Floats, ImageRow, Load, PassCost
from speculation.progress import progress
from speculation.vlm.cache import KVCache
from speculation.vlm.families import FrameProcessor
from speculation.vlm.forward import (
    NO_PLACES,
    Chunk,
    PrefillChunk,
    draft_chunk,
    encode_image,
    final_logits,
    forward_layers,
    prefill,
    to_numpy,
)
from speculation.vlm.graphs import PassGraphs, graphs_of
from speculation.vlm.inputs import Inputs
from speculation.vlm.model import Vlm
from speculation.vlm.positions import Ints, text_positions
from speculation.vlm.settings import ModelSettings

WORDS = 40
"""Tokens of words around an image."""
CELL = 28
IMAGE_SIDES = ((4, 4), (8, 8), (8, 12), (16, 16), (16, 24), (24, 32), (32, 48))
"""Height and width of images in cells of 28 pixels: what Qwen2-VL makes one token of."""
QUICK_SIDES = IMAGE_SIDES[:3]


class ProfileConfig(ModelSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is measured, and how the model is loaded. Each field is an option and a line of a YAML file."""

    target: Annotated[str, Meta(min_length=1, description="model folder (or hub name)")]
    out: Annotated[str, Meta(description="folder for the file and its plot; none: the model's")] = ""
    warm_up: Annotated[int, Meta(ge=0, le=1000, description="passes of each configuration before those that count")] = (
        10
    )
    runs: Annotated[
        int, Meta(ge=1, le=1000, description="passes of each configuration, of which the median counts")
    ] = 3
    seed: Annotated[int, Meta(ge=0, description="of tokens and random configurations")] = 0
    quick: Annotated[
        bool,
        Meta(description="a tenth of the configurations at a quarter of the length, 1 warm-up: to try it, not to use"),
    ] = False


class Profiler:
    """Runs passes of one model and times them; every prompt it feeds is one that it never fed before."""

    def __init__(self, vlm: Vlm, config: ProfileConfig) -> None:
        self._vlm, self._config = vlm, config
        self._timer = Timer(vlm)
        self.clock = self._timer.clock
        self._rng = np.random.default_rng(config.seed)

    def passes(self, configurations: Sequence[Configuration]) -> Floats:
        """Return the median seconds of each configuration [n], measured in a random order."""
        seconds = np.zeros(len(configurations))
        order = self._rng.permutation(len(configurations)).tolist()
        for index in progress(order, unit="configuration"):
            seconds[index] = self._median(configurations[index])
        return seconds

    def images(self, sides: Sequence[tuple[int, int]], cost: PassCost) -> list[ImageRow]:
        """Return the times of images, each with `WORDS` tokens of words, that fit the model's context.

        `cost` predicts their prefills.
        """
        frames, found = self._vlm.processor.frames, []
        assert frames is not None
        sizes = [(CELL * rows, CELL * columns) for rows, columns in sides]
        fitting = [size for size in sizes if frames.tokens(frames.grid(*size)) + WORDS <= self._vlm.context]
        for height, width in progress(fitting, unit="image"):
            inputs = self._image_inputs(frames, height, width)
            cache = KVCache(self._vlm, 1, len(inputs.ids))
            encodes, prefills = [], []
            for _ in range(self._config.warm_up + self._config.runs):
                encodes.append(self._timed(partial(encode_image, self._vlm, inputs)))
                whole = self._timed(partial(prefill, self._vlm, cache, 0, inputs))
                prefills.append(max(0.0, whole - encodes[-1]))
            encode_s, prefill_s = (median(each[-self._config.runs :]) for each in (encodes, prefills))
            found.append(
                ImageRow(
                    height=height,
                    width=width,
                    image_tokens=frames.tokens(inputs.grids[0]),
                    prompt_tokens=len(inputs.ids),
                    encode_s=encode_s,
                    prefill_s=prefill_s,
                    predicted_s=cost.seconds(Load.row(len(inputs.ids) - 1)),
                )
            )
        return found

    def _median(self, configuration: Configuration) -> float:
        rows = configuration.rows
        cache = KVCache(self._vlm, len(rows), configuration.longest)
        graphs = graphs_of(self._vlm, cache, [])
        prompts = [self._tokens(cached + 1) for _, cached in rows]
        for row, (_, cached) in enumerate(rows):
            if cached:
                ids = np.append(prompts[row][:cached], 0)
                prefill(self._vlm, cache, row, Inputs(ids, None, (), text_positions(len(ids)), 0))
        times = []
        for run in range(self._config.warm_up + self._config.runs):
            chunks: list[Chunk | PrefillChunk] = []
            for row, (new, cached) in enumerate(rows):
                tokens = self._tokens(new)
                # As many runs as there are tokens differ, however short what is fed.
                tokens[0] = (int(prompts[row][-1]) + run) % self._vlm.vocabulary
                if cached:
                    chunks.append(draft_chunk(cache, row, int(tokens[0]), tokens[1:].tolist(), range(-1, new - 2)))
                else:
                    chunks.append(PrefillChunk(row, tokens, text_positions(new), NO_PLACES))
            times.append(self._timed(partial(self._run, cache, chunks, graphs)))
            for row, (_, cached) in enumerate(rows):
                cache.truncate(row, cached)
        return median(times[-self._config.runs :])

    @torch.no_grad()
    def _run(self, cache: KVCache, chunks: Sequence[Chunk | PrefillChunk], graphs: PassGraphs | None) -> None:
        hidden: list[torch.Tensor] = []
        for output in forward_layers(self._vlm, cache, chunks, graphs):
            hidden = output.hidden
        verified = [part for part, chunk in zip(hidden, chunks, strict=True) if isinstance(chunk, Chunk)]
        if verified:
            to_numpy(final_logits(self._vlm, torch.cat(verified)))

    def _timed(self, work: Callable[[], object]) -> float:
        began = self._timer.now()
        work()
        return self._timer.now() - began

    def _tokens(self, count: int) -> Ints:
        return self._rng.integers(0, self._vlm.vocabulary, count)

    def _image_inputs(self, frames: FrameProcessor, height: int, width: int) -> Inputs:
        pixels, grid = frames.encode(self._rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        words = self._tokens(WORDS)
        words[words == self._vlm.image_token] = 0
        ids = np.concatenate([words[:4], np.full(frames.tokens(grid), self._vlm.image_token), words[4:]])
        positions, delta = self._vlm.family.positions(self._vlm.model, ids, self._vlm.image_token, [grid])
        return Inputs(ids, pixels, (grid,), positions, delta)
