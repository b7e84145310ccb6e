"""Reads prompts into the draft model beside the target, piece after piece, between forwards of the target.

Its image, whole, is one piece; a chunk of its tokens another, which is predicted to take no longer than a forward in
which all robots decode but has LEAST tokens at least. The server runs one piece between two forwards of the target;
where nobody else is being answered, all at once. Deadlines of others are not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from cloud_verifier.estimator import DraftCosts, Estimator
from cloud_verifier.interfaces import DraftEngine
from cloud_verifier.policies.row_policy import LEAST
from cloud_verifier.step import Step
from speculation.cancellation import Stop
from speculation.pass_cost import Load


@dataclass
class _Reading:
    step: Step
    left: int
    """Tokens that are not fed yet."""
    cached: int
    encoded: bool
    charged_s: float | None
    """What its ledger was charged; None where the account is charged otherwise, or is not open yet."""
    seconds: float = 0.0


class DraftPrefills:
    """Those under way, by row, the first come first. `clock` gives seconds."""

    def __init__(
        self, model: DraftEngine, costs: DraftCosts, is_wanted: Callable[[Step], bool], clock: Callable[[], float]
    ) -> None:
        self._model, self._costs, self._is_wanted, self._clock = model, costs, is_wanted, clock
        self._estimates = Estimator()
        """Of a chunk's forward."""
        self._under_way: dict[int, _Reading] = {}

    def begin(self, step: Step, charged_s: float | None = None) -> None:
        """Let the model read a step's prompt from now on, for which its ledger is charged so much. Nothing is computed.

        What it really takes is charged at the end. Raises CapacityError where the prompt does not fit.
        """
        inputs, step.prefill.draft_inputs = step.prefill.draft_inputs, None
        left = self._model.begin(step.index, inputs, step.answer.max_tokens)
        cached = max(0, self._model.size(inputs) - 1 - left)
        encoded = not self._model.image_tokens(inputs)
        self._under_way[step.index] = _Reading(step, left, cached, encoded, charged_s)
        if charged_s is not None:
            step.ledger.charge(charged_s)
        self._end(self._under_way[step.index])

    def under_way(self, step: Step) -> bool:
        """Whether a step's prompt is being read."""
        reading = self._under_way.get(step.index)
        return reading is not None and reading.step is step

    def next(self) -> Step | None:
        """Return the step whose prompt is read on next, None where there is none. What nobody wants any more goes."""
        self._under_way = {row: each for row, each in self._under_way.items() if self._is_wanted(each.step)}
        return next((each.step for each in self._under_way.values()), None)

    def read(self, step: Step, limit_s: float = math.inf, stop: Stop | None = None) -> None:
        """Run one piece: the image, or a chunk that is predicted to take `limit_s` seconds at most, LEAST tokens at
        least. Raises Abandoned where `stop` returns True; it may be read on."""
        reading, began = self._under_way[step.index], self._clock()
        if not reading.encoded:
            self._model.encode(step.index, stop)
            reading.encoded = True
        else:
            size = self._size(reading, limit_s)
            self._model.feed(step.index, size, stop)
            self._estimates.observe(Load.row(size, reading.cached), self._clock() - began)
            reading.left, reading.cached = reading.left - size, reading.cached + size
        reading.seconds += self._clock() - began
        self._end(reading)

    def _size(self, reading: _Reading, limit_s: float) -> int:
        if not self._estimates.known:
            return reading.left if math.isinf(limit_s) else min(reading.left, LEAST)
        return min(reading.left, max(LEAST, self._estimates.largest(reading.left, limit_s, reading.cached)))

    def _end(self, reading: _Reading) -> None:
        """Note where a prompt is read to its end."""
        if reading.left or not reading.encoded:
            return
        del self._under_way[reading.step.index]
        reading.step.prefill.draft_ready()
        self._costs.prefill(reading.seconds)
        if reading.charged_s is not None:
            reading.step.ledger.charge(reading.seconds - reading.charged_s)
