"""VlmEngine: runs the rows that it is given through the target model, exits on the way. No policy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from cloud_verifier.config import Limits, ServerConfig, StartError
from cloud_verifier.interfaces import CapacityError, LayerVerdicts, ModelInfo, Row, RowFeatures
from speculation.acceptance import Verdict, depths_of, judge_picks
from speculation.cancellation import Abandoned, Stop
from speculation.exits import ExitHeads, Head
from speculation.features import pack
from speculation.fed.encoder import FeatureEncoder
from speculation.fed.files import load_encoder
from speculation.language.grammar import Grammars
from speculation.language.prompts import Vocabulary
from speculation.logits_processors import START, Context, LogitsProcessors, RepetitionPenalty
from speculation.sampling import Logits
from speculation.vlm.blocks import blocks_for
from speculation.vlm.cache import KVCache
from speculation.vlm.families import Seen
from speculation.vlm.forward import (
    Chunk,
    LayerOutput,
    PrefillChunk,
    downloaded,
    draft_chunk,
    encode_image,
    final_logits,
    forward_layers,
    image_places,
    words_before_image,
)
from speculation.vlm.graphs import graphs_of
from speculation.vlm.inputs import Inputs, prepare
from speculation.vlm.load import ModelFolderError
from speculation.vlm.memory import available_bytes, gigabytes
from speculation.vlm.model import Vlm
from speculation.vlm.positions import Ints
from speculation.vlm.sampling import Choices, Place
from speculation.vlm.speed import synchronise
from speculation.vlm.transfer import Download, beside
from speculation.wire import MAX_DRAFT_TOKENS, MAX_FRAME_PIXELS, MAX_FRAMES, Jpegs, Sight

_log = logging.getLogger("cloud_verifier")
_Heads = TypeVar("_Heads")

_FREE_SHARE = 0.8
"""Of the free memory, for keys and values; the rest is for forwards."""


def find_exits(config: ServerConfig, vlm: Vlm) -> ExitHeads | None:
    """Return the exit heads that `config` names or, where it names none, those that lie beside the model and fit it.

    Raises ModelFolderError for heads that were asked for and cannot be used.
    """
    heads = _loaded(config.exits_folder, config.target.exits, lambda folder: ExitHeads.load(folder, vlm), "early exits")
    if heads is not None and (short := heads.short_list) is not None:
        size = short.nbytes / 1e6
        _log.info("exits know %d of %d tokens: their rows of the head take %.1f MB", len(short), vlm.vocabulary, size)
    return heads


def find_encoder(config: ServerConfig, vlm: Vlm) -> FeatureEncoder | None:
    """Return the bottleneck of the fed head that `config` names or, where it names none, of one beside the model.

    Raises ModelFolderError for one that was asked for and cannot be used.
    """
    folder, asked = config.fed_head_folder, config.target.fed_head
    encoder = _loaded(folder, asked, lambda folder: load_encoder(folder, vlm), "features for fed heads")
    if encoder is not None:
        shape = encoder.config
        _log.info("robots may draft from features %s: layers %s, %d numbers a token, of the prompt's last %d tokens",
                  shape.features, list(shape.layers), shape.size, shape.prompt_tokens)  # fmt: skip
    return encoder


def _loaded(folder: Path | None, asked: Path | None, load: Callable[[Path], _Heads], what: str) -> _Heads | None:
    """Return what is in a folder; None where there is none, or what nobody has asked for does not load."""
    if folder is None:
        return None
    try:
        return load(folder)
    except ModelFolderError as error:
        if asked is not None:
            raise
        _log.warning("no %s: %s", what, error)
        return None


def cache_blocks(limits: Limits, vlms: Sequence[Vlm]) -> int:
    """Return how many blocks the cache of each model has: what all sessions can fill, as far as memory allows.

    A block has a part on every device that holds layers, so the device that is full first decides. `--memory` is for
    all devices together, each of which gives it as much as its layers take. Raises StartError where one session does
    not fit, or `--memory` is more than what is free.
    """
    each: dict[torch.device, int] = {}
    for vlm in vlms:
        for device, part in KVCache.block_bytes_by_device(vlm).items():
            each[device] = each.get(device, 0) + part
    whole, session, given = sum(each.values()), blocks_for(limits.capacity), limits.memory_bytes
    blocks: dict[torch.device, int] = {}
    for device, part in each.items():
        free = available_bytes(str(device))
        share = given * part // whole if given is not None else int(_FREE_SHARE * free)
        if given is not None and share > free:
            of_it = f" of which its layers take {gigabytes(share)}," if len(each) > 1 else ""
            raise StartError(f"--memory {limits.memory}:{of_it} {device} has {gigabytes(free)} free")
        # A cache has one block more than it gives out, and forwards need room too.
        blocks[device] = share // part - 1
    tightest = min(blocks, key=lambda device: blocks[device])
    if blocks[tightest] < session:
        budget = f"--memory {limits.memory}" if given is not None else f"what {tightest} has free"
        need = (session + 1) * (whole if given is not None else each[tightest])
        raise StartError(
            f"--capacity {limits.capacity}: keys and values of one session take {gigabytes(need)}, more than {budget}"
        )
    return min(limits.max_sessions * session, blocks[tightest])


def check_room(whose: str, prompt: int, answer: int, draft: int, capacity: int) -> None:
    """Raise CapacityError where image and prompt, answer and draft, in tokens, do not fit a row of a model's cache."""
    need = prompt + answer + draft
    if need > capacity:
        raise CapacityError(
            f"image and prompt of {prompt} tokens, an answer of {answer} and a draft of {draft} need {need} cache "
            f"slots of {whose}, a session has {capacity}; send a smaller image, ask for fewer tokens, or start the "
            "verifier with a larger --capacity"
        )


