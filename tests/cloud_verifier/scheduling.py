"""A scheduler and a fake engine without a server: what a policy starts, and what it commits."""

from __future__ import annotations

from cloud_verifier.config import Limits, Scheduling
from cloud_verifier.interfaces import LayerVerdicts, Row
from cloud_verifier.policies import Batch
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.step import Step
from speculation.pass_cost import Load
from speculation.sampling import GREEDY, SamplingScheme
from speculation.wire import BeginStep, Commit, Draft, Idle
from tests.cloud_verifier.fake_target import FakeEngine, greedy

JPEG = b"jpeg"


class Bench:
    """A scheduler and a fake engine on a clock that counts calls."""

    def __init__(self, max_draft: int = 64, **settings: object) -> None:
        self.engine = FakeEngine()
        scheduling = Scheduling(**settings)  # type: ignore[arg-type]
        self.scheduler = Scheduler(self.engine.model, scheduling, Limits(max_draft=max_draft))
        self.now = 0.0

    def turn(self) -> dict[int, Commit]:
        """Run the next forward, if any, and encode the images that come before it. Returns the commits by row."""
        self.now += 1.0
        while (batch := self.next()).encodes:
            self.run(batch)
        return self.run(batch)

    def run(self, batch: Batch) -> dict[int, Commit]:
        """Run a batch. Returns the commits by row."""
        for step in batch.encodes:
            self.engine.encode(step.index)
            step.prefill.encoded = True
            step.prefilled(0, self.now, 0.25)
        rows = rows_of(batch)
        if not rows:
            return {}
        *_, last = self.engine.verify(rows)
        if batch.choices and not all(row.chunk for row in rows):
            self.scheduler.costs.passes.observe(Load.total(row.load for row in rows), 1.0)
        for step, tokens in batch.chunks.items():
            step.prefilled(tokens, self.now)
        return self.finish(batch, last)

    def next(self) -> Batch:
        """Return what the scheduler starts, as the server asks for it."""
        return self.scheduler.next(self.now)

    def finish(self, batch: Batch, last: LayerVerdicts) -> dict[int, Commit]:
        commits = {}
        for step in batch.choices:
            if self.scheduler.is_current(step):
                verdict = last.verdicts[step.index]
                commits[step.index] = step.accept(verdict, self.now, 0.0 if step in batch.chunks else 0.5)
                if not step.done:
                    self.engine.keep(step.index, verdict.path, verdict.token)
        return commits

    def begin(self, row: int, step: int = 1, **fields: object) -> list[Commit]:
        fields = {"prompt": f"long {row}", "jpeg": JPEG, "max_tokens": 20, **fields}
        return self.take(row, BeginStep(step=step, **fields))  # type: ignore[arg-type]

    def take(self, row: int, begin: BeginStep, sampling: SamplingScheme = GREEDY) -> list[Commit]:
        """Begin a step and prepare its inputs."""
        commits = self.scheduler.begin(row, begin, self.now, sampling)
        step = self.step(row)
        if step.pending and step.prefill.inputs is None:
            inputs, answer = (begin.prompt, begin.jpeg), step.answer
            step.prefill.prepared(inputs, self.engine.begin(row, inputs, answer.tokens, answer.max_tokens))
        return commits

    def step(self, row: int) -> Step:
        step = self.scheduler.step(row)
        assert step is not None
        return step


def rows_of(batch: Batch) -> list[Row]:
    chunks = [
        Row(step.index, cached=step.cached, chunk=tokens)
        for step, tokens in batch.chunks.items()
        if step not in batch.choices
    ]
    return [step.row for step in batch.choices if step.row is not None] + chunks


def waiting_bench(**settings: object) -> Bench:
    """Return a bench whose session 0 has credit, expects drafts after 0.5 s, and waits for one; 1 and 2 are WAIT."""
    bench = Bench(**settings)  # type: ignore[arg-type]
    for row in (1, 2):
        bench.begin(row, idle=Idle.WAIT)
        bench.turn()
    truth = greedy("long 0", JPEG, 200)
    bench.begin(0, idle=Idle.LEDGER, max_tokens=200)
    bench.turn()
    commit = bench.turn()[0]
    for round in (1, 2, 3, 4, 5):
        end = commit.start + len(commit.tokens)
        bench.scheduler.offer(0, Draft(1, round, end, commit.digest, truth[end : end + 3]), bench.now + 0.5)
        commit = bench.turn()[0]
    return bench
