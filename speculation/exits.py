"""Early exits: small adapters that read the final answer off a middle layer of a frozen target (torch).

Each exit is a bottleneck adapter in front of the target's own final norm and head; only the adapters are trained. A
*short list* is the part of the head that an exit may use instead: the rows of the target's most frequent tokens. A
*reliability table* holds how often an exit of a given confidence agreed with the final verdict.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from speculation.acceptance import Verdict
from speculation.file_modes import share
from speculation.logits_processors import START, UNPROCESSED, Context, LogitsProcessors
from speculation.sampling import AcceptanceRule, Logits, StepDraws, Tokens
from speculation.text import first_line
from speculation.vlm.forward import final_logits
from speculation.vlm.load import ModelFolderError
from speculation.vlm.model import Vlm
from speculation.wire import ROOT

logger = logging.getLogger(__name__)

WEIGHTS_FILE = "exits.safetensors"
CONFIG_FILE = "exits.json"
SHORT_LIST = "short_list"
FORMAT: Final = 2


class Head(str, Enum):
    """What an exit reads its token off: the target's `full` head, or its rows for the `short` list of tokens."""

    FULL = "full"
    SHORT = "short"


@dataclass(frozen=True)
class Reliability:
    """How often an exit was right: `agreement[i]` is the rate for confidences in [edges[i], edges[i + 1]).

    `edges` ascend from 0 to 1; the last bin includes 1. `counts` are the verdicts measured in each bin, where they are
    known. Raises ValueError for anything else.
    """

    edges: tuple[float, ...]
    agreement: tuple[float, ...]
    counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        ascending = all(low < high for low, high in pairwise(self.edges))
        if len(self.edges) < 2 or not ascending or self.edges[0] != 0.0 or self.edges[-1] != 1.0:
            raise ValueError(f"reliability edges {self.edges} must ascend from 0 to 1")
        if len(self.agreement) != len(self.edges) - 1 or not all(0.0 <= rate <= 1.0 for rate in self.agreement):
            raise ValueError(f"reliability needs {len(self.edges) - 1} agreement rates in 0..1, got {self.agreement}")
        if self.counts and (len(self.counts) != len(self.agreement) or min(self.counts) < 0):
            raise ValueError(f"reliability needs {len(self.agreement)} counts of verdicts, got {self.counts}")

    def rate(self, confidence: float) -> float:
        """Return the measured agreement at `confidence` (clamped to 0..1)."""
        inner = self.edges[1:-1]
        return self.agreement[sum(edge <= confidence for edge in inner)]


class ExitsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Contents of exits.json: whose exits these are, where they sit, and how often each was right, by head."""

    format: Literal[2]
    target: str
    layers: tuple[int, ...]
    rank: int
    reliability: dict[int, Reliability]
    short_reliability: dict[int, Reliability] = {}


@dataclass(frozen=True)
class ExitFiles:
    """An exits folder as it is on disk; needs no target. `weights`: the adapters', and `short_list` int32 [N]."""

    config: ExitsConfig
    weights: Mapping[str, Tensor]

    @classmethod
    def read(cls, folder: Path) -> ExitFiles:
        """Read a folder. Raises ModelFolderError, in one sentence."""
        folder = Path(folder)
        for name in (CONFIG_FILE, WEIGHTS_FILE):
            if not (folder / name).is_file():
                raise ModelFolderError(
                    f"exits folder {folder} has no {name}; train exits with `python -m adapters_training exits`"
                )
        try:
            return cls(_read_config(folder), load_file(str(folder / WEIGHTS_FILE)))
        except (OSError, SafetensorError) as error:
            raise _not_loaded(folder, error) from None

    def write(self, folder: Path) -> None:
        """Write exits.safetensors and exits.json; a writing that is broken off leaves the old files."""
        folder.mkdir(parents=True, exist_ok=True)
        weights, config = (folder / f"{name}.part" for name in (WEIGHTS_FILE, CONFIG_FILE))
        save_file({name: weight.contiguous() for name, weight in self.weights.items()}, str(weights))
        config.write_bytes(msgspec.json.format(msgspec.json.encode(self.config), indent=1) + b"\n")
        share(weights)
        weights.replace(folder / WEIGHTS_FILE)
        config.replace(folder / CONFIG_FILE)

    def select(self, layers: Iterable[int], short_list: bool = True) -> ExitFiles:
        """Return the files of some of the exits, with or without the short list. ValueError for a layer without one."""
        chosen = tuple(sorted(layers))
        unknown = sorted(set(chosen) - set(self.config.layers))
        if unknown:
            raise ValueError(f"layers {unknown} have no exit; exits sit at {list(self.config.layers)}")
        adapters = {str(layer) for layer in chosen}
        weights = {
            name: weight
            for name, weight in self.weights.items()
            if name.partition(".")[0] in adapters or (short_list and name == SHORT_LIST)
        }
        config = msgspec.structs.replace(
            self.config,
            layers=chosen,
            reliability=_of_layers(self.config.reliability, chosen),
            short_reliability=_of_layers(self.config.short_reliability, chosen if short_list else ()),
        )
        return ExitFiles(config, weights)


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