class ReadsPrompts:
    """Rows that hold prompts; see `cloud_verifier.interfaces.PromptReader`."""

    def __init__(self, vlm: Vlm, rows: int, capacity: int, blocks: int | None) -> None:
        self._vlm = vlm
        self._cache = KVCache(vlm, rows, capacity, blocks)
        self._roots = [0] * rows
        self._prefills: dict[int, Prefill] = {}
        self._penalties: dict[int, RepetitionPenalty | None] = {}
        """What is done to the logits behind the prompt of each row, as the target's checkpoint asks for."""

    def prepare(self, prompt: str, jpeg: Jpegs) -> Inputs:
        """See `PromptReader.prepare`."""
        return prepare(self._vlm, prompt, jpeg)

    def size(self, inputs: Inputs) -> int:
        """See `PromptReader.size`."""
        return len(inputs.ids)

    def image_tokens(self, inputs: Inputs) -> int:
        """See `PromptReader.image_tokens`."""
        return len(image_places(self._vlm, inputs))

    def release(self, index: int) -> None:
        """See `PromptReader.release`."""
        self._cache.clear(index)
        self._prefills.pop(index, None)
        self._penalties.pop(index, None)

    def encode(self, index: int, stop: Stop | None = None) -> None:
        """See `PromptReader.encode`; `stop` is called before and after the vision tower."""
        self._prefills[index].encode(self._vlm, stop)


