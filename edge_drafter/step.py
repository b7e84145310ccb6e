"""One step: what is asked, everything that belongs to it until its last commit, and what it ends in."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum

from edge_drafter.acceptance_stats import AcceptanceStats
from edge_drafter.answer import Answer
from edge_drafter.draft_selection import DraftSelector
from edge_drafter.in_flight import SentDrafts
from edge_drafter.jump_forward import JumpForward
from edge_drafter.protocols import Clock
from edge_drafter.question import Question
from edge_drafter.settings import DraftingConfig
from edge_drafter.stats import DecodingStats
from edge_drafter.tree import TokenTree
from speculation.cancellation import Stop
from speculation.language.grammar import Automaton
from speculation.logits_processors import LogitsProcessors, RepetitionPenalty
from speculation.sampling import GREEDY, MAX_KEY, SamplingScheme
from speculation.wire import MAX_DRAFT_TOKENS, FaultCode, Grammar, Jpegs, begin_digest

GUESS_TOKENS = 32
"""How far ahead of the answer a question shows what the edge expects."""


@dataclass(frozen=True)
class StepRequest:
    """One question about one frame or several. Raises ValueError, naming the field, for values that cannot be."""

    step: int
    """Number of the step on the wire; grows with every request of a session, also for a resumed answer."""
    prompt: str
    jpeg: Jpegs
    eos: tuple[int, ...]
    """Tokens that end an answer (the target's, from `Welcome`)."""
    max_tokens: int = 128
    deadline_s: float | None = None
    """Seconds that this request may take; None waits as long as the link lives."""
    committed: tuple[int, ...] = ()
    """The answer so far, after an interruption."""
    sampling: SamplingScheme = GREEDY
    """How tokens are sampled, as the session's Hello declared."""
    key: int = 0
    """Names the answer's random draws. A resumed question keeps it; two answers are the same where prompt, image,
    settings and key are."""
    trace: bytes = b""
    """Id of the trace that joins both sides' notes of the question, see `BeginStep.trace`; a resumed one keeps it."""
    grammar: Automaton | None = None
    """What the answer must look like; None: it is free. A resumed question keeps it."""
    penalty: RepetitionPenalty | None = None
    """That of the model which answers: the target's, as its verifier reports it, or in mode `edge` the draft's own."""

    @property
    def processors(self) -> LogitsProcessors:
        """What is done to the draft model's logits."""
        return LogitsProcessors(self.penalty, self.grammar)

    @property
    def grammar_name(self) -> Grammar:
        return Grammar.FREE if self.grammar is None else self.grammar.name

    @property
    def digest(self) -> bytes:
        """What names the question in both sides' messages; the frames are hashed for it."""
        return begin_digest(self.prompt, self.jpeg, self.sampling.text, self.key, self.grammar_name)

    def __post_init__(self) -> None:
        if not self.eos:
            raise ValueError("eos is empty; give the tokens that end an answer")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; give at least 1")
        if not 0 <= self.key <= MAX_KEY:
            raise ValueError(f"key is {self.key}; give 0 to 2^63 - 1")


@dataclass(frozen=True)
class StepResult:
    """The answer's tokens, ending in an eos token or cut at max_tokens, and what they cost."""

    tokens: tuple[int, ...]
    stats: DecodingStats


class Interruption(Enum):
    """Why a step ended without its answer."""

    LINK_LOST = "link lost"
    DEADLINE = "deadline"
    REFUSED = "refused"
    CONTRADICTION = "contradiction"
    UNREADABLE = "the edge cannot read the frame"
    FAILED = "the edge failed"
    CANCELLED = "cancelled"


class StepInterrupted(RuntimeError):
    """A step ended early. `committed` holds what was verified; `BeginStep.committed` resumes the step there.

    `code` is the verifier's, where it sent a `Fault`.
    """

    def __init__(
        self,
        cause: Interruption,
        message: str,
        committed: tuple[int, ...],
        stats: DecodingStats,
        code: FaultCode | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.cause = cause
        self.committed = committed
        self.stats = stats


class Step:
    """One question from its request to its last commit: settings, answer, token tree, sent drafts, figures.

    Draft sources grow the tree, the policy reads it, `StepDrafter` re-roots it and sends drafts out of it. What was
    learned outlives the step: `acceptance`.
    """

    def __init__(
        self,
        config: DraftingConfig,
        request: StepRequest,
        acceptance: AcceptanceStats,
        clock: Clock,
        max_draft: int = MAX_DRAFT_TOKENS,
        question: Question | None = None,
        cpu_clock: Clock = time.process_time,
    ) -> None:
        """`max_draft`: tokens of a draft that the verifier takes. `question` watches the step and may cancel it."""
        self.config = config
        self.request = request
        self.acceptance = acceptance
        self.clock = clock
        self.started = clock()
        self._cpu_clock, self._cpu_started = cpu_clock, cpu_clock()
        self.answer = Answer(request.digest, request.eos, request.max_tokens, request.committed)
        self.tree = TokenTree()
        self.jump_forward: JumpForward | None = None
        """What the answer's grammar leaves no choice about; None where it is free."""
        if request.grammar is not None:
            self.jump_forward = JumpForward(request.grammar, self.tree, request.committed, request.max_tokens)
        self.selector = DraftSelector(self.tree, self.answer, config, max_draft, acceptance.controller.gamma)
        self.sent = SentDrafts()
        self.stats = DecodingStats()
        self.question = question
        self.asks_exits = config.early_tokens and acceptance.exits.pay(config.exit_gain, request.step)
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
