"""Training forward of a Qwen2-VL model on packed batches, with dense labels for its image tokens.

Plain next-token loss on templated answers gives fluent text that ignores the image. Labels under every image token
(what, which colour, how far, where in the image) ground it: from the vision tower alone, and again from an early
language-model layer, where the image tokens have seen the prompt's start and can know their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adapters_training.packing import ACTION_TEXTS, IGNORE, PATCHES, REASONS, SIDES, Batch
from adapters_training.records import CELLS
from speculation.language.prompts import Vocabulary

DISTANCE_BINS = torch.tensor([5, 8, 11, 14, 18, 22, 27, 33])
"""Upper edges in decimetres of the distance classes; 0 (no object) is ignored."""
BACKGROUND_WEIGHT = 0.25


@dataclass(frozen=True)
class Losses:
    """Mean losses and teacher-forced accuracies of one batch (accuracies in 0..1)."""

    words: Tensor
    dense: Tensor
    asked: Tensor
    accuracy: float
    action_accuracy: float
    side_accuracy: float


class DenseHeads(nn.Module):
    """Linear probes on image tokens: class, colour and distance bin of the object there, how far it is to the nearest
    thing of any kind in the token's column, and (with `place`) row and column."""

    def __init__(self, width: int, vocabulary: Vocabulary, place: bool) -> None:
        super().__init__()
        bins = len(DISTANCE_BINS) + 1
        sizes = [len(vocabulary.classes) + 1, len(vocabulary.colours) + 1, bins, bins]
        self.place = place
        self.sizes = sizes + [CELLS, CELLS] * place
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, sum(self.sizes))

    def forward(self, hidden: Tensor, cells: Tensor) -> Tensor:
        """Return the mean loss of `hidden` [B, 64, width] against `cells` [4, B, 64].

        A token weighs less the more of them its class has in that image: a chair fills twenty tokens, a bottle two, and
        both are asked for equally often.
        """
        outputs = self.head(self.norm(hidden.float())).split(self.sizes, dim=-1)
        occupied = cells[0] > 0
        tokens = (cells[0][:, :, None] == cells[0][:, None, :]).sum(-1)
        weight = torch.where(occupied, 2.0 / tokens.sqrt(), BACKGROUND_WEIGHT)
        loss = hidden.new_zeros((), dtype=torch.float32)
        for output, truth in zip(outputs[:2], cells[:2], strict=False):
            each = F.cross_entropy(output.flatten(0, 1), truth.flatten(), reduction="none")
            loss = loss + (each * weight.flatten()).sum() / weight.sum()
        if occupied.any():
            bins = torch.bucketize(cells[2][occupied], DISTANCE_BINS.to(cells.device))
            loss = loss + 0.5 * F.cross_entropy(outputs[2][occupied], bins)
        measured = cells[3] > 0
        if measured.any():
            bins = torch.bucketize(cells[3][measured], DISTANCE_BINS.to(cells.device))
            loss = loss + 0.5 * F.cross_entropy(outputs[3][measured], bins)
        if self.place:
            index = torch.arange(CELLS * CELLS, device=cells.device).expand(cells.shape[1], -1)
            for output, truth in zip(outputs[4:], (index // CELLS, index % CELLS), strict=True):
                loss = loss + 0.25 * F.cross_entropy(output.flatten(0, 1), truth.flatten())
        return loss


class AskedHeads(nn.Module):
    """Linear probes on the last prompt token of a question: side, distance bin, action, colour and class asked for, and
    why the action is right.

    The words of an answer are mostly style; these few bits are what grounding is, so they get a loss of their own.
    """

    def __init__(self, width: int, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.sizes = [len(SIDES) + 1, len(DISTANCE_BINS) + 1, len(ACTION_TEXTS), len(vocabulary.colours),
                      len(vocabulary.classes), len(REASONS)]  # fmt: skip
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, sum(self.sizes))

    def forward(self, hidden: Tensor, facts: Tensor) -> tuple[Tensor, float]:
        """Return the loss of `hidden` [Q, width] against `facts` [Q, 6], and the accuracy of the side in 0..1."""
        side, distance, action, colour, kind, reason = self.head(self.norm(hidden.float())).split(self.sizes, dim=-1)
        loss = F.cross_entropy(side, facts[:, 0]) + 0.5 * F.cross_entropy(action, facts[:, 2])
        for output, column in ((colour, 3), (kind, 4), (reason, 5)):
            loss = loss + 0.5 * F.cross_entropy(output, facts[:, column])
        seen = facts[:, 0] > 0
        if seen.any():
            bins = torch.bucketize(facts[seen, 1], DISTANCE_BINS.to(facts.device))
            loss = loss + 0.5 * F.cross_entropy(distance[seen], bins)
        return loss, float((side.argmax(-1) == facts[:, 0]).float().mean())


def see(model: Any, pixels: Tensor) -> Tensor:
    """Return image tokens [B, 64, hidden] of the patches of B frames [B * 256, 1176]."""
    grid = torch.tensor([[1, PATCHES, PATCHES]], device=pixels.device)
    grids = grid.expand(len(pixels) // PATCHES**2, 3)
    features = model.model.get_image_features(pixels, grids).pooler_output
    return torch.cat(tuple(features)).view(len(grids), CELLS * CELLS, -1)


def read(model: Any, batch: Batch, image_tokens: Tensor, after: Sequence[int] | None = None) -> list[Tensor]:
    """Return the hidden states [B, N, hidden] after each of these layers, in rising order; none named: after the last.

    Those after the last layer are normed, as the head expects it. No layer runs behind the last that is asked for.
    Training has no cache, so it runs the layers itself; `speculation.vlm.forward` holds the loop that serves.
    """
    language, image, mask = model.model.language_model, batch.image_slice, batch.mask
    embedded = language.embed_tokens(batch.ids)
    before, behind = embedded[:, : image.start], embedded[:, image.stop :]
    hidden = torch.cat([before, image_tokens.to(embedded.dtype), behind], dim=1)
    rotary = language.rotary_emb(hidden, batch.positions)
    depth, found = len(language.layers), list[Tensor]()
    after = (depth,) if after is None else after
    for number, layer in enumerate(language.layers[: after[-1]], 1):
        hidden = layer(hidden, attention_mask=mask, position_embeddings=rotary)
        if number in after:
            found.append(language.norm(hidden) if number == depth else hidden)
    return found


def word_losses(model: Any, batch: Batch, hidden: Tensor, teacher: Any) -> tuple[Tensor, float, float]:
    """Return the loss of the words, in nats, and the accuracies (0 to 1) on all tokens and on heavy (action) tokens.

    `hidden` [B, N, hidden] are the states after the last layer. With a teacher, another such model, the loss is
    0.3 cross-entropy + KL(teacher || model).
    """
    select = batch.labels != IGNORE
    labels, weights = batch.labels[select], batch.weights[select]
    logits = model.lm_head(hidden[select]).float()
    loss = (F.cross_entropy(logits, labels, reduction="none") * weights).sum() / weights.sum()
    if teacher is not None:
        with torch.no_grad():
            truth = teacher.lm_head(read(teacher, batch, see(teacher, batch.pixels))[-1][select]).float()
        divergence = F.kl_div(logits.log_softmax(-1), truth.log_softmax(-1), log_target=True, reduction="batchmean")
        loss = 0.3 * loss + divergence
    right, heavy = (logits.argmax(-1) == labels).float(), weights > 1
    return loss, right.mean().item(), right[heavy].mean().item() if heavy.any() else 0.0


class Probes(nn.Module):
    """All training-time heads of one model; none of them is exported."""

    def __init__(self, width: int, layers: int, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.eyes = DenseHeads(width, vocabulary, place=False)
        self.place = DenseHeads(width, vocabulary, place=True)
        self.asked = AskedHeads(width, vocabulary)
        self.place_layer = max(1, layers * 3 // 8)
        self.asked_layer = max(2, layers * 5 // 8)


def compute(model: Any, batch: Batch, probes: Probes, teacher: Any = None, has_words: bool = True) -> Losses:
    """Run one training forward; without words it goes through the lower layers only: twice the questions per second.

    `teacher` is as in `word_losses`. Without words their loss and both of their accuracies are 0.
    """
    image_tokens = see(model, batch.pixels)
    depth = len(model.model.language_model.layers)
    wanted = sorted({probes.place_layer, probes.asked_layer} | ({depth} if has_words else set()))
    states = dict(zip(wanted, read(model, batch, image_tokens, wanted), strict=True))
    words, accuracy, action_accuracy = batch.weights.new_zeros(()), 0.0, 0.0
    if has_words:
        words, accuracy, action_accuracy = word_losses(model, batch, states[depth], teacher)
    low, high = states[probes.place_layer], states[probes.asked_layer]
    dense = probes.eyes(image_tokens, batch.cells) + probes.place(low[:, batch.image_slice], batch.cells)
    asked, side_accuracy = probes.asked(high[batch.asked[:, 0], batch.asked[:, 1]], batch.facts)
    return Losses(words, dense, asked, accuracy, action_accuracy, side_accuracy)
