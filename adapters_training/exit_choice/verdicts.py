"""Exits' verdicts on real drafts: a draft model proposes behind the target's answer, and every exit judges it.

An exit's verdict on a whole draft is right when it commits the very tokens that the target commits: the same node
reached and the same token after it (Early Exits, Sec. 3, step 2). That is what the edge can use, and it is rarer than a
right token: an exit that is right 9 times of 10 is right about four tokens in a row 2 times of 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from adapters_training.speculative_decoding import SpeculativeDecoder, Verification, cut
from speculation.acceptance import Verdict
from speculation.exits import ExitHeads, Head, Reliability, measure_reliability
from speculation.file_modes import share
from speculation.progress import progress
from speculation.sampling import Greedy
from speculation.vlm.cache import CacheFull
from speculation.vlm.forward import to_numpy
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession
from speculation.wire import ROOT

RECORDS_FILE = "verdicts.safetensors"
BINS = 10
"""Bins of confidence."""
Prompt = tuple[str, bytes | None]
"""An instruction, and a JPEG or none."""


@dataclass(frozen=True)
class HeadVerdicts:
    """The exits' verdicts with one head in V verifications, exits in the order of their layers."""

    confidence: npt.NDArray[np.float32]
    """[L, V], the verdict's probability as the exit saw it, 0 where it had none."""
    spoke: npt.NDArray[np.bool_]
    """[L, V], whether it had a verdict."""
    agreed: npt.NDArray[np.bool_]
    """[L, V], whether it committed the target's tokens."""

    def tables(self, layers: Sequence[int]) -> dict[int, Reliability]:
        """Return the reliability table of every layer's verdicts. Raises ValueError for an exit without any."""
        tables = {}
        for index, layer in enumerate(layers):
            spoke = self.spoke[index]
            if not spoke.any():
                raise ValueError(f"exit {layer} had no verdict: ask more prompts or list more tokens")
            tables[layer] = measure_reliability(
                self.confidence[index, spoke].tolist(), self.agreed[index, spoke].tolist(), BINS
            )
        return tables


@dataclass(frozen=True)
class Verdicts:
    """All verifications of a measurement."""

    layers: tuple[int, ...]
    by_head: dict[Head, HeadVerdicts]
    committed: npt.NDArray[np.int64]
    """[V], how many tokens the target committed."""
    tokens: npt.NDArray[np.int32]
    """The tokens that it committed, one verification behind the other."""
    ended: npt.NDArray[np.bool_]
    """[V], whether the tokens ended the answer, so that nothing was left to draft."""

    def covered(self, ids: npt.NDArray[np.int64]) -> float:
        """Return the share of the target's tokens that a short list of `ids` has."""
        return float(np.isin(self.tokens, ids).mean())

    def save(self, folder: Path) -> None:
        """Write verdicts.safetensors."""
        tensors: dict[str, npt.NDArray[np.generic]] = {
            "layers": np.array(self.layers, dtype=np.int64),
            "committed": self.committed,
            "tokens": self.tokens,
            "ended": self.ended,
        }
        for head, judged in self.by_head.items():
            tensors |= {f"{head.value}.{name}": value for name, value in vars(judged).items()}
        save_file(tensors, str(folder / RECORDS_FILE))
        share(folder / RECORDS_FILE)

    @classmethod
    def load(cls, folder: Path) -> Verdicts:
        """Read verdicts.safetensors. Raises ValueError, in one sentence, where a folder has none that can be read."""
        advice = "run `python -m adapters_training measure-exits` on it"
        if not (folder / RECORDS_FILE).is_file():
            raise ValueError(f"exits folder {folder} has no {RECORDS_FILE}; {advice}")
        try:
            tensors = load_file(str(folder / RECORDS_FILE))
            heads = [head for head in Head if f"{head.value}.agreed" in tensors]
            by_head = {head: HeadVerdicts(*(tensors[f"{head.value}.{name}"] for name in _ARRAYS)) for head in heads}
            layers = tuple(tensors["layers"].tolist())
            return cls(layers, by_head, tensors["committed"], tensors["tokens"], tensors["ended"])
        except (KeyError, OSError, SafetensorError) as error:
            raise ValueError(f"exits folder {folder}: {RECORDS_FILE} does not load ({error}); {advice}") from None


_ARRAYS = tuple(HeadVerdicts.__dataclass_fields__)


