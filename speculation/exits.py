"""Early exits: small adapters that read the final answer off a middle layer of a frozen target (torch).

Each exit is a bottleneck adapter in front of the target's own final norm and head; only the adapters are trained. A
*reliability table* says how often an exit of a given confidence agreed with the final verdict.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from speculation.vlm.forward import final_logits
from speculation.vlm.load import ModelFolderError, Vlm

WEIGHTS_FILE = "exits.safetensors"
CONFIG_FILE = "exits.json"
FORMAT = 1


@dataclass(frozen=True)
class Reliability:
    """How often an exit was right: `agreement[i]` is the rate for confidences in [edges[i], edges[i + 1]).

    `edges` ascend from 0 to 1; the last bin includes 1. Raises ValueError for anything else.
    """

    edges: tuple[float, ...]
    agreement: tuple[float, ...]

    def __post_init__(self) -> None:
        ascending = all(low < high for low, high in pairwise(self.edges))
        if len(self.edges) < 2 or not ascending or self.edges[0] != 0.0 or self.edges[-1] != 1.0:
            raise ValueError(f"reliability edges {self.edges} must ascend from 0 to 1")
        if len(self.agreement) != len(self.edges) - 1 or not all(0.0 <= rate <= 1.0 for rate in self.agreement):
            raise ValueError(f"reliability needs {len(self.edges) - 1} agreement rates in 0..1, got {self.agreement}")

    def rate(self, confidence: float) -> float:
        """Return the measured agreement at `confidence` (clamped to 0..1)."""
        inner = self.edges[1:-1]
        return self.agreement[sum(edge <= confidence for edge in inner)]


class ExitAdapter(nn.Module):
    """h + up(silu(down(rmsnorm(h)))); `up` starts at zero, so an untrained adapter is the plain logit lens."""

    def __init__(self, hidden: int, rank: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(hidden, eps=eps)
        self.down = nn.Linear(hidden, rank, bias=False)
        self.up = nn.Linear(rank, hidden, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return adapted hidden states [n, hidden] of a layer's output [n, hidden]."""
        out: Tensor = hidden + self.up(nn.functional.silu(self.down(self.norm(hidden))))
        return out


