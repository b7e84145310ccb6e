"""A model alone, in this process: what every other answer must equal, and by which margin it differs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from edge_drafter import DecodingStats
from speculation.language.grammar import FREE, Automaton, grammar_for
from speculation.sampling import GREEDY
from speculation.vlm.inputs import as_sent
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession
from vlm_nav_evaluation.experiment.run import Answer, Arm, Question, Run

TARGET = "target"
"""Stands for a mode where the target model answers by itself, without edge or link."""
CAPACITY = 2048
LIMITS = {"float64": 0.0, "float32": 1e-4}
"""Largest margin of a near tie by dtype: kernels round differently for one token and for five."""


@dataclass(frozen=True)
class Flip:
    """The first token of an answer that differs; `margin` in the logits that the target alone samples from."""

    frame: int
    mode: str
    position: int
    margin: float


class ModelAlone:
    """Greedy decoding of one model, without edge or link, about frames in the size in which edges send them.

    `answers` and `capacity` as `EdgeConfig` has them.
    """

    def __init__(self, vlm: Vlm, max_tokens: int, answers: str = FREE, capacity: int = CAPACITY) -> None:
        self._session = VlmSession(vlm, capacity)
        self._max_tokens = max_tokens
        self._grammars = None if answers == FREE else vlm.grammars()

    def decode(self, question: Question) -> Answer:
        """Answer one question. Raises ValueError for one that cannot be used."""
        began = time.perf_counter()
        tokens = tuple(token for token, _ in self._answer(question))
        stats = DecodingStats(mode=TARGET, tokens=len(tokens), rounds=len(tokens), cloud_passes=len(tokens))
        stats.total_s = time.perf_counter() - began
        return Answer(tokens, stats)

    def grammar(self, prompt: str) -> Automaton | None:
        """Return the grammar that answers to a prompt keep to; None where they are free."""
        vlm = self._session.vlm
        return None if self._grammars is None else self._grammars.of(grammar_for(prompt), vlm.eos, vlm.thinking)

    def text(self, question: Question) -> str:
        """Return the answer's text. Raises ValueError as `decode`."""
        tokens = self.decode(question).tokens
        return self._session.vlm.read(tokens, constrained=self._grammars is not None)

    def arm(self, name: str = TARGET) -> Arm:
        """Return the arm that every exact arm is compared with."""
        return Arm(name, decode=self.decode)

    def flips(self, run: Run, asked: Sequence[Question], reference: str = TARGET) -> list[Flip]:
        """Return where the answers of a run leave those of the arm `reference`, which this target gave.

        The target answers once more where an answer differs: only then its logits are needed.
        """
        found = []
        for frame, (truth, question) in enumerate(zip(run.answers[reference], asked, strict=True)):
            others = {arm: answers[frame].tokens for arm, answers in run.answers.items()}
            if len(set(others.values())) > 1:
                rows = [logits for _, logits in self._answer(question)]
                flips = (first_flip(frame, arm, truth.tokens, rows, tokens) for arm, tokens in others.items())
                found += [flip for flip in flips if flip is not None]
        return found

    def _answer(self, question: Question) -> list[tuple[int, npt.NDArray[Any]]]:
        jpeg, grammar = as_sent(self._session.vlm, question.jpeg), self.grammar(question.prompt)
        return list(self._session.sampled(question.prompt, jpeg, self._max_tokens, GREEDY, grammar=grammar))


def first_flip(
    frame: int, mode: str, truth: Sequence[int], rows: Sequence[npt.NDArray[Any]], tokens: Sequence[int]
) -> Flip | None:
    """Return where `tokens` leave `truth`; None where they do not. A missing or added token has an infinite margin."""
    for position, (own, other) in enumerate(zip(truth, tokens, strict=False)):
        if own != other:
            return Flip(frame, mode, position, float(rows[position][own] - rows[position][other]))
    if len(truth) != len(tokens):
        return Flip(frame, mode, min(len(truth), len(tokens)), float("inf"))
    return None


def margins(flips: Sequence[Flip], arms: Iterable[str]) -> dict[str, list[float]]:
    """Return every arm's margins, ascending."""
    return {arm: sorted(flip.margin for flip in flips if flip.mode == arm) for arm in arms}


def bugs(flips: Sequence[Flip], dtype: str, arms: Sequence[str]) -> list[Flip]:
    """Return the flips of `arms` that are no near tie: above the limit of the dtype, if it has one."""
    limit = LIMITS.get(dtype)
    return [flip for flip in flips if limit is not None and flip.mode in arms and not flip.margin <= limit]
