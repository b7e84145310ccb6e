"""Gives a draft model declared times, for device profiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from edge_drafter.protocols import Clock, DraftModel, FedModel
from speculation.cancellation import Abandoned, Stop
from speculation.distributions import Logits
from speculation.wire import ROOT, Jpegs

M = TypeVar("M", bound=DraftModel)


class PacedModel(Generic[M]):
    """A draft model whose forwards take at least `draft_s` seconds: the real work, then a wait for the rest.

    Serves device profiles: the tokens are the model's own, only the time is declared. Prefill is not paced.
    """

    def __init__(
        self,
        model: M,
        draft_s: float,
        clock: Clock = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
        layers: int = 1,
    ) -> None:
        """`layers`: how often `stop` is called in a declared forward."""
        self._model = model
        self._draft_s = draft_s
        self._clock = clock
        self._sleep = sleep
        self._layers = layers
        self._root_is_fed = False
        self._real_s = draft_s

    def begin(self, prompt: str, image: Jpegs, committed: Sequence[int] = (), stop: Stop | None = None) -> None:
        self._root_is_fed = False
        self._model.begin(prompt, image, committed, stop)

    def root_logits(self, stop: Stop | None = None) -> Logits:
        """Return the logits after the root; this is paced where it is a forward."""
        if self._root_is_fed:
            return self._model.root_logits()
        return self._paced(lambda: self._model.root_logits(stop), stop)

    def extend(self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None) -> Logits:
        """Feed tokens; this takes `draft_s` whatever the number of tokens."""
        return self._paced(lambda: self._model.extend(tokens, parents, stop), stop)

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        """Commit a path, which is no forward and so not paced."""
        renamed = self._model.commit(path, next_token)
        self._root_is_fed = ROOT in renamed.values()
        return renamed

    def _paced(self, forward: Callable[[], Logits], stop: Stop | None) -> Logits:
        """Wait before the forward as long as the last one fell short, so that giving it up leaves nothing to undo."""
        started = self._clock()
        ready = started + self._draft_s - self._real_s
        slices = self._layers if stop is not None else 1
        for number in range(1, slices + 1):
            rest = started + (ready - started) * number / slices - self._clock()
            if rest > 0:
                self._sleep(rest)
            if stop is not None and stop():
                raise Abandoned
        begun = self._clock()
        logits = forward()
        self._real_s = self._clock() - begun
        rest = self._draft_s - (self._clock() - started)
        if rest > 0:
            self._sleep(rest)
        self._root_is_fed = True
        return logits


class PacedFedModel(PacedModel[FedModel]):
    """A fed head with declared times: `draft_s` is that of a forward over one level of a tree."""

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        return self._model.tokens

    @property
    def root_is_new(self) -> bool:
        return self._model.root_is_new

    def feed(self, tokens: Sequence[int], end: int, packed: bytes) -> None:
        """Take features, which is no forward and so not paced."""
        self._model.feed(tokens, end, packed)
        self._root_is_fed = not self._model.root_is_new
