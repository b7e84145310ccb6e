"""Declares how the edge decodes a step, the modes that are sets of these settings, and what one robot starts with.

They are checked before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from edge_drafter.verifier_route import check_verifier
from speculation.language.grammar import CONSTRAINED, FREE
from speculation.predictor import AUTO as PREDICTOR_OF_DRAFT
from speculation.predictor import OFF
from speculation.sampling import GREEDY, MAX_KEY, SamplingScheme
from speculation.service_classes import INTERACTIVE, SERVICE_CLASSES, service_class
from speculation.settings import CheckedSettings, Field, check, fields_of, from_flags
from speculation.vlm.settings import DEFAULT_SETTINGS, ModelSettings
from speculation.wire import MAX_ANSWER_TOKENS, MAX_DRAFT_TOKENS, MAX_FRAMES, Idle

AUTO = "auto"
BALANCE = "balance"
GAMMA_RULES = (AUTO, BALANCE)
START_GAMMA = 4
MAX_RTT_S = 10.0
CAPACITY = 2048


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
        {
            "own_guess": True, "ahead": True, "ahead_above": 0.0, "partial": True, "preverify": True, "truncate": True,
            "interrupt": True,
        },
    )  # fmt: skip
    FULL = (
        "full",
        {
            "idle": Idle.LEDGER, "width": 3, "draft_tokens": 64, "leaves": 8, "max_nodes": 256, "own_guess": True,
            "early_tokens": True, "exit_gain": 0.05, "best_first": True, "ahead": True, "ahead_above": 0.1,
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


class BranchOrder(str, Enum):
    """The order in which branches are pre-drafted.

    `priority`: as likely as exit and draft together have them. `confidence`: by the exit's own confidence (Early Exits,
    Algorithm 1, queue Q_p). `fifo`: as they came. `random`: each gets a random place.
    """

    PRIORITY = "priority"
    CONFIDENCE = "confidence"
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
    queue_policy: Annotated[BranchOrder, Meta(description="order of the branches; best_first ignores it")] = (
        BranchOrder.PRIORITY
    )
    ahead: Annotated[bool, Meta(description="a pre-draft is sent before the commit that it follows")] = False
    ahead_above: Annotated[float, Meta(ge=0, le=1, description="... once that commit is so likely")] = 0.05
    partial: Annotated[
        bool,
        Meta(description="such a draft is sent before it has gamma tokens; a better one follows (PicoSpec, Sec. 3.1)"),
    ] = False
    preverify: Annotated[
        bool,
        Meta(
            description="the draft behind the last commit is sent before it has gamma tokens, so that a pass begins, "
            "and again, beyond gamma, while it waits there (PreVerify, PicoSpec, Sec. 3.2)"
        ),
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
            "preverify": False,
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


class Connection(msgspec.Struct, frozen=True):
    """The way to the verifier."""

    verifier: Annotated[
        str, Meta(description="address of the verifier, or of a cluster's gateway; several are separated by commas")
    ] = "tcp://127.0.0.1:5555"
    keys: Annotated[str, Meta(description="folder of CURVE keys; empty: plain TCP, to this machine only")] = ""
    allow_plain: Annotated[bool, Meta(description="without keys, trust a verifier on another machine too")] = False
    target: Annotated[str, Meta(description="fingerprint that the verifier's target must have; empty: any")] = ""
    silence_s: Annotated[
        float, Meta(ge=0.2, le=60, description="seconds without a message that count as a lost link")
    ] = 1.5
    resume_s: Annotated[
        float, Meta(ge=0, le=60, description="seconds that a step waits for a lost or full verifier, then it gives up")
    ] = 1.0
    resume_elsewhere_s: Annotated[
        float,
        Meta(ge=0, le=60, description="the same, if more, where another verifier may go on: of a cluster, or a list"),
    ] = 10.0
    service_class: Annotated[
        str,
        Meta(
            description="how fast its answers must come, for a verifier that many robots share: "
            + ", ".join(f"{each.name} ({each.tokens_per_s:g} tokens/s)" for each in SERVICE_CLASSES.values())
        ),
    ] = INTERACTIVE.name
    scale_frames: Annotated[
        bool,
        Meta(
            description="larger frames are scaled, before they are sent, to the size in which the verifier's model "
            "sees them"
        ),
    ] = True
    link: Annotated[
        str,
        Meta(description="link of config/links.json to emulate, the profile's delay on top; empty: none"),
    ] = ""
    rtt_s: Annotated[
        Annotated[float, Meta(ge=0, le=MAX_RTT_S)] | None,
        Meta(description="declared round trip in seconds, in place of the profile's own"),
    ] = None
    extra_rtt_s: Annotated[
        float, Meta(ge=0, le=MAX_RTT_S, description="declared round trip on top of it, half of it each way")
    ] = 0.0

    def __post_init__(self) -> None:
        check(self)
        service_class(self.service_class)


class Decoding(msgspec.Struct, frozen=True):
    """How an answer is decoded."""

    mode: Annotated[str, Meta(description=f"one of {', '.join(mode.value for mode in Mode)}")] = Mode.FULL.value
    gamma: Annotated[
        int | str,
        Meta(description=f"draft tokens per verification: 0 to {MAX_DRAFT_TOKENS}, auto or balance"),
    ] = START_GAMMA
    drafting: Annotated[
        str, Meta(description="changes of a mode that drafts, NAME=VALUE,..., e.g. interrupt=off (docs/decoding.md)")
    ] = ""
    predictor: Annotated[
        str,
        Meta(description="folder of an acceptance predictor, which ends drafts; auto: the draft model's; off: none"),
    ] = PREDICTOR_OF_DRAFT
    fed_head: Annotated[
        str,
        Meta(
            description="folder of a fed head, which drafts from the target's features in the draft model's place "
            "wherever a verifier feeds it; off: the draft model drafts"
        ),
    ] = OFF
    max_tokens: Annotated[
        int, Meta(ge=1, le=MAX_ANSWER_TOKENS, description="tokens of an answer at most, its thinking included")
    ] = 128
    answers: Annotated[
        Literal["free", "constrained"],
        Meta(
            description=f"{CONSTRAINED}: masked by a grammar, so that each ends with a readable action or begins with "
            f"one; {FREE}: whatever the target says"
        ),
    ] = FREE

    def __post_init__(self) -> None:
        check(self)
        self.settings(self.mode)

    def settings(self, mode: Mode | str, **more: Any) -> DraftingConfig:
        """Return the drafting settings of `mode` with these changes. A mode that drafts nothing takes none."""
        return DraftingConfig.of(mode, self.drafting, gamma=self.gamma, **more)


class Draws(CheckedSettings, frozen=True):
    """These settings are how tokens are sampled."""

    sampling: Annotated[
        str, Meta(description="greedy, coupled(temperature=0.7,top_k=50,top_p=0.9) or another rule (docs/decoding.md)")
    ] = GREEDY.text
    seed: Annotated[
        int,
        Meta(ge=0, le=MAX_KEY, description="of sampled answers; two decoders of one seed sample the n-th answer alike"),
    ] = 0

    @property
    def settings(self) -> SamplingScheme:
        """The way to sample. Raises ValueError for one that cannot be read."""
        return SamplingScheme.parse(self.sampling)


class EdgeConfig(msgspec.Struct, frozen=True):
    """What one robot decodes with. Raises ValueError, naming the setting, for what cannot be used or does not fit."""

    draft_model: Annotated[
        Path, Meta(description="folder of the draft model, its name on the hub, or MODEL.gguf[,MMPROJ.gguf]")
    ]
    draft: ModelSettings = DEFAULT_SETTINGS
    connection: Connection = Connection()
    decoding: Decoding = Decoding()
    draws: Draws = Draws()
    profile: Annotated[str, Meta(description="device profile whose times are waited for; raw: none")] = "raw"
    capacity: Annotated[
        int,
        Meta(
            ge=1, le=2**20, description="cache slots of the draft model: image, prompt, answer and token tree must fit"
        ),
    ] = CAPACITY
    frames: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_FRAMES,
            description="frames of a question: the newest, and before it those of the last views; more than one for "
            "models that take several",
        ),
    ] = 1
    text_only: Annotated[
        bool, Meta(description="the draft model is a language model alone, asked with an empty frame (benchmarks)")
    ] = False

    def __post_init__(self) -> None:
        check(self)
        if self.text_only and self.frames > 1:
            raise ValueError(f"frames is {self.frames} beside text_only: a language model alone sees none; give 1")
        if self.decoding.max_tokens >= self.capacity:
            raise ValueError(
                f"max_tokens is {self.decoding.max_tokens}, and a capacity of {self.capacity} must hold prompt and "
                "frames, too; raise capacity or lower max_tokens"
            )
        drafting = self.decoding.settings(self.decoding.mode)
        drafting.check_sampling(self.draws.settings)
        if drafting.needs_link:
            # Here too, since the link is made after the models are loaded, which takes a minute on a robot.
            check_verifier(self.connection.verifier, bool(self.connection.keys), self.connection.allow_plain)

    @classmethod
    def flat(cls, draft_model: Path, **settings: Any) -> EdgeConfig:
        """Return the config with these settings by their names, wherever they are nested.

        Raises TypeError for an unknown name, ValueError as the config itself.
        """
        unknown = settings.keys() - {field.name for field in fields_of(cls)}
        if unknown:
            raise TypeError(f"EdgeConfig has no setting {', '.join(sorted(unknown))}")
        return from_flags(cls, {"draft_model": draft_model, **settings})
