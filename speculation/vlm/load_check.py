"""Compares a loaded model's forward as this project runs it with transformers' own, on one small question.

It goes through the vision tower, positions behind two images, a cached prefix and a token tree of two branches. Longer
prompts, several sessions in one pass and CUDA graphs are for the tests.

The layer loop of `speculation.vlm.forward` runs a model's layers itself. A family that does more than is known here,
or that a later transformers runs otherwise, would answer wrong without a message.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from speculation.text import first_line
from speculation.vlm.cache import KVCache
from speculation.vlm.folder import ModelFolderError
from speculation.vlm.forward import PrefillChunk, draft_chunk, encode_image, final_logits, forward_layers, image_places
from speculation.vlm.inputs import Inputs, library_arguments
from speculation.vlm.model import Vlm
from speculation.vlm.positions import Ints, text_positions
from speculation.wire import ROOT

WORDS = 3
"""Tokens before, between and behind the images."""
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2, torch.bfloat16: 0.25, torch.float16: 0.25}
"""Root mean square of the differences of one token's logits, as a share of their standard deviation.

A token that is fed wrong, or a part that is left out, changes its logits by about 1; rounding by a tenth of the limit.
"""


@dataclass(frozen=True)
class Expected:
    """A question, and what transformers' own forward makes of it: logits [n, vocabulary]."""

    question: Inputs
    logits: torch.Tensor


@torch.no_grad()
def expected_logits(vlm: Vlm) -> Expected | None:
    """Ask transformers' own forward; None where nothing is computed.

    Raises ModelFolderError where it cannot answer, or its logits are no finite numbers.
    """
    if vlm.device.type == "meta":
        return None
    with _as_folder_error(vlm):
        question = small_question(vlm)
        logits = library_logits(vlm, question)
    if not logits.isfinite().all():
        raise ModelFolderError(
            f"model folder {vlm.folder}: in {_name(vlm.dtype)} its logits are no finite numbers; choose bfloat16 or "
            "float32, or fetch its weights again"
        )
    return Expected(question, logits)


@torch.no_grad()
def check_logits(vlm: Vlm, expected: Expected) -> None:
    """Raise ModelFolderError, with what was found and the limit, where a model's layers give other logits."""
    with _as_folder_error(vlm):
        found = difference(own_logits(vlm, expected.question), expected.logits)
    limit = TOLERANCE[vlm.dtype]
    if not found <= limit:
        raise ModelFolderError(
            f"model folder {vlm.folder}: its layers run one by one give logits that differ from transformers' own by "
            f"{found:.2g} of their spread in {_name(vlm.dtype)}, at most {limit:g} is rounding: answers would not be "
            "the model's; install a transformers release that was tested with it (docs/models.md), or, to go on all "
            "the same, load it without the check (--no-load-check, parameter load_check)"
        )


def small_question(vlm: Vlm) -> Inputs:
    """Return a few tokens around the family's small images, or alone without a vision tower."""
    frames = vlm.processor.frames
    images = [] if frames is None else frames.check_images()
    words = _words(vlm, WORDS * (len(images) + 1) + 1)
    parts, grids = [words[:WORDS]], tuple(grid for _, grid in images)
    for number, grid in enumerate(grids, start=1):
        assert frames is not None
        parts += [np.full(frames.tokens(grid), vlm.image_token), words[WORDS * number : WORDS * (number + 1)]]
    ids = np.concatenate([*parts, words[-1:]])
    if not images:
        return Inputs(ids, None, (), text_positions(len(ids)), 0)
    positions, delta = vlm.family.positions(vlm.model, ids, vlm.image_token, grids)
    return Inputs(ids, np.concatenate([pixels for pixels, _ in images]), grids, positions, delta)


def own_logits(vlm: Vlm, inputs: Inputs) -> torch.Tensor:
    """Return the logits [n, vocabulary] of the project's forward.

    A prefill of all but the last two tokens, then a tree: the last but one is its root, the last a leaf beside another
    one that it must not see.
    """
    count = len(inputs.ids) - 2
    cache = KVCache(vlm, 1, count + 3)
    cache.open(0, [], inputs.delta)
    prefix = PrefillChunk(
        0, inputs.ids[:count], inputs.positions[:, :count], image_places(vlm, inputs), encode_image(vlm, inputs)
    )
    known = list(forward_layers(vlm, cache, [prefix]))[-1].hidden[0]
    root, leaf = (int(token) for token in inputs.ids[count:])
    tree = draft_chunk(cache, 0, root, [(leaf + 1) % vlm.vocabulary, leaf], [ROOT, ROOT])
    grown = list(forward_layers(vlm, cache, [tree]))[-1].hidden[0]
    return final_logits(vlm, torch.cat([known, grown[:1], grown[2:]]))


def library_logits(vlm: Vlm, inputs: Inputs) -> torch.Tensor:
    """Return the logits [n, vocabulary] of the model's own forward."""
    vlm.family.forget(vlm.model)
    logits: torch.Tensor = vlm.model(**library_arguments(vlm, inputs), use_cache=False).logits[0, :, : vlm.vocabulary]
    vlm.family.forget(vlm.model)
    return logits


def difference(own: torch.Tensor, library: torch.Tensor) -> float:
    """Return, of the token that differs most, the root mean square of its logits' differences over their spread."""
    worst = 0.0
    # Token by token, as a copy of all logits in float64 would take a gigabyte.
    for mine, theirs in zip(own, library, strict=True):
        expected = theirs.cpu().double()
        share = float((mine.cpu().double() - expected).pow(2).mean().sqrt() / expected.std())
        worst = share if math.isnan(share) else max(worst, share)
    return worst


@contextmanager
def _as_folder_error(vlm: Vlm) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise ModelFolderError(
            f"model folder {vlm.folder}: {vlm.device} ran out of memory at a small question; choose a smaller dtype, "
            "quantise it, or take a smaller model"
        ) from None
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ModelFolderError(
            f"model folder {vlm.folder} cannot answer a small question ({first_line(error)}); its config.json, "
            "processor files and weights may not belong together: fetch them again"
        ) from None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _words(vlm: Vlm, count: int) -> Ints:
    """Return tokens that are no special ones, as far as the vocabulary has any."""
    first = vlm.vocabulary // 2
    return np.arange(first, first + count) % max(1, vlm.vocabulary - 1)
