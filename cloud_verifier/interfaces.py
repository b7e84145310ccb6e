"""Defines what the server asks of an engine (rows in, verdicts out, layer by layer) and of a socket.

There is no torch and no zmq here, so that any engine and any socket will do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from cloud_verifier.tree import Tree
from speculation.acceptance import Verdict
from speculation.cancellation import Stop
from speculation.language.grammar import Constraint, Grammars
from speculation.language.prompts import Vocabulary
from speculation.logits_processors import Context
from speculation.pass_cost import Load
from speculation.sampling import FIRST_DRAWS, GREEDY, AcceptanceRule, Evidence, SamplingScheme, StepDraws
from speculation.wire import AnyMessage, Jpegs, Sight, Thinking


class CapacityError(ValueError):
    """A prompt, with the answer it may get, that does not fit a session's cache; the text names both sizes."""


class Rates(Protocol):
    """How often an exit was right when it was so confident; see `speculation.exits.Reliability`."""

    def rate(self, confidence: float) -> float: ...


@dataclass(frozen=True)
class ModelInfo:
    """The target model as the edge gets it."""

    name: str
    fingerprint: str
    tokenizer_fingerprint: str
    vocabulary: int
    num_layers: int
    exit_layers: tuple[int, ...]
    """Layers with an exit, counted from 0."""
    eos: tuple[int, ...]
    """Tokens that end an answer."""
    objects: Vocabulary | None = None
    """What it was trained to find; None where it takes any instruction."""
    reliability: Mapping[int, Rates] = field(default_factory=dict)
    """What the confidence of each exit layer's verdicts is worth, where that was measured."""
    features: str = ""
    """Fingerprint of the features that robots may ask for (`speculation.fed`); empty: there are none."""
    prompt_features: int = 0
    """Tokens at a prompt's end whose features they get."""
    sight: Sight | None = None
    """What it takes of frames; None: it sees none."""
    grammars: Grammars | None = field(default=None, compare=False)
    """Of its answers; None where its tokenizer takes none."""
    thinking: Thinking | None = None
    """How it thinks before it answers; None: it does not."""
    repetition_penalty: float = 1.0
    """What its answers are penalised by, see `speculation.logits_processors`; 1: they are not."""


@dataclass(frozen=True)
class Row:
    """One step's share of a target forward: draft tokens behind the row's root, none to decode one token, or a chunk
    of its prefill. The last chunk and the first tokens behind it may share a forward."""

    index: int
    """Which row of model state it is about."""
    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    """`parents[i]` is the index of the token before token i, -1 for the root."""
    exits: bool = True
    """Whether early verdicts are of use."""
    sampling: SamplingScheme = GREEDY
    draws: StepDraws = FIRST_DRAWS
    """The random draws of the token after the root, where `sampling` draws at random."""
    root: int | None = None
    """The last committed token; None for the one that the engine has there: the prompt's last, or what it kept."""
    self_draft: int = 0
    """Tokens that the draft model beside the target is to propose behind `answer`, at most."""
    self_depth: int = 0
    """Levels of the tree that they make, at most; 0: a chain."""
    answer: tuple[int, ...] = ()
    """The answer so far, the root its last token."""
    digest: bytes = b""
    """Of the answer up to the root."""
    evidence: Evidence = ()
    """What the draft is judged by besides its tokens, where `sampling` asks for that: an entry a token."""
    cached: int = 0
    """Tokens that the row holds in the cache."""
    chunk: int = 0
    """So many more tokens of its prefill are fed; 0: its prefill is done."""
    ends_prefill: bool = False
    """Whether the chunk is the last one, and root and draft are fed behind it in the same forward."""
    features: int = 0
    """Above 0: root and accepted tokens of a judged row have features to be returned. Of a chunk, so many of its last
    tokens have them as well."""
    constraint: Constraint | None = None
    """What may follow the root, where the answer has a grammar: logits are masked by it, at exits too."""

    @property
    def judged(self) -> bool:
        """Whether root and draft are fed in this forward, which then has a verdict on them."""
        return not self.chunk or self.ends_prefill

    @property
    def context(self) -> Context:
        """The place in the answer behind the root, by which logits are processed."""
        return Context(self.answer, None if self.constraint is None else self.constraint.state)

    @property
    def load(self) -> Load:
        """What it computes."""
        return Load.row(self.chunk + (1 + len(self.tokens) if self.judged else 0), self.cached)

    def rule(self, early: bool = False) -> AcceptanceRule:
        """Return what judges the draft, at the last layer or `early`, at an exit."""
        return self.sampling.rule(self.digest, self.evidence, early)

    def lengthened(self, forced_tokens: int, max_draft: int) -> Row:
        """Return the row with a draft that goes on where the grammar has settled the text: that costs no pass.

        By `forced_tokens` at most, to `max_draft` in all. Not where a rule judges nothing but what was sampled, nor
        before a draft of the verifier's own is made.
        """
        if self.constraint is None or self.sampling.one_chain or self.self_draft:
            return self
        most = min(forced_tokens, max_draft - len(self.tokens))
        tokens, parents = self.constraint.spelled(self.tokens, self.parents, most)
        return replace(self, tokens=(*self.tokens, *tokens), parents=(*self.parents, *parents))


