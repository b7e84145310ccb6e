"""The loop of a step that uses the link: takes messages, runs draft forwards, sends drafts."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

import msgspec

from edge_drafter.acceptance_stats import Verdict
from edge_drafter.answer import Contradiction
from edge_drafter.background import Background
from edge_drafter.protocols import Link, LinkLost, VerifierBusy
from edge_drafter.question import CANCELLED
from edge_drafter.sources import DraftSource
from edge_drafter.step import Interruption, Step, StepInterrupted, StepRequest, StepResult
from edge_drafter.step_drafter import Outcome, StepDrafter
from edge_drafter.tracing import StepTrace
from speculation.cancellation import Abandoned
from speculation.text import printable
from speculation.trace import Trace
from speculation.wire import (
    MAX_FRAMES,
    MAX_IMAGE_BYTES,
    MAX_PROMPT_CHARS,
    MAX_TEXT_CHARS,
    AnyMessage,
    BeginStep,
    Commit,
    Draft,
    EarlyTokens,
    EndStep,
    Fault,
    FaultCode,
    Features,
    Fetch,
    Idle,
    Stage,
    Working,
    frames_of,
)

NO_DEADLINE_S = 3600.0
DOING = {
    Stage.QUEUED: "has not begun with it",
    Stage.FRAMES: "was at the frames",
    Stage.PROMPT: "was at the prompt",
    Stage.ANSWER: "was at the answer",
}


class StepLoop:
    """One step in a mode that uses the link.

    `_advance` takes a message, or runs one draft forward, or waits. Between two looks at the link lies at most one
    draft forward, so that is the longest that a commit waits.
    """

    def __init__(
        self, step: Step, sources: Sequence[DraftSource], link: Link, trace: Trace, background: Background | None
    ) -> None:
        """`background` runs the sources' prefill; without it messages are taken between the prefill's layers."""
        self._step = step
        self._background = background
        self._sources = sources
        self._link = link
        self._trace = StepTrace(trace, step.request.step, step.started, step.request.trace)
        # Only a verifier that goes on by itself can be left alone.
        drafts = step.config.drafts and (step.config.idle is not Idle.LEDGER or step.acceptance.effort.drafts)
        self._drafter = StepDrafter(step, sources) if drafts else None
        self._bytes = (link.bytes_up, link.bytes_down)
        self._commit_received_at = step.started
        """When the last commit arrived, repeated ones too."""
        self._heard_at = step.started
        """When the verifier last committed, or said that it works for this step."""
        self._stage: Stage | None = None
        """What the verifier was last said to be doing."""
        self._repeated_at = step.started
        """When a draft was last sent for nothing but a commit that may have been lost."""
        self._committed_at = step.started
        """When the answer last grew."""
        self._unread = ""
        """Why the verifier could not read a message of this step; empty where it could."""

    def run(self) -> StepResult:
        """Return the answer. Raises StepInterrupted, with the tokens committed so far."""
        step = self._step
        try:
            if not step.answer.done:
                self._begin()
            while not step.answer.done:
                self._advance()
            residual = None if self._drafter is None else self._drafter.residual
            if residual is not None and residual.sampled_last:
                self._end_step("the edge drew the last token")
        except StepInterrupted:
            raise
        except LinkLost as error:
            step.stats.busy += isinstance(error, VerifierBusy)
            raise self._interrupted(Interruption.LINK_LOST, str(error)) from error
        except Contradiction as error:
            raise self._interrupted(Interruption.CONTRADICTION, str(error)) from error
        except (ValueError, ArithmeticError) as error:
            raise self._interrupted(Interruption.FAILED, str(error)) from error
        except Exception as error:
            self._end_step(f"{Interruption.FAILED.value}: {error}")
            raise
        finally:
            self._finish()
        return StepResult(tuple(step.answer.tokens), step.stats)

    def _begin(self) -> None:
        """Send the frame first, so that the verifier reads it while the sources do. Raises ValueError for what no
        message can take."""
        step, request = self._step, self._step.request
        _check(request)
        left = NO_DEADLINE_S if request.deadline_s is None else max(0.0, min(request.deadline_s, NO_DEADLINE_S))
        message = BeginStep(
            request.step, request.prompt, request.jpeg, list(request.committed), request.max_tokens, step.config.idle,
            left, key=request.key, round_trip_s=max(0.0, self._link.rtt_s or 0.0), early=step.asks_exits,
            trace=request.trace, grammar=request.grammar_name,
        )  # fmt: skip
        step.acceptance.controller.linked(self._link.rtt_s)
        for source in self._sources:
            message = source.announce(message)
        if self._drafter is None:
            # Hints are of use to a step that is not drafted for; features and early tokens are not.
            message = msgspec.structs.replace(message, features=False, early=False)
        if step.question is not None:
            step.question.begins(partial(self._end_step, CANCELLED))
        self._link.send(message)
        # A cancel in between may have sent its EndStep before the step began.
        self._check_wanted()
        if self._drafter is None:
            return
        self._drafter.begin()
        self._read(self._drafter)

    def _read(self, drafter: StepDrafter) -> None:
        """Have the sources read the frame. Messages are taken meanwhile: a prefill is long, the verifier's may be over
        before, and what it commits is shown at once."""
        step = self._step
        started = step.clock()
        try:
            if self._background is not None:
                self._background.run(drafter.read, self._is_over)
            else:
                drafter.read(self._is_over)
        except Abandoned:
            if not step.answer.done:
                self._check_time()
                raise
        except ValueError as error:
            raise self._interrupted(Interruption.UNREADABLE, str(error)) from error
        if self._background is not None:
            step.acceptance.effort.crowded = self._background.crowded
        drafter.has_read()
        now = step.clock()
        step.stats.prefill_s += now - started
        self._trace.prefill(started, now)

    def _is_over(self) -> bool:
        """Take what has arrived, and return whether the frame need not be read any more."""
        step = self._step
        if not step.cancelled:
            self._poll()
        now = step.clock()
        if self._background is not None and not self._awaits_prefill(now):
            self._background.hurry()
        return step.cancelled or step.answer.done or step.is_late(now)

    def _awaits_prefill(self, now: float) -> bool:
        """Whether the verifier's prefill is all that the answer's first token waits for, as far as is known."""
        step = self._step
        alone = step.config.idle is not Idle.WAIT
        return alone and step.stats.first_commit_s is None and now < step.started + step.config.resend_s

    def _advance(self) -> None:
        step, drafter = self._step, self._drafter
        anchor = None if drafter is None else drafter.policy.next_draft()
        started = step.clock()
        drafts = drafter is not None and anchor is None and drafter.ready and not self._yields(drafter, started)
        leaves = drafter.policy.next_leaves() if drafter is not None and drafts else []
        busy = anchor is not None or bool(leaves)
        message = self._link.receive(0.0 if busy else self._wait_s(started))
        now = step.clock()
        if not busy:
            step.stats.wait_s += now - started
        if message is not None:
            self._take(message)
        elif drafter is not None and anchor is not None:
            self._link.send(drafter.send_draft(anchor))
        elif drafter is not None and leaves:
            verifying = step.sent.current is not None
            with self._trace.drafting(drafter.rounds + (not verifying), verifying):
                drafter.grow(leaves, self._poll if step.config.interrupt else None)
            step.show()
        else:
            self._repeat_draft(now)
        self._check_time()

    def _yields(self, drafter: StepDrafter, now: float) -> bool:
        """Whether drafting leaves the processor to the verifier, which shares it and still reads the frame, now that
        there is a draft for the first token."""
        is_crowded = self._background is not None and self._background.crowded
        return is_crowded and self._awaits_prefill(now) and drafter.policy.is_hit(self._step.tree.root)

    def _poll(self) -> None:
        """Take what has arrived while a draft forward runs."""
        while not self._step.answer.done and (message := self._link.receive(0.0)) is not None:
            self._take(message)

    def _take(self, message: AnyMessage) -> None:
        step, number = self._step, self._step.request.step
        match message:
            case Commit() if message.step == number:
                self._commit_received_at = self._heard_at = step.clock()
                taken = step.answer.take(message)
                for place, (commit, tokens) in enumerate(taken, start=1):
                    step.stats.add_passes(commit)
                    if known := self._complete(commit, tokens):
                        self._commit(commit, known, is_last=place == len(taken))
            case EarlyTokens() if message.step == number and self._drafter is not None:
                used = self._drafter.take_early_token(message)
                self._trace.early_token(message, used, step.clock())
            case Features() if message.step == number and self._drafter is not None:
                self._drafter.feed(message)
            case Fault() if message.code is FaultCode.MALFORMED and message.step in (None, number):
                # A message came to the verifier as garbage. What matters of it is sent again, as if it had vanished.
                self._unread = f"; it could not read a message: {printable(message.message)}"
            case Fault() if message.step is None or message.step == number:
                why = f"the verifier refuses: {printable(message.message)}"
                raise self._interrupted(Interruption.REFUSED, why, message.code)
            case Working() if message.step == number:
                self._heard_at, self._stage = step.clock(), message.stage
            case EndStep() if message.step == number:
                why = f"the verifier ended the step: {printable(message.reason)}"
                raise self._interrupted(Interruption.REFUSED, why)

    def _complete(self, commit: Commit, tokens: list[int]) -> list[int]:
        """Return a commit's tokens with the one that it leaves to the edge; none until that is known."""
        residual = None if self._drafter is None else self._drafter.residual
        if residual is None:
            if commit.rest is not None and self._step.answer.rests(commit):
                raise Contradiction("Commit.rest came to an answer that is drawn by another rule")
            return tokens
        found = residual.complete(commit, tokens)
        if isinstance(found, Fetch):
            self._link.send(found)
            return []
        return found

    def _commit(self, commit: Commit, tokens: list[int], is_last: bool) -> None:
        """Follow a commit. Behind one that is not the last the answer goes on already: no draft starts there."""
        step, stats, drafter = self._step, self._step.stats, self._drafter
        now = step.clock()
        stats.rounds += 1
        # The first commit waits for the frame to be read, which no token drafted would save.
        since = now - self._committed_at if stats.first_commit_s is not None else commit.compute_s
        if stats.first_commit_s is None:
            stats.first_commit_s = now - step.started
        current = step.sent.current
        # A draft that was sent ahead waited for the commit before it, and what has no draft began there.
        is_own = current is not None and current.message.round == commit.round
        sent_at = max(current.sent_at, self._committed_at) if current is not None and is_own else self._committed_at
        self._committed_at = now
        outcome = Outcome.NEITHER
        if drafter is None:
            step.acceptance.on_verdict(Verdict(commit, tokens, now, since))
        else:
            outcome = drafter.take_commit(commit, tokens, now, since)
            if outcome is Outcome.HIT and is_last and step.sent.current is None:
                self._link.send(drafter.send_draft(step.tree.root))
        step.show()
        self._trace.round(commit, len(tokens), sent_at, now)
        self._trace.commit(commit, len(tokens), outcome, now)

    def _repeat_draft(self, now: float) -> None:
        step, drafter, current = self._step, self._drafter, self._step.sent.current
        if not step.config.drafts or now < self._repeat_at:
            return
        if current is None:
            # A verifier that decodes by itself may have sent a commit that was lost: any draft makes it send it again.
            empty = Draft(step.request.step, step.stats.resent + 1, step.answer.position, step.answer.digest, [], None)
            self._link.send(empty if drafter is None else drafter.send_draft(step.tree.root))
            self._repeated_at = now
        else:
            self._link.send(current.message)
            current.repeated_at = now
        step.stats.resent += 1

    @property
    def _repeat_at(self) -> float:
        current = self._step.sent.current
        last = max(self._commit_received_at, self._repeated_at) if current is None else current.repeated_at
        return last + self._step.config.resend_s

    def _check_wanted(self) -> None:
        if self._step.cancelled:
            raise self._interrupted(Interruption.CANCELLED, CANCELLED)

    def _check_time(self) -> None:
        step = self._step
        if step.answer.done:
            return
        self._check_wanted()
        now = step.clock()
        if step.is_late(now):
            doing = "" if self._stage is None else f"; the verifier {DOING[self._stage]}"
            raise self._interrupted(Interruption.DEADLINE, step.too_late + doing)
        if now >= self._heard_at + step.config.patience_s:
            self._poll()  # what came while a forward of this side ran
            # As above and as in `_wait_s`: a difference rounds otherwise, and a clock that stands would wait for ever.
            if step.answer.done or (now := step.clock()) < self._heard_at + step.config.patience_s:
                return
            message = (
                f"the verifier committed nothing for {now - self._heard_at:.1f} s and did not say that it works on the "
                f"step (patience_s {step.config.patience_s:g})"
            )
            message += self._unread
            raise self._interrupted(Interruption.LINK_LOST, message)

    def _wait_s(self, now: float) -> float:
        """Return how long there is nothing to do but to wait for a message."""
        step = self._step
        times = [self._heard_at + step.config.patience_s]
        if step.request.deadline_s is not None:
            times.append(step.started + step.request.deadline_s)
        if step.config.drafts:
            times.append(self._repeat_at)
        return max(0.0, min(times) - now)

    def _interrupted(self, cause: Interruption, message: str, code: FaultCode | None = None) -> StepInterrupted:
        if cause is not Interruption.LINK_LOST:
            self._end_step(f"{cause.value}: {message}")
        self._step.stats.interruptions += 1
        return self._step.interrupted(cause, message, code)

    def _end_step(self, reason: str) -> None:
        """End the step at the verifier; for any thread, and without waiting for a draft forward under way."""
        with contextlib.suppress(LinkLost):
            self._link.send(EndStep(self._step.request.step, reason[:MAX_TEXT_CHARS]))

    def _finish(self) -> None:
        step, stats = self._step, self._step.stats
        stats.bytes_up = self._link.bytes_up - self._bytes[0]
        stats.bytes_down = self._link.bytes_down - self._bytes[1]
        ended = step.finish()
        step.acceptance.on_step_end(stats, self._drafter is not None, step.answer.done or step.is_late(ended))
        self._trace.step(stats, ended)


def _check(request: StepRequest) -> None:
    """Raise ValueError for a prompt or frame that no `BeginStep` can take."""
    if not 1 <= len(request.prompt) <= MAX_PROMPT_CHARS:
        raise ValueError(f"the prompt has {len(request.prompt)} characters, give 1 to {MAX_PROMPT_CHARS}")
    frames = frames_of(request.jpeg)
    if len(frames) > MAX_FRAMES:
        raise ValueError(f"the question has {len(frames)} frames, give at most {MAX_FRAMES}")
    if (size := sum(map(len, frames))) > MAX_IMAGE_BYTES:
        raise ValueError(f"the question's frames have {size} bytes, the limit is {MAX_IMAGE_BYTES}")
