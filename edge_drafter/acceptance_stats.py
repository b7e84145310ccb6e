"""Learns from verdicts what one drafter decides by: acceptance, times, the exits' reliability, what drafting is worth.

The statistics outlive a step. Every event is reported once, to `AcceptanceStats` or to the part of it that it is about.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from edge_drafter.draft_effort import Effort
from edge_drafter.settings import AUTO, BALANCE, DraftingConfig
from edge_drafter.stats import DecodingStats
from edge_drafter.tree import Rerooting
from speculation.acceptance import expected_tokens
from speculation.wire import MAX_DRAFT_TOKENS, Commit

LONGEST_DRAFT = 16
LEAST_ROUNDS = 3
PROBE_ROUNDS = 16
WEIGHT = 0.1
"""Weight of the newest sample in an average."""
HYSTERESIS = 0.03
USUAL, SLOW = 0.9, 0.02
"""`Controller.goes_on` before the first verdict, and the weight of one more token in it."""

LEAST = 1e-3
"""Probabilities are kept this far from 0 and 1 before their odds are taken."""
SPREAD = (2.0, 1.0, 1.0)
"""Standard deviations of the weights before any commit: of the constant, of the confidence's and of the reach's."""
FORGET = 0.99
"""What one more verification leaves of the weight of those before it."""
TRIAL = 32
"""So many verifications pass before exits are judged."""
RETRY_STEPS = 16
"""One of so many steps asks for exits that have not paid: another target, or another draft, may be there."""

Inputs = tuple[float, float, float]
"""1, the log odds of the exit's confidence, and those of the reach."""


def tokens_per_second(acceptance: float, gamma: int, fixed_s: float, draft_s: float) -> float:
    """Return E(gamma) / (F + c gamma): F seconds per round trip and verification, c per draft token."""
    return expected_tokens(acceptance, gamma) / (fixed_s + draft_s * gamma)


def balanced_gamma(verify_s: float, draft_s: float, rtt_s: float) -> float:
    """Return the draft depth at which drafting and round trip take as long as a verification (SpecEdge, Sec. 4.3)."""
    return (verify_s - rtt_s) / draft_s


def average(known: float | None, sample: float, weight: float = WEIGHT) -> float:
    """Return an exponentially weighted mean with one more sample; the first one is the mean."""
    return sample if known is None else known + weight * (sample - known)


class Controller:
    """Estimates times and acceptance, and chooses gamma by a rule, or keeps it where `rule` is None.

    "auto" changes gamma only for a gain above `HYSTERESIS`, and not before `LEAST_ROUNDS` rounds. Where drafting does
    not pay it chooses 0, but tries one token every `PROBE_ROUNDS` rounds: acceptance may have recovered. "balance"
    rounds `balanced_gamma` and moves only when that is further than `HYSTERESIS` beyond the halfway point.

    Estimates are in seconds, and None before the first sample.
    """

    def __init__(self, rule: str | None = AUTO, start: int = 4, largest: int = LONGEST_DRAFT) -> None:
        self._rule, self._gamma, self._largest = rule, start, largest
        self._rounds = 0
        self.draft_s: float | None = None
        self.verify_s: float | None = None
        self.fixed_s: float | None = None
        """A round's time besides drafting: round trip, verification and the wait for it; measured where nothing else
        delayed it."""
        self.rtt_s: float | None = None
        """The part of `fixed_s` that both ways of the link take, with whatever waits there: not the verifier's queue,
        nor its pass. Before such a round it is the link's own measure."""
        self._is_rtt_measured = False
        self.queue_s = 0.0
        """Seconds that a draft waits in the verifier for other sessions, a moving average."""
        self.acceptance: float | None = None
        """The chance that a draft token whose ancestors were accepted is."""
        self.goes_on = USUAL
        """The same over more tokens, where the end of an answer behind an accepted one counts as a rejection."""

    @property
    def gamma(self) -> int:
        """The number of draft tokens to send next."""
        if self._gamma == 0 and self._rule is not None and self._rounds % PROBE_ROUNDS == 0:
            return min(1, self._largest)
        return self._gamma

    def drafted(self, seconds: float) -> None:
        """Take the time of one draft forward."""
        self.draft_s = average(self.draft_s, seconds)

    def verified(self, seconds: float) -> None:
        """Take the time of one target forward, by the verifier's own clock."""
        self.verify_s = average(self.verify_s, seconds)

    def linked(self, rtt_s: float | None) -> None:
        """Take the link's own round trip, that of a ping, as a step begins; None where it has none yet.

        An edge that always sends ahead, to a verifier that never waits for it, has no round that is free of either.
        """
        if not self._is_rtt_measured:
            self.rtt_s = rtt_s

    def judged(
        self,
        sent: int,
        accepted: int,
        seconds: float | None,
        queue_s: float = 0.0,
        verify_s: float = 0.0,
        ended: bool = False,
    ) -> None:
        """Take one verdict: of a draft `sent` tokens deep, `accepted` stood; `ended`: the answer is complete with it.

        `seconds` is how long after its sending, None where more than the round trip, the verifier's queue and its
        verification delayed it. Of that it waited `queue_s` in the verifier, and its pass took `verify_s`, by the
        verifier's clock: the rest is the round trip. Measured round by round, because passes of a shared verifier take
        as long as their batches, and no two of them need be alike.
        """
        self._rounds += 1
        self.queue_s += WEIGHT * (queue_s - self.queue_s)
        if seconds is not None:
            self.fixed_s = average(self.fixed_s, seconds)
            known = self.rtt_s if self._is_rtt_measured else None
            self.rtt_s, self._is_rtt_measured = average(known, max(0.0, seconds - queue_s - verify_s)), True
        for _ in range(accepted):
            self.acceptance = average(self.acceptance, 1.0)
            self.goes_on = average(self.goes_on, 1.0, SLOW)
        if accepted < sent:
            self.acceptance = average(self.acceptance, 0.0)
        if accepted < sent or ended:
            self.goes_on = average(self.goes_on, 0.0, SLOW)
        if self._rounds >= LEAST_ROUNDS:
            if self._rule == AUTO:
                self._maximise()
            elif self._rule == BALANCE:
                self._balance()

    def _maximise(self) -> None:
        if not self.fixed_s or self.draft_s is None or self.acceptance is None:
            return
        rates = [
            tokens_per_second(self.acceptance, gamma, self.fixed_s, self.draft_s) for gamma in range(self._largest + 1)
        ]
        best = max(range(len(rates)), key=rates.__getitem__)
        if rates[best] > rates[self._gamma] * (1.0 + HYSTERESIS):
            self._gamma = best

    def _balance(self) -> None:
        if self.verify_s is None or self.rtt_s is None or not self.draft_s:
            return
        depth = balanced_gamma(self.verify_s, self.draft_s, self.rtt_s)
        if abs(depth - self._gamma) > 0.5 + HYSTERESIS:
            self._gamma = max(1, min(self._largest, round(depth)))


