"""Train bottleneck and head together on a frozen target: the target's own distribution, at every depth of a draft."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from adapters_training.exits.batches import Batch, Maker
from adapters_training.exits.memory import Need
from adapters_training.exits.preparation import Prepared, open_target
from adapters_training.exits.trainer import StepLosses, Trainer
from adapters_training.fed_head import memory
from adapters_training.fed_head.config import FedHeadConfig
from adapters_training.fed_head.kept import KeptRuns
from adapters_training.fed_head.losses import depth_losses
from adapters_training.fed_head.runs import Runs, gather
from adapters_training.packing import IGNORE
from speculation.fed.config import FedConfig
from speculation.fed.encoder import FeatureEncoder
from speculation.fed.head import FedHead
from speculation.vlm.load import Vlm


def prepare(config: FedHeadConfig) -> Prepared[FedHeadConfig]:
    """Check and open everything. Raises ValueError, in one sentence, for what cannot be trained on."""

    def layers(text: dict[str, Any]) -> tuple[int, ...]:
        return feeding_layers(config.layers, int(text["num_hidden_layers"]))

    def need(folder: Path, described: dict[str, Any], count: int, device: str, dtype: str) -> Need:
        return memory.check(folder, described, config, count, device, dtype)

    return open_target(config, layers, need)


def feeding_layers(chosen: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return the layers that make features, of a target of `count`: those chosen, or an early, a middle and a late
    one, as EAGLE-3 takes them. Raises ValueError for others than distinct ones of the target, ascending."""
    layers = chosen or tuple(sorted({min(2, count - 1), count // 2, max(0, count - 2)}))
    if list(layers) != sorted(set(layers)) or layers[0] < 0 or layers[-1] >= count or len(layers) > 8:
        raise ValueError(
            f"--layers {' '.join(map(str, layers))}: give at most 8 distinct layers of 0 to {count - 1}, ascending"
        )
    return layers


def frequent_tokens(prepared: Prepared[FedHeadConfig]) -> tuple[int, ...]:
    """Return the short list: the most frequent tokens of the data's answers and the end tokens, ascending.

    The whole vocabulary where it is no longer than the list.
    """
    config, vlm = prepared.config, prepared.vlm
    if vlm.vocabulary <= config.short_list:
        return tuple(range(vlm.vocabulary))
    counts: Counter[int] = Counter()
    order = prepared.plan.order(0)
    for first in range(0, min(config.list_samples, len(order)), config.batch):
        count = min(config.batch, len(order) - first)
        batch = prepared.maker(lambda place: int(order[place % len(order)]), first, count, config.seed)
        counts.update(batch.labels[batch.labels != IGNORE].tolist())
    ends = [token for token in vlm.eos if token < vlm.vocabulary]
    likely = [token for token, _ in sorted(counts.items(), key=lambda each: (-each[1], each[0])) if token not in ends]
    return tuple(sorted([*ends, *likely[: max(0, config.short_list - len(ends))]]))


def shape_of(prepared: Prepared[FedHeadConfig]) -> FedConfig:
    """Return what the head is to be. Raises ValueError for sizes that do not fit together."""
    config, vlm = prepared.config, prepared.vlm
    width = config.width or vlm.hidden_size
    return FedConfig(
        target=vlm.fingerprint,
        tokenizer=vlm.tokenizer_fingerprint,
        vocabulary=vlm.vocabulary,
        layers=prepared.layers,
        hidden=vlm.hidden_size,
        size=config.size,
        prompt_tokens=config.prompt_tokens,
        width=width,
        heads=config.heads or max(1, width // vlm.head_dim),
        intermediate=config.intermediate or 3 * width,
        short_list=frequent_tokens(prepared),
    )


class FedTrainer(Trainer[FedHeadConfig]):
    """Bottleneck and head of one target. Losses [depths, 2] are cross-entropy to the target, nats, and hits."""

    def __init__(self, prepared: Prepared[FedHeadConfig]) -> None:
        """Make a head, or take up the checkpoint in the output folder; ValueError if it is of another run."""
        torch.manual_seed(prepared.config.seed)
        shape, device = shape_of(prepared), prepared.vlm.device
        self.encoder, self.head = FeatureEncoder(shape).to(device), FedHead(shape).to(device)
        take_words(prepared.vlm, self.head)
        super().__init__(prepared, nn.ModuleDict({"encoder": self.encoder, "head": self.head}))

    @property
    def name(self) -> str:
        """See `Trainer.name`."""
        return "fed head"

    @property
    def settings(self) -> dict[str, Any]:
        """See `Trainer.settings`."""
        return super().settings | {"short list tokens": list(self.head.config.short_list)}

    def _maker(self) -> Maker[Batch | Runs | None]:
        config = self.prepared.config
        return KeptRuns(self.prepared, config.prompt_tokens) if config.kept else self.prepared.maker

    def learn(self, batches: Sequence[Batch | Runs | None]) -> StepLosses:
        """See `Trainer.learn`."""
        vlm, accelerator, config = self.prepared.vlm, self.prepared.accelerator, self.prepared.config
        total = StepLosses(torch.zeros(config.depths, 2, dtype=torch.float64), 0, 0, {"cut": 0, "passed": 0})
        for batch in batches:
            runs = self._runs(batch, total)
            if runs is None:
                continue
            with accelerator.autocast():
                losses = depth_losses(vlm, self.encoder, self.head, runs, config.depths, config.head_tokens)
            weights = torch.tensor([config.depth_weight**depth for depth in range(config.depths)], device=vlm.device)
            accelerator.backward((losses[:, 0] * weights).sum())
            total.losses += losses.detach().double().cpu()
            total.learned += float((runs.labels != IGNORE).sum())
        return total

    def _runs(self, batch: Batch | Runs | None, total: StepLosses) -> Runs | None:
        vlm, config = self.prepared.vlm, self.prepared.config
        if batch is None:
            return None
        if isinstance(batch, Runs):
            total.tokens += batch.tokens.numel()
            return batch.to(vlm.device)
        for problem in batch.problems:
            tqdm.write(f"passed over: {problem}")
        total.tokens += batch.ids.numel()
        total.counts["cut"] += batch.truncated
        total.counts["passed"] += len(batch.problems)
        with self.prepared.accelerator.autocast():
            return gather(vlm, batch.to(vlm.device), self.head.config.layers, config.prompt_tokens)

    def loss_of(self, means: Tensor) -> float:
        """See `Trainer.loss_of`; the first depth's, which the others follow."""
        return float(means[0, 0])

    def log(self, writer: SummaryWriter, means: Tensor) -> None:
        """See `Trainer.log`."""
        for depth, (loss, hits) in enumerate(means.tolist(), start=1):
            writer.add_scalar(f"cross-entropy/depth_{depth}", loss, self.step)
            writer.add_scalar(f"right/depth_{depth}", hits, self.step)


def take_words(vlm: Vlm, head: FedHead) -> None:
    """Let a head as wide as its target begin with the target's own embedding and output rows."""
    if head.config.width != vlm.hidden_size:
        return
    ids = torch.tensor(head.config.short_list, device=vlm.device)
    with torch.no_grad():
        table = vlm.text.embed_tokens.weight
        head.embed.weight[:-1] = table[ids].float()
        output = vlm.model.lm_head
        if type(output) is nn.Linear and type(output.weight.data) is Tensor:
            head.list_head.weight.copy_(output.weight[ids].float())
