"""One drafter for every mode: grow the tree where it pays, send, take what came."""

from __future__ import annotations

import contextlib
import time

from edge_drafter.answer import Answer, Contradiction
from edge_drafter.config import DraftingConfig
from edge_drafter.controller import Controller
from edge_drafter.grower import Grower
from edge_drafter.model import Clock, DraftModel, Link, LinkLost
from edge_drafter.sampled import SampledModel, sampled
from edge_drafter.speculator import Landing, Speculator
from edge_drafter.stats import DecodingStats, Interruption, StepInterrupted, StepRequest, StepResult
from edge_drafter.tracing import StepTrace
from speculation.ngrams import Ngrams
from speculation.predictor import Predictor
from speculation.text import printable
from speculation.trace import Trace
from speculation.wire import (
    MAX_DRAFT_TOKENS,
    MAX_TEXT_CHARS,
    AnyMessage,
    BeginStep,
    Commit,
    EarlyTokens,
    EndStep,
    Fault,
    FaultCode,
    Fetch,
)

NO_DEADLINE_S = 3600.0
LONGEST_DRAFT = 16


class Drafter:
    """Answers one request after another. Estimates live across steps, everything else belongs to one step."""

    def __init__(
        self,
        model: DraftModel | None,
        link: Link | None,
        config: DraftingConfig,
        clock: Clock = time.perf_counter,
        trace: Trace | None = None,
        max_draft: int = MAX_DRAFT_TOKENS,
        predictor: Predictor | None = None,
    ) -> None:
        """`max_draft` is the verifier's limit from `Welcome`; `predictor` the draft model's own.

        Raises ValueError if the mode needs a part that is missing.
        """
        if model is None and (config.drafts or not config.needs_link):
            raise ValueError("this mode drafts on the edge: it needs a draft model")
        if link is None and config.needs_link:
            raise ValueError("this mode verifies in the cloud: it needs a link")
        self.config = config
        self._model = model
        self._link = link
        self._clock = clock
        self._trace = trace if trace is not None else Trace(clock)
        self._max_draft = max_draft
        self._predictor = predictor
        largest = min(LONGEST_DRAFT, max_draft)
        rule = config.gamma if isinstance(config.gamma, str) else None
        self._controller = Controller(rule, min(config.fixed_gamma, max_draft), max(largest, config.fixed_gamma))
        self._ngrams = Ngrams()

    def run(self, request: StepRequest) -> StepResult:
        """Answer one request.

        Raises StepInterrupted, with the tokens committed so far, when the link is lost, the deadline passes, the
        verifier refuses, the draft model cannot read the frame or drafting fails; its `cause` says which. ValueError
        for a sampling rule that this mode does not take.
        """
        self.config.check_sampling(request.sampling)
        stats, answer = DecodingStats(), _answer(request)
        alone = not self.config.needs_link
        how = request.sampling.alone if alone else request.sampling
        drafts = self._model and sampled(self._model, how, request.key, answer.digest)
        if self._link is not None and self.config.needs_link:
            model = drafts if self.config.drafts else None
            result = _Step(self, request, self._link, model, answer, stats).run()
            if self.config.ngrams:
                self._ngrams.remember(result.tokens)
            return result
        if drafts is None:
            raise ValueError("this mode drafts on the edge: it needs a draft model")
        return self._decode_alone(request, drafts, answer, stats)

    def _decode_alone(
        self, request: StepRequest, model: DraftModel, answer: Answer, stats: DecodingStats
    ) -> StepResult:
        """Mode edge: the draft model's own answer; nothing is verified."""
        started = self._clock()
        trace = StepTrace(self._trace, request.step, started)

        def interrupted(cause: Interruption, why: str) -> StepInterrupted:
            return StepInterrupted(cause, why, tuple(answer.tokens), stats)

        try:
            try:
                model.begin(request.prompt, request.jpeg, request.committed)
            except ValueError as error:
                raise interrupted(Interruption.UNREADABLE, str(error)) from error
            stats.prefill_s = self._clock() - started
            trace.read(started, started + stats.prefill_s)
            grower = Grower(model, self._clock)
            while not answer.done:
                if request.deadline_s is not None and self._clock() >= started + request.deadline_s:
                    raise interrupted(Interruption.DEADLINE, _too_late(request.deadline_s))
                with trace.drafting():
                    stats.draft_s += grower.feed([grower.tree.root])
                stats.draft_forwards += 1
                token = grower.tree[grower.tree.likeliest_path(grower.tree.root, 1)[0]].token
                grower.commit(grower.tree.reroot([token]))
                answer.append([token])
                if stats.first_commit_s is None:
                    stats.first_commit_s = self._clock() - started
        except ValueError as error:
            raise interrupted(Interruption.FAILED, str(error)) from error
        finally:
            _close(stats, answer, request, self._clock() - started)
            trace.ended(stats, started + stats.total_s)
        return StepResult(tuple(answer.tokens), stats)


