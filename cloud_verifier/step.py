"""Step: one robot's question, from `BeginStep` to the last `Commit`: its answer, the drafts for it, and what it costs.

State: answer tokens, the digest of every prefix, the drafts that it holds (`cloud_verifier.draft_buffer`): of several
current ones the deepest is verified.

Hints are earlier answers: what followed there is proposed here, where no draft is at hand.

Numbers: a token has an answer *position*; in a draft as it was sent it is a *node*; in a `Tree`, a `Row` and a
`Verdict` it has an *index* among the tokens that are verified. Only `Tree` knows both of the latter.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from cloud_verifier.draft_buffer import DraftBuffer
from cloud_verifier.estimator import Estimator
from cloud_verifier.feature_log import FeatureLog
from cloud_verifier.interfaces import Row, RowFeatures
from cloud_verifier.ledger import Act, Choice, Ledger
from cloud_verifier.open_token import OpenToken
from cloud_verifier.tree import ForeignDraft, Tree, continuation
from cloud_verifier.usage import Usage
from speculation.acceptance import Verdict
from speculation.language.grammar import Automaton, Constraint
from speculation.ngrams import Ngrams
from speculation.pass_cost import NO_LOAD, Load, PassCost
from speculation.sampling import GREEDY, Evidence, SamplingScheme, StepDraws
from speculation.service import INTERACTIVE, ServiceClass
from speculation.wire import (
    MAX_DRAFT_TOKENS,
    ROOT,
    BeginStep,
    Commit,
    Draft,
    EarlyTokens,
    Features,
    Fetch,
    Idle,
    Stage,
    begin_digest,
    extend_digest,
    parents_of,
)

HINT_TOKENS = 8
FORCED_TOKENS = 8
MAX_COMMIT = MAX_DRAFT_TOKENS + 1


class Step:
    """The answer to one question and the drafts for its continuation. Times are seconds on the server's clock.

    Properties and the methods under "queries" change nothing. A step is `pending` until its prefill is done; after
    that a pass may be started while it is `free`, and `accept` ends the pass.
    """

    def __init__(
        self,
        begin: BeginStep,
        eos: Collection[int],
        sampling: SamplingScheme = GREEDY,
        *,
        now: float = 0.0,
        index: int = 0,
        ledger: Ledger | None = None,
        digest: bytes | None = None,
        service_class: ServiceClass = INTERACTIVE,
        hint_tokens: int = HINT_TOKENS,
        recompute: bool = False,
        features: int | None = None,
        estimates: Estimator | None = None,
        grammar: Automaton | None = None,
        forced_tokens: int = FORCED_TOKENS,
        max_draft: int = MAX_DRAFT_TOKENS,
    ) -> None:
        """`ledger` is its session's. `digest` names the empty answer, see `empty_digest`; None: it is computed here.

        `features`: its edge gets the target's features, of so many tokens at the prompt's end and of all of the answer;
        None: of none. `estimates` are what its ledger predicts by; with them a choice is kept for as long as nothing
        that it rests on changes. `grammar`: of its answer, whose committed tokens must begin one; None: it is free.
        `forced_tokens`: so many tokens of a text that the grammar has settled are verified with a draft, at most, which
        has `max_draft` tokens with them.
        """
        self.number = begin.step
        self.index = index
        """The row of the engine that holds its keys and values; its session has the same one from step to step."""
        self.sampling = sampling
        self.service_class = service_class
        """Of its session."""
        self.ledger = ledger if ledger is not None else Ledger(Estimator())
        self.tally = Usage()
        self.begun_at = now
        self.since = now
        """When it last became ready for a prefill or a pass."""
        self.committed_at = now
        """When its latest commit left or, before the first, its prefill was done."""
        self._question = self._asked(begin)
        self.begin: BeginStep | None = begin
        """What it began with, until its prefill is done."""
        self.prompt_tokens = 0
        """Cache slots of image and prompt, from when its inputs are there."""
        self.prompt_left = 0
        """Tokens that its prefill still feeds; 0 before its inputs are there."""
        self.image_tokens = 0
        """Tokens that stand for its image, from when its inputs are there."""
        self.encode_s = 0.0
        """What encoding its image is predicted to take."""
        self.encoded = False
        """Its image was encoded, or it has none: its prefill may be fed."""
        self.inputs: object = None
        """What the engine made of prompt and frame, until its prefill is done; None: nothing yet."""
        self.draft_inputs: object = None
        """What the draft model beside the target made of prompt and frame, until it is prefilled; None: nothing."""
        self.drafts_here = False
        """Whether the draft model beside the target is prefilled."""
        self.suspended = False
        """Its edge is gone."""
        self.row: Row | None = None
        """The pass under way; None: there is none."""
        self.act = Act.DECODE
        self.tree = Tree()
        """What the pass under way, or the latest one, verifies."""
        self.recompute = recompute
        """Whether each pass computes its prefix again: the verifier has no cache."""
        self._features = None if features is None else FeatureLog(features)
        self.self_draft, self.self_depth = begin.self_draft, begin.self_depth
        self.max_tokens = begin.max_tokens
        self.open: OpenToken | None = None
        """The next token, where a verdict left it to the edge."""
        self.answer: list[int] = []
        self._key = begin.key
        self._eos = frozenset(eos)
        self._digests = [empty_digest(begin, sampling) if digest is None else digest]
        self._fed = 0
        self._held = DraftBuffer(self.answer, self._digests)
        self._best: Tree | None = None
        self._hint: Tree | None = None
        self._hint_tokens = hint_tokens
        self._earlier = Ngrams()
        for hint in reversed(begin.hints):
            self._earlier.remember(hint)
        self._waited_s = 0.0
        self._undrafted_until = -math.inf
        """Before that no draft can come: its edge drafts from features, which left when the prefill was done."""
        self._estimates = estimates
        self._kept: tuple[float | None, PassCost | None, Choice | None] | None = None
        """A choice, when it was made, where that matters, and the price of a pass by which; None since any command."""
        self._declined: Tree | None = None
        """The draft that was at hand for the pass under way, and left alone."""
        self._beside = NO_LOAD
        self._grammar = grammar
        self._state = None if grammar is None else grammar.start(begin.max_tokens)
        """Where in its grammar the answer stands; None: it has none, or has come to its end."""
        self._forced_tokens, self._max_draft = forced_tokens, max_draft
        self._append(begin.committed)
        self._base = self.position
        if self.done:
            self.begin = None
        self.logged = self.done
        """Its end was logged, or needs no line."""
        self.resume(begin, now)

    # --- queries

    @property
    def position(self) -> int:
        """Length of the answer."""
        return len(self.answer)

    @property
    def digest(self) -> bytes:
        """Of the answer."""
        return self._digests[-1]

    @property
    def done(self) -> bool:
        """Whether the answer is complete."""
        return self.position >= self.max_tokens or (self.position > 0 and self.answer[-1] in self._eos)

    @property
    def draws(self) -> StepDraws:
        """The random draws of the next token."""
        return StepDraws(self._key, self.position)

    @property
    def pending(self) -> bool:
        """Whether its prefill is not done."""
        return self.begin is not None

    @property
    def can_prefill(self) -> bool:
        """Whether its prefill may run now."""
        return self.pending and self.inputs is not None and not self.suspended

    @property
    def stage(self) -> Stage | None:
        """What is being done for its edge; None where nothing is: it is done, or it is its edge's turn."""
        if self.done or self.suspended or self.open is not None:
            return None
        if self.pending:
            return Stage.QUEUED if self.inputs is None else Stage.PROMPT if self.encoded else Stage.FRAMES
        waits = self.row is None and self._best is None and self.idle is Idle.WAIT
        return None if waits else Stage.ANSWER

    @property
    def free(self) -> bool:
        """Whether a pass may begin: none is under way, the answer is not complete and waits for no token."""
        return self.row is None and not self.done and self.open is None

    @property
    def best(self) -> Tree | None:
        """The current draft with the most to verify: the deepest, of equals the newest. None: there is none."""
        return self._best

    def choice(self, now: float, drafting: bool = True) -> Choice | None:
        """Return what the step itself would do now; None where a pass may not begin, or only its edge can go on.

        With `Idle.LEDGER` it is the ledger's choice; `drafting` False leaves drafts of the verifier's own out of it.
        """
        if self.pending or self.suspended or not self.free:
            return None
        room = self.max_tokens - self.position - 1
        ledger = self.idle is Idle.LEDGER
        if ledger and (self._estimates is None or self.drafts_here or self.draft_inputs is not None):
            can_draft = drafting and (self.drafts_here or self.draft_inputs is not None)
            return self.ledger.choose(self._best, self._hint, now, room if can_draft else 0, self.drafts_here)
        # A ledger with a draft at hand looks at the clock only while a wait is charged.
        timed = (self._best is None or self.ledger.waits) if ledger else now < self._undrafted_until
        when = now if timed else None
        cost = self._estimates.cost if ledger and self._estimates is not None else None
        if self._kept is None or self._kept[0] != when or self._kept[1] is not cost:
            self._kept = when, cost, self._choose(now, room)
        return self._kept[2]

    def _choose(self, now: float, room: int) -> Choice | None:
        """Return the choice of a step whose verifier does not draft for its ledger."""
        if self.idle is Idle.LEDGER:
            return self.ledger.choose(self._best, self._hint, now)
        if self._best is not None:
            return Choice(Act.VERIFY, self._best, gain=self.ledger.expected(self._best))
        if self.self_draft and room > 0:
            size = self.self_draft if self.self_depth else min(self.self_draft, room)
            depth = min(self.self_depth, room)
            return Choice(Act.SELF, size=size, depth=depth, drafting_s=self.ledger.drafting_s(depth or size))
        return Choice(Act.DECODE) if self.idle is Idle.DECODE or self._ends_undrafted(now) else None

    def _ends_undrafted(self, now: float) -> bool:
        """Whether a pass of one token is over before any draft can be here, so that none waits for it."""
        if now >= self._undrafted_until or self._estimates is None or not self._estimates.known:
            return False
        return now + self._estimates.seconds(self.load(Choice(Act.DECODE))) <= self._undrafted_until

    @property
    def cached(self) -> int:
        """Tokens in the cache: of image and prompt, and of the answer all but the last, as far as they are fed."""
        return self._fed if self.pending else max(0, self.prompt_tokens + self.position - 1)

    def load(self, choice: Choice) -> Load:
        """Return what a pass computes for this choice."""
        new = choice.tokens
        return Load.row(self.cached + new) if self.recompute else Load.row(new, self.cached)

    def chunk_load(self, tokens: int) -> Load:
        """Return what feeding so many tokens more of its prefill computes."""
        return Load.row(tokens, self.cached)

    @property
    def prompt_features(self) -> int:
        """Tokens at the prompt's end whose features its edge gets; 0 where it gets none."""
        return 0 if self._features is None else self._features.prompt_tokens

    def chunk_features(self, tokens: int) -> int:
        """Return of how many of the next `tokens` of its prefill features are wanted, the last ones of them."""
        if self._features is None:
            return 0
        behind = self.prompt_left - tokens
        return min(tokens, max(0, self.prompt_features + self.position - behind))

    def known_features(self, position: int) -> Features | None:
        """Return what its edge continues from with an answer of `position` tokens; None where it gets no features."""
        return None if self._features is None else self._features.message(self.number, self.answer[:position])

    def edge_s(self, choice: Choice) -> float:
        """Return the seconds that a choice's draft took on the edge and both ways of the link: T_draft + T_network of
        WISP, Eq. 6; 0 where the verifier goes on by itself."""
        draft = self._held.get(choice.tree.round)
        return 0.0 if draft is None else draft.draft_ms / 1e3 + self.round_trip_s

    def hint(self, most: int) -> Tree | None:
        """Return at most `most` tokens that followed in an earlier answer, None where none fits.

        It followed the longest n-gram that ends the answer, see `Ngrams.lookup` (prompt lookup decoding).
        """
        room = min(most, self.max_tokens - self.position - 1)
        if room < 1:
            return None
        tokens = self._allowed(_until(tuple(self._earlier.lookup(self.answer, room)), self._eos))
        return Tree.chain(tokens) if tokens else None

    @property
    def constraint(self) -> Constraint | None:
        """What the grammar allows behind the answer; None where it is free or complete."""
        return None if self._grammar is None or self._state is None else Constraint(self._grammar, self._state)

    def _allowed(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens up to the first that the grammar does not allow."""
        constraint = self.constraint
        if constraint is None:
            return tokens
        masks = constraint.masks(tokens, range(ROOT, len(tokens) - 1))
        fit = (mask is not None and bool(mask[token]) for token, mask in zip(tokens, masks, strict=False))
        return tokens[: next((place for place, fits in enumerate(fit) if not fits), len(tokens))]

    def _lengthened(self, row: Row) -> Row:
        """Return a row whose draft goes on where the grammar has settled the text: that costs no pass of its own.

        Not where a rule judges nothing but what was sampled, nor before a draft of the verifier's own is made.
        """
        if row.constraint is None or self.sampling.one_chain or row.self_draft:
            return row
        most = min(self._forced_tokens, self._max_draft - len(row.tokens))
        tokens, parents = row.constraint.spelled(row.tokens, row.parents, most)
        return replace(row, tokens=(*row.tokens, *tokens), parents=(*row.parents, *parents))

    def continues(self, begin: BeginStep, digest: bytes) -> bool:
        """Whether `begin`, whose empty answer has `digest`, asks again for this very step, from a position that this
        answer has passed: under its number or, of an edge that had lost its link, the same question under the next one.

        Not where a token is left to an edge that may have forgotten what to sample it from: drafting again repeats it.
        Nor, under another number, where the drafts of before are judged in company that the edge may have forgotten.
        """
        if len(begin.committed) > self.position or begin.max_tokens != self.max_tokens or self.open is not None:
            return False
        if begin.step != self.number:
            if not begin.trace or self._asked(begin) != self._question:
                return False
            if self.sampling.one_chain and not self.pending:
                return False
        return extend_digest(digest, begin.committed) == self._digests[len(begin.committed)]

    @staticmethod
    def _asked(begin: BeginStep) -> tuple[bytes, int, int, bool]:
        """Return what makes two messages of one digest one question: its trace, and who drafts for it."""
        return begin.trace, begin.self_draft, begin.self_depth, begin.features

    def repeat(self, start: int, round: int) -> list[Commit]:
        """Return the answer from `start` as commits again, or an empty one where nothing follows and all is done.

        The last one has what the edge is to sample from, too.
        """
        commits: list[Commit] = []
        rest = None if self.open is None else self.open.part
        open_end = self.done or rest is not None
        while start < self.position or (open_end and not commits):
            tokens = self.answer[start : start + MAX_COMMIT]
            end = start + len(tokens)
            last = end == self.position
            done = self.done and last
            commits.append(
                Commit(
                    self.number, round, start, tokens, self._digests[end], done, passes=0, rest=rest if last else None,
                    features=self._features_of(start, end),
                )
            )  # fmt: skip
            start = end
        return commits

    def early(self, layer: int, verdict: Verdict, confidence: float) -> EarlyTokens | None:
        """Return an exit's verdict on the pass under way for the edge; None where the edge does not know its node."""
        # Where the verifier proposes by itself, the edge knows no node but the root.
        if self.tree.round == 0 and verdict.path:
            return None
        if verdict.path and verdict.path[-1] >= len(self.tree.nodes):
            return None
        node = self.tree.nodes[verdict.path[-1]] if verdict.path else self.tree.origin
        start = self.position + len(verdict.path)
        confidence = min(1.0, max(0.0, confidence))
        return EarlyTokens(self.number, self.tree.round, start, node, verdict.token, layer, confidence)

    # --- commands

    def resume(self, begin: BeginStep, now: float) -> None:
        """Its edge begins the step, or asks for it again."""
        self._kept = None
        if begin.step != self.number:
            # Its rounds count from 1 again, and what a pass under way commits answers none of them.
            self.number = begin.step
            self._held.clear()
            self.tree = replace(self.tree, round=0)
        self.idle = begin.idle
        self.early_wanted = begin.early
        """Whether exits are of use to its edge."""
        self.deadline = now + begin.time_left
        """When the answer is worth nothing any more."""
        self.round_trip_s = begin.round_trip_s
        self.suspended = False
        self.ledger.pause()
        self._refresh()

    def suspend(self) -> None:
        """Its edge is gone: nothing runs until it asks again."""
        self._kept = None
        self.suspended = True
        self.ledger.pause()

    def prepared(
        self,
        inputs: object,
        seconds: float,
        tokens: int = 0,
        prompt_tokens: int | None = None,
        image_tokens: int = 1,
    ) -> None:
        """It may be prefilled with these inputs, which took so long: so many tokens, of prompt and answer.

        They are fewer than those of the whole prompt where its row shares the beginning; None: it shares none.
        `image_tokens` of them stand for its image; 0: it has none.
        """
        self._kept = None
        self.inputs = inputs
        self.image_tokens, self.encoded = image_tokens, not image_tokens
        self.prompt_left = tokens
        self.prompt_tokens = max(0, tokens + 1 - self.position) if prompt_tokens is None else prompt_tokens
        self._fed = max(0, self.prompt_tokens + self.position - 1 - tokens)
        self.tally.prefill_s = seconds

    def fed(self, tokens: int, now: float, seconds: float = 0.0, features: RowFeatures | None = None) -> None:
        """So many tokens more of its prefill are fed, or none and its image is encoded, which took so long.

        With the last one the prefill is done: the step may be verified from now on. `features` are those of the last
        ones, see `chunk_features`.
        """
        self._kept = None
        self._fed += tokens
        if self._features is not None and features is not None:
            self._features.add(self._fed + 1 - len(features.tokens) - self.prompt_tokens, features)
        self.prompt_left -= tokens
        self.tally.prefill_s += seconds
        self.since = now
        if self.prompt_left == 0:
            self.begin = self.inputs = None
            self.committed_at = now
            # A rule that judges one sampled chain allows no decoding where a draft will come.
            if self._features is not None and not self.sampling.one_chain:
                self._undrafted_until = now + self.round_trip_s
            self.ledger.begin(self.cached, self.position, self._best is not None, now)

    def draft_prefilled(self, done: bool = True) -> None:
        """The draft model beside the target knows prompt and frame or, not `done`, cannot take them."""
        self._kept = None
        self.draft_inputs, self.drafts_here = None, done

    def wait(self, now: float) -> None:
        """Note that the step waits for a draft from now on, where that is its choice and it does not wait already."""
        if self.idle is Idle.LEDGER and not self.ledger.waits:
            choice = self.choice(now)
            if choice is not None and choice.act is Act.WAIT:
                self.ledger.wait(now)

    def offer(self, draft: Draft, now: float = 0.0, evidence: Evidence = ()) -> list[Commit]:
        """Take in a draft. Returns the commits that answer it at once: those it has missed. Raises ForeignDraft.

        `evidence` came with it, see `SamplingScheme.read`.
        """
        if self.suspended:
            self.suspended, self._kept = False, None
        before = self.choice(now)
        was_ready = before is not None and before.act is not Act.WAIT
        if before is not None and before.act is Act.WAIT:
            self.ledger.wait(now)
        if self.open is not None:
            token = self.open.brought_by(draft, self.position, self.digest)
            if token is not None:
                self.open = None
                self.tally.tokens += 1
                self._append([token])
                self._refresh()
        commits = self._place(draft, evidence)
        self._kept = None
        after = self.choice(now)
        if not was_ready and not self.pending and after is not None and after.act is not Act.WAIT:
            self.since = now
        if draft.start <= self.position:
            held = self._held.get(draft.round)
            usable = held is not None and held.start <= self.position
            depth = Tree(tokens=tuple(draft.tokens), parents=tuple(parents_of(draft))).levels[-1]
            self.ledger.draft_came(draft.start, usable, depth, now)
            self._kept = None
        return commits

    def start(self, choice: Choice, now: float = 0.0, beside: Load = NO_LOAD) -> Row:
        """Begin a pass, which `accept` ends, and return its row.

        `beside` is what other steps feed in it. Of a draft that is not verified whole the rest stays held.
        """
        self._kept = None
        exits = self.early_wanted and choice.act is Act.VERIFY
        for act in choice.declined:
            if act in self.ledger.survival:
                self.ledger.survival[act].declined()
        if self.idle is Idle.LEDGER:
            self.tally.waited_s += self.ledger.start(choice, now)
            exits = exits or (self.early_wanted and self.ledger.drafts_pay)
        tree = choice.tree
        row = Row(
            index=self.index,
            tokens=tree.tokens,
            parents=tree.parents,
            exits=exits,
            sampling=self.sampling,
            draws=self.draws,
            root=self.answer[-1] if self.answer else None,
            self_draft=choice.size,
            self_depth=choice.depth,
            answer=tuple(self.answer) if choice.size or self.recompute else (),
            digest=self.digest,
            evidence=self._held.evidence(tree),
            cached=self.cached,
            recompute=self.recompute,
            features=0 if self._features is None else 1,
            constraint=self.constraint,
        )
        self.row = self._lengthened(row)
        self.act, self.tree, self._beside, self._waited_s = choice.act, tree, beside, max(0.0, now - self.since)
        best = self._best
        self._declined = best if Act.VERIFY in choice.declined else None
        if best is None or len(tree.tokens) >= len(best.tokens):
            self._held.remove(tree.round)
            self._best = self._held.best()
        return self.row

    def further(self, tree: Tree, spent_s: float, forward_s: float, now: float) -> float:
        """Return the tokens that one level more would add to the draft that the verifier makes for it; see `Ledger`.

        Infinity where the draft has a size that its robot has set.
        """
        return self.ledger.further(tree, spent_s, forward_s, now) if self.idle is Idle.LEDGER else math.inf

    def draft_here(self, tree: Tree, seconds: float = 0.0, now: float = 0.0) -> None:
        """Let the pass under way verify a draft of the verifier's own, which took so long; the ledger may cut it."""
        assert self.row is not None, "a draft for a pass that was not started"
        if self.idle is Idle.LEDGER:
            tree = self.ledger.drafted(tree, seconds, now)
        self.act, self.tree = Act.SELF if tree.tokens else Act.DECODE, tree
        self.row = self._lengthened(self.row.with_draft(tree.tokens, tree.parents))

    def not_drafted(self) -> None:
        """Let the pass under way, for which no draft can be made yet, decode one token."""
        assert self.row is not None, "no pass was started"
        self.act, self.row = Act.DECODE, self._lengthened(self.row.with_draft((), ()))

    def accept(
        self, verdict: Verdict, now: float = 0.0, compute_s: float = 0.0, features: RowFeatures | None = None
    ) -> Commit:
        """End the pass under way, which took `compute_s`, with its verdict: lengthen the answer, re-place what is held.

        The answer gets the tokens at `verdict.path`, then `verdict.token`, cut at its end; with `verdict.rest` not
        `token` follows them, but what the edge samples out of it. Where the grammar then allows nothing but the end,
        that is committed without a pass.
        """
        assert self.row is not None, "a verdict on a pass that was not started"
        self._kept = None
        tree, start = self.tree, self.position
        last = [verdict.token] if verdict.rest is None else []
        self._append([*(self.row.tokens[index] for index in verdict.path), *last])
        if verdict.rest is not None and not self.done:
            self.open = OpenToken(tree.round, verdict.rest)
        elif self.constraint is not None and self._forced_tokens:
            ending = self.constraint.ending()
            self._append(ending if self.position - start + len(ending) <= MAX_COMMIT else [])
        drafted = [index for index in verdict.path if index < len(tree.tokens)]
        self.row = None
        self.since = self.committed_at = now
        if self.done:
            self._held.clear()
        else:
            self._held.settle()
        self._refresh()
        tokens = self.answer[start:]
        if self._features is not None and features is not None:
            self._features.add(start, features)
        first = self.tally.passes == 0
        self.tally.count(self.act, len(tokens))
        if self.act in self.ledger.survival:
            self.ledger.survival[self.act].judged(tree.parents, drafted)
        self.ledger.finish(self.act, tree, len(drafted), len(tokens), self._beside)
        if self._declined is not None:
            self.ledger.compared(self._declined.agrees(tokens), min(len(tokens), self._declined.levels[-1]))
        self.ledger.committed(self.position, self._best is not None, now)
        return Commit(
            step=self.number,
            round=tree.round,
            start=start,
            tokens=tokens,
            digest=self.digest,
            done=self.done,
            passes=1,
            queue_s=self._waited_s,
            compute_s=compute_s,
            prefill_s=self.tally.prefill_s if first else 0.0,
            rest=None if self.open is None else self.open.part,
            features=self._features_of(start, self.position),
        )

    def fetch(self, fetch: Fetch) -> list[Commit]:
        """Return a commit with the whole of what the next token is sampled from; none where that token is known."""
        if self.open is None or (fetch.start, fetch.digest) != (self.position, self.digest):
            return []
        rest = self.open.whole()
        if rest is None:
            return []
        return [Commit(self.number, self.open.round, self.position, [], self.digest, False, passes=0, rest=rest)]

    def _features_of(self, start: int, end: int) -> bytes:
        return b"" if self._features is None else self._features.of(start, end)

    # --- drafts

    def _place(self, draft: Draft, evidence: Evidence) -> list[Commit]:
        if draft.start <= self._base and draft.digest != self._digests[draft.start]:
            raise ForeignDraft(
                f"Draft.digest {draft.digest.hex()} at answer position {draft.start} is not this step's "
                f"{self._digests[draft.start].hex()}: prompt, image, sampling or committed tokens "
                "differ; begin the step again"
            )
        if draft.start > self.max_tokens or (draft.start > self.position and self.sampling.one_chain):
            return []
        if draft.start <= self.position:
            if self._digests[draft.start] != draft.digest:
                return []
            if self.done or self.open is not None or continuation(draft, self.answer) is None:
                return self.repeat(draft.start, draft.round)
        if self._held.add(draft, evidence):
            self._best = self._held.best()
        return []

    def _append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self.done:
                return
            self.answer.append(token)
            self._digests.append(extend_digest(self.digest, [token]))
            if self._grammar is not None and self._state is not None:
                self._state = self._grammar.next(self._state, token)

    def _refresh(self) -> None:
        """Find the best draft and the hint anew: the answer grew, or the step may use them from now on."""
        self._best = self._held.best()
        self._hint = self.hint(self._hint_tokens) if self.idle is Idle.LEDGER else None


def empty_digest(begin: BeginStep, sampling: SamplingScheme) -> bytes:
    """Return the digest of a step's empty answer. It reads the whole frame: once for each message is enough."""
    return begin_digest(begin.prompt, begin.jpeg, sampling.text, begin.key, begin.grammar)


def _until(tokens: tuple[int, ...], ends: Collection[int]) -> tuple[int, ...]:
    """Return the tokens up to the first that ends an answer, that one included."""
    end = next((index for index, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: end + 1]
