"""Decides what to draft next, and what to send next and when: nothing here runs a model or sends."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge_drafter.in_flight import SentDraft
from edge_drafter.settings import BranchOrder
from edge_drafter.step import Step
from edge_drafter.tree import Origin
from speculation.wire import Idle

MAX_AHEAD = 12
"""Drafts in flight at a time; a verifier holds a few more."""
OUTRUN = 2.0
"""A draft forward is given up for a place that an exit names, where that is so many times as likely."""


@dataclass(frozen=True)
class Branch:
    """A place where the verdict may land; `want` tokens are to be drafted behind node `anchor`.

    `score` is the confidence that it lands there.
    """

    anchor: int
    want: int
    score: float


class BranchQueue:
    """Branches of one verification in the order of a policy (Early Exits, Appendix A: queue Q_p by confidence)."""

    def __init__(self, policy: BranchOrder, limit: int) -> None:
        self._policy = policy
        self._limit = limit
        self._random = random.Random(0)
        self._branches: dict[int, Branch] = {}
        self._lots: dict[int, float] = {}

    def keep(self, wanted: Callable[[int], bool]) -> None:
        """Forget the branches at anchors that are not `wanted` any more."""
        for anchor in [anchor for anchor in self._branches if not wanted(anchor)]:
            del self._branches[anchor], self._lots[anchor]

    def put(self, branch: Branch) -> None:
        """Add a branch; one that is known keeps its place of arrival and the larger of both scores and wants."""
        known = self._branches.get(branch.anchor)
        if known is not None:
            branch = Branch(branch.anchor, max(known.want, branch.want), max(known.score, branch.score))
        self._branches[branch.anchor] = branch
        self._lots.setdefault(branch.anchor, self._random.random())

    def best(self) -> list[Branch]:
        """Return the branches worth drafting, first the one to draft first; at most `limit`."""
        branches = list(self._branches.values())
        if self._policy in (BranchOrder.PRIORITY, BranchOrder.CONFIDENCE):
            branches.sort(key=lambda branch: -branch.score)
        elif self._policy is BranchOrder.RANDOM:
            branches.sort(key=lambda branch: self._lots[branch.anchor])
        return branches[: self._limit]


class Policy:
    """Decides for one step. The `on_` methods take what has happened; a query changes nothing but what is cached."""

    def __init__(self, step: Step) -> None:
        self._config = step.config
        self._clock = step.clock
        self._controller = step.acceptance.controller
        self._effort = step.acceptance.effort
        self._tree = step.tree
        self._selector = step.selector
        self._sent = step.sent
        self._queue = BranchQueue(step.config.queue_policy, step.config.branches)
        self._committed_at = step.clock()
        self._next: int | None = None
        self._is_stale = True
        self._events = 0
        """What has happened so far: leaves are chosen once after each."""
        self._leaves: list[int] = []
        self._leaves_at: tuple[int, int] | None = None

    # --- what to send

    def next_draft(self) -> int | None:
        """Return the node behind which a draft should be sent now; None where none should."""
        if self._is_stale or self._sent.current is None:
            self._next = self._choose_draft()
            self._is_stale = False
        return self._next

    def cut(self, anchor: int) -> list[int]:
        """Return the nodes of the draft to send behind `anchor`: all that there are where the verifier has some."""
        current, config = self._sent.current, self._config
        is_chain = config.preverify and not config.draft_tokens
        if is_chain and anchor == self._tree.root and current is not None and self._can_take_more(current):
            return self._selector.longest(anchor)
        return self._selector.cut(anchor)

    def is_hit(self, anchor: int) -> bool:
        """Whether a commit that makes `anchor` the root finds a full draft there."""
        return self._selector.is_full(anchor, min(self._selector.need(anchor), self._config.fixed_gamma))

    def _choose_draft(self) -> int | None:
        root, current, selector = self._tree.root, self._sent.current, self._selector
        if current is None:
            ready = self._is_long_enough(root) or self._is_late(root) or self._preverifies(root)
            ready = ready or not self.next_leaves()
            # A verifier that decodes by itself needs no empty draft to go on.
            return root if ready and (self._config.idle is Idle.WAIT or selector.cut(root)) else None
        if self._can_take_more(current) and self._has_grown(current):
            return root
        return self._choose_ahead() if self._config.ahead and len(self._sent) < MAX_AHEAD else None

    def _is_long_enough(self, anchor: int) -> bool:
        """Whether a full draft stands behind `anchor`, to which one more forward would add less than it costs.

        What is left out of this draft an edge that drafts on has in the next one, in time. That costs one verification
        more only where the answer ends, or goes on otherwise, just behind this draft. So with u for the chance that it
        gets to the token of that forward, given the anchor, and a that it goes on behind a token as drafted (or does
        not end), the forward saves u (1 - a) T_q.
        """
        if not self._selector.is_full(anchor):
            return False
        now = self._controller
        extends = self._config.extend and self._config.draft_tokens
        if not extends or now.verify_s is None or now.draft_s is None:
            return True
        use = self._effort.use(self._places(self._selector.unfed(anchor, [])))
        return use * (1.0 - now.goes_on) * now.verify_s <= now.draft_s * self._tree[anchor].reach

    def _choose_ahead(self) -> int | None:
        tree, selector = self._tree, self._selector
        for anchor in self._sent.next_roots(tree, self._config.ahead_above):
            if not tree[anchor].reach:
                break  # the likeliest come first: neither this one nor any behind it is expected to be the root
            if not tree[anchor].children or selector.ends_at(anchor):
                continue
            known = self._sent.at(anchor)
            if known is not None:
                if self._has_grown(known):
                    return anchor
            elif selector.need(anchor) > 0 and (self._is_long_enough(anchor) or self._is_worth_a_start(anchor)):
                return anchor
        return None

    def _is_worth_a_start(self, anchor: int) -> bool:
        """Whether a verifier should begin with the part of a draft that is there rather than wait for a forward."""
        if not self._config.partial:
            return False
        verify_s = self._controller.verify_s
        return (verify_s is not None and self._waiting_costs(anchor, verify_s)) or not self.next_leaves()

    def _preverifies(self, root: int) -> bool:
        """Whether the verifier should begin with the part of the first draft that is there: what follows goes up while
        it works.

        With S seconds a token at present, one more forward brings its token's chance u to stand, worth u S. But a draft
        that is one token longer is right as a whole less often, by u (1 - a), and only then has the next one its head
        start of H seconds. So waiting pays while u (S - (1 - a) H) > T_p. Before a token has its time nothing starts.
        """
        now, token_s = self._controller, self._effort.token_s
        if not self._config.preverify or token_s is None or now.draft_s is None or now.acceptance is None:
            return False
        selector = self._selector
        if not selector.cut(root):
            return False
        use = now.acceptance * selector.value(root, selector.unfed(root, []))
        ahead_s = min(selector.need(root) * now.draft_s, now.fixed_s or 0.0)
        return use * (token_s - (1.0 - now.acceptance) * ahead_s) <= now.draft_s

    def _can_take_more(self, draft: SentDraft) -> bool:
        """Whether a longer draft behind the root is of use beside this one: in its pass, which may not have begun, or,
        where none is sent ahead, in the next one.

        A verifier that waits for drafts begins with the first one, behind what it does for others.
        """
        config, is_whole = self._config, draft.anchor == self._tree.root
        if config.idle is not Idle.WAIT and is_whole:
            return not draft.begun
        if not config.preverify:
            return False
        if not config.ahead:
            return True
        return is_whole and not draft.begun and self._clock() < draft.sent_at + self._controller.queue_s

    def _has_grown(self, draft: SentDraft) -> bool:
        tree, selector, anchor, known = self._tree, self._selector, draft.anchor, draft.value
        if anchor not in tree:  # the answer has passed its beginning
            anchor = tree.root
            known = selector.value(anchor, [node for node in draft.nodes if node in tree and node != anchor])
        return selector.value(anchor, self.cut(anchor)) >= known + max(self._config.send_gain, 1e-6)

    def _is_late(self, root: int) -> bool:
        if not self._config.truncate:
            return False
        fixed_s = self._controller.fixed_s
        return fixed_s is not None and self._waiting_costs(root, fixed_s + self._clock() - self._committed_at)

    def _waiting_costs(self, anchor: int, round_s: float) -> bool:
        """Whether one more draft forward gains less than it costs in a round that takes `round_s` if sent now.

        The last step of maximising E(gamma) / (F + c gamma), with this draft's own probabilities for E.
        """
        now, selector = self._controller, self._selector
        nodes = selector.cut(anchor)
        if not nodes or now.draft_s is None or now.acceptance is None:
            return False
        gain = now.acceptance * selector.value(anchor, selector.unfed(anchor, []))
        return gain * round_s <= (1.0 + selector.value(anchor, nodes)) * now.draft_s

    # --- what to draft

    def next_leaves(self) -> list[int]:
        """Return the nodes whose common draft forward pays most now; empty where none is worth its effort."""
        known = (self._events, self._tree.version)
        if self._leaves_at != known:
            effort, leaves = self._effort, [leaf for leaf in self._likely_leaves() if self._tree[leaf].proposals != ()]
            is_worth = effort.is_free or effort.is_worth(self._places(leaves), self._controller.draft_s)
            self._leaves, self._leaves_at = leaves if is_worth else [], known
        return self._leaves

    def _places(self, leaves: Sequence[int]) -> list[tuple[int, float]]:
        """Return where a forward over `leaves` proposes, as `Effort.is_worth` takes it."""
        tree = self._tree
        return [(tree.ahead(leaf) + 1, tree.new_behind(leaf)) for leaf in leaves]

    def _likely_leaves(self) -> list[int]:
        tree, selector, root = self._tree, self._selector, self._tree.root
        if self._sent.current is None:
            if self._is_long_enough(root):
                return []
            if selector.is_full(root):
                return selector.unfed(root, [])
            return self._ends_of_draft()
        if not (self._config.own_guess or self._config.early_tokens):  # nothing is drafted while a verification runs
            return self._ends_of_draft() if self._config.preverify and not selector.is_full(root) else []
        if len(tree) >= self._config.max_nodes:
            return []
        return self._best_leaves() if self._config.best_first else self._branch_ends()

    def _ends_of_draft(self) -> list[int]:
        """Return the leaves that a draft behind the root, which is not full, needs next."""
        selector, root = self._selector, self._tree.root
        end = selector.end(root, selector.need(root))
        return selector.unfed(root, [end]) if self._config.draft_tokens else [end]

    def lookup_ends(self, nodes: Sequence[int]) -> list[int]:
        """Return the ends of the unfed look-up chains behind `nodes`: a whole chain is fed in one forward."""
        tree, ends = self._tree, list[int]()
        for node in nodes:
            end: int | None = node
            while end is not None:
                last, end = end, None
                for child in tree[last].children.values():
                    content = tree[child]
                    is_open = content.origin is Origin.LOOKUP and content.proposals is None
                    if is_open and not self._selector.ends_at(child):
                        end = child
                        break
            if last != node:
                ends.append(last)
        return ends

    def is_outrun(self, leaves: Sequence[int], named: int | None) -> bool:
        """Whether a forward over `leaves` should be given up for a node that an exit has just named."""
        tree = self._tree
        if named is None or named not in tree or tree[named].proposals is not None:
            return False
        return tree[named].reach > OUTRUN * max((tree[node].reach for node in leaves if node in tree), default=0.0)

    def _best_leaves(self) -> list[int]:
        tree, selector, root = self._tree, self._selector, self._tree.root
        if self._config.own_guess:
            return selector.unfed(root, [])
        leaves: list[int] = []
        for node in tree.ids():
            if tree[node].layers and node != root and not selector.ends_at(node):
                leaves = selector.unfed(node, [*leaves, *([node] if tree[node].proposals is None else [])])
        return leaves[: self._config.leaves]

    def _branch_ends(self) -> list[int]:
        selector, leaves = self._selector, list[int]()
        for branch in self._queue.best():
            if not selector.is_full(branch.anchor, branch.want):
                end = selector.end(branch.anchor, branch.want)
                new = selector.unfed(branch.anchor, [end]) if self._config.draft_tokens else [end]
                leaves += [leaf for leaf in new if leaf not in leaves]
        return leaves[: self._config.leaves]

    # --- what has happened

    def on_sent(self, draft: SentDraft) -> None:
        """Take a draft that was sent; what follows it is a branch."""
        selector, anchor, nodes = self._selector, draft.anchor, draft.nodes
        if draft.ahead:
            above = self._tree.parent(anchor)
            self._queue.keep(lambda branch: branch not in (anchor, above))
        else:
            selector.gamma = self._controller.gamma
            if self._config.preverify:
                self._queue.keep(lambda branch: branch not in nodes)
        if self._config.own_guess:
            is_chain = draft.message.parents is None
            self._open_branch(nodes[-1] if nodes and is_chain else selector.end(anchor, selector.need(anchor)))
        self.happened()

    def on_early_token(self, node: int, confidence: float) -> None:
        """Take what an exit said with this confidence: the answer goes through `node`."""
        want, is_own = self._selector.need(node), self._config.queue_policy is BranchOrder.CONFIDENCE
        if want > 0 and not self._selector.ends_at(node):
            self._queue.put(Branch(node, want, confidence if is_own else self._tree[node].reach))
        self.happened()

    def on_commit(self, now: float) -> None:
        """Take a commit, at which the tree was re-rooted."""
        tree = self._tree
        self._queue.keep(lambda anchor: anchor in tree and anchor != tree.root)
        self._committed_at = now
        self.happened()

    def happened(self) -> None:
        """Note that something has happened, such as the end of a draft forward: all is chosen anew."""
        self._is_stale = True
        self._events += 1

    def _open_branch(self, last: int) -> None:
        """Pre-draft behind `last`, the likeliest leaf of a draft, as if it were accepted."""
        want = min(self._selector.gamma, self._selector.room(last) - 1)
        if want > 0 and not self._selector.closes(last):
            self._queue.put(Branch(last, want + 1, self._tree[last].reach))