@dataclass(frozen=True)
class RowFeatures:
    """For each of `tokens` the packed feature of the token before it, see `speculation.features`.

    The tokens are those that follow what a chunk fed, then those that the row's verdict commits.
    """

    tokens: tuple[int, ...]
    packed: bytes


@dataclass(frozen=True)
class LayerVerdicts:
    """What is known after a layer, by row index."""

    layer: int
    verdicts: Mapping[int, Verdict]
    """None at a layer without an exit; at the last layer those of all judged rows that did not fail."""
    failures: Mapping[int, Exception] = field(default_factory=dict)
    """Why the other rows could not be judged; at the last layer only."""
    features: Mapping[int, RowFeatures] = field(default_factory=dict)
    """Of the rows that asked for them; at the last layer only, and none where they could not be made."""


class Post(Protocol):
    """The server's side of a socket; see `cloud_verifier.frontend.supervisor.Frontend`."""

    @property
    def dropped(self) -> int:
        """How many messages found the queue of their peer full."""

    @property
    def restarts(self) -> int:
        """How often the socket's own process was started anew, where it has one."""

    def wait(self, seconds: float) -> None: ...

    def notify(self) -> None: ...

    def receive(self) -> tuple[bytes, list[bytes]] | None: ...

    def send(self, peer: bytes, message: AnyMessage, droppable: bool = False) -> bool: ...

    def admit(self, peer: bytes, has_session: bool = True) -> None: ...

    def waits(self, peer: bytes) -> bool: ...

    def forget(self, peer: bytes) -> None: ...

    def client(self, peer: bytes) -> str:
        """Return whose key a peer has; empty where there are no keys, or the peer is gone."""

    def revoked(self) -> Sequence[str]:
        """Return the clients whose keys were taken back since the last call."""


class PromptReader(Protocol):
    """Rows of one model's state that hold prompts, with their images."""

    def prepare(self, prompt: str, jpeg: Jpegs) -> Any:
        """Return the inputs of a prefill; in any thread, in a bounded time.

        Raises ValueError for an unusable image or prompt.
        """

    def size(self, inputs: Any) -> int:
        """Return the tokens of images and prompt of what `prepare` gave."""

    def image_tokens(self, inputs: Any) -> int:
        """Return how many of these tokens stand for images: 0 where there is none, and nothing to `encode`."""

    def release(self, index: int) -> None:
        """Let row `index` hold nothing: its blocks are free. No pass may be under way."""

    def encode(self, index: int, stop: Stop | None = None) -> None:
        """Encode the images of a row that was begun, if it has any; to be done before its first tokens are fed.

        `stop` is called now and then. Raises Abandoned where it returns True.
        """


class Engine(PromptReader, Protocol):
    """Rows of model state. A row's *root*, its last committed token, is the first token of the next forward."""

    @property
    def model(self) -> ModelInfo: ...

    @property
    def blocks(self) -> int:
        """Blocks of keys and values that all rows share, see `speculation.vlm.blocks`."""

    def begin(self, index: int, inputs: Any, committed: Sequence[int], max_tokens: int, features: int = 0) -> int:
        """Reserve row `index`, whatever it held before, for the inputs that `prepare` gave and committed tokens.

        Nothing is computed. Returns how many tokens the row's prefill feeds: image, prompt and committed ones, all but
        the last, which is the root, and but for those at the prompt's beginning that the row shares with others. Of
        its last `features` tokens each has the feature of the token before it, so these are fed whatever is shared. No
        pass may be under way. Raises CapacityError where prompt and `max_tokens` do not fit.
        """

    def verify(self, rows: Sequence[Row]) -> Iterator[LayerVerdicts]:
        """Run one target forward over all rows, chunks of prefills among them, and yield after every layer.

        One that is not driven to its end leaves the rows as they were.
        Confidences are the rule's own, not calibrated. A row that cannot be judged is one of `failures`, and the others
        get their verdicts; what is raised fails all rows.
        """

    def keep(self, index: int, path: Sequence[int], token: int) -> None:
        """Commit the tokens of `path` (root first, of the last verify) and make `token` the root.

        The next `Row.root` may name another one: a token that was left to the edge.
        """


class DraftEngine(PromptReader, Protocol):
    """A draft model beside the target, with rows like the engine's; a verifier may have none."""

    @property
    def name(self) -> str: ...

    def begin(self, index: int, inputs: Any, max_tokens: int) -> int:
        """Reserve row `index`, whatever it held before, for the inputs that `prepare` gave.

        Nothing is computed. Returns how many tokens are to be fed. Raises CapacityError where prompt and `max_tokens`
        do not fit.
        """

    def feed(self, index: int, tokens: int, stop: Stop | None = None) -> None:
        """Feed the next so many tokens of a row that was begun, in one forward.

        `stop` is called between layers. Raises Abandoned, with nothing fed, where it returns True.
        """

    def draft(self, rows: Sequence[Row]) -> Iterator[Mapping[int, Tree]]:
        """Draft for rows whose prompts are fed, each of which asks for at least one token (`Row.self_draft`,
        `Row.self_depth`).

        Yields all drafts so far, by row index, after every draft forward, in the end whole ones; each has its `reach`,
        see `cloud_verifier.server_draft.tree_growth.Growth`. It need not be driven to its end.
        """
