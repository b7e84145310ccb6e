"""Defines what the drafter needs from the outside: a draft model and a link.

Both are protocols; nothing here knows torch or sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from speculation.cancellation import Stop
from speculation.distributions import Logits
from speculation.wire import AnyMessage, Jpegs, Thinking

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


class LoadedDraft(Protocol):
    """What a draft engine has loaded, for any number of draft models: what else a robot must know of its checkpoint."""

    @property
    def name(self) -> str:
        """What people call the model."""
        ...

    @property
    def folder(self) -> Path:
        """The folder in which its objects, its predictor and whatever else belongs to it lie."""
        ...

    @property
    def fingerprint(self) -> str:
        """16 hex digits that name its weights."""
        ...

    @property
    def tokenizer(self) -> Any:
        """A tokenizer of transformers' kind."""
        ...

    @property
    def tokenizer_fingerprint(self) -> str:
        """16 hex digits that name what token ids mean; the target's must be equal."""
        ...

    @property
    def vocabulary(self) -> int:
        """len(tokenizer), the length of logits."""
        ...

    @property
    def eos(self) -> tuple[int, ...]:
        """Tokens that end an answer of its own."""
        ...

    @property
    def thinking(self) -> Thinking | None:
        """How it thinks before it answers; None: it does not."""
        ...

    @property
    def repetition_penalty(self) -> float:
        """What answers of its own are penalised by; 1: they are not."""
        ...

    def words(self, prompt: str) -> npt.NDArray[np.int64]:
        """Return the tokens [n] of the chat around a prompt, without those of images. Raises ValueError as `begin`."""
        ...

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        ...

    @property
    def sees_images(self) -> bool:
        """Whether it reads images; otherwise it drafts from words alone."""
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
