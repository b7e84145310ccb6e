"""VlmEngine: runs the rows that it is given through the target model, exits on the way. No policy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from cloud_verifier.config import ServerConfig
from cloud_verifier.work import CapacityError, LayerVerdicts, ModelInfo, Row
from speculation.acceptance import Verdict, depths_of, judge_picks
from speculation.cancellation import Abandoned, Stop
from speculation.exits import ExitHeads, Head
from speculation.prompts import Vocabulary
from speculation.sampling import Logits
from speculation.vlm.cache import KVCache
from speculation.vlm.forward import draft_chunk, final_logits, forward_layers, prefill, to_numpy
from speculation.vlm.inputs import Inputs, prepare
from speculation.vlm.load import ModelFolderError, Vlm
from speculation.vlm.sampling import choose_rows
from speculation.wire import MAX_DRAFT_TOKENS

_log = logging.getLogger("cloud_verifier")


def find_exits(config: ServerConfig, vlm: Vlm) -> ExitHeads | None:
    """Return the exit heads that `config` names or, where it names none, those that lie beside the model and fit it.

    Raises ModelFolderError for heads that were asked for and cannot be used.
    """
    folder = config.exits_folder
    if folder is None:
        return None
    try:
        heads = ExitHeads.load(folder, vlm, head=Head.FULL if config.target.short_list == "off" else None)
    except ModelFolderError as error:
        if config.target.exits is not None:
            raise
        _log.warning("no early exits: %s", error)
        return None
    short = heads.short_list
    if short is not None:
        size = short.nbytes / 1e6
        _log.info("exits know %d of %d tokens: their rows of the head take %.1f MB", len(short), vlm.vocabulary, size)
    return heads


def check_room(whose: str, prompt: int, answer: int, draft: int, capacity: int) -> None:
    """Raise CapacityError where image and prompt, answer and draft, in tokens, do not fit a row of a model's cache."""
    need = prompt + answer + draft
    if need > capacity:
        raise CapacityError(
            f"image and prompt of {prompt} tokens, an answer of {answer} and a draft of {draft} need {need} cache "
            f"slots of {whose}, a session has {capacity}; send a smaller image, ask for fewer tokens, or start the "
            "verifier with a larger --capacity"
        )


