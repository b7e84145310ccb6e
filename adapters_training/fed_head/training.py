"""Train a fed head for a target model of your own: a draft of one layer that continues from the target's features.

It sees no image: all that it knows of frame and prompt is in the target's hidden states, at most 256 bytes a token.
The target is frozen; bottleneck and head learn together, from the target's own distribution, along its own answers.

data (any mix, local files): as for `exits`. Best are the target's own answers: folders of `adapters_training answers`.
writes: fed_head.json, fed_encoder.safetensors (for the verifier), fed_head.safetensors (for the robot), config.yaml
  (every setting as it was used), results.json (tokens a verification on held-out answers), tensorboard/.

A killed run goes on when it is started again with the same words, and ends with the same weights. Several GPUs or
nodes: `accelerate launch -m adapters_training fed-head ...` (or torchrun).

examples:
  python -m adapters_training answers --model models/target --data out/data --out out/answers --frames 6000
  python -m adapters_training fed-head --config config/fed_head/embedded_pair.yaml --target models/target \\
      --data out/answers --held-out out/held-out-answers --draft models/draft --out out/fed_head
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from msgspec import Meta
from torch import Tensor, nn

from adapters_training.fed_head.acceptance import Drafter, HeadDrafter, ModelDrafter, measure
from adapters_training.fed_head.runs import gather
from adapters_training.fed_head.unroll import depth_losses
from adapters_training.frozen_target.batches import Batch
from adapters_training.frozen_target.trainer import FrozenTargetConfig, FrozenTrainer, Prepared
from adapters_training.frozen_target.training import training_command
from adapters_training.packing import IGNORE
from adapters_training.trainer import StepLosses
from speculation.features import MAX_SIZE, SCALE_BYTES
from speculation.fed.config import FedConfig
from speculation.fed.encoder import FeatureEncoder
from speculation.fed.files import CONFIG_FILE, round_weights, save
from speculation.fed.head import FedHead
from speculation.vlm.load import load_vlm
from speculation.vlm.model import Vlm
from speculation.wire import MAX_DRAFT_TOKENS, MAX_PROMPT_FEATURES

SHOWN_DEPTHS = 16
"""Depths of a draft whose shares of right tokens results.json has."""


class FedHeadConfig(FrozenTargetConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of one training of a fed head.

    The recipe is EAGLE-3's (arXiv 2503.01840, Sec. 3.2 and 4), where it names one: the target's own distribution as
    what is learned, several depths of a draft unrolled. It keeps the features on one machine and at the target's width;
    their bytes, the bottleneck and the rounding in training are this project's.
    """

    layers: Annotated[
        tuple[int, ...], Meta(description="layers that make a feature, from 0; none: an early, a middle and a late one")
    ] = ()
    size: Annotated[
        int, Meta(ge=1, le=MAX_SIZE, description="numbers of a feature: bytes of a token on the wire, less 4")
    ] = MAX_SIZE
    prompt_tokens: Annotated[
        int, Meta(ge=1, le=MAX_PROMPT_FEATURES, description="tokens at a prompt's end whose features are sent")
    ] = 16
    width: Annotated[int, Meta(ge=0, description="of the decoder layer; 0: the target's")] = 0
    heads: Annotated[int, Meta(ge=0, description="attention heads; 0: the target's, or as many of its width")] = 0
    intermediate: Annotated[
        int, Meta(ge=0, description="width of the feed-forward part; 0: three times the layer's")
    ] = 0
    short_list: Annotated[
        int, Meta(ge=1, description="tokens that can be drafted: the most frequent ones of the data's answers")
    ] = 4096
    list_samples: Annotated[int, Meta(ge=1, description="records that are counted for that")] = 2000
    depths: Annotated[
        int, Meta(ge=1, le=16, description="tokens of a draft that are unrolled (training-time test of EAGLE-3)")
    ] = 5
    depth_weight: Annotated[
        float, Meta(gt=0.0, le=1.0, description="weight of a depth's loss, relative to that of the depth before")
    ] = 0.8
    gamma: Annotated[
        int, Meta(ge=1, le=MAX_DRAFT_TOKENS, description="draft tokens a verification, where the head is measured")
    ] = 4
    draft: Annotated[
        str, Meta(description="draft model that the head is measured beside (with the target's processor); none: none")
    ] = ""


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


