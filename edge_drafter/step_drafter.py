"""The drafting half of a step: grows the token tree with the sources, sends drafts out of it, re-roots it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from edge_drafter.acceptance_stats import ExitQuestion, NamedToken, Verdict
from edge_drafter.answer import Contradiction
from edge_drafter.in_flight import SentDraft
from edge_drafter.policy import Policy
from edge_drafter.sources import DraftSource
from edge_drafter.step import Step
from edge_drafter.tree import Forward, Proposed, Rerooting
from speculation.cancellation import Abandoned, Stop
from speculation.sampling import DraftSampler
from speculation.wire import MAX_DRAFT_MS, ROOT, Commit, Draft, EarlyTokens, Features, Fetch, extend_digest

LOOKUP_LEAVES = 2
"""How many of the leaves of one forward are looked up before it."""
MOST_NAMED = 512
"""What exits may name in one verification; every one takes a place in the tree."""


class Outcome(Enum):
    """What a commit found at its last token: a full, unspent draft, none, or no place for one."""

    HIT = "hit"
    MISS = "miss"
    NEITHER = "neither"


class ResidualTokens:
    """Tokens that one step's commits leave to the edge, which sampled the draft and alone can sample what follows it.

    A scheme that leaves nothing makes no use of it.
    """

    def __init__(self, sampler: DraftSampler, step: Step) -> None:
        self.sampler = sampler
        self._answer = step.answer
        self._number = step.request.step
        self._stats = step.stats
        self._pending: list[int] = []
        """Committed tokens of a commit whose last token needs the whole distribution."""
        self._fetched_at = -1
        self._sampled_at = -1
        """Answer position of the last token that the edge sampled; the next draft carries it to the verifier."""

    @property
    def sampled_last(self) -> bool:
        """Whether the answer's last token was sampled here, so that the verifier does not have it yet."""
        return self._sampled_at == self._answer.position - 1 >= 0

    def complete(self, commit: Commit, tokens: list[int]) -> list[int] | Fetch:
        """Return a commit's tokens, with the one that it leaves to the edge, or the request for what that needs.

        Raises Contradiction for a commit that leaves a token which cannot be sampled.
        """
        answer = self._answer
        self._pending += tokens
        if commit.rest is not None and answer.rests(commit):
            try:
                token = self.sampler.finish(answer.digest, commit.rest)
            except ValueError as error:
                raise Contradiction(str(error)) from error
            if token is None:
                self._stats.fetches += self._fetched_at != answer.position
                self._fetched_at = answer.position
                return Fetch(self._number, answer.position, answer.digest)
            self._sampled_at = answer.position
            answer.append([token])
            self._pending.append(token)
        known, self._pending = self._pending, []
        return known