class VlmEngine(ReadsPrompts):
    """One target model and `rows` rows of `capacity` cache slots; see `cloud_verifier.interfaces.Engine`."""

    def __init__(
        self,
        vlm: Vlm,
        rows: int,
        capacity: int,
        exits: ExitHeads | None = None,
        max_draft: int = MAX_DRAFT_TOKENS,
        blocks: int | None = None,
        encoder: FeatureEncoder | None = None,
        captured: bool = True,
    ) -> None:
        """`captured`: on a GPU small passes are CUDA graphs, see `speculation.vlm.graphs`.

        `blocks` of the cache for all rows together; None: what all can fill. `encoder` makes the features that rows may
        ask for; None: they get none.
        """
        super().__init__(vlm, rows, capacity, blocks)
        self._encoder = encoder
        self._objects = Vocabulary.load(vlm.folder)
        self._exits = exits
        self._exit_layers = frozenset(exits.layers if exits is not None else ())
        self._is_asynchronous = vlm.device.type != "cpu"
        self.draws_on_device = self._is_asynchronous
        """Is set where tokens are drawn on the device that holds the logits, and not on the CPU."""
        read = {*self._exit_layers, *(encoder.config.layers if encoder is not None else ())}
        self._graphs = graphs_of(vlm, self._cache, sorted(read)) if captured else None
        self._max_draft = max_draft
        self._grammars: Grammars | None = None
        try:
            self._grammars = vlm.grammars()
        except ValueError as error:
            _log.warning("no constrained answers: %s", error)

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
            features=self._encoder.config.features if self._encoder is not None else "",
            prompt_features=self._encoder.config.prompt_tokens if self._encoder is not None else 0,
            sight=self._sight,
            grammars=self._grammars,
            thinking=vlm.thinking,
            repetition_penalty=vlm.repetition_penalty,
        )

    @property
    def _sight(self) -> Sight | None:
        if self._vlm.processor.frames is None:
            return None
        unit, *pixels = self._vlm.processor.frames.resize_rule
        # Models with a list of objects were trained on one frame a question.
        frames = MAX_FRAMES if self._objects is None else 1
        return Sight(frames, unit, *(min(each, MAX_FRAME_PIXELS) for each in pixels))

    @property
    def blocks(self) -> int:
        """See `Engine.blocks`."""
        return self._cache.blocks

    def begin(self, index: int, inputs: Inputs, committed: Sequence[int], max_tokens: int, features: int = 0) -> int:
        """See `Engine.begin`."""
        check_room("the target", len(inputs.ids), max_tokens, self._max_draft, self._cache.capacity)
        self._prefills[index] = prefill = Prefill.of(self._vlm, inputs, committed)
        self._roots[index] = int(prefill.ids[-1])
        self._penalties[index] = self._vlm.penalty(inputs.ids)
        # What is shared is not fed, so it has no features.
        shared = prefill.words[: max(0, len(inputs.ids) - 1 - features)]
        return len(prefill.ids) - 1 - self._cache.open(index, shared, inputs.delta)

    @torch.no_grad()
    def verify(self, rows: Sequence[Row]) -> Iterator[LayerVerdicts]:
        """See `Engine.verify`; one copy to the host per exit, for all rows together.

        On a GPU an exit's verdicts come once layers behind it were started: as soon as they are there, at the next exit
        at the latest. Nobody waits for them while the GPU has nothing to do.
        """
        chunks = [self._chunk(row) for row in rows]
        last = self._vlm.num_layers - 1
        judging = self._judging([place for place, row in enumerate(rows) if row.judged], rows)
        early = self._judging([place for place in judging.places if rows[place].exits], rows, early=True)
        collected = _Collected(self._encoder, rows)
        pending: _Pending | None = None
        for output in forward_layers(self._vlm, self._cache, chunks, self._graphs):
            collected.take(output)
            started: _Pending | None = None
            if output.layer == last and judging.places:
                started = judging.start(last, final_logits(self._vlm, judging.hidden(output)))
            elif early.places and output.layer in self._exit_layers:
                started = self._start_early(early, output)
            if pending is not None and (pending.is_ready or started is not None or output.layer == last):
                yield self._judged_early(pending)
                pending = None
            if output.layer == last:
                yield self._judged(started, collected)
            elif started is None:
                yield LayerVerdicts(output.layer, {})
            elif self._is_asynchronous:
                pending = started
            else:
                yield self._judged_early(started)

    def keep(self, index: int, path: Sequence[int], token: int) -> None:
        """See `Engine.keep`."""
        root = self._cache.length[index]
        self._cache.keep(index, [root, *(root + 1 + place for place in path)])
        self._roots[index] = token

    def _following(self, row: Row) -> tuple[int, ...]:
        """Return the tokens that follow those of a chunk's that have features, once it is fed."""
        end = self._cache.length[row.index]
        return tuple(self._prefills[row.index].ids[end + 1 - row.features : end + 1].tolist())

    def _chunk(self, row: Row) -> Chunk | PrefillChunk:
        length = self._cache.length[row.index]
        self._cache.truncate(row.index, length)
        if row.chunk:
            chunk = self._prefills[row.index].chunk(row.index, length, row.chunk)
            return replace(chunk, draft=self._draft(row)) if row.judged else chunk
        # Its prefill is fed; what it was fed from is not needed any more.
        prefill = self._prefills.pop(row.index, None)
        if prefill is not None:
            self._cache.publish(row.index, prefill.words)
        return self._draft(row)

    def _draft(self, row: Row) -> Chunk:
        """Return what is judged of a row, behind a chunk that is fed with it."""
        if row.root is not None:
            self._roots[row.index] = row.root
        return draft_chunk(self._cache, row.index, self._roots[row.index], row.tokens, row.parents, row.chunk)

    def _judging(self, places: Sequence[int], rows: Sequence[Row], early: bool = False) -> _Judging:
        """Return how those of a pass's rows are judged that are at some `places`; `early`: by exits."""
        if early and (self._exits is None or self._exits.head is not Head.FULL):
            return _Judging(places, [rows[place] for place in places])
        chosen = [rows[place] for place in places]
        processing = [self._processing(row) for row in chosen]
        device = self._vlm.head_device if self.draws_on_device else None
        return _Judging(places, chosen, processing, device, self._vlm.vocabulary)

    def _start_early(self, judging: _Judging, output: LayerOutput) -> _Pending:
        """Start an exit on rows of a layer's output."""
        exits, layer = self._exits, output.layer
        assert exits is not None, "only layers with an exit have one started"
        with beside(output.hidden[0].device):
            logits = exits.logits(layer, judging.hidden(output))
            if exits.head is Head.FULL:
                return judging.start(layer, logits, early=True)
            coming = downloaded(logits)
        return _Pending(layer, [coming], lambda: self._judge_short(exits, judging.rows, coming))

    def _judge_short(self, exits: ExitHeads, rows: Sequence[Row], coming: Download) -> _Judges:
        """Yield how an exit with a short list judges each row."""
        for row, part in _by_row(rows, coming.numpy()):
            judge = partial(
                exits.judge, row.rule(early=True), row.tokens, row.parents, part, sampling=row.draws,
                processors=self._processors(row), root=row.context,
            )  # fmt: skip
            yield row, judge

    def _judged_early(self, pending: _Pending) -> LayerVerdicts:
        """Return an exit's verdicts; none for a row about which it knows nothing, or that it fails on."""
        found = pending.verdicts()
        for error in found.failures.values():
            _log.warning("the exit after layer %d failed on a row: %s", pending.layer, error)
        return LayerVerdicts(pending.layer, found.verdicts)

    def _judged(self, pending: _Pending | None, collected: _Collected) -> LayerVerdicts:
        """Return the last layer's verdicts, if rows are judged, and the features of those that asked for them."""
        found = LayerVerdicts(self._vlm.num_layers - 1, {}) if pending is None else pending.verdicts()
        features = collected.features(found.verdicts, self._following)
        if pending is None:  # what no verdict waits for would be measured as part of the next forward
            synchronise(*self._vlm.devices)
        return replace(found, features=features)

    def _processors(self, row: Row) -> LogitsProcessors:
        """Return what is done to a row's logits."""
        grammar = None if row.constraint is None else row.constraint.automaton
        return LogitsProcessors(self._penalties.get(row.index), grammar)

    def _processing(self, row: Row) -> tuple[LogitsProcessors, list[Context]]:
        """Return what is done to a row's logits, behind its root and behind each of its draft's tokens."""
        processors = self._processors(row)
        return processors, processors.along(row.context, row.tokens, row.parents) if processors else []


