"""Step: one robot's question, from `BeginStep` to the last `Commit`.

What was asked is its `request`, what is committed its `answer`, what may be verified next its `drafts`, what the models
have read its `prefill`, what it cost its `usage` and its session's `ledger`.

Numbers: a token has an answer *position*; in a draft as it was sent it is a *node*; in a `Tree`, a `Row` and a
`Verdict` it has an *index* among the tokens that are verified. Only `Tree` knows both of the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from cloud_verifier.acceptance_stats import PassVerdict
from cloud_verifier.answer import Answer, OpenToken
from cloud_verifier.choice import Act, Choice
from cloud_verifier.draft_buffer import DraftBuffer
from cloud_verifier.interfaces import Row, RowFeatures
from cloud_verifier.ledger import Ledger
from cloud_verifier.prefill import FeatureLog, Prefill
from cloud_verifier.request import Request
from cloud_verifier.tree import NOTHING, ForeignDraft, Tree, continuation
from cloud_verifier.usage import Usage
from speculation.acceptance import Verdict
from speculation.pass_cost import NO_LOAD, Load
from speculation.sampling import Evidence, StepDraws
from speculation.wire import (
    MAX_DRAFT_TOKENS,
    BeginStep,
    Commit,
    Draft,
    EarlyTokens,
    Fetch,
    Idle,
    Stage,
    extend_digest,
    parents_of,
)

HINT_TOKENS = 8
FORCED_TOKENS = 8
MAX_COMMIT = MAX_DRAFT_TOKENS + 1


class StepSettings(NamedTuple):
    """These are what the verifier's settings make of every step."""

    hint_tokens: int = HINT_TOKENS
    """Most tokens of an earlier answer that are verified at once."""
    forced_tokens: int = FORCED_TOKENS
    """Most tokens of a text that the grammar has settled that are verified with a draft."""
    max_draft: int = MAX_DRAFT_TOKENS
    """Most tokens of a draft, those of the grammar included."""