class _Step:
    """One step in a mode that uses the link.

    `_advance` takes a message, or runs one draft forward, or waits. Between two looks at the link lies at most one
    draft forward, so that is the longest that a commit waits.
    """

    def __init__(
        self,
        drafter: Drafter,
        request: StepRequest,
        link: Link,
        model: DraftModel | None,
        answer: Answer,
        stats: DecodingStats,
    ) -> None:
        self._config = drafter.config
        self._clock = drafter._clock
        self._request = request
        self._link = link
        self._model = model
        self._controller = drafter._controller
        self._hints = drafter._ngrams.hints if drafter.config.ngrams else []
        self._stats = stats
        self._bytes = (link.bytes_up, link.bytes_down)
        self._started = self._heard_at = self._landed_at = self._clock()
        self._trace = StepTrace(drafter._trace, request.step, self._started)
        self._answer = answer
        self._unlanded: list[int] = []
        self._fetched_at = -1
        self._speculator: Speculator | None = None
        if model is not None:
            self._speculator = Speculator(
                model, self._answer, request.eos, drafter.config, drafter._clock, drafter._max_draft, stats,
                drafter._controller, drafter._predictor, drafter._ngrams,
            )  # fmt: skip

    def run(self) -> StepResult:
        try:
            if not self._answer.done:
                self._begin()
            while not self._answer.done:
                self._advance()
            if self._answer.drawn_at == self._answer.position - 1 >= 0:
                self._end_step("the edge drew the last token")
        except StepInterrupted:
            raise
        except LinkLost as error:
            raise self._interrupted(Interruption.LINK_LOST, str(error)) from error
        except Contradiction as error:
            raise self._interrupted(Interruption.CONTRADICTION, str(error)) from error
        except ValueError as error:
            raise self._interrupted(Interruption.FAILED, str(error)) from error
        except Exception as error:
            self._end_step(f"{Interruption.FAILED.value}: {error}")
            raise
        finally:
            self._finish()
        return StepResult(tuple(self._answer.tokens), self._stats)

    def _begin(self) -> None:
        """Send the frame first, so that the verifier reads it while the draft model does."""
        request = self._request
        left = NO_DEADLINE_S if request.deadline_s is None else max(0.0, min(request.deadline_s, NO_DEADLINE_S))
        self._link.send(
            BeginStep(
                request.step,
                request.prompt,
                request.jpeg,
                list(request.committed),
                request.max_tokens,
                self._config.idle,
                left,
                self._hints,
                self_draft=self._config.fixed_gamma if self._config.self_draft else 0,
                key=request.key,
            )
        )
        if self._model is not None:
            started = self._clock()
            try:
                self._model.begin(request.prompt, request.jpeg, request.committed)
            except ValueError as error:
                raise self._interrupted(Interruption.UNREADABLE, str(error)) from error
            now = self._clock()
            self._stats.prefill_s += now - started
            self._trace.read(started, now)
        if self._speculator is not None:
            self._speculator.start()

    def _advance(self) -> None:
        speculator = self._speculator
        due = None if speculator is None else speculator.due()
        nodes = [] if speculator is None or due is not None else speculator.next_nodes()
        busy = due is not None or bool(nodes)
        started = self._clock()
        message = self._link.receive(0.0 if busy else self._wait_s(started))
        now = self._clock()
        if not busy:
            self._stats.wait_s += now - started
        if message is not None:
            self._take(message)
        elif speculator is not None and due is not None:
            self._link.send(speculator.launch(due, self._request.step))
        elif speculator is not None and nodes:
            with self._trace.drafting(speculator):
                speculator.grow(nodes, self._poll if self._config.interrupt else None)
        else:
            self._repeat_draft(now)
        self._check_time()

    def _poll(self) -> None:
        """Take what has arrived while a draft forward runs."""
        while not self._answer.done and (message := self._link.receive(0.0)) is not None:
            self._take(message)

    def _take(self, message: AnyMessage) -> None:
        match message:
            case Commit(step=self._request.step):
                self._heard_at = self._clock()
                for commit, tokens in self._answer.take(message):
                    self._count(commit)
                    if self._is_whole(commit, tokens):
                        self._land(commit)
            case EarlyTokens(step=self._request.step) if self._speculator is not None:
                used = self._speculator.hear(message)
                self._trace.heard(message, used, self._clock())
            case Fault() if message.step is None or message.step == self._request.step:
                why = f"the verifier refuses: {printable(message.message)}"
                raise self._interrupted(Interruption.REFUSED, why, message.code)
            case EndStep(step=self._request.step):
                why = f"the verifier ended the step: {printable(message.reason)}"
                raise self._interrupted(Interruption.REFUSED, why)

    def _count(self, commit: Commit) -> None:
        stats = self._stats
        stats.cloud_passes += commit.passes
        stats.server_queue_s += commit.queue_s
        stats.server_compute_s += commit.compute_s
        stats.server_prefill_s += commit.prefill_s

    def _is_whole(self, commit: Commit, tokens: list[int]) -> bool:
        """Take in a commit's tokens and draw the one left to the edge; False where that needs more of `rest`."""
        self._unlanded += tokens
        if commit.rest is None or not self._answer.rests(commit):
            return True
        try:
            if not isinstance(self._model, SampledModel):
                raise ValueError("Commit.rest came to an answer that is drawn by another rule")
            token = self._model.sampler.finish(self._answer.digest, commit.rest)
        except ValueError as error:
            raise Contradiction(str(error)) from error
        if token is None:
            self._stats.fetches += self._fetched_at != self._answer.position
            self._fetched_at = self._answer.position
            self._link.send(Fetch(self._request.step, self._answer.position, self._answer.digest))
            return False
        self._answer.draw(token)
        self._unlanded.append(token)
        return True

    def _land(self, commit: Commit) -> None:
        stats, now = self._stats, self._clock()
        tokens, self._unlanded = self._unlanded, []
        if not tokens:
            return
        stats.rounds += 1
        if stats.first_commit_s is None:
            stats.first_commit_s = now - self._started
        speculator = self._speculator
        flight = speculator.flight if speculator is not None else None
        # A draft that left ahead waited for the commit before it, and what has no draft began there.
        own = flight is not None and flight.message.round == commit.round
        sent = max(flight.sent_at, self._landed_at) if flight is not None and own else self._landed_at
        self._landed_at = now
        landing = speculator.land(commit, tokens, now) if speculator is not None else Landing.NEITHER
        if speculator is not None and landing is Landing.HIT and speculator.flight is None:
            self._link.send(speculator.launch(speculator.root, self._request.step))
        self._trace.committed(commit, len(tokens), sent, now)
        self._trace.landed(commit, len(tokens), landing, now)

    def _repeat_draft(self, now: float) -> None:
        speculator = self._speculator
        if speculator is None or now < self._repeat_at(speculator):
            return
        flight = speculator.flight
        if flight is None:
            # A verifier that decodes by itself may have said something that was lost: any draft makes it say it again.
            self._link.send(speculator.launch(speculator.root, self._request.step))
        else:
            self._link.send(flight.message)
            flight.repeated_at = now
        self._stats.resent += 1

    def _repeat_at(self, speculator: Speculator) -> float:
        flight = speculator.flight
        return (self._heard_at if flight is None else flight.repeated_at) + self._config.resend_s

    def _check_time(self) -> None:
        now = self._clock()
        deadline = self._request.deadline_s
        if self._answer.done:
            return
        if deadline is not None and now >= self._started + deadline:
            raise self._interrupted(Interruption.DEADLINE, _too_late(deadline))
        if now >= self._heard_at + self._config.patience_s:
            silence = now - self._heard_at
            message = f"the verifier committed nothing for {silence:.1f} s (limit {self._config.patience_s:g} s)"
            raise self._interrupted(Interruption.LINK_LOST, message)

    def _wait_s(self, now: float) -> float:
        """Return how long there is nothing to do but to listen."""
        times = [self._heard_at + self._config.patience_s]
        if self._request.deadline_s is not None:
            times.append(self._started + self._request.deadline_s)
        if self._speculator is not None:
            times.append(self._repeat_at(self._speculator))
        return max(0.0, min(times) - now)

    def _interrupted(self, cause: Interruption, message: str, code: FaultCode | None = None) -> StepInterrupted:
        if cause is not Interruption.LINK_LOST:
            self._end_step(f"{cause.value}: {message}")
        self._stats.interruptions += 1
        return StepInterrupted(cause, message, tuple(self._answer.tokens), self._stats, code)

    def _end_step(self, reason: str) -> None:
        with contextlib.suppress(LinkLost):
            self._link.send(EndStep(self._request.step, reason[:MAX_TEXT_CHARS]))

    def _finish(self) -> None:
        if self._speculator is not None:
            self._speculator.close()
        self._stats.bytes_up = self._link.bytes_up - self._bytes[0]
        self._stats.bytes_down = self._link.bytes_down - self._bytes[1]
        _close(self._stats, self._answer, self._request, self._clock() - self._started)
        if self._model is not None:
            self._controller.tell(self._stats)
        self._trace.ended(self._stats, self._started + self._stats.total_s)


def _answer(request: StepRequest) -> Answer:
    return Answer(
        request.prompt, request.jpeg, request.eos, request.max_tokens, request.committed, request.sampling, request.key
    )


def _close(stats: DecodingStats, answer: Answer, request: StepRequest, seconds: float) -> None:
    stats.tokens = answer.position - len(request.committed)
    stats.total_s = seconds


def _too_late(deadline_s: float) -> str:
    return f"no complete answer within the deadline of {deadline_s:g} s"