_Judges: TypeAlias = Iterator[tuple[Row, Callable[[], Verdict | None]]]
"""Rows, and what judges each of them."""


@dataclass(frozen=True)
class _Pending:
    """Verdicts of a layer whose numbers are on their way to the host."""

    layer: int
    coming: list[Download]
    judges: Callable[[], _Judges]

    @property
    def is_ready(self) -> bool:
        """Return whether all numbers have reached the host."""
        return all(each.is_ready for each in self.coming)

    def verdicts(self) -> LayerVerdicts:
        """Return the verdicts, and why a row could not be judged."""
        verdicts: dict[int, Verdict] = {}
        failures: dict[int, Exception] = {}
        for row, judge in self.judges():
            try:
                verdict = judge()
            except Exception as error:
                failures[row.index] = error
                continue
            if verdict is not None:
                verdicts[row.index] = verdict
        return LayerVerdicts(self.layer, verdicts, failures)


class _Judging:
    """How rows of a pass are judged by logits over the whole vocabulary: all that a device needs for it is there first.

    Where a verdict takes more than one sampled token a row, its logits come to the host in any case.
    """

    def __init__(
        self,
        places: Sequence[int],
        rows: Sequence[Row],
        processing: Sequence[tuple[LogitsProcessors, list[Context]]] = (),
        device: torch.device | None = None,
        vocabulary: int = 0,
    ) -> None:
        """places: of the rows in the pass; processing: of each row's logits, behind its root and each token of its
        draft; device: where tokens are drawn, None for the host."""
        self.places, self.rows = places, rows
        self._processing = processing
        self._there = [device is not None and row.sampling.on_device for row in rows]
        drawn: list[Place] = []
        for row, (processors, contexts), there in zip(rows, processing, self._there, strict=False):
            if there:
                depths = depths_of(row.parents)
                for depth, context in zip(depths, contexts or [START] * len(depths), strict=True):
                    drawn.append(Place(row.sampling, row.draws.ahead(depth), processors, context))
        self._choices = Choices(drawn, vocabulary, device) if drawn and device is not None else None

    def hidden(self, output: LayerOutput) -> Tensor:
        """Return what a layer has made of the rows' tokens [n, hidden]."""
        return torch.cat([output.hidden[place][row.chunk :] for place, row in zip(self.places, self.rows, strict=True)])

    def start(self, layer: int, logits: Tensor, early: bool = False) -> _Pending:
        """Start judging by the logits [n, vocabulary] behind a layer, an exit's (`early`) or the last."""
        parts = torch.split(logits, [1 + len(row.tokens) for row in self.rows])
        there = [part for part, is_there in zip(parts, self._there, strict=True) if is_there]
        here = [part for part, is_there in zip(parts, self._there, strict=True) if not is_there]
        picks = Download(self._choices.choose(torch.cat(there))) if self._choices is not None else None
        host = downloaded(torch.cat(here)) if here else None
        return _Pending(layer, [each for each in (picks, host) if each is not None],
                        lambda: self._judges(picks, host, early))  # fmt: skip

    def _judges(self, picks: Download | None, host: Download | None, early: bool) -> _Judges:
        if picks is not None:
            there = [row for row, is_there in zip(self.rows, self._there, strict=True) if is_there]
            for row, part in _by_row(there, picks.numpy()):
                chosen = [(int(token), float(chance)) for token, chance in part]
                yield row, partial(judge_picks, row.tokens, row.parents, chosen)
        if host is not None:
            here = [(row, how) for row, how, is_there in zip(self.rows, self._processing, self._there, strict=True)
                    if not is_there]  # fmt: skip
            parts = _by_row([row for row, _ in here], host.numpy())
            for (row, part), (_, (processors, contexts)) in zip(parts, here, strict=True):
                processed = processors.process(part, contexts)
                yield row, partial(row.rule(early).judge, row.tokens, row.parents, processed, row.draws)


