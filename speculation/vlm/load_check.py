"""Compares a loaded model's forward as this project runs it with transformers' own, on one small question.

The layer loop of `speculation.vlm.forward` runs a model's layers itself. A family that does more than is known here,
or that a later transformers runs otherwise, would answer wrong without a message.
"""

from __future__ import annotations

import numpy as np
import torch

from speculation.vlm.cache import KVCache
from speculation.vlm.folder import ModelFolderError
from speculation.vlm.forward import (
    PrefillChunk,
    draft_chunk,
    encode_image,
    final_logits,
    forward_layers,
    image_places,
)
from speculation.vlm.inputs import Inputs
from speculation.vlm.model import Vlm
from speculation.vlm.positions import Ints, text_positions

WORDS = 3
"""Tokens before and behind the image."""
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2, torch.bfloat16: 0.1, torch.float16: 0.1}
"""Root mean square of the logits' differences, as a share of their standard deviation.

What is left out changes random and trained models alike by far more; rounding changes them by a hundredth of it.
"""


@torch.no_grad()
def expected_logits(vlm: Vlm) -> torch.Tensor | None:
    """Return what transformers' own forward makes of the question [n, vocabulary]; None where nothing is computed."""
    return None if vlm.device.type == "meta" else library_logits(vlm, small_question(vlm))


@torch.no_grad()
def check_logits(vlm: Vlm, expected: torch.Tensor) -> None:
    """Raise ModelFolderError, with what was found and the limit, where a model's layers give other logits."""
    found, limit = difference(own_logits(vlm, small_question(vlm)), expected), TOLERANCE[vlm.dtype]
    if not found <= limit:
        raise ModelFolderError(
            f"model folder {vlm.folder}: its layers run one by one give logits that differ from transformers' own by "
            f"{found:.2g} of their spread in {str(vlm.dtype).removeprefix('torch.')}, at most {limit:g} is rounding: "
            "answers would not be the model's; install a transformers release that was tested with it (docs/models.md),"
            " or, to go on all the same, load it without the check (--no-load-check, parameter load_check)"
        )


def small_question(vlm: Vlm) -> Inputs:
    """Return a few tokens around the family's smallest image, or alone without a vision tower."""
    words = _words(vlm, 2 * WORDS)
    frames = vlm.processor.frames
    if frames is None:
        return Inputs(words, None, (), text_positions(len(words)), 0)
    pixels, grid = frames.smallest()
    image = np.full(frames.tokens(grid), vlm.image_token)
    ids = np.concatenate([words[:WORDS], image, words[WORDS:]])
    positions, delta = vlm.family.positions(frames, ids, vlm.image_token, [grid])
    return Inputs(ids, pixels, (grid,), positions, delta)


def own_logits(vlm: Vlm, inputs: Inputs) -> torch.Tensor:
    """Return the logits [n, vocabulary] of the project's forward: a prefill of all but the last token, then that."""
    count = len(inputs.ids) - 1
    cache = KVCache(vlm, 1, count + 1)
    cache.open(0, [], inputs.delta)
    prefix = PrefillChunk(
        0, inputs.ids[:count], inputs.positions[:, :count], image_places(vlm, inputs), encode_image(vlm, inputs)
    )
    outputs = [list(forward_layers(vlm, cache, [prefix]))[-1].hidden[0]]
    last = draft_chunk(cache, 0, int(inputs.ids[-1]), [], [])
    outputs.append(list(forward_layers(vlm, cache, [last]))[-1].hidden[0])
    return final_logits(vlm, torch.cat(outputs))


def library_logits(vlm: Vlm, inputs: Inputs) -> torch.Tensor:
    """Return the logits [n, vocabulary] of the model's own forward."""
    pixels = None if inputs.pixel_values is None else torch.from_numpy(inputs.pixel_values).to(vlm.device)
    ids = torch.from_numpy(inputs.ids)[None].to(vlm.device)
    vlm.family.forget(vlm.model)
    given = vlm.family.arguments(ids, vlm.image_token if vlm.sees_images else -1, pixels, inputs.grids)
    logits: torch.Tensor = vlm.model(**given, use_cache=False).logits[0, :, : vlm.vocabulary]
    vlm.family.forget(vlm.model)
    return logits


def difference(own: torch.Tensor, library: torch.Tensor) -> float:
    """Return the root mean square of the differences as a share of the library's standard deviation; nan if it is."""
    own, library = own.double(), library.double().to(own.device)
    return float((own - library).pow(2).mean().sqrt() / library.std())


def _words(vlm: Vlm, count: int) -> Ints:
    """Return tokens that are no special ones, as far as the vocabulary has any."""
    first = vlm.vocabulary // 2
    return np.arange(first, first + count) % max(1, vlm.vocabulary - 1)