def short_list(counts: npt.NDArray[np.int64], coverage: float, always: Iterable[int] = ()) -> npt.NDArray[np.int32]:
    """Return the fewest tokens that make up `coverage` (0 to 1) of `counts` [vocabulary], and `always`, ascending.

    Of equally frequent tokens the lower one goes first. Raises ValueError for no counts or a coverage out of range.
    """
    if not 0.0 < coverage <= 1.0:
        raise ValueError(f"coverage {coverage} of a short list must be above 0 and at most 1")
    total = int(counts.sum())
    if total < 1:
        raise ValueError("no tokens were counted for the short list")
    order = np.argsort(-counts, kind="stable")
    seen = np.cumsum(counts[order])
    # A hair below, so that 0.9 of 10 counts asks for 9 of them whatever 0.9 * 10 rounds to.
    enough = int(np.searchsorted(seen, coverage * total - 1e-9)) + 1
    return np.unique(np.concatenate([order[:enough], np.fromiter(always, dtype=np.int64)])).astype(np.int32)


def count_tokens(vlm: Vlm, prompts: Sequence[Prompt], max_tokens: int, capacity: int) -> npt.NDArray[np.int64]:
    """Return how often the target commits each token [vocabulary] in its own greedy answers.

    Raises ValueError for a prompt that cannot be used or does not fit.
    """
    counts = np.zeros(vlm.vocabulary, dtype=np.int64)
    session = VlmSession(vlm, capacity)
    with _room():
        for text, image in progress(prompts, desc="answers for the short list", unit="prompt"):
            np.add.at(counts, [token for token, _ in session.greedy(text, image, max_tokens)], 1)
    return counts


def measure(
    vlm: Vlm, heads: ExitHeads, draft: Vlm, prompts: Sequence[Prompt], *, gamma: int, max_tokens: int, capacity: int
) -> Verdicts:
    """Decode every prompt as mode `sd` does, greedily, and record every exit's verdict in every verification.

    Exits judge with the full head and, where they have one, the short list. Raises ValueError for a draft model with
    another tokenizer or a capacity that does not fit.
    """
    recorder = _Recorder(heads, vlm.eos)
    decoder = SpeculativeDecoder(vlm, draft, gamma, max_tokens, capacity, heads.layers)
    with _room():
        for text, image in progress(prompts, desc="verdicts", unit="prompt"):
            for verification in decoder.answer(text, image):
                recorder.record(verification)
    return recorder.verdicts()


@contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except CacheFull as error:
        raise ValueError(f"{error}; give a larger --capacity") from None


@dataclass
class _Recorder:
    """Judges with every exit and both heads, and keeps the verdicts."""

    heads: ExitHeads
    eos: tuple[int, ...]
    committed: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rule = Greedy()
        self.kinds = [Head.FULL, *([Head.SHORT] if self.heads.short_list is not None else [])]
        self.confidence: dict[Head, list[list[float]]] = {kind: [] for kind in self.kinds}
        self.right: dict[Head, list[list[bool]]] = {kind: [] for kind in self.kinds}

    @torch.no_grad()
    def record(self, found: Verification) -> None:
        """Record one verification."""
        tokens, parents = found.tokens, range(ROOT, len(found.tokens) - 1)
        truth = self._commits(tokens, found.verdict)
        for kind in self.kinds:
            confidence: list[float] = []
            right: list[bool] = []
            for layer in self.heads.layers:
                own = to_numpy(self.heads.logits(layer, found.hidden[layer], kind))
                verdict = self.heads.judge(
                    self.rule, tokens, parents, own, kind, processors=found.processors, root=found.root
                )
                confidence.append(np.nan if verdict is None else verdict.confidence)
                right.append(verdict is not None and self._commits(tokens, verdict) == truth)
            self.confidence[kind].append(confidence)
            self.right[kind].append(right)
        self.committed.append(len(truth))
        self.tokens += truth
        self.ended.append(truth[-1] in self.eos)

    def verdicts(self) -> Verdicts:
        """Return all that was recorded."""
        by_head = {}
        for kind in self.kinds:
            confidence = np.array(self.confidence[kind], dtype=np.float32).T
            by_head[kind] = HeadVerdicts(
                np.ascontiguousarray(np.nan_to_num(confidence, nan=0.0)),
                np.ascontiguousarray(~np.isnan(confidence)),
                np.ascontiguousarray(np.array(self.right[kind]).T),
            )
        tokens = np.array(self.tokens, dtype=np.int32)
        return Verdicts(self.heads.layers, by_head, np.array(self.committed), tokens, np.array(self.ended))

    def _commits(self, tokens: Sequence[int], verdict: Verdict) -> tuple[int, ...]:
        return cut([*(tokens[node] for node in verdict.path), verdict.token], self.eos)