class Step:
    """One step of a session. Times are seconds on the server's clock.

    A step is `pending` until its prefill is done; after that a pass may be started while it is `free`, and `accept`
    ends the pass. The pass that ends its prefill may be its first. What it does next its policy decides
    (`cloud_verifier.policies`).
    """

    def __init__(
        self,
        request: Request,
        answer: Answer,
        ledger: Ledger,
        hints: Sequence[Sequence[int]] = (),
        features: FeatureLog | None = None,
        settings: StepSettings | None = None,
        now: float = 0.0,
    ) -> None:
        """`answer` has the tokens that were committed before. `hints` are earlier answers, the likeliest first.

        `features`: takes the target's features for a robot that gets them.
        """
        self.request, self.answer, self.ledger = request, answer, ledger
        self._settings = settings or StepSettings()
        self.drafts = DraftBuffer(answer, hints)
        self.features = features or FeatureLog()
        self.prefill = Prefill(answer.position, self.features)
        self.prefill.done = answer.done
        self.usage = Usage()
        self.begun_at = now
        self.since = now
        """When it last became ready for a prefill or a pass."""
        self.committed_at = now
        """When its latest commit left or, before the first, its prefill was done."""
        self.suspended = False
        """Whether its edge is gone."""
        self.row: Row | None = None
        """The pass under way; None: there is none."""
        self.act, self.tree = Act.DECODE, NOTHING
        """What the pass under way, or the latest one, does and verifies."""
        self.open: OpenToken | None = None
        """The next token, where a verdict left it to the edge."""
        self.hint: Tree | None = None
        """What followed in an earlier answer, where a ledger may choose it."""
        self.logged = answer.done
        """Whether its end was logged, or needs no line."""
        self._base = answer.position
        self._waited_s = 0.0
        self._declined = NOTHING
        """The draft that was at hand for the pass under way, and left alone."""
        self._beside = NO_LOAD
        ledger.pause()
        self._refresh()

    # --- queries

    @property
    def number(self) -> int:
        """Number that its edge gave it."""
        return self.request.step

    @property
    def index(self) -> int:
        """Row of the engine that holds its keys and values."""
        return self.request.index

    @property
    def done(self) -> bool:
        """Whether its answer is complete."""
        return self.answer.done

    @property
    def pending(self) -> bool:
        """Whether its prefill is not done."""
        return not self.prefill.done

    @property
    def can_prefill(self) -> bool:
        """Whether its prefill may run now."""
        return self.pending and self.prefill.inputs is not None and not self.suspended

    @property
    def is_answered(self) -> bool:
        """Whether passes are due for it, now or later: its prefill is done, its answer is not, its edge is there."""
        return not (self.pending or self.suspended or self.done)

    @property
    def free(self) -> bool:
        """Whether a pass may begin: it is answered, none is under way, and it waits for no token."""
        return self.is_answered and self.row is None and self.open is None

    @property
    def awaits_draft(self) -> bool:
        """Whether only a draft of its edge brings it on, unless one cannot be here in time for the next pass."""
        request = self.request
        return request.idle is Idle.WAIT and self.drafts.best is None and not request.self_draft

    @property
    def stage(self) -> Stage | None:
        """What is being done for its edge; None where nothing is: it is done, or it is its edge's turn."""
        if self.done or self.suspended or self.open is not None:
            return None
        if self.pending:
            prefill = self.prefill
            return Stage.QUEUED if prefill.inputs is None else Stage.PROMPT if prefill.encoded else Stage.FRAMES
        return None if self.row is None and self.awaits_draft else Stage.ANSWER

    @property
    def cached(self) -> int:
        """Tokens in the cache: of image and prompt, and of the answer all but the last, as far as they are fed."""
        return self.prefill.cached if self.pending else max(0, self.prefill.prompt_tokens + self.answer.position - 1)

    def load(self, choice: Choice) -> Load:
        """Return what a pass computes for this choice."""
        return Load.row(choice.tokens, self.cached)

    def continues(self, begin: BeginStep, request: Request, digest: bytes) -> bool:
        """Whether `begin`, whose empty answer has `digest`, asks again for this very step, from a position that this
        answer has passed: under its number or, of an edge that had lost its link, the same question under the next one.

        Not where a token is left to an edge that may have forgotten what to sample it from: drafting again repeats it.
        Nor, under another number, where the drafts of before are judged in company that the edge may have forgotten.
        """
        answer, committed = self.answer, len(begin.committed)
        if committed > answer.position or begin.max_tokens != answer.max_tokens or self.open is not None:
            return False
        judged_alone = self.pending or not request.sampling.one_chain
        if begin.step != self.number and not (judged_alone and request.is_same_question(self.request)):
            return False
        return extend_digest(digest, begin.committed) == answer.digests[committed]

    def repeat(self, start: int, round: int) -> list[Commit]:
        """Return the answer from `start` as commits again, or an empty one where nothing follows and all is done.

        The last one has what the edge is to sample from, too.
        """
        commits: list[Commit] = []
        answer, rest = self.answer, None if self.open is None else self.open.part
        open_end = self.done or rest is not None
        while start < answer.position or (open_end and not commits):
            tokens = answer.tokens[start : start + MAX_COMMIT]
            end = start + len(tokens)
            last = end == answer.position
            commits.append(
                Commit(
                    self.number, round, start, tokens, answer.digests[end], self.done and last, passes=0,
                    rest=rest if last else None, features=self.features.of(start, end),
                )
            )  # fmt: skip
            start = end
        return commits

    def early(self, layer: int, verdict: Verdict, confidence: float) -> EarlyTokens | None:
        """Return an exit's verdict on the pass under way for the edge; None where the edge does not know its node."""
        tree, node, start = self.tree, self.tree.sent_node(verdict.path), self.answer.position + len(verdict.path)
        if node is None:
            return None
        return EarlyTokens(self.number, tree.round, start, node, verdict.token, layer, min(1.0, max(0.0, confidence)))

    # --- commands

    def resume(self, request: Request) -> None:
        """Take its edge's request for the step anew."""
        if request.step != self.number:
            # Its rounds count from 1 again, and what a pass under way commits answers none of them.
            self.drafts.clear()
            self.tree = replace(self.tree, round=0)
        self.request = request
        self.suspended = False
        self.ledger.pause()
        self._refresh()

    def suspend(self) -> None:
        """Let nothing run until its edge, which is gone, asks again."""
        self.suspended = True
        self.ledger.pause()

    def prefilled(self, tokens: int, now: float, seconds: float = 0.0, features: RowFeatures | None = None) -> None:
        """Note that so many tokens more of its prefill are fed, or none and its image is encoded, which took so long.

        With the last one the prefill is done: the step may be verified from now on. `features` are those of the last
        ones, see `Prefill.wanted_features`.
        """
        done, prefill = self.prefill.advance(tokens), self.prefill
        if features is not None:
            self.features.add(prefill.cached + 1 - len(features.tokens) - prefill.prompt_tokens, features)
        self.usage.prefill_s += seconds
        self.since = now
        if done:
            self.committed_at = now
            self.ledger.begin(self.cached)

    def offer(self, draft: Draft, now: float = 0.0, evidence: Evidence = ()) -> list[Commit]:
        """Take in a draft. Returns the commits that answer it at once: those it has missed. Raises ForeignDraft.

        `evidence` came with it, see `SamplingScheme.read`.
        """
        self.suspended = False
        waits = self.free and self.drafts.best is None and (self.awaits_draft or self.ledger.waits)
        has_token = False
        if self.open is not None:
            token = self.open.brought_by(draft, self.answer.position, self.answer.digest)
            if token is not None:
                self.open, has_token = None, True
                self.usage.tokens += 1
                self.answer.append([token])
                self.drafts.settle()
                self._refresh()
        commits = self._place(draft, evidence)
        # A draft that helps nothing must not put a waiting step off again.
        if self.free and not self.awaits_draft and (has_token or (waits and self.drafts.best is not None)):
            self.since = now
        if draft.start <= self.answer.position:
            held = self.drafts.get(draft.round)
            usable = held is not None and held.start <= self.answer.position
            depth = Tree(tokens=tuple(draft.tokens), parents=tuple(parents_of(draft))).levels[-1]
            self.ledger.stats.on_draft(draft.start, usable, depth, now)
        return commits

    def start(self, choice: Choice, now: float = 0.0, beside: Load = NO_LOAD) -> Row:
        """Begin a pass, which `accept` ends, and return its row; of a step that is pending, the pass that ends its
        prefill.

        `beside` is what other steps feed in it. Of a draft that is not verified whole the rest stays held.
        """
        request, answer, tree = self.request, self.answer, choice.tree
        exits, chunk = request.early and choice.act is Act.VERIFY, self.prefill.left if self.pending else 0
        self.ledger.stats.on_start(choice.declined)
        if request.idle is Idle.LEDGER and not chunk:
            self.usage.waited_s += self.ledger.start(choice, now)
            exits = exits or (request.early and self.ledger.drafts_pay)
        row = Row(
            index=self.index,
            tokens=tree.tokens,
            parents=tree.parents,
            exits=exits,
            sampling=request.sampling,
            draws=StepDraws(request.key, answer.position),
            root=answer.tokens[-1] if answer.tokens else None,
            self_draft=choice.size,
            self_depth=choice.depth,
            answer=tuple(answer.tokens),
            digest=answer.digest,
            evidence=self.drafts.evidence(tree),
            cached=self.cached,
            chunk=chunk,
            ends_prefill=chunk > 0,
            features=max(1, self.prefill.wanted_features(chunk)) if self.features.is_wanted else 0,
            constraint=answer.constraint,
        )
        self.row = row.lengthened(self._settings.forced_tokens, self._settings.max_draft)
        self.act, self.tree, self._beside, self._waited_s = choice.act, tree, beside, max(0.0, now - self.since)
        self._declined = (self.drafts.best if Act.VERIFY in choice.declined else None) or NOTHING
        self.drafts.taken(tree)
        return self.row

    def draft_here(self, tree: Tree, seconds: float = 0.0, now: float = 0.0) -> None:
        """Let the pass under way verify a draft of the verifier's own, which took so long; the ledger may cut it.

        Where none can be made yet, `tree` is empty and it decodes.
        """
        assert self.row is not None, "a draft for a pass that was not started"
        if self.request.idle is Idle.LEDGER:
            tree = self.ledger.drafted(tree, seconds, now)
        self.act, self.tree = Act.SELF if tree.tokens else Act.DECODE, tree
        row = replace(self.row, tokens=tree.tokens, parents=tree.parents, self_draft=0, self_depth=0)
        self.row = row.lengthened(self._settings.forced_tokens, self._settings.max_draft)

    def accept(
        self, verdict: Verdict, now: float = 0.0, compute_s: float = 0.0, features: RowFeatures | None = None
    ) -> Commit:
        """End the pass under way with its verdict: lengthen the answer, re-place what is held.

        It took `compute_s`; 0 where it was the one that ended the prefill.

        The answer gets the tokens at `verdict.path`, then `verdict.token`, cut at its end; with `verdict.rest` not
        `token` follows them, but what the edge samples out of it. Where the grammar then allows nothing but the end,
        that is committed without a pass.
        """
        assert self.row is not None, "a verdict on a pass that was not started"
        row, tree, answer, start = self.row, self.tree, self.answer, self.answer.position
        last = [verdict.token] if verdict.rest is None else []
        answer.append([*(row.tokens[index] for index in verdict.path), *last])
        if verdict.rest is not None and not self.done:
            self.open = OpenToken(tree.round, verdict.rest)
        elif answer.constraint is not None and self._settings.forced_tokens:
            ending = answer.constraint.ending()
            answer.append(ending if answer.position - start + len(ending) <= MAX_COMMIT else [])
        self.row = None
        self.since = self.committed_at = now
        self.drafts.settle()
        self._refresh()
        tokens = answer.tokens[start:]
        if features is not None:
            self.features.add(start - (row.features if row.chunk else 0), features)
        first = self.usage.passes == 0
        self.usage.count(self.act, len(tokens))
        accepted = tuple(index for index in verdict.path if index < len(tree.tokens))
        has_draft = self.drafts.best is not None
        self.ledger.finish(
            PassVerdict(self.act, tree, accepted, tokens, answer.position, has_draft, now, self._declined), self._beside
        )
        return Commit(
            step=self.number,
            round=tree.round,
            start=start,
            tokens=tokens,
            digest=answer.digest,
            done=self.done,
            passes=1,
            queue_s=self._waited_s,
            compute_s=compute_s,
            prefill_s=self.usage.prefill_s if first else 0.0,
            rest=None if self.open is None else self.open.part,
            features=self.features.of(start, answer.position),
        )

    def fetch(self, fetch: Fetch) -> list[Commit]:
        """Return a commit with the whole of what the next token is sampled from; none where that token is known."""
        position, digest = self.answer.position, self.answer.digest
        if self.open is None or (fetch.start, fetch.digest) != (position, digest):
            return []
        rest = self.open.whole()
        if rest is None:
            return []
        return [Commit(self.number, self.open.round, position, [], digest, False, passes=0, rest=rest)]

    def _place(self, draft: Draft, evidence: Evidence) -> list[Commit]:
        answer, start = self.answer, draft.start
        if start <= self._base and draft.digest != answer.digests[start]:
            raise ForeignDraft(
                f"Draft.digest {draft.digest.hex()} at answer position {start} is not this step's "
                f"{answer.digests[start].hex()}: prompt, image, sampling or committed tokens "
                "differ; begin the step again"
            )
        if start > answer.max_tokens or (start > answer.position and self.request.sampling.one_chain):
            return []
        if start <= answer.position:
            if answer.digests[start] != draft.digest:
                return []
            if self.done or self.open is not None or continuation(draft, answer.tokens) is None:
                return self.repeat(start, draft.round)
        self.drafts.add(draft, evidence)
        return []

    def _refresh(self) -> None:
        """Find the hint anew: the answer grew, or the step may use one from now on."""
        self.hint = self.drafts.hint(self._settings.hint_tokens) if self.request.idle is Idle.LEDGER else None
