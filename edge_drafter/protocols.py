"""Defines what the drafter needs from the outside: a draft model and a link.

Both are protocols; nothing here knows torch or sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from speculation.cancellation import Stop
from speculation.distributions import Logits
from speculation.wire import AnyMessage, Jpegs

Clock = Callable[[], float]


class DraftModel(Protocol):
    """One row of a causal model: committed tokens, the root behind them, and uncommitted nodes behind the root.

    The *root* is the last committed token (after `begin`: the last of `committed`, or the prompt's last token). It is
    fed to the model with the first forward that needs it. Nodes are numbered in the order in which they were fed:
    the first node after `begin` is 0, and each call of `extend` continues the count. `ROOT` (-1) names the root.
    """

    def begin(self, prompt: str, image: Jpegs, committed: Sequence[int] = (), stop: Stop | None = None) -> None:
        """Forget everything and read a new frame and question; ValueError for an unreadable image.

        `stop` is called between layers; raises Abandoned, with nothing read, where it returns True.
        """
        ...

    def root_logits(self, stop: Stop | None = None) -> Logits:
        """Return the logits after the root, [vocabulary]; a forward, unless the root or anything behind it was fed.

        `stop` is called between layers; raises Abandoned where it returns True.
        """
        ...

    def extend(self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None) -> Logits:
        """Feed `tokens` in one forward and return the logits after each, [len(tokens), vocabulary].

        `parents[i]` is the node that token i follows: an earlier node, one of this call, or `ROOT`. `stop` is called
        between layers; raises Abandoned, with nothing fed, where it returns True.
        """
        ...

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        """Make `path` (nodes root-first, may be empty) and `next_token` committed; `next_token` becomes the root.

        Where `next_token` was fed as a child of the path's end, its descendants survive. Returns old node -> new node
        of everything that survives, with `ROOT` for the node that became the root; new nodes count on after those.
        """
        ...


class FedModel(DraftModel, Protocol):
    """A draft model that continues from the target's features; see `speculation.fed.session`.

    It has no root before it is fed or the first token is committed.
    """

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """The tokens that it can draft, ascending; it has logits of -inf for all others."""
        ...

    @property
    def root_is_new(self) -> bool:
        """Whether what follows the root is to be computed, for the first time or with another feature."""
        ...

    def feed(self, tokens: Sequence[int], end: int, packed: bytes) -> None:
        """Take, for each of `tokens`, the packed feature of the token before it.

        `end` is the answer position behind the last of them. Raises ValueError, with nothing changed, for what does not
        fit the answer or the model.
        """
        ...


class LinkLost(ConnectionError):
    """The verifier cannot be reached or forgot the session; the message gives the reason."""


class VerifierBusy(LinkLost):
    """The verifier has no room for this step now; the message says when it may be asked again."""


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

    @property
    def rtt_s(self) -> float | None:
        """Measured round trip in seconds; None before the first."""
        ...

    def send(self, message: AnyMessage) -> None:
        """Queue a message. Raises `LinkLost` when there is no session to send it in, `VerifierBusy` as `receive`."""
        ...

    def receive(self, timeout: float) -> AnyMessage | None:
        """Return the next message, or None after `timeout` seconds (0: look only).

        Raises `LinkLost` when nothing arrived within the link's limit or the session that the step began in is gone,
        `VerifierBusy` once the verifier has turned the step away.
        """
        ...
