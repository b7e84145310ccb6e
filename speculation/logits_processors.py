"""What becomes of a model's logits before a token is sampled, by the tokens before it (numpy, no torch).

As transformers orders its logits processors: first the repetition penalty that a checkpoint's generation_config asks
for, on the raw logits, then the mask of the answer's grammar. Temperature, top-k, top-p and noise come behind them, see
`speculation.sampling`. Both depend on nothing but the tokens before a place. So they are exact at every node of a token
tree, wherever an answer is taken up again, and at an exit as at the last layer. Whoever samples or ranks logits passes
them through here: the verifier, its exits, whatever drafts, and a model that answers alone. On a GPU
`speculation.vlm.sampling.process_rows` does the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from speculation.distributions import Logits
from speculation.language.grammar import Automaton, Mask, State, masked
from speculation.sampling import Tokens


@dataclass(frozen=True, eq=False)
class RepetitionPenalty:
    """Makes tokens that stand in the prompt, images included, or in the answer so far less likely (CTRL, Keskar et al.,
    arXiv 1909.05858): a logit below 0 is multiplied by `factor`, another one divided by it, however often it stands
    there."""

    factor: float
    prompt: Tokens
    """The prompt's tokens, each once."""

    @classmethod
    def of(cls, factor: float, prompt: Sequence[int] | Tokens, vocabulary: int) -> RepetitionPenalty | None:
        """Return the penalty behind a prompt; None for a factor of 1, which changes nothing.

        Tokens that the logits, cut to `vocabulary` tokens, do not have are left out.
        """
        if factor == 1.0:
            return None
        tokens = np.unique(np.asarray(prompt, dtype=np.int64))
        return cls(factor, tokens[tokens < vocabulary])

    def seen(self, answer: Sequence[int]) -> Tokens:
        """Return the tokens of the prompt and of an answer so far; some may come twice."""
        return np.concatenate([self.prompt, np.array(answer, dtype=np.int64)])

    def apply(self, rows: Logits, answers: Sequence[Sequence[int]], ids: Tokens | None = None) -> Logits:
        """Return a copy of logits [n, vocabulary] in which the tokens seen before each row are penalised.

        `answers` are the n answers so far, the tokens before each row. Where the logits have a column for only some
        tokens, `ids` names these tokens in ascending order, and the logits are [n, len(ids)].
        """
        rows = np.array(rows)
        for row, answer in zip(rows, answers, strict=True):
            seen = self.seen(answer)
            columns = seen if ids is None else np.flatnonzero(np.isin(ids, seen))
            values = row[columns]
            row[columns] = np.where(values < 0.0, values * self.factor, values / self.factor)
        return rows


class Context(NamedTuple):
    """What logits processors go by at one place of an answer."""

    answer: tuple[int, ...] = ()
    """All of the answer's tokens in front of the place. Empty where there is no penalty, which alone needs them."""
    state: State | None = None
    """Where in its grammar the answer stands; None: it has none, or has left it."""


@dataclass(frozen=True, eq=False)
class LogitsProcessors:
    """What is done to the logits behind one prompt: a penalty, a grammar, both or neither."""

    penalty: RepetitionPenalty | None = None
    grammar: Automaton | None = None

    def __bool__(self) -> bool:
        """Whether anything is done."""
        return self.penalty is not None or self.grammar is not None

    def start(self, committed: Sequence[int], max_tokens: int) -> Context:
        """Return the place behind the answer so far, of which there are at most `max_tokens` in all."""
        state = None if self.grammar is None else self.grammar.after(committed, max_tokens)
        return Context(() if self.penalty is None else tuple(committed), state)

    def next(self, context: Context, token: int) -> Context:
        """Return the place behind one token more."""
        answer = context.answer if self.penalty is None else (*context.answer, token)
        state = context.state
        return Context(answer, None if self.grammar is None or state is None else self.grammar.next(state, token))

    def along(self, root: Context, tokens: Sequence[int], parents: Sequence[int]) -> list[Context]:
        """Return the places behind the root and behind each node of a token tree, see `acceptance.walk_rows`."""
        contexts = [root]
        for token, parent in zip(tokens, parents, strict=True):
            contexts.append(self.next(contexts[parent + 1], token))
        return contexts

    def masks(self, contexts: Sequence[Context]) -> list[Mask | None]:
        """Return what the grammar allows at each place [vocabulary]; None where it does not mask."""
        grammar = self.grammar
        return [None if grammar is None or c.state is None else grammar.allowed(c.state).mask for c in contexts]

    def process(self, rows: Logits, contexts: Sequence[Context], ids: Tokens | None = None) -> Logits:
        """Return logits [n, vocabulary] with the penalty and then the grammar's mask applied to each row.

        `contexts` holds the n places that the rows belong to. Where the logits have a column for only some tokens,
        `ids` names these tokens in ascending order, and the logits are [n, len(ids)]. The argument is not changed; it
        is returned itself where there is neither penalty nor grammar.
        """
        if self.penalty is not None:
            rows = self.penalty.apply(rows, [context.answer for context in contexts], ids)
        return rows if self.grammar is None else masked(rows, self.masks(contexts), ids)


UNPROCESSED = LogitsProcessors()
"""Leaves logits as they are."""
START = Context()
"""The place of the first token of an answer without a grammar."""
