"""Everything that belongs to one step of the edge."""

from __future__ import annotations

import time

from edge_drafter.answer import Answer
from edge_drafter.config import DraftingConfig
from edge_drafter.constrained import Settled
from edge_drafter.controller import Controller
from edge_drafter.draft_selection import DraftSelector
from edge_drafter.effort import Effort
from edge_drafter.exit_experience import ExitExperience
from edge_drafter.in_flight import SentDrafts
from edge_drafter.protocols import Clock
from edge_drafter.question import Question
from edge_drafter.request import Interruption, StepInterrupted, StepRequest
from edge_drafter.stats import DecodingStats
from edge_drafter.tree import TokenTree
from speculation.cancellation import Stop
from speculation.wire import MAX_DRAFT_TOKENS, FaultCode

GUESS_TOKENS = 32
"""How far ahead of the answer a question shows what the edge expects."""


class Step:
    """One question from its request to its last commit: settings, answer, token tree, sent drafts, figures.

    Draft sources grow the tree, the policy reads it, `StepDrafter` re-roots it and sends drafts out of it. The
    controller, the effort and what is known about exits outlive the step.
    """

    def __init__(
        self,
        config: DraftingConfig,
        request: StepRequest,
        controller: Controller,
        clock: Clock,
        max_draft: int = MAX_DRAFT_TOKENS,
        question: Question | None = None,
        cpu_clock: Clock = time.process_time,
        effort: Effort | None = None,
        exits: ExitExperience | None = None,
    ) -> None:
        """`max_draft`: tokens of a draft that the verifier takes. `question` watches the step and may cancel it."""
        self.config = config
        self.request = request
        self.controller = controller
        self.effort = effort or Effort()
        self.clock = clock
        self.started = clock()
        self._cpu_clock, self._cpu_started = cpu_clock, cpu_clock()
        self.answer = Answer(
            request.prompt, request.jpeg, request.eos, request.max_tokens, request.committed, request.sampling,
            request.key, request.grammar_name,
        )  # fmt: skip
        self.tree = TokenTree()
        self.settled: Settled | None = None
        """What the answer's grammar leaves no choice about; None where it is free."""
        if request.grammar is not None:
            self.settled = Settled(request.grammar, self.tree, request.committed, request.max_tokens)
        self.selector = DraftSelector(self.tree, self.answer, config, max_draft, controller.gamma)
        self.sent = SentDrafts()
        self.stats = DecodingStats()
        self.question = question
        self.exits = ExitExperience() if exits is None else exits
        self.asks_exits = config.early_tokens and self.exits.pay(config.exit_gain, request.step)
        """Whether the verifier should run its exits for this step."""

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants the answer any more."""
        return self.question is not None and self.question.cancelled

    @property
    def stop(self) -> Stop | None:
        """What a draft forward asks between its layers, where the step can be cancelled."""
        question = self.question
        return None if question is None else lambda: question.cancelled

    def show(self) -> None:
        """Show the question what is committed, and the likeliest path behind it."""
        if self.question is not None:
            path = self.tree.likeliest_path(self.tree.root, GUESS_TOKENS, self.answer.ends)
            self.question.show(self.answer.tokens, [self.tree[node].token for node in path])

    def is_late(self, now: float) -> bool:
        """Whether the deadline has passed."""
        deadline = self.request.deadline_s
        return deadline is not None and now >= self.started + deadline

    def finish(self) -> float:
        """Write tokens, time and processor time into the figures; return when the step ended."""
        self.stats.tokens = self.answer.position - len(self.request.committed)
        self.stats.total_s = self.clock() - self.started
        self.stats.cpu_s = self._cpu_clock() - self._cpu_started
        return self.started + self.stats.total_s

    def interrupted(self, cause: Interruption, message: str, code: FaultCode | None = None) -> StepInterrupted:
        """Return the exception that ends the step without its answer."""
        return StepInterrupted(cause, message, tuple(self.answer.tokens), self.stats, code)

    @property
    def too_late(self) -> str:
        """What a passed deadline is reported as."""
        return f"no complete answer within the deadline of {self.request.deadline_s:g} s"