class StepDrafter:
    """Drafts for one step. It knows no link: what it returns is sent by its caller, what arrives is passed to it."""

    def __init__(self, step: Step, sources: Sequence[DraftSource]) -> None:
        self._step = step
        self._sources = sources
        self.policy = Policy(step)
        self.rounds = 0
        """Drafts sent so far; the newest one's number."""
        self.residual: ResidualTokens | None = None
        """The tokens that commits leave to the edge; None where no source samples its tokens."""
        self._uncommitted: list[tuple[Rerooting, Commit]] = []
        self._is_disturbed = False
        """Whether more than a round trip, the wait in the verifier and the verification delays the next verdict."""
        self._named_places: list[NamedToken] = []
        """What exits named in the verification under way."""
        self._named: int | None = None
        """The node that an exit named last."""
        self._root_at = self._sent_at = step.clock()
        """When the root became known, and when the last draft was sent."""

    def begin(self) -> None:
        """Have the sources take up the step and propose the answer's beginning. Commits may be taken from here on."""
        for source in self._sources:
            source.begin(self._step)
        for source in self._sources:
            if source.sampler is not None:
                self.residual = ResidualTokens(source.sampler, self._step)
        self._propose(self._step.tree.root)

    def read(self, stop: Stop | None = None) -> None:
        """Have the sources read the frame, perhaps in another thread, see `DraftSource.read`. Raises as they do."""
        for source in self._sources:
            source.read(stop)

    def has_read(self) -> None:
        """Note that the frame is read, so that drafts are made from now on."""
        self._root_at = self._sent_at = self._step.clock()

    @property
    def ready(self) -> bool:
        """Whether draft forwards are of use: the sources have what they draft from, or a commit is to be followed."""
        return bool(self._uncommitted) or all(source.ready for source in self._sources)

    def feed(self, message: Features) -> None:
        """Give the sources what the verifier sends to be drafted from."""
        for source in self._sources:
            source.feed(message)

    def grow(self, leaves: Sequence[int], poll: Callable[[], None] | None = None) -> None:
        """Run one draft forward over `leaves`.

        `poll` is called between layers and may take commits; a forward that these make useless is abandoned, and so is
        one for a question that was cancelled.
        """
        step = self._step
        if self._uncommitted:
            self._follow_commits()
        looked_up = leaves[:LOOKUP_LEAVES]
        for leaf in looked_up:
            self._propose(leaf)
        fed = [*leaves, *self.policy.lookup_ends(looked_up)]
        stop = step.stop if poll is None else self._stop(poll, leaves)
        is_verifying, is_abandoned = step.sent.current is not None, False
        started, forward = step.clock(), Forward()
        hoping = leaves if step.config.extend or not step.acceptance.effort.is_free else ()
        hopes = {leaf: (step.tree.ahead(leaf) + 1, step.tree.new_behind(leaf)) for leaf in hoping}
        try:
            for source in self._sources:
                self._note(source.grow(fed, stop), forward, hopes)
        except Abandoned:
            is_abandoned = True
        seconds = forward.seconds = step.clock() - started
        step.stats.add_forward(seconds, verifying=is_verifying, abandoned=is_abandoned)
        step.acceptance.on_forward(seconds, is_abandoned)
        self.policy.happened()

    def send_draft(self, anchor: int) -> Draft:
        """Cut the draft behind `anchor` from the tree and return its message; it is in flight from now on."""
        step, tree, root = self._step, self._step.tree, self._step.tree.root
        nodes = self.policy.cut(anchor)
        ahead = tree.ahead(anchor)
        tokens = [tree[node].token for node in nodes]
        places = {anchor: ROOT} | {node: place for place, node in enumerate(nodes)}
        parents = [places[tree.parent(node)] for node in nodes]
        is_chain = parents == list(range(ROOT, len(nodes) - 1))
        prefix = extend_digest(step.answer.digest, [tree[node].token for node in tree.path_to(anchor)])
        self.rounds += 1
        now = step.clock()
        # What was drafted before its root was known has cost the answer no time; a draft ahead has no such moment yet.
        worked_s = now - (self._sent_at if ahead else self._root_at)
        message = Draft(
            step.request.step, self.rounds, step.answer.position + ahead, prefix, tokens,
            None if is_chain else parents, draft_ms=min(round(1e3 * worked_s), MAX_DRAFT_MS),
        )  # fmt: skip
        if self.residual is not None:
            message = self.residual.sampler.attach(message)
        before = step.sent.at(anchor)
        self._sent_at = now
        value, is_full = step.selector.value(anchor, nodes), self.policy.is_hit(anchor)
        draft = SentDraft(message, anchor, nodes, value, is_full, ahead > 0, now, now)
        step.sent.add(draft, root)
        step.stats.drafted += len(tokens) - (len(before.nodes) if before is not None else 0)
        step.stats.sent_ahead += ahead > 0 and before is None
        self._is_disturbed = self._is_disturbed and ahead > 0
        self.policy.on_sent(draft)
        return message

    def take_early_token(self, early: EarlyTokens) -> bool:
        """Raise a branch where an exit predicts the verdict to end, and return whether it did.

        Early tokens about drafts that are decided come too late.
        """
        step = self._step
        anchor = self._anchor_of(early)
        if anchor is None:
            return False
        step.stats.early_received += 1
        if not step.config.early_tokens or step.selector.ends_at(anchor) or len(self._named_places) >= MOST_NAMED:
            return False
        self._named = self._expect(anchor, early)
        self.policy.on_early_token(self._named, early.confidence)
        return True

    def take_commit(self, commit: Commit, tokens: list[int], now: float, since_s: float) -> Outcome:
        """Re-root the tree at a commit that the answer has taken in, and count what it decides about the drafts.

        `since_s` is as in `Verdict`.
        """
        step, tree = self._step, self._step.tree
        for source in self._sources:
            source.judge(tokens)
        rerooting = tree.reroot(tokens)
        if step.jump_forward is not None:
            step.jump_forward.follow(tokens)
        root = tree.root
        self._root_at = now
        step.acceptance.on_verdict(self._verdict(commit, tokens, now, since_s, rerooting))
        self._named_places.clear()
        self._uncommitted.append((rerooting, commit))
        step.stats.used(content for _, content in rerooting.path)
        step.sent.decide(commit.round, tree)
        self.policy.on_commit(now)
        if step.answer.done or step.selector.need(root) == 0:
            return Outcome.NEITHER
        self._propose(root)
        current = step.sent.current
        is_ahead = current is not None and current.anchor == root
        self._is_disturbed = current is not None and not is_ahead
        if not (current.full if current is not None and is_ahead else self.policy.is_hit(root)):
            step.stats.misses += 1
            return Outcome.MISS
        step.stats.add_hit(is_ahead, rerooting.path[-1][1].layers)
        return Outcome.HIT

    def _note(self, nodes: Sequence[int], forward: Forward, hopes: Mapping[int, tuple[int, float]]) -> None:
        """Note at the likeliest new nodes behind the leaves what `forward` was run for."""
        tree = self._step.tree
        for node in nodes:
            content = tree[node]
            if content.proposed is None:
                hoped = hopes.get(content.parent) if content.parent is not None else None
                content.proposed = Proposed(forward, *(hoped or (tree.ahead(node), 0.0)))

    def _follow_commits(self) -> None:
        for rerooting, commit in self._uncommitted:
            for source in self._sources:
                source.commit(rerooting, commit)
        self._uncommitted.clear()

    def _propose(self, node: int) -> None:
        for source in self._sources:
            source.propose(node)

    def _stop(self, poll: Callable[[], None], leaves: Sequence[int]) -> Stop:
        """Return what a draft forward calls between layers: did an exit just name a place that is far likelier?"""
        self._named = None
        step = self._step

        def is_outrun() -> bool:
            poll()
            return step.cancelled or self.policy.is_outrun(leaves, self._named)

        return is_outrun

    def _expect(self, anchor: int, early: EarlyTokens) -> int:
        """Return the node that an exit names, as likely as exit and draft together have it."""
        step, tree = self._step, self._step.tree
        path = tuple(tree[node].token for node in tree.path_to(anchor))
        named = tree[anchor].children.get(early.token)

        def probability(question: ExitQuestion, node: int) -> float:
            estimate = step.acceptance.exits.estimate(question, early.layer, early.confidence, tree[node].reach)
            self._named_places.append(NamedToken(path, early.token, estimate, step.clock()))
            return estimate.probability

        if named is not None:
            reach = probability(ExitQuestion.LANDING, named)
        else:
            reach = probability(ExitQuestion.TOKEN, anchor)
            if anchor != tree.root:
                tree.condition(anchor, probability(ExitQuestion.ANCHOR, anchor))
        return tree.raise_branch(anchor, early.token, reach, early.layer)

    def _anchor_of(self, early: EarlyTokens) -> int | None:
        step, tree = self._step, self._step.tree
        if early.round == 0:
            return tree.root if early.start == step.answer.position else None
        draft = step.sent.get(early.round)
        if draft is None or early.node >= len(draft.nodes):
            return None
        draft.begun = True
        anchor = draft.anchor if early.node == ROOT else draft.nodes[early.node]
        return anchor if anchor in tree and early.start >= step.answer.position else None

    def _verdict(
        self, commit: Commit, tokens: Sequence[int], now: float, since_s: float, rerooting: Rerooting
    ) -> Verdict:
        """Return what a commit shows about the draft that it judges, and about what exits said."""
        step = self._step
        draft, accepted, is_rejected, round_s = step.sent.get(commit.round), None, False, None
        levels = step.selector.gamma
        if draft is not None:
            levels = max(levels, draft.levels)
            accepted, is_rejected = draft.judged(rerooting)
            step.stats.accepted += accepted
            # An answer's first draft waits for the verifier to read the frame, which is no part of a round.
            if not (draft.ahead or self._is_disturbed or commit.prefill_s):
                round_s = now - draft.sent_at
        return Verdict(
            commit, tokens, now, since_s, rerooting, accepted, is_rejected, round_s, step.answer.done,
            levels, self._named_places, step.asks_exits,
        )  # fmt: skip
