"""One model, one row: a token tree behind a root, as a draft model grows it or a target alone walks it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from speculation.acceptance import check_parents, check_path, descendants
from speculation.cancellation import Abandoned, Stop
from speculation.frames import Frame
from speculation.language.grammar import Automaton
from speculation.logits_processors import LogitsProcessors, RepetitionPenalty
from speculation.sampling import GREEDY, Prefix, SamplingScheme
from speculation.vlm.cache import KVCache
from speculation.vlm.forward import Chunk, Logits, forward, forward_layers, prefill
from speculation.vlm.inputs import prepare
from speculation.vlm.model import Vlm
from speculation.vlm.speed import synchronise
from speculation.wire import ROOT, Jpegs

MOST_PENDING = 128
"""Committed tokens that ride in front of a forward at most: each gets a row of logits, and an answer that is taken up
again may have thousands."""


class VlmSession:
    """The state of one step in one row of `capacity` tokens: prompt, answer so far, and a tree of fed tokens behind it.

    Nodes are the tokens fed since the root, numbered densely in feeding order: node i is slot `length + i` of the row,
    and the next fed token becomes node `node_count`. ROOT (-1) names the root, the last committed token. Committed
    tokens that are not in the cache yet are *pending*; they ride in front of the next forward, and while there are any
    there are no nodes.
    """

    def __init__(self, vlm: Vlm, capacity: int, reserved: int = 0) -> None:
        """`reserved`: slots behind a prompt that its answer may need; a prompt that leaves fewer is refused."""
        self.vlm = vlm
        self._reserved = reserved
        self._cache = KVCache(vlm, 1, capacity)
        self._penalty: RepetitionPenalty | None = None
        """What the model's checkpoint asks for, behind the prompt of this step."""
        self._pending: list[int] = []
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._logits: list[Logits] = []
        self._root: Logits | None = None

    @property
    def node_count(self) -> int:
        """How many nodes stand behind the root; the id that the next fed token gets."""
        return len(self._tokens)

    def begin(
        self,
        prompt: str,
        image: Jpegs | Frame | Sequence[Frame] | None,
        committed: Sequence[int] = (),
        stop: Stop | None = None,
    ) -> None:
        """Start a step: encode prompt and frames; the root is the last of `committed` or else the prompt's last token.

        Image None: words alone. Raises ValueError for an image, prompt or token that cannot be used, CacheFull when
        the prompt does not fit, Abandoned where `stop`, asked between layers, returns True; there is no step then.
        """
        for token in committed:
            self._check_token(token)
        inputs = prepare(self.vlm, prompt, image)
        if self._reserved and len(inputs.ids) + self._reserved > self._cache.capacity:
            raise ValueError(
                f"frames and prompt of {len(inputs.ids)} tokens and an answer of {self._reserved} do not fit the "
                f"{self._cache.capacity} cache slots of {self.vlm.name}; raise capacity, or lower max_tokens"
            )
        self._penalty = self.vlm.penalty(inputs.ids)
        self._set_nodes([], [], [])
        self._pending, self._root = [], None
        root = prefill(self.vlm, self._cache, 0, inputs, stop)
        # What is only queued on a device would be waited for by the first forward behind it.
        synchronise(*self.vlm.devices)
        self._pending = [root, *committed]

    def root_logits(self, stop: Stop | None = None) -> Logits:
        """Return the logits [vocabulary] after the root; costs a forward only while committed tokens are pending.

        Raises RuntimeError before the first `begin`, Abandoned, with nothing changed, where `stop` returns True.
        """
        if self._root is None:
            self._feed([], [], stop)
        assert self._root is not None, "feeding the pending tokens makes the root's logits known"
        return self._root

    def extend(self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None) -> Logits:
        """Feed tokens behind nodes (or ROOT) and return the logits after each of them [n, vocabulary].

        Token i becomes node `node_count + i`, and may be a parent of later ones. Raises ValueError for a parent that
        does not exist or a token outside the vocabulary, CacheFull when the row is full, Abandoned where `stop`, asked
        between layers, returns True; nothing changes then.
        """
        check_parents(tokens, parents, self.node_count)
        return self._feed(list(tokens), list(parents), stop)

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        """Commit the chain `path` from the root, then `next_token`, which becomes the root.

        Returns surviving old node -> new node. If `next_token` was already fed behind the path's end, that node becomes
        the root (it maps to ROOT) and its descendants survive with their logits; else nothing survives.
        Raises ValueError, with nothing changed, for a path that is no chain or a token outside the vocabulary.
        """
        self._check_token(next_token)
        end = check_path(path, self._parents)
        length = self._cache.length[0]
        nodes = enumerate(zip(self._parents, self._tokens, strict=True))
        root = next((node for node, each in nodes if each == (end, next_token)), None)
        if root is None:
            self._cache.keep(0, [length + node for node in path])
            self._set_nodes([], [], [])
            self._pending.append(next_token)
            self._root = None
            return {}
        kept = descendants(root, self._parents)
        self._cache.keep(0, [length + node for node in (*path, root)], [length + node for node in kept])
        renamed = {root: ROOT} | {node: index for index, node in enumerate(kept)}
        self._root = self._logits[root]
        self._set_nodes(
            [self._tokens[node] for node in kept],
            [renamed[self._parents[node]] for node in kept],
            [self._logits[node] for node in kept],
        )
        return renamed

    def greedy(
        self, prompt: str, image: Jpegs | Frame | Sequence[Frame] | None, limit: int
    ) -> Iterator[tuple[int, Logits]]:
        """Begin a step and yield the model's own answer, token by token, each with the logits it was taken from.

        Ends with an end token or after `limit` tokens. This is what every decoding mode is compared with. Raises as
        `begin` does.
        """
        return self.sampled(prompt, image, limit, GREEDY)

    def sampled(
        self,
        prompt: str,
        image: Jpegs | Frame | Sequence[Frame] | None,
        limit: int,
        settings: SamplingScheme,
        key: int = 0,
        grammar: Automaton | None = None,
        committed: Sequence[int] = (),
    ) -> Iterator[tuple[int, Logits]]:
        """Begin a step and yield what the model alone samples with `key`, under a `grammar` or free, as `greedy` does.

        The answer goes on behind its `committed` tokens, which count towards `limit` and are not yielded; where they
        begin no answer of the grammar, the rest is free. The logits are those that were sampled from, with the penalty
        of the model's checkpoint and masked by the grammar, but neither perturbed nor cut.
        """
        self.begin(prompt, image, committed)
        processors = LogitsProcessors(self._penalty, grammar)
        sampler, prefix = settings.alone.sampler(key), Prefix(0, b"")
        for token in committed:
            prefix = prefix.after(token)
        context = processors.start(committed, limit)
        for _ in range(limit - len(committed)):
            (logits,) = processors.process(self.root_logits()[None], [context])
            token = int(np.argmax(logits if sampler is None else sampler.rank(logits, prefix)))
            context = processors.next(context, token)
            yield token, logits
            if token in self.vlm.eos:
                return
            self.commit((), token)
            prefix = prefix.after(token)

    def answer(
        self,
        prompt: str,
        image: Jpegs | Frame | Sequence[Frame] | None,
        limit: int,
        grammar: Automaton | None = None,
        begun: str = "",
    ) -> str:
        """Return the text of the model's own greedy answer of at most `limit` tokens, under a `grammar` or free.

        It begins with the text `begun`, whoever wrote that. Raises as `begin` does.
        """
        first = list[int](self.vlm.tokenizer.encode(begun, add_special_tokens=False)) if begun else []
        how = (prompt, image, limit, GREEDY, 0, grammar, first)
        tokens = first + [token for token, _ in self.sampled(*how)]
        return self.vlm.read(tokens, constrained=grammar is not None)

    def _feed(self, tokens: list[int], parents: list[int], stop: Stop | None = None) -> Logits:
        if self._root is None and not self._pending:
            raise RuntimeError("the session has no step yet; call begin first")
        if not tokens and not self._pending:
            return np.empty((0, self.vlm.vocabulary), dtype=np.float32)
        while len(self._pending) > MOST_PENDING:
            self._feed_pending(stop)
        cache, waiting = self._cache, len(self._pending)
        first = cache.length[0] + waiting
        chain = cache.chain(0, waiting)
        chunk = Chunk(0, [*self._pending, *tokens], [*chain, *(first + parent for parent in parents)])
        (logits,) = forward(self.vlm, cache, [chunk], stop)
        if waiting:
            fed = range(first - waiting, first)
            cache.keep(0, fed, range(first, first + len(tokens)))
            self._pending, self._root = [], logits[waiting - 1]
        new = logits[waiting:]
        self._set_nodes([*self._tokens, *tokens], [*self._parents, *parents], [*self._logits, *new])
        return new

    def _feed_pending(self, stop: Stop | None) -> None:
        """Feed the first MOST_PENDING of the pending tokens, whose logits nobody needs."""
        cache = self._cache
        first = cache.length[0]
        chunk = Chunk(0, self._pending[:MOST_PENDING], cache.chain(0, MOST_PENDING))
        for output in forward_layers(self.vlm, cache, [chunk]):
            if stop is not None and output.layer < self.vlm.num_layers - 1 and stop():
                raise Abandoned
        cache.keep(0, range(first, first + MOST_PENDING))
        del self._pending[:MOST_PENDING]

    def _set_nodes(self, tokens: list[int], parents: list[int], logits: list[Logits]) -> None:
        self._tokens, self._parents, self._logits = tokens, parents, logits

    def _check_token(self, token: int) -> None:
        if not 0 <= token < self.vlm.vocabulary:
            raise ValueError(f"token {token} is outside the vocabulary 0..{self.vlm.vocabulary - 1}")