@dataclass
class Prefill:
    """What a row's prefill feeds; the row's length is how much of it is fed."""

    inputs: Inputs
    ids: Ints
    """Of prompt and committed tokens [n + 1], the root last."""
    positions: Ints
    """[3, n + 1]."""
    words: list[int]
    """The prompt's tokens before its first image, which other rows may share."""
    images: Ints
    """Which of the prompt's tokens stand for parts of images; a committed token may look like one."""
    seen: Seen | None = None
    """What is fed in their place."""

    @classmethod
    def of(cls, vlm: Vlm, inputs: Inputs, committed: Sequence[int] = ()) -> Prefill:
        """Return a prefill of which nothing is fed."""
        count = len(inputs.ids)
        ids = np.concatenate([inputs.ids, np.array(committed, dtype=np.int64)])
        behind = np.tile(np.arange(count, len(ids)) + inputs.delta, (3, 1))
        positions = np.concatenate([inputs.positions, behind], axis=1)
        return cls(inputs, ids, positions, words_before_image(vlm, inputs), image_places(vlm, inputs))

    def encode(self, vlm: Vlm, stop: Stop | None = None) -> None:
        """Encode its images, and wait until the device has done so. Raises Abandoned where `stop` returns True."""
        if stop is None or not stop():
            self.seen = encode_image(vlm, self.inputs)
            synchronise(vlm.device)
        if stop is not None and stop():
            raise Abandoned

    def chunk(self, row: int, start: int, count: int) -> PrefillChunk:
        """Return `count` tokens from `start` on. Raises ValueError where there are fewer, or an image not encoded."""
        left = len(self.ids) - 1 - start
        if count > left:
            raise ValueError(f"row {row}: a chunk of {count} tokens, but its prefill has {left} left")
        first, last = np.searchsorted(self.images, (start, start + count))
        if first < last and self.seen is None:
            raise ValueError(f"row {row}: tokens of its image are to be fed before it was encoded")
        seen = self.seen[first:last] if first < last and self.seen is not None else None
        fed = slice(start, start + count)
        return PrefillChunk(row, self.ids[fed], self.positions[:, fed], self.images[first:last] - start, seen)