class ShortList:
    """The tokens that an exit can predict, `ids` [N], ascending, and their rows of the target's head, copied once.

    The copy costs `nbytes` of the target's memory: N x hidden numbers. Raises ValueError for tokens out of order or
    outside the vocabulary, and for a head whose rows cannot be taken apart.
    """

    def __init__(self, vlm: Vlm, ids: Iterable[int]) -> None:
        self.ids: Tokens = np.asarray(list(ids), dtype=np.int64)
        ascending = len(self.ids) > 0 and bool((np.diff(self.ids) > 0).all())
        if not ascending or self.ids[0] < 0 or self.ids[-1] >= vlm.vocabulary:
            raise ValueError(f"a short list needs ascending tokens in 0..{vlm.vocabulary - 1}")
        head = vlm.model.lm_head
        # torchao keeps the class of the layer; its weights are made of several tensors.
        if type(head) is not nn.Linear or hasattr(head.weight, "__tensor_flatten__") or head.bias is not None:
            raise ValueError("the target's head is quantised or has a bias, so no short list can be cut out of it")
        rows = torch.from_numpy(self.ids).to(head.weight.device)
        self.weight: Tensor = head.weight.detach().index_select(0, rows)
        self._listed: frozenset[int] = frozenset(self.ids.tolist())

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        """Size of the copied rows in bytes."""
        return self.weight.nbytes

    def __contains__(self, token: int) -> bool:
        return token in self._listed