class ExitQuestion(Enum):
    """A question is what is asked about an exit's verdict."""

    LANDING = "landing"
    """Whether the answer goes on through the named token, which is in the tree."""
    ANCHOR = "anchor"
    """Whether the answer goes on to where the token would stand, which is not in the tree."""
    TOKEN = "token"
    """Whether it goes on to there and with that token."""


START = {
    ExitQuestion.LANDING: (0.0, 1.0, 1.0),
    ExitQuestion.ANCHOR: (0.0, 0.0, 1.0),
    ExitQuestion.TOKEN: (0.0, 1.0, 0.0),
}
"""Weights of the inputs before any commit. A token that both name: both odds, as of independent signals; one that only
the exit names: its confidence; the place before it: the draft's own view."""


@dataclass(frozen=True)
class Estimate:
    """A probability, and what it was estimated from."""

    question: ExitQuestion
    layer: int
    inputs: Inputs
    probability: float


@dataclass(frozen=True)
class NamedToken:
    """What an exit said: `token` comes after the tokens `path` behind the root; it came at time `at`."""

    path: tuple[int, ...]
    token: int
    estimate: Estimate
    at: float


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


class ExitReliability:
    """Learns when exits are right, and how much time they gain.

    *When they are right*: an exit's confidence is calibrated over all its verdicts. Of a verdict that the draft holds
    likely it is right far more often than that, of a token that the draft does not have far less, because each knows
    what the other does not. So confidence and the draft's own expectation are weighed together, by a regression for
    each layer and question.

    *The time they gain*: of the next draft, what lies between an exit's naming of a landing that the draft does not
    have and its commit. A landing that the draft has would have been drafted for without an exit.
    """

    def __init__(self) -> None:
        self._regressions: dict[tuple[int, ExitQuestion], Regression] = {}
        self._gained_s = self._verified_s = 0.0
        self._verifications = 0

    def estimate(self, question: ExitQuestion, layer: int, confidence: float, reach: float) -> Estimate:
        """Return the probability that the answer to `question` is yes.

        `confidence` is the exit's, 0 to 1. `reach` is the probability, as the tree has it, of the place that is asked
        about, or for a token that it does not have, of the place before it.
        """
        inputs = (1.0, log_odds(confidence), log_odds(reach))
        return Estimate(question, layer, inputs, self._regression(question, layer).probability(inputs))

    def learn(self, estimate: Estimate, right: bool) -> None:
        """Take what a commit has shown about an estimate."""
        self._regression(estimate.question, estimate.layer).learn(estimate.inputs, right)

    def judge(self, named: Sequence[NamedToken], tokens: Sequence[int], now: float, longest_s: float) -> float:
        """Learn from the committed `tokens` which of `named` were right; return the seconds that these gained.

        Seconds gained are `longest_s` at most: a draft that is earlier than that waits for its verification.
        """
        gained_s = 0.0
        for each in named:
            places, question = len(each.path), each.estimate.question
            is_reached = tuple(tokens[:places]) == each.path
            is_right = is_reached and tuple(tokens[places : places + 1]) == (each.token,)
            self.learn(each.estimate, is_reached if question is ExitQuestion.ANCHOR else is_right)
            if is_right and question is ExitQuestion.TOKEN and not gained_s:
                gained_s = min(now - each.at, longest_s)
        return gained_s

    def verified(self, gained_s: float, verify_s: float) -> None:
        """Take one verification of a draft of the edge, with exits: the seconds that they gained for the next draft,
        and its own."""
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

    def _regression(self, question: ExitQuestion, layer: int) -> Regression:
        return self._regressions.setdefault((layer, question), Regression(list(START[question])))