class VlmEngine:
    """One target model and `rows` rows of `capacity` cache slots; see `cloud_verifier.work.Engine`."""

    def __init__(
        self,
        vlm: Vlm,
        rows: int,
        capacity: int,
        exits: ExitHeads | None = None,
        max_draft: int = MAX_DRAFT_TOKENS,
        draws_on_device: bool | None = None,
    ) -> None:
        """`draws_on_device`: tokens are drawn where the logits are; None: wherever that is not the host."""
        self._vlm = vlm
        self._objects = Vocabulary.load(vlm.folder)
        self._exits = exits
        self._exit_layers = frozenset(exits.layers if exits is not None else ())
        self._draws_on_device = vlm.device.type != "cpu" if draws_on_device is None else draws_on_device
        self._cache = KVCache(vlm, rows, capacity)
        self._roots = [0] * rows
        self._max_draft = max_draft

    @property
    def model(self) -> ModelInfo:
        vlm = self._vlm
        return ModelInfo(
            name=vlm.name,
            fingerprint=vlm.fingerprint,
            tokenizer_fingerprint=vlm.tokenizer_fingerprint,
            vocabulary=vlm.vocabulary,
            num_layers=vlm.num_layers,
            exit_layers=self._exits.layers if self._exits is not None else (),
            eos=vlm.eos,
            objects=self._objects,
            reliability=dict(self._exits.table) if self._exits is not None else {},
        )

    def prepare(self, prompt: str, jpeg: bytes) -> Inputs:
        """See `Engine.prepare`."""
        return prepare(self._vlm, prompt, jpeg)

    def prefill(
        self, index: int, inputs: Inputs, committed: Sequence[int], max_tokens: int, stop: Stop | None = None
    ) -> int:
        """See `Engine.prefill`. The last token, of the answer or else of the prompt, stays out as the row's root."""
        check_room("the target", len(inputs.ids), max_tokens, self._max_draft, self._cache.capacity)
        root = prefill(self._vlm, self._cache, index, inputs, stop)
        if committed:
            chain = range(-1, len(committed) - 2)
            chunk = draft_chunk(self._cache, index, root, committed[:-1], chain)
            for output in forward_layers(self._vlm, self._cache, [chunk]):
                if stop is not None and output.layer < self._vlm.num_layers - 1 and stop():
                    raise Abandoned
            self._cache.keep(index, range(self._cache.length[index], self._cache.used[index]))
            root = committed[-1]
        self._roots[index] = root
        return len(inputs.ids)

    @torch.no_grad()
    def verify(self, rows: Sequence[Row]) -> Iterator[LayerVerdicts]:
        """See `Engine.verify`; one copy to the host per exit, for all rows together."""
        chunks = []
        for row in rows:
            self._cache.truncate(row.index, self._cache.length[row.index])
            if row.root is not None:
                self._roots[row.index] = row.root
            chunks.append(draft_chunk(self._cache, row.index, self._roots[row.index], row.tokens, row.parents))
        last = self._vlm.num_layers - 1
        asking = [place for place, row in enumerate(rows) if row.exits]
        for output in forward_layers(self._vlm, self._cache, chunks):
            if output.layer == last:
                yield self._judge(rows, final_logits(self._vlm, torch.cat(output.hidden)))
            elif self._exits is not None and asking and output.layer in self._exit_layers:
                hidden = torch.cat([output.hidden[place] for place in asking])
                yield self._judge_early(self._exits, output.layer, [rows[place] for place in asking], hidden)
            else:
                yield LayerVerdicts(output.layer, {})

    def keep(self, index: int, path: Sequence[int], token: int) -> None:
        """See `Engine.keep`."""
        root = self._cache.length[index]
        self._cache.keep(index, [root, *(root + 1 + place for place in path)])
        self._roots[index] = token

    def _judge_early(self, exits: ExitHeads, layer: int, rows: Sequence[Row], hidden: Tensor) -> LayerVerdicts:
        """Return an exit's verdicts; none for a row about which it knows nothing, or that it fails on."""
        verdicts = {}
        for row, part in _by_row(rows, to_numpy(exits.logits(layer, hidden))):
            try:
                verdict = exits.judge(row.rule(early=True), row.tokens, row.parents, part, sampling=row.draws)
            except Exception as error:
                _log.warning("the exit after layer %d failed on a row: %s", layer, error)
                continue
            if verdict is not None:
                verdicts[row.index] = verdict
        return LayerVerdicts(layer, verdicts)

    def _judge(self, rows: Sequence[Row], logits: Tensor) -> LayerVerdicts:
        # Where a verdict takes more than one sampled token a row, its logits come to the host in any case.
        parts = list(zip(rows, torch.split(logits, [1 + len(row.tokens) for row in rows]), strict=True))
        there = [(row, part) for row, part in parts if self._draws_on_device and row.sampling.on_device]
        here = [(row, part) for row, part in parts if not (self._draws_on_device and row.sampling.on_device)]
        judges: list[tuple[Row, Callable[[], Verdict]]] = []
        if there:
            judges += _on_device([row for row, _ in there], torch.cat([part for _, part in there]))
        if here:
            host = to_numpy(torch.cat([part for _, part in here]))
            for row, part in _by_row([row for row, _ in here], host):
                judges.append((row, partial(row.rule().judge, row.tokens, row.parents, part, row.draws)))
        verdicts, failures = {}, {}
        for row, judge in judges:
            try:
                verdicts[row.index] = judge()
            except Exception as error:
                failures[row.index] = error
        return LayerVerdicts(self._vlm.num_layers - 1, verdicts, failures)


def _on_device(rows: Sequence[Row], logits: Tensor) -> Iterator[tuple[Row, Callable[[], Verdict]]]:
    nodes = [(row, depth) for row in rows for depth in depths_of(row.parents)]
    picks = choose_rows(logits, [row.sampling for row, _ in nodes], [row.draws.ahead(depth) for row, depth in nodes])
    start = 0
    for row in rows:
        end = start + 1 + len(row.tokens)
        yield row, partial(judge_picks, row.tokens, row.parents, picks[start:end])
        start = end


def _by_row(rows: Sequence[Row], logits: Logits) -> Iterator[tuple[Row, Logits]]:
    ends = np.cumsum([1 + len(row.tokens) for row in rows])
    return zip(rows, np.split(logits, ends[:-1]), strict=True)
