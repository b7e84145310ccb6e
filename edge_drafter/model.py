"""What the drafter needs from the outside: a draft model and a link.

Both are protocols; nothing here knows torch or sockets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from speculation.cancellation import Abandoned, Stop
from speculation.distributions import Logits
from speculation.wire import ROOT, AnyMessage

Clock = Callable[[], float]


class DraftModel(Protocol):
    """One row of a causal model: committed tokens, the root behind them, and uncommitted nodes behind the root.

    The *root* is the last committed token (after `begin`: the last of `committed`, or the prompt's last token). It is
    fed to the model with the first forward that needs it. Nodes are numbered in the order in which they were fed:
    the first node after `begin` is 0, and each call of `extend` continues the count. `ROOT` (-1) names the root.
    """

    def begin(self, prompt: str, image: bytes, committed: Sequence[int] = ()) -> None:
        """Forget everything and read a new frame and question; ValueError for an unreadable image."""
        ...

    def root_logits(self, stop: Stop | None = None) -> Logits:
        """Return the logits after the root, [vocabulary]; a forward, unless the root or anything behind it was fed.

        `stop` is asked between layers; Abandoned where it says yes.
        """
        ...

    def extend(self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None) -> Logits:
        """Feed `tokens` in one forward and return the logits after each, [len(tokens), vocabulary].

        `parents[i]` is the node that token i follows: an earlier node, one of this call, or `ROOT`. `stop` is asked
        between layers; Abandoned, with nothing fed, where it says yes.
        """
        ...

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        """Make `path` (nodes root-first, may be empty) and `next_token` committed; `next_token` becomes the root.

        Where `next_token` was fed as a child of the path's end, its descendants survive. Returns old node -> new node
        of everything that survives, with `ROOT` for the node that became the root; new nodes count on after those.
        """
        ...


class LinkLost(ConnectionError):
    """The verifier cannot be reached or forgot the session; the text says why, for people."""


class Link(Protocol):
    """Messages to and from the verifier, in a thread of its own: neither call waits for the network."""

    @property
    def bytes_up(self) -> int:
        """Payload bytes sent since the link was opened."""
        ...

    @property
    def bytes_down(self) -> int:
        """Payload bytes received since the link was opened."""
        ...

    def send(self, message: AnyMessage) -> None:
        """Queue a message. Raises `LinkLost` when there is no session to send it in."""
        ...

    def receive(self, timeout: float) -> AnyMessage | None:
        """Return the next message, or None after `timeout` seconds (0: look only).

        Raises `LinkLost` when nothing was heard within the link's limit or the session that the step began in is gone.
        """
        ...


class PacedModel:
    """A draft model whose forwards take at least `draft_s` seconds: the real work, then a wait for the rest.

    Serves device profiles: the tokens are the model's own, only the time is declared. Prefill is not paced.
    """

    def __init__(
        self,
        model: DraftModel,
        draft_s: float,
        clock: Clock = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
        layers: int = 8,
    ) -> None:
        """`layers`: how often a declared forward asks whether it should be given up."""
        self._model = model
        self._draft_s = draft_s
        self._clock = clock
        self._sleep = sleep
        self._layers = layers
        self._root_is_fed = False
        self._real_s = draft_s

    def begin(self, prompt: str, image: bytes, committed: Sequence[int] = ()) -> None:
        """See `DraftModel.begin`."""
        self._root_is_fed = False
        self._model.begin(prompt, image, committed)

    def root_logits(self, stop: Stop | None = None) -> Logits:
        """See `DraftModel.root_logits`; paced where it is a forward."""
        if self._root_is_fed:
            return self._model.root_logits()
        return self._paced(lambda: self._model.root_logits(stop), stop)

    def extend(self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None) -> Logits:
        """See `DraftModel.extend`; takes `draft_s` whatever the number of tokens."""
        return self._paced(lambda: self._model.extend(tokens, parents, stop), stop)

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        """See `DraftModel.commit`; not a forward, so not paced."""
        renamed = self._model.commit(path, next_token)
        self._root_is_fed = ROOT in renamed.values()
        return renamed

    def _paced(self, forward: Callable[[], Logits], stop: Stop | None) -> Logits:
        """Wait before the forward as long as the last one fell short, so that giving it up leaves nothing to undo."""
        started = self._clock()
        ready = started + self._draft_s - self._real_s
        slices = self._layers if stop is not None else 1
        for number in range(1, slices + 1):
            rest = started + (ready - started) * number / slices - self._clock()
            if rest > 0:
                self._sleep(rest)
            if stop is not None and stop():
                raise Abandoned
        begun = self._clock()
        logits = forward()
        self._real_s = self._clock() - begun
        rest = self._draft_s - (self._clock() - started)
        if rest > 0:
            self._sleep(rest)
        self._root_is_fed = True
        return logits