class FedTrainer(FrozenTrainer[FedHeadConfig]):
    """Bottleneck and head of one target. Losses [depths, 2] are cross-entropy to the target, nats, and hits."""

    name, kind, made, file = "fed head", FedHeadConfig, "a fed head", CONFIG_FILE
    smaller = "--context, --batch, --depths, --head-tokens, --short-list or --width"

    def build(self, config: FedHeadConfig) -> nn.Module:
        torch.manual_seed(config.seed)
        shape, device = shape_of(self.prepared), self.vlm.device
        self.encoder, self.head = FeatureEncoder(shape).to(device), FedHead(shape).to(device)
        take_words(self.vlm, self.head)
        return nn.ModuleDict({"encoder": self.encoder, "head": self.head})

    @staticmethod
    def layers_of(config: FedHeadConfig, text: Mapping[str, Any]) -> tuple[int, ...]:
        count = int(text["num_hidden_layers"])
        # Those that EAGLE-3 takes: an early, a middle and a late one.
        layers = config.layers or tuple(sorted({min(2, count - 1), count // 2, max(0, count - 2)}))
        if list(layers) != sorted(set(layers)) or layers[0] < 0 or layers[-1] >= count or len(layers) > 8:
            shown = " ".join(map(str, layers))
            raise ValueError(f"--layers {shown}: give at most 8 distinct layers of 0 to {count - 1}, ascending")
        return layers

    @staticmethod
    def weights_of(config: FedHeadConfig, text: Mapping[str, Any], layers: int) -> int:
        hidden, listed = int(text["hidden_size"]), min(config.short_list, int(text["vocab_size"]))
        width = config.width or hidden
        inner = config.intermediate or 3 * width
        return hidden * layers * config.size + width * (config.size + 7 * width + 3 * inner + 2 * listed)

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | {"short list tokens": list(self.head.config.short_list)}

    def learn(self, batches: Sequence[Batch]) -> StepLosses:
        depths, device = self.config.depths, self.vlm.device
        weights = torch.tensor([self.config.depth_weight**depth for depth in range(depths)], device=device)
        total = StepLosses(torch.zeros(depths, 2, dtype=torch.float64))
        for batch in batches:
            self.count(batch, total)
            with self.autocast():
                runs = gather(self.vlm, batch.to(self.vlm.device), self.prepared.layers, self.config.prompt_tokens)
                if runs is None:
                    continue
                losses = depth_losses(self.vlm, self.encoder, self.head, runs, depths, self.config.head_tokens)
            (losses[:, 0] * weights).sum().backward()  # type: ignore[no-untyped-call]
            total.losses += losses.detach().double().cpu()
            total.learned += float((runs.labels != IGNORE).sum())
        return total

    def loss_of(self, means: Tensor) -> float:
        # The first depth's, which the others follow.
        return float(means[0, 0])

    def figures(self, means: Tensor) -> dict[str, float]:
        kinds = ("cross-entropy", "right")
        return {
            f"{kind}/depth_{depth}": value
            for depth, values in enumerate(means.tolist(), start=1)
            for kind, value in zip(kinds, values, strict=True)
        }

    def finish(self, config: FedHeadConfig, folder: Path) -> dict[str, Any]:
        device = str(self.vlm.device)
        draft = load_vlm(config.draft, config.model(device, "float32")) if config.draft else None
        modules = self.encoder, self.head
        for module in modules:
            module.requires_grad_(False).eval()
            round_weights(module)  # before they are measured: those that are measured are those that are served
        batches = self.prepared.held_out(config.held_out_samples)
        depths = max(config.gamma, SHOWN_DEPTHS)
        head = HeadDrafter(self.vlm, *modules, depths, config.head_tokens)
        drafters: dict[str, Drafter] = {"head": head}
        if draft is not None:
            drafters["draft"] = ModelDrafter(self.vlm, draft, depths, config.prompt_tokens)
        found = measure(self.vlm, drafters, batches, config.gamma, self.prepared.layers, config.prompt_tokens)
        found["head"] |= head.figures
        shape = save(folder, *modules)
        return {
            "weights of the head": sum(weight.numel() for weight in self.head.parameters()),
            "weights of the bottleneck": sum(weight.numel() for weight in self.encoder.parameters()),
            "bytes a token": SCALE_BYTES + shape.size,
            "short list": len(shape.short_list),
            **found,
        }

    @staticmethod
    def table(results: Mapping[str, Any]) -> Sequence[str]:
        """Return how often drafted tokens are right by depth, and tokens a verification."""
        depths = range(1, results["gamma"] + 1)
        lines = [
            f"{results['tokens']:,} held-out tokens, of which the target itself chooses {results['own']:.1%}",
            f"{'':>8s} {'tokens a verification':>22s} " + " ".join(f"{f'right at {depth}':>10s}" for depth in depths),
        ]
        for name in (name for name in ("head", "draft") if name in results):
            found = results[name]
            shares = " ".join(f"{share:10.1%}" for share in found["right at depth"])
            lines.append(f"{name:>8s} {found['tokens a verification']:22.2f} {shares}")
        return lines


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


COMMAND = training_command("fed-head", "train a draft head that a frozen target feeds", __doc__, FedTrainer)