class ExitHeads:
    """The exits of one target. `layers` (ascending, from 0, never the last) are the decoder layers that they follow.

    `head` is what they read their tokens off; `short_list` is None where there is none.
    """

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
        self.head = Head.FULL
        self.short_list: ShortList | None = None
        self.tables: dict[Head, dict[int, Reliability]] = {head: {} for head in Head}
        self.adapters = nn.ModuleDict({str(layer): ExitAdapter(vlm.hidden_size, rank) for layer in self.layers})
        for span in vlm.spans:
            for layer in set(self.layers) & set(span.layers):
                self.adapters[str(layer)].to(device=span.device, dtype=vlm.dtype)

    @classmethod
    def load(cls, folder: Path, vlm: Vlm, head: Head | None = None) -> ExitHeads:
        """Read trained exits, frozen, that use `head`; None takes the short list where there is one that can be used.

        Raises ModelFolderError, in one sentence, if they are not this target's or lack that head.
        """
        files = ExitFiles.read(folder)
        config = files.config
        if config.target != vlm.fingerprint:
            raise ModelFolderError(
                f"exits in {folder} belong to target {config.target}, the loaded target is {vlm.fingerprint}; "
                "train exits for it with `python -m adapters_training exits`"
            )
        weights = dict(files.weights)
        ids = weights.pop(SHORT_LIST, None)
        try:
            heads = cls(vlm, config.layers, config.rank)
            heads.adapters.load_state_dict(weights)
            heads.set_reliability(config.reliability)
            heads._check_measured(Head.FULL)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise _not_loaded(folder, error) from None
        heads.adapters.requires_grad_(False).eval()
        if ids is None and head is Head.SHORT:
            raise ModelFolderError(
                f"exits in {folder} have no short list; make one with `python -m adapters_training measure-exits`"
            )
        if ids is not None and head is not Head.FULL:
            try:
                heads.set_short_list(ids.tolist())
                heads.set_reliability(config.short_reliability, Head.SHORT)
                heads._check_measured(Head.SHORT)
                heads.use(Head.SHORT)
            except ValueError as error:
                if head is Head.SHORT:
                    raise _not_loaded(folder, error) from None
                heads.short_list = None
                logger.warning("exits in %s use the full head: %s", folder, error)
        return heads

    def save(self, folder: Path) -> None:
        """Write exits.safetensors and exits.json. Raises ValueError while a layer has no reliability table."""
        self._check_measured(Head.FULL)
        weights = {name: weight.detach().cpu() for name, weight in self.adapters.state_dict().items()}
        if self.short_list is not None:
            self._check_measured(Head.SHORT)
            weights[SHORT_LIST] = torch.from_numpy(self.short_list.ids).int()
        config = ExitsConfig(
            format=FORMAT,
            target=self.vlm.fingerprint,
            layers=self.layers,
            rank=self.rank,
            reliability=self.tables[Head.FULL],
            short_reliability=self.tables[Head.SHORT] if self.short_list is not None else {},
        )
        ExitFiles(config, weights).write(folder)

    def parameters(self) -> list[nn.Parameter]:
        """Return the adapters' weights, for an optimiser."""
        return list(self.adapters.parameters())

    def set_short_list(self, ids: Iterable[int] | None) -> None:
        """Give the exits a short list (see `ShortList`), or take it away; `use` switches it on."""
        self.head = Head.FULL
        self.tables[Head.SHORT] = {}
        self.short_list = None if ids is None else ShortList(self.vlm, ids)

    def use(self, head: Head) -> None:
        """Choose what exits read their tokens off. Raises ValueError for a short list that is not there."""
        if head is Head.SHORT and self.short_list is None:
            raise ValueError("these exits have no short list")
        self.head = head

    def logits(self, layer: int, hidden: Tensor, head: Head | None = None) -> Tensor:
        """Return what exit `layer` makes of its layer's output [n, hidden]: logits [n, vocabulary], or [n, N] of a
        short list's tokens; `head` None is the one in use.

        Raises KeyError for a layer without an exit. Gradients reach the adapters of exits that are being trained.
        """
        adapted = self.adapters[str(layer)](hidden.to(self.vlm.dtype))
        if (head or self.head) is Head.FULL or self.short_list is None:
            return final_logits(self.vlm, adapted)
        normed = self.vlm.text.norm(adapted.to(self.vlm.head_device))
        return nn.functional.linear(normed, self.short_list.weight)

    def judge(
        self, rule: AcceptanceRule, tokens: Sequence[int], parents: Sequence[int], logits: Logits,
        head: Head | None = None, sampling: StepDraws | None = None,
        processors: LogitsProcessors = UNPROCESSED, root: Context = START,
    ) -> Verdict | None:  # fmt: skip
        """Judge a draft by an exit's logits as the target's are judged; confidence is the rule's, not yet measured.

        None where the exit has no verdict: its walk ends where the draft goes on with a token outside the short list,
        which the exit can neither accept nor rule out; or it comes to a place where the answer's grammar leaves none of
        its tokens. `sampling` is `draws` of `AcceptanceRule.judge`; `processors` are those of the answer, `root` is
        where it stands. Exits are trained towards the target's raw logits; both then pass through the same processors.
        Their reliability is measured with the penalty that the target had there.
        """
        draws = sampling or StepDraws()
        short = self.short_list
        contexts = processors.along(root, tokens, parents) if processors else []
        if (head or self.head) is Head.FULL or short is None:
            return rule.judge(tokens, parents, processors.process(logits, contexts), draws)
        silent = set[int]()
        if processors.grammar is not None:
            masks = processors.masks(contexts)
            silent = {n for n, mask in enumerate(masks, ROOT) if mask is None or not mask[short.ids].any()}
            # Where it is silent its row must stay one that can be judged.
            contexts = [c._replace(state=None) if n in silent else c for n, c in enumerate(contexts, ROOT)]
        logits = processors.process(logits, contexts, short.ids)
        verdict = rule.judge(tokens, parents, logits, draws, short.ids)
        end = verdict.path[-1] if verdict.path else ROOT
        if not silent.isdisjoint((ROOT, *verdict.path)):
            return None
        if any(parent == end and token not in short for token, parent in zip(tokens, parents, strict=True)):
            return None
        return verdict

    @property
    def table(self) -> dict[int, Reliability]:
        """The reliability tables of the head in use, by layer; empty before they are measured."""
        return self.tables[self.head]

    def set_reliability(self, table: Mapping[int, Reliability], head: Head = Head.FULL) -> None:
        """Set the measured tables of a head, one a layer. Raises ValueError for a layer without an exit."""
        unknown = sorted(set(table) - set(self.layers))
        if unknown:
            raise ValueError(f"layers {unknown} have no exit; exits sit at {list(self.layers)}")
        self.tables[head] = dict(table)

    def reliability(self, layer: int, confidence: float) -> float:
        """Return how often exit `layer` agreed with the final verdict at this confidence. KeyError if not measured."""
        return self.table[layer].rate(confidence)

    def _check_measured(self, head: Head) -> None:
        missing = [layer for layer in self.layers if layer not in self.tables[head]]
        if missing:
            raise ValueError(f"exit layers {missing} have no reliability table; measure it before saving")


