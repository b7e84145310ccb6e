"""The swap test: does the draft depend on the image? One answer, drafted with its own frame and with another one.

What follows each place of the answer is drafted with the answer's own tokens in front of it, so that the two drafts
are compared place by place and one forward drafts all places. A draft that does not see drafts the same both times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge_drafter.protocols import DraftModel
from speculation.cancellation import Abandoned, Stop
from speculation.wire import ROOT, Jpegs


@dataclass(frozen=True)
class SwapTest:
    """How many places of an answer, drafted twice, are right or differ."""

    tokens: int
    right: int
    """Places where the draft with the answer's own frame is the answer's token ..."""
    swapped: int
    """... and with the other frame: fewer, for a draft that makes use of what it sees."""
    changed: int
    """Places where the two drafts differ: none, for a draft that does not see."""


def swap_test(
    model: DraftModel, prompt: str, answer: Sequence[int], jpeg: Jpegs, other: Jpegs, stop: Stop = lambda: False
) -> SwapTest:
    """Draft `answer`, tokens to the question `prompt` about the frame `jpeg`, with that frame and with `other`.

    Takes two prefills and two forwards, greedy whatever the sampling; the model's step is lost. Raises Abandoned as
    soon as `stop` returns True, asked between layers, of a prefill too; ValueError for an empty answer or an
    image that cannot be read.
    """
    if not answer:
        raise ValueError("the answer is empty; a swap test needs tokens to draft")
    own, swapped = (_drafts(model, prompt, answer, image, stop) for image in (jpeg, other))
    right = np.asarray(answer)
    return SwapTest(len(answer), int((own == right).sum()), int((swapped == right).sum()), int((own != swapped).sum()))


def _drafts(model: DraftModel, prompt: str, answer: Sequence[int], image: Jpegs, stop: Stop) -> npt.NDArray[np.intp]:
    """Return the likeliest token at each place of `answer` [len(answer)]."""
    if stop():
        raise Abandoned
    model.begin(prompt, image, stop=stop)
    fed = list(answer[:-1])
    # The root rides in front of the first forward.
    behind = model.extend(fed, range(ROOT, ROOT + len(fed)), stop) if fed else None
    first = model.root_logits(stop)[None]
    tokens: npt.NDArray[np.intp] = np.argmax(first if behind is None else np.concatenate([first, behind]), axis=1)
    return tokens