class ExitHeads:
    """The exits of one target. `layers` (ascending, from 0, never the last) say after which decoder layers they sit."""

    def __init__(self, vlm: Vlm, layers: Iterable[int], rank: int) -> None:
        """Make untrained exits in the target's dtype. Raises ValueError for a layer or rank out of range."""
        self.layers = tuple(layers)
        self.rank = rank
        last = vlm.num_layers - 1
        if not self.layers or list(self.layers) != sorted(set(self.layers)):
            raise ValueError(f"exit layers {list(self.layers)} must be distinct and ascending")
        if self.layers[0] < 0 or self.layers[-1] >= last:
            raise ValueError(
                f"exit layers {list(self.layers)} must be in 0..{last - 1}; layer {last} is the final answer"
            )
        if rank < 1:
            raise ValueError(f"exit rank {rank} must be at least 1")
        self.vlm = vlm
        self.table: dict[int, Reliability] = {}
        self.adapters = nn.ModuleDict({str(layer): ExitAdapter(vlm.hidden_size, rank) for layer in self.layers})
        self.adapters.to(device=vlm.device, dtype=vlm.dtype)

    @classmethod
    def load(cls, folder: Path, vlm: Vlm) -> ExitHeads:
        """Read trained exits, frozen. Raises ModelFolderError, in one sentence, if they are not this target's."""
        folder = Path(folder)
        config = _read_config(folder)
        if config.get("target") != vlm.fingerprint:
            raise ModelFolderError(
                f"exits in {folder} belong to target {config.get('target')}, the loaded target is {vlm.fingerprint}; "
                "train exits for it with `python -m adapters_training exits`"
            )
        try:
            heads = cls(vlm, config["layers"], config["rank"])
            heads.adapters.load_state_dict(load_file(str(folder / WEIGHTS_FILE)))
            table = {layer: config["reliability"][str(layer)] for layer in heads.layers}
            heads.set_reliability(
                {layer: Reliability(tuple(t["edges"]), tuple(t["agreement"])) for layer, t in table.items()}
            )
        except (KeyError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ModelFolderError(f"exits in {folder} do not load ({reason}); train them again") from None
        heads.adapters.requires_grad_(False).eval()
        return heads

    def save(self, folder: Path) -> None:
        """Write exits.safetensors and exits.json. Raises ValueError while a layer has no reliability table."""
        missing = [layer for layer in self.layers if layer not in self.table]
        if missing:
            raise ValueError(f"exit layers {missing} have no reliability table; measure it before saving")
        folder.mkdir(parents=True, exist_ok=True)
        state = {name: weight.detach().cpu().contiguous() for name, weight in self.adapters.state_dict().items()}
        save_file(state, str(folder / WEIGHTS_FILE))
        config = {
            "format": FORMAT,
            "target": self.vlm.fingerprint,
            "layers": list(self.layers),
            "rank": self.rank,
            "reliability": {str(layer): asdict(self.table[layer]) for layer in self.layers},
        }
        (folder / CONFIG_FILE).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")

    def parameters(self) -> list[nn.Parameter]:
        """Return the adapters' weights, for an optimiser."""
        return list(self.adapters.parameters())

    def logits(self, layer: int, hidden: Tensor) -> Tensor:
        """Return what exit `layer` makes of its layer's output [n, hidden]: logits [n, vocabulary].

        Raises KeyError for a layer without an exit. Gradients reach the adapters of exits that are being trained.
        """
        return final_logits(self.vlm, self.adapters[str(layer)](hidden.to(self.vlm.dtype)))

    def set_reliability(self, table: Mapping[int, Reliability]) -> None:
        """Set the measured tables, one a layer. Raises ValueError for a layer without an exit."""
        unknown = sorted(set(table) - set(self.layers))
        if unknown:
            raise ValueError(f"layers {unknown} have no exit; exits sit at {list(self.layers)}")
        self.table = dict(table)

    def reliability(self, layer: int, confidence: float) -> float:
        """Return how often exit `layer` agreed with the final verdict at this confidence. KeyError if not measured."""
        return self.table[layer].rate(confidence)


def measure_reliability(confidences: Sequence[float], agreed: Sequence[bool], bins: int = 10) -> Reliability:
    """Return the table of an exit's verdicts: their confidences in 0..1 and whether the final verdict was the same.

    Bins hold about equally many verdicts; rates are smoothed by one half verdict each way (Krichevsky-Trofimov), so
    that a small bin never claims certainty. Raises ValueError without verdicts.
    """
    if not confidences or len(confidences) != len(agreed) or bins < 1:
        raise ValueError(f"{len(confidences)} confidences, {len(agreed)} verdicts, {bins} bins: nothing to measure")
    values = torch.tensor(confidences, dtype=torch.float64).clamp(0.0, 1.0)
    right = torch.tensor(agreed, dtype=torch.float64)
    inner = (
        torch.quantile(values, torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]).tolist() if bins > 1 else []
    )
    edges = [0.0, *sorted({edge for edge in inner if 0.0 < edge < 1.0}), 1.0]
    index = torch.bucketize(values, torch.tensor(edges[1:-1], dtype=torch.float64), right=True)
    counts = torch.bincount(index, minlength=len(edges) - 1)
    hits = torch.bincount(index, weights=right, minlength=len(edges) - 1)
    rates = (hits + 0.5) / (counts + 1.0)
    return Reliability(tuple(edges), tuple(float(rate) for rate in rates))


def _read_config(folder: Path) -> dict[str, Any]:
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise ModelFolderError(
                f"exits folder {folder} has no {name}; train exits with `python -m adapters_training exits`"
            )
    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelFolderError(f"exits in {folder}: {CONFIG_FILE} is no JSON ({error}); train them again") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ModelFolderError(f"exits in {folder}: {CONFIG_FILE} is not format {FORMAT}; train them again")
    return config
