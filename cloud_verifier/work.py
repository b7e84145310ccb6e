"""What the server asks of an engine (rows in, verdicts out, layer by layer) and of a socket. No torch and no zmq here,
so that any engine and any socket will do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from speculation.acceptance import Verdict
from speculation.prompts import Vocabulary
from speculation.sampling import FIRST_DRAWS, GREEDY, AcceptanceRule, Evidence, SamplingSettings, StepDraws
from speculation.wire import AnyMessage


class CapacityError(ValueError):
    """A prompt, with the answer it may get, that does not fit a session's cache; the text names both sizes."""


@dataclass(frozen=True)
class ModelInfo:
    """The target model as the edge gets it; `exit_layers` count from 0. `objects`: what it was trained to find,
    None where it takes any instruction.
    """

    name: str
    fingerprint: str
    tokenizer_fingerprint: str
    vocabulary: int
    num_layers: int
    exit_layers: tuple[int, ...]
    eos: tuple[int, ...]
    objects: Vocabulary | None = None


@dataclass(frozen=True)
class VerifyRow:
    """One session's share of a target forward: draft tokens after the row's root, none to decode one token.

    `parents[i]` is the node before token i, -1 for the root. `exits` asks for early verdicts. `draws` names the random
    draws of the token after the root, where `sampling` draws at random. `root` is the last committed token, None for
    the one that the engine has there: the prompt's last, or what it kept. `digest` names the answer up to the root,
    `drawn` is the evidence that came with the draft.
    """

    row: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    exits: bool = True
    sampling: SamplingSettings = GREEDY
    draws: StepDraws = FIRST_DRAWS
    root: int | None = None
    digest: bytes = b""
    drawn: Evidence = ()

    def rule(self, early: bool = False) -> AcceptanceRule:
        """Return what judges the draft, at the last layer or `early`, at an exit."""
        return self.sampling.rule(self.digest, self.drawn, early)


@dataclass(frozen=True)
class DraftWish:
    """A step that the verifier drafts for itself: at most `count` tokens, at least one, behind its `answer` so far.

    `draws` names the random draws of the token after the answer, where `sampling` draws at random, and `digest` the
    answer.
    """

    row: int
    answer: tuple[int, ...]
    count: int
    sampling: SamplingSettings = GREEDY
    draws: StepDraws = FIRST_DRAWS
    digest: bytes = b""


@dataclass(frozen=True)
class LayerVerdicts:
    """What is known after a layer: verdicts by row; none at a layer without an exit, all rows at the last layer."""

    layer: int
    verdicts: Mapping[int, Verdict]


class Post(Protocol):
    """The server's side of a socket; see `cloud_verifier.mailbox.Mailbox`."""

    def wait(self, seconds: float) -> None: ...

    def notify(self) -> None: ...

    def receive(self) -> tuple[bytes, list[bytes]] | None: ...

    def send(self, peer: bytes, message: AnyMessage, droppable: bool = False) -> bool: ...

    def admit(self, peer: bytes, has_session: bool = True) -> None: ...

    def waits(self, peer: bytes) -> bool: ...

    def forget(self, peer: bytes) -> None: ...


class Engine(Protocol):
    """Rows of model state. A row's *root*, its last committed token, is the first token of the next forward."""

    @property
    def model(self) -> ModelInfo: ...

    def prepare(self, prompt: str, jpeg: bytes) -> Any:
        """Return the inputs of a prefill; in any thread, in a bounded time.

        Raises ValueError for an unusable image or prompt.
        """

    def prefill(self, row: int, inputs: Any, committed: Sequence[int], max_tokens: int) -> None:
        """Make `row` hold the inputs that `prepare` gave and committed tokens, whatever it held before.

        Raises CapacityError where prompt and `max_tokens` do not fit.
        """

    def verify(self, rows: Sequence[VerifyRow]) -> Iterator[LayerVerdicts]:
        """Run one target forward over all rows and yield after every layer; it must be driven to its end."""

    def keep(self, row: int, path: Sequence[int], token: int) -> None:
        """Commit the nodes of `path` (root-first, of the last verify) and make `token` the root.

        The next `VerifyRow.root` may name another one: a token that was left to the edge to draw.
        """


class DraftEngine(Protocol):
    """A draft model beside the target, with rows like the engine's; a verifier may have none."""

    @property
    def name(self) -> str: ...

    def prepare(self, prompt: str, jpeg: bytes) -> Any:
        """Return the inputs of a prefill, as `Engine.prepare` does."""

    def prefill(self, row: int, inputs: Any, max_tokens: int) -> None:
        """Make `row` hold the inputs, whatever it held before. Raises as `Engine.prefill` does."""

    def draft(self, wishes: Sequence[DraftWish]) -> Iterator[Mapping[int, tuple[int, ...]]]:
        """Draft for prefilled rows; yield all drafts so far, by row, after every draft forward, in the end whole ones.

        A draft ends early with a token that ends an answer.
        """
