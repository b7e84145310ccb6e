"""The speculative half of a step: the token tree, the drafts in flight, and where the next draft forward pays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import Enum

from edge_drafter.answer import Answer
from edge_drafter.branches import Branch, BranchQueue
from edge_drafter.config import DraftingConfig
from edge_drafter.controller import Controller
from edge_drafter.cutting import Cutter
from edge_drafter.flights import Flight, Flights
from edge_drafter.grower import Grower, work
from edge_drafter.model import Clock, DraftModel
from edge_drafter.sampled import SampledModel
from edge_drafter.stats import DecodingStats
from edge_drafter.tree import Node, Origin, Rerooting, TokenTree
from speculation.cancellation import Abandoned
from speculation.ngrams import Ngrams
from speculation.predictor import Predictor
from speculation.wire import ROOT, Commit, Draft, EarlyTokens, Idle, extend_digest

MAX_AHEAD = 12
"""Drafts in flight at a time; a verifier holds a few more."""
OUTRUN = 2.0
"""A draft forward is given up for a place that an exit names, where that is so many times as likely."""
NGRAM_LEAVES, NGRAM_ABOVE, NGRAM_TOKENS = 2, 0.2, 12
"""How many of the leaves of one forward earlier answers continue, how likely such a leaf must be, and how far."""


class Landing(Enum):
    """Where a commit came down: on a full, unspent draft, on none, or where no draft is needed."""

    HIT = "hit"
    MISS = "miss"
    NEITHER = "neither"


class Speculator:
    """Grows one step's tree, launches drafts out of it and re-roots it; knows no link."""

    def __init__(
        self,
        model: DraftModel,
        answer: Answer,
        ends: Collection[int],
        config: DraftingConfig,
        clock: Clock,
        max_draft: int,
        stats: DecodingStats,
        controller: Controller,
        predictor: Predictor | None = None,
        ngrams: Ngrams | None = None,
    ) -> None:
        self._answer = answer
        self._config = config
        self._clock = clock
        self._stats = stats
        self._controller = controller
        self._ngrams = ngrams if config.ngrams else None
        self._grower = Grower(model, clock, predictor, config.width)
        self._sampler = model.sampler if isinstance(model, SampledModel) else None
        self._tree = self._grower.tree
        self._queue = BranchQueue(config.queue_policy, config.branches, config.seed)
        self._flights = Flights()
        self._round = 0
        self._uncommitted: list[Rerooting] = []
        self._cutter = Cutter(self._tree, answer, ends, config, max_draft, controller.gamma)
        self._landed_at = clock()
        self._disturbed = False
        self._due: int | None = None
        self._is_stale = True
        self._rumour: int | None = None

    @property
    def rounds(self) -> int:
        """How many drafts have left so far; the newest one's number."""
        return self._round

    @property
    def tree(self) -> TokenTree:
        """Everything that the edge knows about the future."""
        return self._tree

    @property
    def root(self) -> int:
        """The tree node of the last committed token."""
        return self._tree.root

    @property
    def flight(self) -> Flight | None:
        """The draft that is or will be verified next; None where the verifier has none that leads on."""
        return self._flights.current

    def due(self) -> int | None:
        """Return the node behind which a draft should leave now; None where none should."""
        if self._is_stale or self.flight is None:
            self._due = self._next_due()
            self._is_stale = False
        return self._due

    def next_nodes(self) -> list[int]:
        """Return the nodes whose common draft forward pays most now; empty where nothing is to be drafted."""
        root = self._tree.root
        if self.flight is None:
            if self._cutter.is_full(root):
                return []
            end = self._cutter.end(root, self._cutter.need(root))
            return self._cutter.unfed(root, [end]) if self._config.draft_tokens else [end]
        if not self._config.predrafts or len(self._tree) >= self._config.max_nodes:
            return []
        return self._best_leaves() if self._config.best_first else self._branch_ends()

    def start(self) -> None:
        """Let earlier answers propose what the answer may begin with."""
        self._propose(self._tree.root)

    def grow(self, nodes: Sequence[int], poll: Callable[[], None] | None = None) -> float:
        """Run one draft forward over `nodes` and return its seconds.

        `poll` is called between layers and may land commits; a forward that these make useless is abandoned.
        """
        self._catch_up()
        for node in nodes[:NGRAM_LEAVES]:
            self._propose(node)
        leaves = [*nodes, *(end for node in nodes[:NGRAM_LEAVES] for end in self._ngram_end(node))]
        in_flight = self.flight is not None
        started = self._clock()
        try:
            self._grower.feed(leaves, None if poll is None else self._asking(poll, nodes))
        except Abandoned:
            self._stats.abandoned += 1
            self._stats.wasted_forwards += 1
            self._stats.wasted_s += self._clock() - started
        else:
            self._controller.drafted(self._clock() - started)
        seconds = self._clock() - started
        self._stats.draft_forwards += 1
        if in_flight:
            self._stats.predraft_s += seconds
        else:
            self._stats.draft_s += seconds
        self._is_stale = True
        return seconds

    def launch(self, anchor: int, step: int) -> Draft:
        """Cut the draft behind `anchor` from the tree. It is in flight from now on; what follows it is a branch."""
        tree, root = self._tree, self._tree.root
        nodes = self._cutter.cut(anchor)
        ahead = tree[anchor].depth - tree[root].depth
        tokens = [tree[node].token for node in nodes]
        places = {anchor: ROOT} | {node: place for place, node in enumerate(nodes)}
        parents = [places[tree.parent(node)] for node in nodes]
        is_chain = parents == list(range(ROOT, len(nodes) - 1))
        prefix = extend_digest(self._answer.digest, [tree[node].token for node in tree.path_to(anchor)])
        self._round += 1
        start = self._answer.position + ahead
        message = Draft(step, self._round, start, prefix, tokens, None if is_chain else parents)
        if self._sampler is not None:
            message = self._sampler.attach(message)
        before = self._flights.at(anchor)
        now = self._clock()
        flight = Flight(
            message, anchor, nodes, self._cutter.value(anchor, nodes), self._is_hit(anchor), ahead > 0, now, now
        )
        self._flights.add(flight, root)
        self._stats.drafted += len(tokens) - (len(before.nodes) if before is not None else 0)
        self._stats.sent_ahead += ahead > 0 and before is None
        if ahead > 0:
            self._queue.keep(lambda branch: branch not in (anchor, tree.parent(anchor)))
        else:
            self._cutter.gamma = self._controller.gamma
            self._disturbed = False
        if self._config.own_guess:
            self._open_branch(nodes[-1] if nodes and is_chain else self._cutter.end(anchor, self._cutter.need(anchor)))
        self._is_stale = True
        return message

    def hear(self, early: EarlyTokens) -> bool:
        """Raise a branch where an exit says that the verdict will land, and return whether it did.

        Rumours about drafts that are decided are too late.
        """
        anchor = self._anchor_of(early)
        if anchor is None:
            return False
        self._stats.early_received += 1
        if not self._config.early_tokens or self._cutter.ends_at(anchor):
            return False
        landing = self._tree.raise_branch(anchor, early.token, early.confidence, early.layer)
        self._rumour = landing
        want = self._cutter.need(landing)
        if want > 0 and not self._cutter.ends_at(landing):
            self._queue.put(Branch(landing, want, early.confidence))
        self._is_stale = True
        return True

    def land(self, commit: Commit, tokens: list[int], now: float) -> Landing:
        """Re-root the tree at a commit that the answer has taken in, and book what it says about the drafts."""
        if self._ngrams is not None:
            self._judge_ngrams(self._ngrams, tokens)
        rerooting = self._tree.reroot(tokens)
        root = self._tree.root
        self._judge(commit, rerooting, now)
        self._uncommitted.append(rerooting)
        self._waste(rerooting.dropped)
        self._flights.land(commit.round, self._tree)
        self._queue.keep(lambda anchor: anchor in self._tree and anchor != root)
        self._landed_at = now
        self._is_stale = True
        if self._answer.done or self._cutter.need(root) == 0:
            return Landing.NEITHER
        self._propose(root)
        flight = self.flight
        whole = flight is not None and flight.anchor == root
        self._disturbed = flight is not None and not whole
        if not (flight.full if flight is not None and whole else self._is_hit(root)):
            self._stats.misses += 1
            return Landing.MISS
        self._stats.hits += 1
        self._stats.ahead_hits += whole
        layers = rerooting.path[-1][1].layers
        if layers:
            self._stats.early_hits[layers[0]] = self._stats.early_hits.get(layers[0], 0) + 1
        return Landing.HIT

    def close(self) -> None:
        """The step is over: what the tree still holds was drafted for nothing."""
        self._waste(tuple(self._tree[node] for node in self._tree.ids() if node != self._tree.root))

    # --- what to send

    def _next_due(self) -> int | None:
        root, flight = self._tree.root, self.flight
        if flight is None:
            ready = self._cutter.is_full(root) or (self._config.truncate and self._is_late(root))
            # A verifier that decodes by itself needs no empty draft to go on.
            return root if ready and (self._config.idle is Idle.WAIT or self._cutter.cut(root)) else None
        if (
            self._config.idle is not Idle.WAIT
            and flight.anchor == root
            and not flight.begun
            and (self._has_grown(flight))
        ):
            return root
        return self._next_ahead() if self._config.ahead and len(self._flights) < MAX_AHEAD else None

    def _next_ahead(self) -> int | None:
        for landing in self._flights.landings(self._tree, self._config.ahead_above):
            if not self._tree[landing].children or self._cutter.ends_at(landing):
                continue
            flight = self._flights.at(landing)
            if flight is not None:
                if self._has_grown(flight):
                    return landing
            elif self._cutter.need(landing) > 0 and (self._cutter.is_full(landing) or self._is_worth_a_start(landing)):
                return landing
        return None

    def _is_worth_a_start(self, anchor: int) -> bool:
        """Whether a verifier should begin with the part of a draft that is there rather than wait for a forward."""
        verify_s = self._controller.estimates.verify_s
        return self._config.partial and verify_s is not None and self._waiting_costs(anchor, verify_s)

    def _has_grown(self, flight: Flight) -> bool:
        value = self._cutter.value(flight.anchor, self._cutter.cut(flight.anchor))
        return value >= flight.value + max(self._config.send_gain, 1e-6)

    def _asking(self, poll: Callable[[], None], nodes: Sequence[int]) -> Callable[[], bool]:
        """Return what a draft forward asks between layers: did an exit just name a place that is far likelier?"""
        self._rumour = None

        def is_outrun() -> bool:
            poll()
            rumour, tree = self._rumour, self._tree
            if rumour is None or rumour not in tree or tree[rumour].proposals is not None:
                return False
            return tree[rumour].reach > OUTRUN * max((tree[node].reach for node in nodes if node in tree), default=0.0)

        return is_outrun

    def _is_hit(self, anchor: int) -> bool:
        return self._cutter.is_full(anchor, min(self._cutter.need(anchor), self._config.fixed_gamma))

    def _is_late(self, root: int) -> bool:
        fixed_s = self._controller.estimates.fixed_s
        return fixed_s is not None and self._waiting_costs(root, fixed_s + self._clock() - self._landed_at)

    def _waiting_costs(self, anchor: int, round_s: float) -> bool:
        """Whether one more draft forward gains less than it costs in a round that takes `round_s` if sent now.

        The last step of maximising E(gamma) / (F + c gamma), with this draft's own probabilities for E.
        """
        now, tree = self._controller.estimates, self._tree
        nodes = self._cutter.cut(anchor)
        if not nodes or now.draft_s is None or now.acceptance is None:
            return False
        gain = now.acceptance * tree.total_reach(self._cutter.unfed(anchor, [])) / tree[anchor].reach
        return gain * round_s <= (1.0 + self._cutter.value(anchor, nodes)) * now.draft_s

    # --- what to draft

    def _best_leaves(self) -> list[int]:
        tree, root = self._tree, self._tree.root
        if self._config.own_guess:
            return self._cutter.unfed(root, [])
        leaves: list[int] = []
        for node in tree.ids():
            if tree[node].layers and node != root and not self._cutter.ends_at(node):
                leaves = self._cutter.unfed(node, [*leaves, *([node] if tree[node].proposals is None else [])])
        return leaves[: self._config.leaves]

    def _branch_ends(self) -> list[int]:
        leaves: list[int] = []
        for branch in self._queue.best():
            if not self._cutter.is_full(branch.anchor, branch.want):
                end = self._cutter.end(branch.anchor, branch.want)
                new = self._cutter.unfed(branch.anchor, [end]) if self._config.draft_tokens else [end]
                leaves += [leaf for leaf in new if leaf not in leaves]
        return leaves[: self._config.leaves]

    def _open_branch(self, last: int) -> None:
        """Pre-draft behind `last`, the likeliest leaf of a draft, as if it were accepted."""
        want = min(self._cutter.gamma, self._cutter.room(last) - 1)
        if want > 0 and not self._cutter.closes(last):
            self._queue.put(Branch(last, want + 1, self._tree[last].reach))

    # --- earlier answers

    def _propose(self, node: int) -> None:
        """Add what followed in an earlier answer, where that has been right often enough."""
        tree, ngrams = self._tree, self._ngrams
        if ngrams is None or node not in tree or (node != tree.root and tree[node].reach < NGRAM_ABOVE):
            return
        chance = ngrams.acceptance
        prefix = [*self._answer.tokens, *(tree[each].token for each in tree.path_to(node))]
        limit = min(NGRAM_TOKENS, self._cutter.room(node))
        if chance >= self._config.least:
            for token in ngrams.lookup(prefix, limit):
                node = tree.add(node, token, chance, Origin.NGRAM)
                if token in self._cutter.ends:
                    break

    def _ngram_end(self, node: int) -> list[int]:
        """Return the last unfed n-gram token behind `node`: its whole chain rides in one forward."""
        tree, end = self._tree, node
        while True:
            chain = [
                child
                for child in tree[end].children.values()
                if tree[child].origin is Origin.NGRAM
                and tree[child].proposals is None
                and not self._cutter.ends_at(child)
            ]
            if not chain:
                return [end] if end != node else []
            end = chain[0]

    def _judge_ngrams(self, ngrams: Ngrams, tokens: Sequence[int]) -> None:
        node: int | None = self._tree.root
        for token in tokens:
            if node is None:
                return
            children = self._tree[node].children
            for said, child in children.items():
                if self._tree[child].origin is Origin.NGRAM:
                    ngrams.judged(said == token)
            node = children.get(token)

    # --- bookkeeping

    def _anchor_of(self, early: EarlyTokens) -> int | None:
        root = self._tree.root
        if early.round == 0:
            return root if early.start == self._answer.position else None
        flight = self._flights.get(early.round)
        if flight is None or early.node >= len(flight.nodes):
            return None
        flight.begun = True
        anchor = flight.anchor if early.node == ROOT else flight.nodes[early.node]
        return anchor if anchor in self._tree and early.start >= self._answer.position else None

    def _catch_up(self) -> None:
        """Tell the draft model about commits. Put off until it is needed, so that a hit's draft leaves first."""
        for rerooting in self._uncommitted:
            self._grower.commit(rerooting)
        self._uncommitted.clear()

    def _judge(self, commit: Commit, rerooting: Rerooting, now: float) -> None:
        if commit.passes:
            self._controller.verified(commit.compute_s / commit.passes)
        flight = self._flights.get(commit.round)
        if flight is None:
            return
        inside = set(flight.nodes)
        path = [(node, content) for node, content in rerooting.path if node in inside]
        last_children = path[-1][1].children if path else {}
        accepted = len(path)
        rejected = not inside.isdisjoint(last_children.values()) if path else bool(flight.nodes)
        self._stats.accepted += accepted
        clean = not flight.ahead and not self._disturbed
        seconds = now - flight.sent_at if clean else None
        self._controller.judged(accepted + rejected, accepted, seconds, commit.queue_s)

    def _waste(self, nodes: tuple[Node, ...]) -> None:
        forwards, seconds = work(nodes)
        self._stats.wasted_forwards += forwards
        self._stats.wasted_s += seconds
