"""The drafter: one for every mode, with the sources of drafts that it uses. It answers one request after another."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from edge_drafter.acceptance_stats import AcceptanceStats
from edge_drafter.background import Background
from edge_drafter.loop import StepLoop
from edge_drafter.protocols import Clock, DraftModel, FedModel, Link
from edge_drafter.question import CANCELLED, Question
from edge_drafter.settings import DraftingConfig
from edge_drafter.sources import DraftSource
from edge_drafter.sources.fed import FedSource
from edge_drafter.sources.model import ModelSource
from edge_drafter.sources.ngrams import NgramSource
from edge_drafter.sources.server import ServerSource
from edge_drafter.step import Interruption, Step, StepRequest, StepResult
from edge_drafter.tracing import StepTrace
from speculation.cancellation import Abandoned
from speculation.predictor import Predictor
from speculation.trace import Trace
from speculation.wire import MAX_DRAFT_TOKENS


def sources_of(
    config: DraftingConfig,
    model: DraftModel | None,
    predictor: Predictor | None = None,
    fed: FedModel | None = None,
) -> tuple[DraftSource, ...]:
    """Return new draft sources for these settings, those that need no forward first.

    `predictor` is the draft model's own. `fed` drafts in its place wherever a verifier feeds it. Raises ValueError
    where the settings need a model and there is none.
    """
    sources: list[DraftSource] = []
    if config.self_draft:
        sources.append(ServerSource(config.fixed_gamma, config.draft_tokens))
    if config.ngrams:
        sources.append(NgramSource())
    if fed is not None and config.drafts and config.needs_link:
        sources.append(FedSource(fed))
    elif config.drafts or not config.needs_link:
        if model is None:
            raise ValueError("this mode drafts on the edge: it needs a draft model")
        sources.append(ModelSource(model, predictor))
    return tuple(sources)


class Drafter:
    """Answers requests. Estimates and what the sources remember live across steps, all else belongs to one step."""

    def __init__(
        self,
        sources: Sequence[DraftSource],
        link: Link | None,
        config: DraftingConfig,
        clock: Clock = time.perf_counter,
        trace: Trace | None = None,
        max_draft: int = MAX_DRAFT_TOKENS,
        cpu_clock: Clock = time.process_time,
        background: Background | None = None,
    ) -> None:
        """`sources`: those of the mode, see `sources_of`. `max_draft` is the verifier's limit from `Welcome`.

        `background` runs their prefills, where that is not done in the caller's thread.

        `cpu_clock` is what `DecodingStats.cpu_s` is read from.

        Raises ValueError if the mode needs a part that is missing.
        """
        if not sources and (config.drafts or not config.needs_link):
            raise ValueError("this mode drafts on the edge: it needs a source of drafts")
        if link is None and config.needs_link:
            raise ValueError("this mode verifies in the cloud: it needs a link")
        self.config = config
        self._sources = tuple(sources)
        self._link = link
        self._clock = clock
        self._trace = trace if trace is not None else Trace(clock)
        self._max_draft = max_draft
        self._cpu_clock = cpu_clock
        self._background = background
        self.acceptance = AcceptanceStats(config, max_draft)

    def run(self, request: StepRequest, question: Question | None = None) -> StepResult:
        """Answer one request; `question` watches the answer grow and may cancel it.

        Raises StepInterrupted, with the tokens committed so far, when the link is lost, the deadline passes, the
        verifier refuses, a source cannot read the frame, drafting fails or the question is cancelled; its `cause` is
        the reason. ValueError for a sampling rule that this mode does not take.
        """
        self.config.check_sampling(request.sampling)
        if self._link is None or not self.config.needs_link:
            request = replace(request, sampling=request.sampling.alone)
            # Sources that need no forward come first.
            return _decode_alone(self._step(request, question), self._sources[-1], self._trace)
        result = StepLoop(self._step(request, question), self._sources, self._link, self._trace, self._background).run()
        for source in self._sources:
            source.end(result.tokens)
        return result

    def _step(self, request: StepRequest, question: Question | None) -> Step:
        return Step(self.config, request, self.acceptance, self._clock, self._max_draft, question, self._cpu_clock)


def _decode_alone(step: Step, source: DraftSource, trace: Trace) -> StepResult:
    """Mode edge: return the answer of a source that can grow the tree by itself, which nothing verifies.

    Raises StepInterrupted.
    """
    answer, tree, stats = step.answer, step.tree, step.stats
    spans = StepTrace(trace, step.request.step, step.started, step.request.trace)
    try:
        try:
            source.begin(step)
            source.read(step.stop)
        except ValueError as error:
            raise step.interrupted(Interruption.UNREADABLE, str(error)) from error
        except Abandoned:
            raise step.interrupted(Interruption.CANCELLED, CANCELLED) from None
        now = step.clock()
        stats.prefill_s = now - step.started
        spans.prefill(step.started, now)
        while not answer.done:
            if step.is_late(step.clock()):
                raise step.interrupted(Interruption.DEADLINE, step.too_late)
            if step.cancelled:
                raise step.interrupted(Interruption.CANCELLED, CANCELLED)
            started = step.clock()
            token = None if step.jump_forward is None or not step.config.forced else step.jump_forward.only
            if token is None:
                try:
                    with spans.drafting():
                        source.grow([tree.root], step.stop)
                except Abandoned:
                    continue
                stats.add_forward(step.clock() - started, verifying=False, abandoned=False)
                token = tree[tree.likeliest_path(tree.root, 1)[0]].token
            source.commit(tree.reroot([token]), None)
            if step.jump_forward is not None:
                step.jump_forward.follow([token])
            answer.append([token])
            if stats.first_commit_s is None:
                stats.first_commit_s = step.clock() - step.started
            step.show()
    except (ValueError, ArithmeticError) as error:
        raise step.interrupted(Interruption.FAILED, str(error)) from error
    finally:
        spans.step(stats, step.finish())
    return StepResult(tuple(answer.tokens), stats)
