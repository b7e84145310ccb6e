"""What exits are worth to this edge, learned from commits: when they are right, and how much time they gain."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

LEAST = 1e-3
"""Probabilities are kept this far from 0 and 1 before their odds are taken."""
SPREAD = (2.0, 1.0, 1.0)
"""Standard deviations of the weights before any commit: of the constant, of the confidence's and of the reach's."""
FORGET = 0.99
"""What one more verification leaves of the weight of those before it."""
TRIAL = 32
"""Verifications before exits are judged."""
RETRY_STEPS = 16
"""Of so many steps one asks for exits that have not paid: another target, or another draft, may be there."""

Inputs = tuple[float, float, float]
"""1, the log odds of the exit's confidence, and those of the reach."""


class Question(Enum):
    """What is asked about an exit's verdict."""

    LANDING = "landing"
    """Whether the answer goes on through the named token, which is in the tree."""
    ANCHOR = "anchor"
    """Whether the answer goes on to where the token would stand, which is not in the tree."""
    TOKEN = "token"
    """Whether it goes on to there and with that token."""


START = {Question.LANDING: (0.0, 1.0, 1.0), Question.ANCHOR: (0.0, 0.0, 1.0), Question.TOKEN: (0.0, 1.0, 0.0)}
"""Weights of the inputs before any commit. A token that both name: both odds, as of independent signals; one that only
the exit names: its confidence; the place before it: the draft's own view."""


@dataclass(frozen=True)
class Estimate:
    """A probability, and what it was estimated from."""

    question: Question
    layer: int
    inputs: Inputs
    probability: float


def log_odds(probability: float) -> float:
    """Return ln(p / (1 - p)), with p kept `LEAST` away from 0 and 1."""
    kept = min(1.0 - LEAST, max(LEAST, probability))
    return math.log(kept / (1.0 - kept))


@dataclass
class Regression:
    """Bayesian logistic regression, one verdict after another: the weights are normally distributed around `weights`.

    A verdict is one step of an extended Kalman filter, which is Newton's step for it alone from the mean before it.
    """

    weights: list[float]
    covariance: list[list[float]] = field(
        default_factory=lambda: [[SPREAD[i] ** 2 if i == j else 0.0 for j in range(3)] for i in range(3)]
    )

    def probability(self, inputs: Inputs) -> float:
        """Return the probability of a yes."""
        total = sum(weight * each for weight, each in zip(self.weights, inputs, strict=True))
        return 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, total))))

    def learn(self, inputs: Inputs, right: bool) -> None:
        """Take one answer."""
        expected = self.probability(inputs)
        slope = expected * (1.0 - expected)
        moved = [sum(each * value for each, value in zip(row, inputs, strict=True)) for row in self.covariance]
        share = 1.0 / (1.0 + slope * sum(each * value for each, value in zip(moved, inputs, strict=True)))
        for i in range(3):
            self.weights[i] += moved[i] * share * (right - expected)
            for j in range(3):
                self.covariance[i][j] -= slope * share * moved[i] * moved[j]


class ExitExperience:
    """Lives across steps, like the controller.

    *When they are right*: an exit's confidence is calibrated over all its verdicts. Of a verdict that the draft holds
    likely it is right far more often than that, of a token that the draft does not have far less, because each knows
    what the other does not. So confidence and the draft's own expectation are weighed together, by a regression for
    each layer and question.

    *The time they gain*: of the next draft, what lies between an exit's naming of a landing that the draft does not
    have and its commit. A landing that the draft has would have been drafted for without an exit.
    """

    def __init__(self) -> None:
        self._regressions: dict[tuple[int, Question], Regression] = {}
        self._gained_s = self._verified_s = 0.0
        self._verifications = 0

    def estimate(self, question: Question, layer: int, confidence: float, reach: float) -> Estimate:
        """Return the probability that the answer to `question` is yes.

        confidence: the exit's, 0 to 1. reach: the probability, as the tree has it, of the place that is asked about,
        or for a token that it does not have, of the place before it.
        """
        inputs = (1.0, log_odds(confidence), log_odds(reach))
        return Estimate(question, layer, inputs, self._regression(question, layer).probability(inputs))

    def learn(self, estimate: Estimate, right: bool) -> None:
        """Take what a commit has shown about an estimate."""
        self._regression(estimate.question, estimate.layer).learn(estimate.inputs, right)

    def verified(self, gained_s: float, verify_s: float) -> None:
        """Take one verification with exits: the seconds that they gained for the next draft, and its own."""
        self._gained_s = FORGET * self._gained_s + gained_s
        self._verified_s = FORGET * self._verified_s + verify_s
        self._verifications += 1

    @property
    def gain(self) -> float:
        """The seconds gained by a second of verification, of late; 0 before the first."""
        return self._gained_s / self._verified_s if self._verified_s > 0.0 else 0.0

    def pay(self, least: float, step: int) -> bool:
        """Whether step number `step` should ask for exits, which must gain `least`."""
        return self._verifications < TRIAL or self.gain >= least or step % RETRY_STEPS == 0

    def _regression(self, question: Question, layer: int) -> Regression:
        return self._regressions.setdefault((layer, question), Regression(list(START[question])))
