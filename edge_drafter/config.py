"""The settings that turn one drafter into the papers' methods."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

from speculation.sampling import SamplingSettings
from speculation.wire import MAX_DRAFT_TOKENS, Idle

AUTO = "auto"
BALANCE = "balance"
GAMMA_RULES = (AUTO, BALANCE)
START_GAMMA = 4


class Mode(str, Enum):
    """Who decodes, and which techniques they use; docs/decoding.md maps them to the papers."""

    CLOUD = "cloud"
    EDGE = "edge"
    SD = "sd"
    FSD = "fsd"
    SERVER_SD = "server_sd"
    PROACTIVE = "proactive"
    PIPELINED = "pipelined"
    FULL = "full"


class QueuePolicy(str, Enum):
    """Which branch is pre-drafted next (Early Exits, Algorithm 1 uses the priority)."""

    PRIORITY = "priority"
    FIFO = "fifo"
    RANDOM = "random"


@dataclass(frozen=True)
class DraftingConfig:
    """How one step is decoded; a mode is a set of these, and each can be changed alone.

    self_draft: the verifier's own draft model drafts gamma tokens per verification, beside the target.
    drafts: the edge drafts at all. idle: what the verifier does without a draft, see `Idle`.
    gamma: draft tokens per verification; "auto" commits most tokens per second, E(gamma) / (F + c gamma); "balance"
        makes drafting and round trip as long as a verification (SpecEdge, Sec. 4.3).
    width: children that a fed token gets; 1 drafts a chain. draft_tokens: tokens that one draft may carry; 0 means
        gamma, a chain. leaves: tokens that one draft forward feeds side by side: the threads of Early Exits, Sec. 4.1.
    least: a token less likely than this, given the draft's root, is neither sent in a tree nor grown.
    own_guess: pre-drafts past the draft in flight, as if it were accepted (SpecEdge, Sec. 4.2; PicoSpec, Sec. 3.2).
    early_tokens: pre-drafts where an exit says that the verdict lands (Early Exits, Sec. 3).
    best_first: pre-drafts the likeliest leaf of the whole tree, instead of branch after branch.
    branches: continuations pre-drafted per verification, in the order of `queue_policy`; best_first ignores both.
    ahead: a pre-draft leaves before the commit that it follows, once that commit is as likely as `ahead_above`.
    partial: such a draft leaves before it has gamma tokens, and a better one follows (PicoSpec, Fast Verification).
    send_gain: a better draft for the same place follows once it is worth so many more expected tokens.
    truncate: a draft leaves early where one more forward gains less than it costs (PicoSpec, Sec. 3.3).
    interrupt: a draft forward that a commit made useless is abandoned at the next layer (PicoSpec, Sec. 3.1).
    ngrams: earlier answers propose tokens (prompt lookup), here and as hints to the verifier.
    stop_below: a draft ends with the first token whose probability to be accepted is below this, by the predictor or,
        without one, by the draft itself: the first predicted rejection (WISP, Sec. 4.1); 0 never stops.
    max_nodes: the pre-draft stops growing when the tree holds this many nodes.
    resend_s: an unanswered draft is repeated after this many seconds; rounds are idempotent.
    patience_s: no commit for this long counts as a lost link, although the verifier may still answer pings.
    """

    drafts: bool = True
    idle: Idle = Idle.WAIT
    self_draft: bool = False
    gamma: int | str = START_GAMMA
    width: int = 1
    draft_tokens: int = 0
    leaves: int = 1
    least: float = 0.02
    own_guess: bool = False
    early_tokens: bool = False
    best_first: bool = False
    branches: int = 1
    queue_policy: QueuePolicy = QueuePolicy.PRIORITY
    ahead: bool = False
    ahead_above: float = 0.05
    partial: bool = False
    send_gain: float = 0.5
    truncate: bool = False
    interrupt: bool = False
    ngrams: bool = False
    stop_below: float = 0.0
    seed: int = 0
    max_nodes: int = 128
    resend_s: float = 2.0
    patience_s: float = 20.0

    def __post_init__(self) -> None:
        if isinstance(self.gamma, str):
            if self.gamma not in GAMMA_RULES:
                raise ValueError(f"gamma is {self.gamma!r}; give 0 to {MAX_DRAFT_TOKENS}, '{AUTO}' or '{BALANCE}'")
        elif not 0 <= self.gamma <= MAX_DRAFT_TOKENS:
            raise ValueError(f"gamma is {self.gamma}; give 0 to {MAX_DRAFT_TOKENS}, '{AUTO}' or '{BALANCE}'")
        least = {"width": 1, "leaves": 1, "branches": 0, "max_nodes": 1, "send_gain": 0, "resend_s": 0, "patience_s": 0}
        for name, limit in least.items():
            if not getattr(self, name) >= limit:
                raise ValueError(f"{name} is {getattr(self, name)}; give at least {limit}")
        if not 0 <= self.draft_tokens <= MAX_DRAFT_TOKENS:
            raise ValueError(f"draft_tokens is {self.draft_tokens}; give 0 (gamma, a chain) to {MAX_DRAFT_TOKENS}")
        for name in ("least", "ahead_above"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}; give 0 to 1")
        if not 0.0 <= self.stop_below <= 1.0:
            raise ValueError(f"stop_below is {self.stop_below}; give 0 (never stop) to 1")
        for name in ("own_guess", "early_tokens", "ngrams"):
            if getattr(self, name) and not self.drafts:
                raise ValueError(f"{name} needs drafts")

    @classmethod
    def of(cls, mode: Mode | str, text: str = "", **changes: Any) -> DraftingConfig:
        """Return the settings of `mode` with `changes`, and with those of `read_changes(text)` where it drafts at all.

        Raises ValueError for an unknown mode, naming the known ones, and for what `text` gets wrong.
        """
        try:
            flags = _MODES[Mode(mode)]
        except ValueError:
            raise ValueError(f"mode is {str(mode)!r}; known modes are {', '.join(m.value for m in Mode)}") from None
        told = read_changes(text)
        return replace(cls(**flags), **(changes | (told if flags.get("drafts", True) else {})))

    def check_sampling(self, sampling: SamplingSettings) -> None:
        """Raise ValueError where drafts of these settings cannot be judged as `sampling` says.

        Rejection sampling judges one chain at a time, of tokens that were drawn: no tree, no tokens from elsewhere, no
        better draft for the same place; and the verifier must not decode where a draft may come. A draft's length must
        not change when a lost step is taken up again: what was rejected once would be asked again, in other company.
        """
        if not sampling.one_chain or not (self.drafts or self.self_draft):
            return
        said = f"sampling {sampling.name} judges one drafted chain at a time: take mode sd or fsd"
        if self.self_draft:
            raise ValueError(said)
        fit = {"idle": Idle.WAIT, "width": 1, "draft_tokens": 0, "ahead": False, "truncate": False, "ngrams": False}
        wrong = [f"{name}={_told(value)}" for name, value in fit.items() if getattr(self, name) != value]
        if isinstance(self.gamma, str):
            wrong.append(f"gamma={START_GAMMA} or another number")
        if wrong:
            raise ValueError(f"{said} with a fixed gamma, or set {','.join(wrong)}")

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


_MODES: dict[Mode, dict[str, Any]] = {
    Mode.CLOUD: {"drafts": False, "idle": Idle.DECODE},
    Mode.EDGE: {"drafts": False},
    Mode.SD: {},
    Mode.SERVER_SD: {"drafts": False, "idle": Idle.DECODE, "self_draft": True},
    Mode.FSD: {"early_tokens": True, "branches": 6, "leaves": 6},
    Mode.PROACTIVE: {"own_guess": True, "width": 3, "draft_tokens": 16, "leaves": 4},
    Mode.PIPELINED: {
        "own_guess": True, "ahead": True, "ahead_above": 0.0, "partial": True, "truncate": True, "interrupt": True,
    },
    Mode.FULL: {
        "idle": Idle.LEDGER, "width": 2, "draft_tokens": 40, "leaves": 8, "max_nodes": 256, "own_guess": True,
        "early_tokens": True, "best_first": True, "ahead": True, "ahead_above": 0.1, "send_gain": 0.7, "partial": True,
        "truncate": True, "interrupt": True, "ngrams": True,
    },
}  # fmt: skip

WHO_DECODES = ("drafts", "self_draft")
"""Fields that make another mode of a mode; `read_changes` leaves them alone."""


def read_changes(text: str) -> dict[str, Any]:
    """Return the changes of a `DraftingConfig` that NAME=VALUE,... says, e.g. "interrupt=off,branches=3,gamma=auto".

    Raises ValueError, naming the field and what it takes, for what cannot be read; limits are `DraftingConfig`'s.
    """
    known = {each.name: each.default for each in fields(DraftingConfig) if each.name not in WHO_DECODES}
    changes: dict[str, Any] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, value = part.partition("=")
        if name not in known:
            raise ValueError(f"drafting: {name!r} is unknown; known are {', '.join(known)}")
        changes[name] = _read(name, value, known[name])
    if changes:
        DraftingConfig(**changes)
    return changes


def _told(value: Any) -> str:
    """Return a value as `read_changes` reads it."""
    if isinstance(value, Idle):
        return value.name.lower()
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


def read_gamma(text: str) -> int | str:
    """Read a draft length: a number or the name of a rule. Raises ValueError for anything else."""
    if text in GAMMA_RULES:
        return text
    if not text.isdecimal():
        raise ValueError(f"{text!r} is no draft length; give a number or {' or '.join(GAMMA_RULES)}")
    return int(text)


def _read(name: str, text: str, default: Any) -> Any:
    if name == "gamma":
        return read_gamma(text)
    if isinstance(default, bool):
        choices: dict[str, Any] = {"on": True, "off": False}
    elif isinstance(default, Idle):
        choices = {each.name.lower(): each for each in Idle}
    elif isinstance(default, QueuePolicy):
        choices = {each.value: each for each in QueuePolicy}
    else:
        try:
            return type(default)(text)
        except ValueError:
            kind = "whole number" if isinstance(default, int) else "number"
            raise ValueError(f"drafting: {name}={text} is no {kind}") from None
    if text not in choices:
        raise ValueError(f"drafting: {name}={text!r} is unknown; give {', '.join(choices)}")
    return choices[text]