def measure_reliability(confidences: Sequence[float], agreed: Sequence[bool], bins: int = 10) -> Reliability:
    """Return the table of an exit's verdicts: their confidences in 0..1 and whether the final verdict was the same.

    Bins hold about equally many verdicts; rates are smoothed by one half verdict each way (Krichevsky-Trofimov), so
    that a small bin never claims certainty. Raises ValueError without verdicts.
    """
    if len(confidences) == 0 or len(confidences) != len(agreed) or bins < 1:
        raise ValueError(f"{len(confidences)} confidences, {len(agreed)} verdicts, {bins} bins: nothing to measure")
    values = np.clip(np.asarray(confidences, dtype=np.float64), 0.0, 1.0)
    inner = np.quantile(values, np.linspace(0, 1, bins + 1)[1:-1]).tolist()
    edges = [0.0, *sorted({edge for edge in inner if 0.0 < edge < 1.0}), 1.0]
    index = np.digitize(values, edges[1:-1])
    counts: npt.NDArray[np.int64] = np.bincount(index, minlength=len(edges) - 1)
    hits = np.bincount(index, weights=np.asarray(agreed, dtype=np.float64), minlength=len(edges) - 1)
    rates = (hits + 0.5) / (counts + 1.0)
    return Reliability(tuple(edges), tuple(rates.tolist()), tuple(counts.tolist()))


def _of_layers(table: Mapping[int, Reliability], layers: Iterable[int]) -> dict[int, Reliability]:
    return {layer: table[layer] for layer in layers if layer in table}


def _not_loaded(folder: Path, error: Exception) -> ModelFolderError:
    return ModelFolderError(f"exits in {folder} do not load ({first_line(error)}); train them again")


def _read_config(folder: Path) -> ExitsConfig:
    try:
        return msgspec.json.decode((folder / CONFIG_FILE).read_bytes(), type=ExitsConfig)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelFolderError(f"exits in {folder}: {CONFIG_FILE}: {error}; train them again") from None
