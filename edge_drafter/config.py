"""How one step is decoded: the settings, and the modes that are sets of them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from speculation.sampling import SamplingScheme
from speculation.settings import Field, check, fields_of
from speculation.wire import MAX_DRAFT_TOKENS, Idle

AUTO = "auto"
BALANCE = "balance"
GAMMA_RULES = (AUTO, BALANCE)
START_GAMMA = 4


class Mode(str, Enum):
    """The one table of modes: a name, and what it changes in `DraftingConfig`. docs/decoding.md names the papers.

    A new mode is one entry here; every list of modes in the project is made from this table.
    """

    changes: Mapping[str, Any]

    def __new__(cls, name: str, changes: Mapping[str, Any] | None = None) -> Mode:
        """Make a member out of its entry."""
        mode = str.__new__(cls, name)
        mode._value_ = name
        mode.changes = changes or {}
        return mode

    CLOUD = "cloud", {"drafts": False, "idle": Idle.DECODE}
    EDGE = "edge", {"drafts": False}
    SD = "sd"
    FSD = "fsd", {"early_tokens": True, "branches": 6, "leaves": 6}
    SERVER_SD = "server_sd", {"drafts": False, "idle": Idle.DECODE, "self_draft": True, "draft_tokens": 32}
    PROACTIVE = "proactive", {"own_guess": True, "width": 3, "draft_tokens": 16, "leaves": 4}
    PIPELINED = (
        "pipelined",
        {"own_guess": True, "ahead": True, "ahead_above": 0.0, "partial": True, "truncate": True, "interrupt": True},
    )
    FULL = (
        "full",
        {
            "idle": Idle.LEDGER, "width": 3, "draft_tokens": 64, "leaves": 8, "max_nodes": 256, "own_guess": True,
            "early_tokens": True, "exit_gain": 0.1, "best_first": True, "ahead": True, "ahead_above": 0.1,
            "send_gain": 0.7, "partial": True, "truncate": True, "extend": True, "interrupt": True, "ngrams": True,
            "effort": 0.75,
        },
    )  # fmt: skip

    @property
    def drafts(self) -> bool:
        """Whether the edge drafts for a verifier."""
        return bool(self.changes.get("drafts", True))

    @property
    def needs_link(self) -> bool:
        """Whether a verifier answers."""
        return DraftingConfig.of(self).needs_link


class QueuePolicy(str, Enum):
    """Which branch is pre-drafted next (Early Exits, Algorithm 1 uses the priority)."""

    PRIORITY = "priority"
    FIFO = "fifo"
    RANDOM = "random"


class DraftingConfig(msgspec.Struct, frozen=True):
    """How one step is decoded; a mode is a set of these, and each can be changed alone.

    Raises ValueError, naming the setting and its limit, for a value that is out of range.
    """

    drafts: Annotated[bool, Meta(description="the edge drafts at all")] = True
    idle: Annotated[Idle, Meta(description="what the verifier does without a draft")] = Idle.WAIT
    self_draft: Annotated[
        bool,
        Meta(
            description="the verifier's own draft model drafts, beside the target: a tree of draft_tokens in gamma "
            "forwards (SpecEdge, App. C), or a chain of gamma tokens where draft_tokens is 0"
        ),
    ] = False
    gamma: Annotated[
        int | str,
        Meta(
            description="draft tokens per verification; auto commits most tokens per second, E(gamma) / (F + c gamma); "
            "balance makes drafting and round trip as long as a verification (SpecEdge, Sec. 4.3)"
        ),
    ] = START_GAMMA
    width: Annotated[int, Meta(ge=1, description="children that a fed token gets; 1 drafts a chain")] = 1
    draft_tokens: Annotated[
        int, Meta(ge=0, le=MAX_DRAFT_TOKENS, description="tokens that one draft may carry; 0 means gamma, a chain")
    ] = 0
    leaves: Annotated[
        int, Meta(ge=1, description="tokens that one draft forward feeds side by side (threads of Early Exits, 4.1)")
    ] = 1
    least: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="a token less likely than this, given the place where the draft begins, is neither sent in a "
            "tree nor grown; the likeliest gamma tokens in a row go in any case",
        ),
    ] = 0.02
    calibrate: Annotated[
        bool, Meta(description="the draft's probabilities are corrected by what was committed (Platt, 1999)")
    ] = True
    own_guess: Annotated[
        bool,
        Meta(description="pre-draft past the draft in flight, as if it were accepted (SpecEdge, 4.2; PicoSpec, 3.2)"),
    ] = False
    early_tokens: Annotated[
        bool, Meta(description="pre-draft where an early exit predicts the verdict to end (Early Exits, Sec. 3)")
    ] = False
    exit_gain: Annotated[
        float,
        Meta(
            ge=0,
            description="exits run for a step while, by a second of verification, they name landings that the draft "
            "does not have so many seconds before their commits; 0: always",
        ),
    ] = 0.0
    best_first: Annotated[
        bool, Meta(description="pre-draft the likeliest leaf of the whole tree, instead of branch after branch")
    ] = False
    branches: Annotated[
        int, Meta(ge=0, description="continuations pre-drafted per verification; best_first ignores it")
    ] = 1
    queue_policy: Annotated[QueuePolicy, Meta(description="order of the branches; best_first ignores it")] = (
        QueuePolicy.PRIORITY
    )
    ahead: Annotated[bool, Meta(description="a pre-draft is sent before the commit that it follows")] = False
    ahead_above: Annotated[float, Meta(ge=0, le=1, description="... once that commit is so likely")] = 0.05
    partial: Annotated[
        bool,
        Meta(description="such a draft is sent before it has gamma tokens; a better one follows (PicoSpec, Sec. 3.1)"),
    ] = False
    send_gain: Annotated[
        float, Meta(ge=0, description="a better draft for the same place follows at so many more expected tokens")
    ] = 0.5
    truncate: Annotated[
        bool, Meta(description="send early where one more forward gains less than it costs (PicoSpec, Sec. 3.3)")
    ] = False
    extend: Annotated[
        bool,
        Meta(
            description="a tree is drafted beyond gamma while one more forward takes less than the verification that "
            "it is likely to save"
        ),
    ] = False
    interrupt: Annotated[
        bool, Meta(description="abandon a draft forward that a commit made useless, between layers (PicoSpec, 3.1)")
    ] = False
    ngrams: Annotated[
        bool, Meta(description="earlier answers propose tokens (prompt lookup), here and as hints to the verifier")
    ] = False
    forced: Annotated[
        bool,
        Meta(description="what the grammar of an answer leaves no choice about is drafted without a forward"),
    ] = True
    stop_below: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="a draft ends with the first token whose probability to be accepted is below this, by the "
            "predictor or, without one, by the draft itself (WISP, Sec. 4.1); 0 never stops",
        ),
    ] = 0.0
    effort: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="1: the edge drafts wherever it may save time; 0: only what saves more than it takes the "
            "processor; below 1 it leaves drafting alone where that does not pay",
        ),
    ] = 1.0
    max_nodes: Annotated[int, Meta(ge=1, description="the pre-draft stops growing at this many nodes of the tree")] = (
        128
    )
    resend_s: Annotated[
        float, Meta(ge=0, description="an unanswered draft is repeated after so many seconds; rounds are idempotent")
    ] = 2.0
    patience_s: Annotated[
        float,
        Meta(
            ge=0,
            description="so many seconds without a commit, and without word that the verifier works on the step, are a "
            "lost link, even if pings are answered; in every mode with a link",
        ),
    ] = 20.0

    def __post_init__(self) -> None:
        number = type(self.gamma) is int and 0 <= self.gamma <= MAX_DRAFT_TOKENS
        if not number and self.gamma not in GAMMA_RULES:
            raise ValueError(f"gamma is {self.gamma!r}; give 0 to {MAX_DRAFT_TOKENS}, '{AUTO}' or '{BALANCE}'")
        check(self)
        for name in ("own_guess", "early_tokens", "ngrams"):
            if getattr(self, name) and not self.drafts:
                raise ValueError(f"{name} needs drafts")

    @classmethod
    def of(cls, mode: Mode | str, text: str = "", **changes: Any) -> DraftingConfig:
        """Return the settings of `mode` with `changes`, and with those of `read_changes(text)`, of which one that does
        not draft takes `OF_ANY_LINK` alone.

        Raises ValueError for an unknown mode, naming the known ones, and for what `text` gets wrong.
        """
        try:
            mode = Mode(mode)
        except ValueError:
            raise ValueError(f"mode is {str(mode)!r}; known modes are {', '.join(m.value for m in Mode)}") from None
        given = read_changes(text)
        taken = given if mode.drafts else {name: given[name] for name in OF_ANY_LINK if name in given}
        return cls(**{**mode.changes, **changes, **taken})

    def check_sampling(self, sampling: SamplingScheme) -> None:
        """Raise ValueError where drafts of these settings cannot be judged by the rule of `sampling`.

        Rejection sampling judges one chain at a time, of tokens that were sampled: no tree, no tokens from elsewhere,
        no better draft for the same place; and the verifier must not decode where a draft may come. A draft's length
        must not change when a lost step is resumed: what was rejected once would be judged again in other company.
        """
        if not sampling.one_chain or not (self.drafts or self.self_draft):
            return
        problem = f"sampling {sampling.name} judges one drafted chain at a time: take mode sd or fsd"
        if self.self_draft:
            raise ValueError(problem)
        fit = {
            "idle": Idle.WAIT,
            "width": 1,
            "draft_tokens": 0,
            "ahead": False,
            "truncate": False,
            "extend": False,
            "ngrams": False,
        }
        wrong = [f"{name}={_written(value)}" for name, value in fit.items() if getattr(self, name) != value]
        if isinstance(self.gamma, str):
            wrong.append(f"gamma={START_GAMMA} or another number")
        if wrong:
            raise ValueError(f"{problem} with a fixed gamma, or set {','.join(wrong)}")

    @property
    def predrafts(self) -> bool:
        """Whether the edge drafts while a verification runs."""
        return self.own_guess or self.early_tokens

    @property
    def fixed_gamma(self) -> int:
        """The declared draft length; where the controller chooses, the one that it starts with."""
        return self.gamma if isinstance(self.gamma, int) else START_GAMMA

    @property
    def needs_link(self) -> bool:
        """False where the draft model answers alone."""
        return self.drafts or self.idle is Idle.DECODE


WHO_DECODES = ("drafts", "self_draft")
"""Fields that make another mode of a mode; `read_changes` leaves them alone."""
OF_ANY_LINK = ("patience_s",)
"""Fields that hold for modes that do not draft, too."""
_CHANGEABLE = {field.name: field for field in fields_of(DraftingConfig) if field.name not in WHO_DECODES}


def read_changes(text: str) -> dict[str, Any]:
    """Return the changes of a `DraftingConfig` in NAME=VALUE,..., e.g. "interrupt=off,branches=3,gamma=auto".

    Raises ValueError, naming the field and what it takes, for what cannot be read; limits are `DraftingConfig`'s.
    """
    changes: dict[str, Any] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, value = part.partition("=")
        if name not in _CHANGEABLE:
            raise ValueError(f"drafting: {name!r} is unknown; known are {', '.join(_CHANGEABLE)}")
        changes[name] = _read(_CHANGEABLE[name], value)
    if changes:
        DraftingConfig(**changes)
    return changes


def _written(value: Any) -> str:
    """Return a value as `read_changes` reads it."""
    if isinstance(value, Enum):
        return value.name.lower()
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


def read_gamma(text: str) -> int | str:
    """Read a draft length: a number or the name of a rule. Raises ValueError for anything else."""
    if text in GAMMA_RULES:
        return text
    if not text.isdecimal():
        raise ValueError(f"{text!r} is no draft length; give a number or {' or '.join(GAMMA_RULES)}")
    return int(text)


def _read(field: Field, text: str) -> Any:
    if field.name == "gamma":
        return read_gamma(text)
    if issubclass(field.kind, (int, float)) and not issubclass(field.kind, (bool, Enum)):
        try:
            return field.kind(text)
        except ValueError:
            kind = "whole number" if field.kind is int else "number"
            raise ValueError(f"drafting: {field.name}={text} is no {kind}") from None
    values: Any = (True, False) if field.kind is bool else field.kind
    choices = {_written(each): each for each in values}
    if text not in choices:
        raise ValueError(f"drafting: {field.name}={text!r} is unknown; give {', '.join(choices)}")
    return choices[text]