class _Collected:
    """The outputs of the layers that an encoder reads, of the rows of one forward that ask for features."""

    def __init__(self, encoder: FeatureEncoder | None, rows: Sequence[Row]) -> None:
        self._encoder = encoder
        self._rows = [(place, row) for place, row in enumerate(rows) if row.features] if encoder is not None else []
        self._hidden: list[list[Tensor]] = []
        """By layer and row [n_b, hidden]."""

    def take(self, output: LayerOutput) -> None:
        """Keep what a layer has made of the asking rows, if the encoder reads that layer."""
        if self._encoder is not None and self._rows and output.layer in self._encoder.config.layers:
            self._hidden.append([output.hidden[place] for place, _ in self._rows])

    def features(
        self, verdicts: Mapping[int, Verdict], following: Callable[[Row], tuple[int, ...]]
    ) -> dict[int, RowFeatures]:
        """Return the features of rows by their index: of a chunk's last tokens, which those of `following` follow, then
        of the root and the tokens that its verdict accepts. One copy to the host for all rows together."""
        if self._encoder is None or not self._rows:
            return {}
        tokens: list[tuple[int, ...]] = []
        places: list[list[int]] = []
        for _, row in self._rows:
            prompt: tuple[int, ...] = following(row) if row.chunk else ()
            answer: tuple[int, ...] = ()
            verdict = verdicts.get(row.index)
            if verdict is not None:
                accepted = tuple(row.tokens[node] for node in verdict.path)
                answer = (*accepted, verdict.token) if verdict.rest is None else accepted
            tokens.append((*prompt, *answer))
            judged = [0, *(node + 1 for node in verdict.path)][: len(answer)] if verdict is not None else []
            places.append([*range(row.chunk - len(prompt), row.chunk), *(row.chunk + place for place in judged)])
        found = {}
        try:
            numbers = self._encoder.numbers([
                torch.cat([hidden[place] for hidden, place in zip(layer, places, strict=True)])
                for layer in self._hidden
            ])  # fmt: skip
        except Exception as error:  # verdicts do not wait for hints
            _log.warning("no row gets features: %s", error)
            return {}
        parts = np.split(numbers, np.cumsum([len(place) for place in places])[:-1])
        for (_, row), known, part in zip(self._rows, tokens, parts, strict=True):
            try:
                if known:
                    found[row.index] = RowFeatures(known, pack(part))
            except ValueError as error:
                _log.warning("a row gets no features: %s", error)
        return found


def _by_row(rows: Sequence[Row], logits: Logits) -> Iterator[tuple[Row, Logits]]:
    ends = np.cumsum([1 + len(row.tokens) for row in rows])
    return zip(rows, np.split(logits, ends[:-1]), strict=True)
