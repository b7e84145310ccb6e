"""Record what a target, its exits and a draft predict on held-out frames, by teacher forcing.

The target answers by itself; then one forward of each model over the whole answer gives its predictions, those of the
exits and those of the draft at every place of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cloud_verifier.config import ServerConfig
from cloud_verifier.engine import find_exits
from speculation.distributions import Distributions
from speculation.exits import ExitHeads, Head
from speculation.language.grammar import FREE
from speculation.logits_processors import Context, LogitsProcessors
from speculation.predictor import Predictor, features, find
from speculation.progress import progress
from speculation.sampling import GREEDY
from speculation.sampling.distribution import choose
from speculation.sampling.noise import StepDraws
from speculation.vlm.cache import KVCache
from speculation.vlm.forward import draft_chunk, forward_layers, prefill, to_numpy
from speculation.vlm.inputs import as_sent, prepare
from speculation.vlm.load import load_vlm
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession
from speculation.wire import ROOT, frames_of
from vlm_nav_evaluation.experiment.reference_answers import CAPACITY, ModelAlone
from vlm_nav_evaluation.experiment.run import Question
from vlm_nav_evaluation.virtual_time.recording import RecordedStep, Recording, Table

TOP = 5
"""Draft tokens kept for each place."""
LARGEST_VOCABULARY = 4096
"""Where a vocabulary has more tokens, only those that occur are kept, under new numbers: rows of logits stay short."""
FIRST_WORD, SPARE_WORDS = 256, 256
"""New numbers begin at `FIRST_WORD`, so that they have three bytes on the wire; spare ones serve as wrong tokens."""


@dataclass(frozen=True)
class Models:
    """The pair as production loads it: target and exits as the verifier, draft and predictor as the edge."""

    target: Vlm
    draft: Vlm
    exits: ExitHeads | None
    predictor: Predictor | None

    @classmethod
    def load(
        cls,
        target: Path,
        draft: Path,
        exits: Path | None = None,
        predictor: str = "auto",
        dtype: str = "float32",
        text_only: bool = False,
    ) -> Models:
        """Load all parts; `text_only`: a pair of language models alone, asked without frames. Exits are, where no
        folder is given, those that a verifier finds by itself.

        Raises ValueError, in one sentence, for a folder that cannot be used or does not fit.
        """
        config = ServerConfig.of(target, exits=exits, dtype=dtype, text_only=text_only)
        config.check_folders()
        vlm, small = load_vlm(config.model_folder, dtype=dtype), load_vlm(draft, dtype=dtype)
        if vlm.tokenizer_fingerprint != small.tokenizer_fingerprint:
            raise ValueError(f"draft {draft} has another tokenizer than target {target}; they must share one")
        folder = find(predictor, small.folder)
        guess = Predictor.load(folder, small.fingerprint) if folder is not None else None
        return cls(vlm, small, find_exits(config, vlm), guess)

    @property
    def exit_layers(self) -> tuple[int, ...]:
        """Return the layers with an exit."""
        return self.exits.layers if self.exits is not None else ()

    @property
    def short_list(self) -> npt.NDArray[np.integer] | None:
        """Return the tokens that exits can predict; None for all."""
        short = self.exits.short_list if self.exits is not None and self.exits.head is Head.SHORT else None
        return short.ids if short is not None else None


def record(models: Models, asked: Sequence[Question], max_tokens: int, answers: str = FREE) -> Recording:
    """Return a recording of every question; answers are greedy and have at most `max_tokens`.

    With `answers` CONSTRAINED all are masked by the grammar that each prompt asks for; text that it settles is drafted
    as all other text is, which costs forwards that the edge saves. Raises ValueError for a tokenizer that spells no
    such answer.
    """
    recorder = _Recorder(models, max_tokens, answers)
    steps = tuple(recorder.step(question) for question in progress(asked, unit="frame"))
    target, exits, predictor = models.target, models.exits, models.predictor
    tables = exits.table if exits is not None else {}
    recording = Recording(
        steps,
        target.vocabulary,
        target.eos,
        target.num_layers,
        models.exit_layers,
        max_tokens,
        predictor.threshold if predictor is not None else 0.0,
        {layer: Table(each.edges, each.agreement) for layer, each in tables.items()},
        None if models.short_list is None else frozenset(models.short_list.tolist()),
        {
            "target": target.fingerprint,
            "draft": models.draft.fingerprint,
            "predictor": predictor is not None,
            "cloud_prefill_s": median(recorder.cloud_prefill_s),
            "edge_prefill_s": median(recorder.edge_prefill_s),
        },
    )
    return compact(recording) if recording.vocabulary > LARGEST_VOCABULARY else recording


class _Recorder:
    def __init__(self, models: Models, max_tokens: int, answers: str) -> None:
        self._models = models
        self._alone = ModelAlone(models.target, max_tokens, answers)
        self._max_tokens = max_tokens
        self._top = min(TOP, models.draft.vocabulary)
        self._draft = VlmSession(models.draft, CAPACITY)
        self._cache = KVCache(models.target, 1, CAPACITY)
        self.cloud_prefill_s: list[float] = []
        self.edge_prefill_s: list[float] = []

    def step(self, question: Question) -> RecordedStep:
        target = self._models.target
        tokens, grammar = list(self._alone.decode(question).tokens), self._alone.grammar(question.prompt)
        question = replace(question, jpeg=as_sent(target, question.jpeg))
        penalty = target.penalty(prepare(target, question.prompt, question.jpeg).ids)
        processors = LogitsProcessors(penalty, grammar)
        root = processors.start((), self._max_tokens)
        contexts = processors.along(root, tokens[:-1], range(ROOT, len(tokens) - 2))
        exit_tokens, exit_probabilities = self._exits(question, tokens, processors, contexts)
        started = time.perf_counter()
        self._draft.begin(question.prompt, question.jpeg)
        self.edge_prefill_s.append(time.perf_counter() - started)
        rows = self._draft.root_logits()[None]
        if len(tokens) > 1:
            rows = np.concatenate([rows, self._draft.extend(tokens[:-1], range(ROOT, len(tokens) - 2))])
        rows = processors.process(rows, contexts)
        wide = rows.astype(np.float64)
        softmax = np.exp(wide - wide.max(axis=1, keepdims=True))
        softmax /= softmax.sum(axis=1, keepdims=True)
        likeliest = np.argsort(-wide, axis=1, kind="stable")[:, : self._top]
        probabilities = np.take_along_axis(softmax, likeliest, axis=1)
        acceptance = self._acceptance(rows, probabilities)
        return RecordedStep(
            question.prompt, sum(map(len, frames_of(question.jpeg))), tuple(tokens), likeliest.astype(np.int32),
            probabilities.astype(np.float32), acceptance.astype(np.float32), exit_tokens, exit_probabilities,
        )  # fmt: skip

    def _acceptance(self, rows: npt.NDArray[Any], probabilities: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the chance of each place's likeliest token by depth [n, depths]; without a predictor the draft's."""
        predictor = self._models.predictor
        if predictor is None:
            return probabilities[:, :1]
        inputs = features(Distributions(rows), [1] * len(rows))
        columns = []
        for depth in range(1, predictor.max_depth + 1):
            inputs[:, -1] = depth
            columns.append(predictor.probabilities(inputs))
        return np.stack(columns, axis=1)

    @torch.no_grad()
    def _exits(
        self, question: Question, tokens: list[int], processors: LogitsProcessors, contexts: Sequence[Context]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return every exit's likeliest token at every place [n, exits], and that one's probability.

        That is 0 where the grammar leaves none of an exit's tokens: there it says nothing.
        """
        models, exits = self._models, self._models.exits
        exit_tokens = np.zeros((len(tokens), len(models.exit_layers)), dtype=np.int32)
        probabilities = np.zeros(exit_tokens.shape, dtype=np.float32)
        started = time.perf_counter()
        root = prefill(models.target, self._cache, 0, prepare(models.target, question.prompt, question.jpeg))
        self.cloud_prefill_s.append(time.perf_counter() - started)
        if exits is None:
            return exit_tokens, probabilities
        chunk = draft_chunk(self._cache, 0, root, tokens[:-1], range(ROOT, len(tokens) - 2))
        for output in forward_layers(models.target, self._cache, [chunk]):
            if output.layer in models.exit_layers:
                listed, place = models.short_list, models.exit_layers.index(output.layer)
                short = None if listed is None else listed.astype(np.int64)
                logits = to_numpy(exits.logits(output.layer, output.hidden[0]))
                for at, row in enumerate(processors.process(logits, contexts, short)):
                    if not np.isfinite(row).any():
                        continue
                    best, chance = choose(row, GREEDY, StepDraws(0, at), short)
                    exit_tokens[at, place] = best if short is None else short[best]
                    probabilities[at, place] = chance
        return exit_tokens, probabilities


def compact(recording: Recording) -> Recording:
    """Return the same recording with only the tokens that occur, under new numbers of three bytes on the wire."""
    arrays = [np.asarray(step.tokens) for step in recording.steps]
    arrays += [step.draft_tokens for step in recording.steps]
    arrays += [step.exit_tokens for step in recording.steps if step.exit_tokens is not None]
    used = np.unique(np.concatenate([np.array(recording.eos, dtype=int), *(each.ravel() for each in arrays)]))

    def renumber(tokens: npt.ArrayLike) -> npt.NDArray[np.integer]:
        return (FIRST_WORD + np.searchsorted(used, tokens)).astype(np.int32)

    steps = tuple(
        replace(
            step,
            tokens=tuple(renumber(step.tokens).tolist()),
            draft_tokens=renumber(step.draft_tokens),
            exit_tokens=renumber(step.exit_tokens) if step.exit_tokens is not None else None,
        )
        for step in recording.steps
    )

    def listed(tokens: Iterable[int]) -> list[int]:
        """Return those of a short list that occur, ascending."""
        found: list[int] = renumber(sorted(set(tokens).intersection(used.tolist()))).tolist()
        return found

    short = recording.short_list
    return replace(
        recording,
        steps=steps,
        vocabulary=FIRST_WORD + len(used) + SPARE_WORDS,
        eos=tuple(renumber(recording.eos).tolist()),
        short_list=None if short is None else frozenset(listed(short)),
    )