@dataclass(frozen=True)
class Verdict:
    """A commit, and what it shows about what was drafted."""

    commit: Commit
    tokens: Sequence[int]
    """The tokens that it added to the answer, with one that it left to the edge to sample."""
    now: float
    since_s: float
    """The seconds that the answer stood still before it, of which drafting may save some."""
    rerooting: Rerooting | None = None
    """What it did to the tree; None in a step that is not drafted for."""
    accepted: int | None = None
    """How many tokens of the draft that it judges stood; None where it judges none that is known."""
    is_rejected: bool = False
    """Whether a token of the draft behind them did not stand."""
    round_s: float | None = None
    """How long after the draft was sent it came; None where more than a round trip, the verifier's queue and the
    verification delayed it."""
    is_last: bool = False
    """Whether the answer is complete with it."""
    levels: int = 0
    """How many draft forwards the next draft would take without an exit: gamma, or those of the draft that it judges
    where that was longer."""
    named: Sequence[NamedToken] = ()
    """What exits said in its verification."""
    had_exits: bool = False


class AcceptanceStats:
    """The statistics are what one drafter has learned; its parts decide with them."""

    def __init__(self, config: DraftingConfig, max_draft: int = MAX_DRAFT_TOKENS) -> None:
        """`max_draft` is the most tokens of a draft that the verifier takes."""
        rule = config.gamma if isinstance(config.gamma, str) else None
        largest = max(min(LONGEST_DRAFT, max_draft), config.fixed_gamma)
        self.controller = Controller(rule, min(config.fixed_gamma, max_draft), largest)
        self.effort = Effort(config.effort)
        self.exits = ExitReliability()

    def on_forward(self, seconds: float, abandoned: bool) -> None:
        """Take a draft forward that ended."""
        if not abandoned:
            self.controller.drafted(seconds)
        self.effort.ran()

    def on_verdict(self, verdict: Verdict) -> None:
        """Take a verdict, in whatever step."""
        commit, rerooting, controller = verdict.commit, verdict.rerooting, self.controller
        # What the prefill's own pass commits shows nothing of what a pass or a token takes.
        has_pass = commit.passes > 0 and commit.compute_s > 0.0
        if has_pass or verdict.since_s > 0.0:
            self.effort.committed(len(verdict.tokens), verdict.since_s, commit.compute_s / max(1, commit.passes))
        if rerooting is None:
            return
        if has_pass:
            controller.verified(commit.compute_s / commit.passes)
        if (accepted := verdict.accepted) is not None:
            sent = accepted + verdict.is_rejected
            controller.judged(sent, accepted, verdict.round_s, commit.queue_s, commit.compute_s, verdict.is_last)
        longest_s = verdict.levels * (controller.draft_s or 0.0) + (controller.rtt_s or 0.0)
        gained_s = self.exits.judge(verdict.named, verdict.tokens, verdict.now, longest_s)
        # Of what the verifier proposes by itself the edge knows no place that exits could name.
        if verdict.had_exits and has_pass and accepted is not None:
            self.exits.verified(gained_s, commit.compute_s)
        self.effort.resolved([content for _, content in rerooting.path], stood=True)
        self.effort.resolved(rerooting.dropped, stood=False)

    def on_step_end(self, stats: DecodingStats, drafted: bool, is_timed: bool) -> None:
        """Write the estimates into the figures of a step that was `drafted` for, and learn from what `is_timed`."""
        controller = self.controller
        if drafted:
            stats.gamma = controller.gamma
            stats.estimated_draft_s, stats.estimated_verify_s = controller.draft_s, controller.verify_s
            stats.estimated_rtt_s, stats.estimated_acceptance = controller.rtt_s, controller.acceptance
        if is_timed:
            self.effort.answered(stats, drafted)
