"""The drafter: one for every mode. It answers one request after another."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from edge_drafter.acceptance_stats import AcceptanceStats
from edge_drafter.background import Background
from edge_drafter.edge_only import decode_alone
from edge_drafter.loop import StepLoop
from edge_drafter.protocols import Clock, Link
from edge_drafter.question import Question
from edge_drafter.settings import DraftingConfig
from edge_drafter.sources import DraftSource
from edge_drafter.step import Step, StepRequest, StepResult
from speculation.trace import Trace
from speculation.wire import MAX_DRAFT_TOKENS


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
            return decode_alone(self._step(request, question), self._sources[-1], self._trace)
        result = StepLoop(self._step(request, question), self._sources, self._link, self._trace, self._background).run()
        for source in self._sources:
            source.end(result.tokens)
        return result

    def _step(self, request: StepRequest, question: Question | None) -> Step:
        return Step(self.config, request, self.acceptance, self._clock, self._max_draft, question, self._cpu_clock)
