"""The wire between edge and cloud: its messages, typed.

Data: a closed set of tagged `msgspec` structs, encoded as msgpack arrays. Every field is bounded, so that
a decoded message is a valid message and nothing behind this file checks ranges again.

Positions count from the start of the *answer*, never of the prompt: draft and target may expand the same image
to different numbers of tokens. A *digest* names the exact prefix that a message talks about (see `begin_digest`).
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, TypeAlias, get_args

import msgspec
from msgspec import Meta

PROTOCOL = 10

MAX_ANSWER_TOKENS = 4096
"""Tokens of an answer, those of its thinking included (`Thinking`)."""
MAX_DRAFT_TOKENS = 64
MAX_IMAGE_BYTES = 4 << 20
"""Bytes of all frames of a question together."""
MAX_FRAMES = 4
"""Frames of one question."""
MAX_FRAME_PIXELS = 1 << 24
MAX_UNIT = 1024
MAX_PROMPT_CHARS = 12_000
MAX_SCHEMA_CHARS = 4096
MAX_DRAFT_MS = 3_600_000
MAX_TEXT_CHARS = 1000
MAX_WORDS = 256
MAX_WORD_CHARS = 40
MAX_FEATURE_BYTES = 256
"""Bytes of one token's packed feature, see `speculation.features`."""
MAX_PROMPT_FEATURES = 64
"""Tokens at a prompt's end whose features may be sent."""
TRACE_BYTES = 16
"""Bytes of a trace's id, as W3C's Trace Context has it."""
MAX_TICKET_BYTES = 512
MIN_PENALTY, MAX_PENALTY = 0.01, 100.0
"""Repetition penalties that a target may have; published ones are 1 to 1.2."""
MAX_END_TOKENS = 64
"""End tokens of a model; published checkpoints have one to three."""
PREFIX_CHARS = 64
"""Characters of a prompt that `prefix_of` names."""
MAX_MESSAGE_BYTES = MAX_IMAGE_BYTES + (96 << 10)
"""Frames, and beside them the longest prompt, answer and hints."""
EXPLAINED_BYTES = 4096
"""Larger messages that are malformed are not decoded a second time to name the field: that may take seconds."""
UNPRINTABLE = r"\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069"
PRINTABLE = rf"^[^{UNPRINTABLE}]*\Z"
"""What people may be shown: no control characters, and nothing that turns or hides what stands beside it."""
ROOT = -1
"""Node index of a draft's root, the last committed token; draft token i is node i."""

Version: TypeAlias = Annotated[int, Meta(ge=0, lt=2**16)]
Step: TypeAlias = Annotated[int, Meta(ge=0, lt=2**32)]
Round: TypeAlias = Annotated[int, Meta(ge=0, lt=2**32)]
Position: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_ANSWER_TOKENS)]
Token: TypeAlias = Annotated[int, Meta(ge=0, lt=2**20)]
Node: TypeAlias = Annotated[int, Meta(ge=ROOT, lt=MAX_DRAFT_TOKENS)]
Layer: TypeAlias = Annotated[int, Meta(ge=0, lt=1024)]
Probability: TypeAlias = Annotated[float, Meta(ge=0.0, le=1.0)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0.0, le=86400.0)]
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_DRAFT_MS)]
Jpeg: TypeAlias = Annotated[bytes, Meta(min_length=1, max_length=MAX_IMAGE_BYTES)]
Jpegs: TypeAlias = (
    Annotated[bytes, Meta(max_length=MAX_IMAGE_BYTES)]
    | Annotated[tuple[Jpeg, ...], Meta(min_length=2, max_length=MAX_FRAMES)]
)
"""The one frame of a question or several, the oldest first; see `frames_of`."""
Pixels: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_FRAME_PIXELS)]
Digest: TypeAlias = Annotated[bytes, Meta(min_length=8, max_length=8)]
Ticket: TypeAlias = Annotated[bytes, Meta(max_length=MAX_TICKET_BYTES)]
Name: TypeAlias = Annotated[str, Meta(max_length=200)]
Text: TypeAlias = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]
Word: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_WORD_CHARS, pattern=PRINTABLE)]
Words: TypeAlias = Annotated[list[Word], Meta(max_length=MAX_WORDS)]
Answer: TypeAlias = Annotated[list[Token], Meta(max_length=MAX_ANSWER_TOKENS)]
DraftTokens: TypeAlias = Annotated[list[Token], Meta(max_length=MAX_DRAFT_TOKENS)]
DraftParents: TypeAlias = Annotated[list[Node], Meta(max_length=MAX_DRAFT_TOKENS)]


class WireError(ValueError):
    """Bytes that are no message of this protocol; the text names the field and the limit."""


class Idle(IntEnum):
    """What the verifier does with a step while it holds no draft to verify.

    WAIT for one; DECODE one token by itself at once (mode `cloud`); LEDGER: decode or wait, whichever commits more
    tokens per second, without falling more than one plain decode behind decoding alone (two after steps far ahead).
    Where the edge drafts from features, WAIT decodes after the prefill for as long as no draft can be there yet.
    """

    WAIT = 0
    DECODE = 1
    LEDGER = 2


class Stage(IntEnum):
    """What a verifier is doing for a step: it waits for its turn, or frames, prompt or answer are being computed."""

    QUEUED = 0
    FRAMES = 1
    PROMPT = 2
    ANSWER = 3


class Grammar(IntEnum):
    """What an answer must look like, see `speculation.language.grammar`: FREE takes whatever the target says.

    Those of FORM_1 lack the action `not here`, which models of prompt form 1 never learned; the names of others end
    with what else they lack.
    """

    FREE = 0
    REASON_FIRST = 1
    ACTION_FIRST = 2
    REASON_FIRST_FORM_1 = 3
    ACTION_FIRST_FORM_1 = 4
    REASON_FIRST_NO_TURN = 5
    ACTION_FIRST_NO_TURN = 6
    REASON_FIRST_FORM_1_NO_TURN = 7
    ACTION_FIRST_FORM_1_NO_TURN = 8
    REASON_FIRST_NO_FORWARD = 9
    ACTION_FIRST_NO_FORWARD = 10
    REASON_FIRST_NO_LEFT = 11
    ACTION_FIRST_NO_LEFT = 12
    REASON_FIRST_NO_RIGHT = 13
    ACTION_FIRST_NO_RIGHT = 14
    REASON_FIRST_NO_FORWARD_LEFT = 15
    ACTION_FIRST_NO_FORWARD_LEFT = 16
    REASON_FIRST_NO_FORWARD_RIGHT = 17
    ACTION_FIRST_NO_FORWARD_RIGHT = 18
    REASON_FIRST_NO_MOTION = 19
    ACTION_FIRST_NO_MOTION = 20
    REASON_FIRST_NO_MOTION_STOP = 21
    ACTION_FIRST_NO_MOTION_STOP = 22

    @property
    def action_first(self) -> bool:
        """Whether the action stands before the reasons."""
        return self.name.startswith("ACTION_FIRST")

    @property
    def form_1(self) -> bool:
        """Whether `not here` is no action."""
        return "FORM_1" in self.name

    @property
    def lacks(self) -> str:
        """The kinds that are no actions: a key of `grammar._LACKED`; empty: all are."""
        return self.name.partition("_NO_")[2]


class FaultCode(IntEnum):
    """Why the other side refuses. The sentence in `Fault.message` advises what to do."""

    MALFORMED = 1
    PROTOCOL_MISMATCH = 2
    TOKENIZER_MISMATCH = 3
    MODEL_MISMATCH = 4
    UNSUPPORTED_SAMPLING = 5
    NO_SESSION = 6
    BAD_IMAGE = 7
    TOO_LARGE = 8
    INTERNAL = 10
    NO_TICKET = 11


class Message(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Base of all messages: an immutable msgpack array whose first element is the tag."""


class Masses(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A distribution over tokens, or the head of one (rejection sampling only), see `speculation.sampling.masses.pack`.

    `weights` are float32, little endian; divided by `total` they are probabilities. `ids` are their tokens, uint32,
    ascending; empty for a weight of every token of the vocabulary. `tail` is the probability of all tokens that may be
    sampled and are not listed; 0: there are none.
    """

    weights: Annotated[bytes, Meta(max_length=MAX_IMAGE_BYTES)]
    total: Annotated[float, Meta(gt=0.0)]
    ids: Annotated[bytes, Meta(max_length=MAX_IMAGE_BYTES)] = b""
    tail: Probability = 0.0


class Sight(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What a target makes of a question's frames, of which it takes at most `frames`.

    Each is resized by the rule of `speculation.vlm.frame_size`: to sides that are multiples of `unit` pixels, and
    to `least` to `most` pixels.
    """

    frames: Annotated[int, Meta(ge=1, le=MAX_FRAMES)]
    unit: Annotated[int, Meta(ge=1, le=MAX_UNIT)]
    least: Pixels
    most: Pixels


class Thinking(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """How a target thinks before it answers, see `speculation.language.thinking`: up to the token `closes`.

    `opened`: its prompt has begun the thinking; else the answer may begin with it, by the token `opens`.
    """

    opens: Token
    closes: Token
    opened: bool


class Hello(Message, tag=1, frozen=True):
    """Edge to cloud: open or resume a session.

    `model` is the target fingerprint that the edge expects; empty accepts any. `vocabulary` is len(tokenizer).
    `features` names what a fed head on the edge continues from, the fingerprint of the bottleneck that makes it
    (`speculation.fed`); empty: none. They are sent in steps that ask for them.

    `ticket` is the one of the last `Redirect`: it admits the robot to the verifier that the redirect named, and reminds
    the gateway of where the robot was. `prefix` names how its prompts begin, see `prefix_of`; empty: unknown.
    """

    tokenizer: Name
    vocabulary: Annotated[int, Meta(gt=0, lt=2**20)]
    model: Name = ""
    sampling: Name = "greedy"
    service_class: Name = "interactive"
    resume: Name = ""
    protocol: Version = PROTOCOL
    features: Name = ""
    ticket: Ticket = b""
    prefix: Annotated[bytes, Meta(max_length=8)] = b""


class Welcome(Message, tag=2, frozen=True):
    """Cloud to edge: the session stands. `exit_layers` count from 0; `eos` are the tokens that end an answer.

    `colours` and `classes` are the objects that the target was trained to find; empty: it takes any instruction.
    `form` is the form of the prompts that it was trained on (`speculation.language.prompts.Vocabulary`).
    `machine` is the verifier's (`speculation.machine_info`): an edge with the same shares its processors; empty:
    unknown.
    `sight` is what becomes of frames, so that the edge need not send more; None: the target sees none.
    `server_draft`: a draft model stands beside the target, which mode `server_sd` needs.
    `thinking` is how the target thinks before it answers; None: it does not.
    `repetition_penalty` is applied to the target's logits (`speculation.logits_processors`), 1 for none. To the edge,
    which drafts with it, it is a hint. No digest names it, as none names the target's weights.
    """

    session: Name
    model: Name
    tokenizer: Name
    vocabulary: Annotated[int, Meta(gt=0, lt=2**20)]
    num_layers: Annotated[int, Meta(gt=0, le=1024)]
    exit_layers: Annotated[list[Layer], Meta(max_length=64)]
    eos: Annotated[list[Token], Meta(min_length=1, max_length=MAX_END_TOKENS)]
    max_draft: Annotated[int, Meta(gt=0, le=MAX_DRAFT_TOKENS)] = MAX_DRAFT_TOKENS
    profile: Name = ""
    protocol: Version = PROTOCOL
    colours: Words = []
    classes: Words = []
    machine: Name = ""
    form: Annotated[int, Meta(ge=1, le=255)] = 1
    sight: Sight | None = None
    server_draft: bool = False
    thinking: Thinking | None = None
    repetition_penalty: Annotated[float, Meta(ge=MIN_PENALTY, le=MAX_PENALTY)] = 1.0


class BeginStep(Message, tag=3, frozen=True):
    """Edge to cloud: a new frame and question; supersedes the step before.

    `jpeg` is empty for a language model; a vision-language model refuses an empty one. Several frames are a tuple, the
    oldest first.
    `committed` holds the answer so far (empty, or after a reconnect). `hints` are token sequences that the answer may
    begin with or contain (earlier answers): drafts that cost nothing. `self_draft` asks a verifier that has a draft
    model of its own to draft so many tokens by itself (mode `server_sd`), a tree of `self_depth` levels, or a chain
    where that is 0. `round_trip_s` is the link's, as the edge measures it; 0: unknown. `key` names the random draws
    of the answer; a step that is taken up again keeps it. `features`: the edge drafts this step from the features that
    its `Hello` named. `early`: exits run for this step and their early tokens are sent. `trace`: the id of the trace
    that joins what both sides note of the step, TRACE_BYTES; empty: there is none. `grammar`: the target's logits are
    masked by it, so that the answer is what the target alone answers under it. `schema`, in its place, is a JSON schema
    (`speculation.language.json_schema`); empty: there is none.
    """

    step: Step
    prompt: Annotated[str, Meta(min_length=1, max_length=MAX_PROMPT_CHARS)]
    """One turn, or a conversation as `speculation.language.prompts.continued` writes it."""
    jpeg: Jpegs
    committed: Answer = []
    max_tokens: Annotated[int, Meta(gt=0, le=MAX_ANSWER_TOKENS)] = 128
    idle: Idle = Idle.WAIT
    time_left: Seconds = 3600.0
    hints: Annotated[list[DraftTokens], Meta(max_length=8)] = []
    self_draft: Annotated[int, Meta(ge=0, le=MAX_DRAFT_TOKENS)] = 0
    key: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    self_depth: Annotated[int, Meta(ge=0, le=MAX_DRAFT_TOKENS)] = 0
    round_trip_s: Seconds = 0.0
    features: bool = False
    early: bool = True
    trace: Annotated[bytes, Meta(max_length=TRACE_BYTES)] = b""
    grammar: Grammar = Grammar.FREE
    schema: Annotated[str, Meta(max_length=MAX_SCHEMA_CHARS)] = ""


class Draft(Message, tag=4, frozen=True):
    """Edge to cloud: tokens to verify after answer position `start`, whose prefix has `digest`.

    Rounds count from 1 within a step (0 is the verifier's own); the same round sent again requests its `Commit` again.
    `parents[i]` is the node that token i follows (`ROOT` = the last committed token); None means a chain.

    Rejection sampling only: `chosen` are the probabilities with which the tokens were drawn or, in their place, `whole`
    what they were drawn from; `drawn` is the token before `start` where the edge drew it out of `Commit.rest`.

    `draft_ms` is how long the edge worked on it (T_draft of WISP, Eq. 6).
    """

    step: Step
    round: Annotated[int, Meta(ge=1, lt=2**32)]
    start: Position
    digest: Digest
    tokens: DraftTokens
    parents: DraftParents | None = None
    chosen: Annotated[list[Probability], Meta(max_length=MAX_DRAFT_TOKENS)] = []
    whole: Annotated[list[Masses], Meta(max_length=MAX_DRAFT_TOKENS)] = []
    drawn: Token | None = None
    draft_ms: Milliseconds = 0


class EarlyTokens(Message, tag=5, frozen=True):
    """Cloud to edge: what an exit layer would commit. `confidence` is the probability of the whole verdict: the product
    along the accepted path (Early Exits, Eq. 4), calibrated by how often that exit was right in measurement.

    `token` follows draft node `node` of `round` and would stand at answer position `start`. In round 0, where the
    verifier decodes by itself, `node` is ROOT: the token before position `start`.
    """

    step: Step
    round: Round
    start: Position
    node: Node
    token: Token
    layer: Layer
    confidence: Probability


class Commit(Message, tag=6, frozen=True):
    """Cloud to edge: verified tokens; no others count. They start at answer position `start`; `digest` names the
    prefix after them. Times are the server's own durations in seconds.

    `round` is that of the draft it answers, 0 where the verifier decoded by itself. A commit may repeat tokens that
    the edge has (then `passes` is 0) and may be empty (an answer that was complete already).

    `rest` (rejection sampling only): the target's distribution of the token after them, or the head of it. The edge
    draws that token and sends it in its next `Draft`; where it cannot, it requests the whole with `Fetch`.

    `features`: for each of `tokens` the packed feature of the token before it, all of one size, where `Hello.features`
    asked for them. Hints, which no digest covers.
    """

    step: Step
    round: Round
    start: Position
    tokens: Annotated[list[Token], Meta(max_length=MAX_DRAFT_TOKENS + 1)]
    digest: Digest
    done: bool
    passes: Annotated[int, Meta(ge=0, le=MAX_ANSWER_TOKENS)] = 1
    queue_s: Seconds = 0.0
    compute_s: Seconds = 0.0
    prefill_s: Seconds = 0.0
    rest: Masses | None = None
    features: Annotated[bytes, Meta(max_length=(MAX_DRAFT_TOKENS + 1) * MAX_FEATURE_BYTES)] = b""


class EndStep(Message, tag=7, frozen=True):
    """Either way: the step is over, for this reason."""

    step: Step
    reason: Text


class Ping(Message, tag=8, frozen=True):
    """Liveness, either way; the other side answers with a `Pong` of the same nonce."""

    nonce: Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Pong(Message, tag=9, frozen=True):
    """Answer to `Ping`."""

    nonce: Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Fault(Message, tag=10, frozen=True):
    """Either way: something was refused; a code for programs and a sentence for people.

    An edge that closes its link says NO_SESSION, which ends the session at once; where that is lost, silence ends it.
    """

    code: FaultCode
    message: Text
    step: Step | None = None


class Fetch(Message, tag=11, frozen=True):
    """Edge to cloud: send the last `Commit` again with the whole distribution in `rest`, of which it had the head.

    `start` is the answer position of the token that is to be drawn, `digest` names the answer before it.
    """

    step: Step
    start: Position
    digest: Digest


class Busy(Message, tag=12, frozen=True):
    """Cloud to edge: no room for this session, or for this `step`, now; ask again after `retry_after_s`."""

    retry_after_s: Annotated[float, Meta(gt=0.0, le=3600.0)]
    message: Text
    step: Step | None = None


class Features(Message, tag=13, frozen=True):
    """Cloud to edge, once a prefill is done: for each of `tokens` the packed feature of the token before it.

    They are the prompt's last tokens and all of the answer so far, `position` tokens; so the first of them stands at
    answer position `position - len(tokens)`, which is negative for the prompt's.
    """

    step: Step
    position: Position
    tokens: Annotated[list[Token], Meta(min_length=1, max_length=MAX_PROMPT_FEATURES + MAX_ANSWER_TOKENS)]
    features: Annotated[bytes, Meta(max_length=(MAX_PROMPT_FEATURES + MAX_ANSWER_TOKENS) * MAX_FEATURE_BYTES)]


class Redirect(Message, tag=14, frozen=True):
    """Cloud to edge: this robot is served elsewhere; send `Hello` with `ticket` there, and go on with the step.

    The answer to a `Hello`, or at any later time: the session is over here. `address` is tcp://HOST:PORT; empty: at the
    next verifier of the robot's own list. `server_key` is the public key (z85) of the verifier there; empty: plain.
    """

    address: Name = ""
    server_key: Annotated[str, Meta(max_length=40)] = ""
    ticket: Ticket = b""
    reason: Text = ""


class Working(Message, tag=15, frozen=True):
    """Cloud to edge, twice a second where no commit comes: the step is not lost, and this is being done for it.

    It also comes while a forward pass runs, which may take longer than a robot waits in silence.
    """

    step: Step
    stage: Stage


# A new message is a struct above and its name here.
AnyMessage: TypeAlias = (
    Hello
    | Welcome
    | BeginStep
    | Draft
    | EarlyTokens
    | Commit
    | EndStep
    | Ping
    | Pong
    | Fault
    | Fetch
    | Busy
    | Features
    | Redirect
    | Working
)

_BY_TAG: dict[object, type[Message]] = {kind.__struct_config__.tag: kind for kind in get_args(AnyMessage)}
_PLACE = re.compile(r"(?P<what>.*?) - at `\$\[(?P<index>\d+)\](?P<rest>.*)`", re.DOTALL)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: AnyMessage) -> bytes:
    """Return the msgpack bytes of a message."""
    return _encoder.encode(message)


def decode(payload: bytes) -> AnyMessage:
    """Return the message in `payload`. Raises `WireError`, naming field and limit, for anything else."""
    if len(payload) > MAX_MESSAGE_BYTES:
        raise WireError(f"message of {len(payload)} bytes exceeds the limit of {MAX_MESSAGE_BYTES}")
    try:
        message: AnyMessage = _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(_explain(payload, error)) from None
    if isinstance(message, Draft):
        _check_tree(message)
        for masses in message.whole:
            _check_masses("Draft.whole", masses)
    elif isinstance(message, Commit):
        if message.rest is not None:
            _check_masses("Commit.rest", message.rest)
        if message.features:
            _check_features("Commit.features", message.features, len(message.tokens))
    elif isinstance(message, BeginStep):
        _check_frames(message)
    elif isinstance(message, Features):
        _check_features("Features.features", message.features, len(message.tokens))
    return message


def check_tokens(message: AnyMessage, vocabulary: int) -> None:
    """Check the tokens that a verifier sends. Raises `WireError` for one outside a vocabulary of so many tokens.

    `Token` is bounded by what any tokenizer may have; one that this model's does not have would end its forward.
    """
    fields: tuple[tuple[str, list[int]], ...]
    match message:
        case Commit() | Features():
            fields = (("tokens", message.tokens),)
        case EarlyTokens():
            fields = (("token", [message.token]),)
        case Welcome():
            thinking = message.thinking
            marks = [] if thinking is None else [thinking.opens, thinking.closes]
            fields = (("eos", message.eos), ("thinking", marks))
        case _:
            return
    for name, tokens in fields:
        if tokens and max(tokens) >= vocabulary:
            raise WireError(
                f"malformed message: {type(message).__name__}.{name}: token {max(tokens)} is outside the vocabulary "
                f"0..{vocabulary - 1}"
            )


def kind_of(payload: bytes) -> type[Message] | None:
    """Return what kind of message a payload claims to be, without decoding it; None for none."""
    # An array of up to 15 elements names their number in its first byte, one of up to 65535 in the two behind it.
    place = 1 if payload[:1] and payload[0] & 0xF0 == 0x90 else 3 if payload[:1] == b"\xdc" else len(payload)
    return _BY_TAG.get(payload[place]) if place < len(payload) else None


def _explain(payload: bytes, error: Exception) -> str:
    """Return which field of which message is wrong; the decoder names only the element of an array."""
    text = str(error).replace("`", "")
    if len(payload) > EXPLAINED_BYTES:
        return f"malformed message of {len(payload)} bytes: {text}"
    try:
        content = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return f"malformed message: {text}"
    if not isinstance(content, list) or not content:
        return f"malformed message: {text}; expected an array that starts with a message tag"
    kind = _BY_TAG.get(content[0]) if isinstance(content[0], int) else None
    if kind is None:
        return f"malformed message: unknown tag {str(content[0])[:40]!r}; known are 1 to {len(_BY_TAG)}"
    place = _PLACE.fullmatch(str(error))
    if place is None:
        most = 1 + len(kind.__struct_fields__)
        least = most - len(kind.__struct_defaults__)
        if not least <= len(content) <= most:
            text = f"{len(content)} array elements, expected {least} to {most} (tag included)"
        return f"malformed message: {kind.__name__}: {text}"
    field = kind.__struct_fields__[int(place["index"]) - 1]
    return f"malformed message: {kind.__name__}.{field}{place['rest']}: {place['what'].replace('`', '')}"


def _check_tree(draft: Draft) -> None:
    if draft.parents is None:
        return
    if len(draft.parents) != len(draft.tokens):
        raise WireError(
            f"malformed message: Draft.parents has {len(draft.parents)} entries for {len(draft.tokens)} tokens"
        )
    for node, parent in enumerate(draft.parents):
        if parent >= node:
            raise WireError(f"malformed message: Draft.parents[{node}] = {parent} does not come before its child")


def _check_frames(begin: BeginStep) -> None:
    size = sum(map(len, frames_of(begin.jpeg)))
    if size > MAX_IMAGE_BYTES:
        raise WireError(
            f"malformed message: BeginStep.jpeg: {len(begin.jpeg)} frames of {size} bytes exceed the limit of "
            f"{MAX_IMAGE_BYTES} for all of them"
        )


def _check_masses(field: str, masses: Masses) -> None:
    if not masses.weights or len(masses.weights) % 4 or (masses.ids and len(masses.ids) != len(masses.weights)):
        raise WireError(
            f"malformed message: {field} has {len(masses.weights)} bytes of weights and {len(masses.ids)} of ids, "
            "expected 4 of each for every token"
        )
    if not math.isfinite(masses.total):
        raise WireError(f"malformed message: {field}: total {masses.total} is not finite")


def _check_features(field: str, features: bytes, tokens: int) -> None:
    if not features or not tokens or len(features) % tokens or len(features) > tokens * MAX_FEATURE_BYTES:
        raise WireError(
            f"malformed message: {field} has {len(features)} bytes for {tokens} tokens, expected as many for each, at "
            f"most {MAX_FEATURE_BYTES}"
        )


def parents_of(draft: Draft) -> list[int]:
    """Return the parent of every draft node, also where the draft is a chain."""
    return list(range(ROOT, len(draft.tokens) - 1)) if draft.parents is None else list(draft.parents)


def prefix_of(prompt: str) -> bytes:
    """Return the 8 bytes that name how a prompt begins: verifiers share keys and values of equal beginnings."""
    return hashlib.blake2b(prompt[:PREFIX_CHARS].encode(), digest_size=8).digest()


def frames_of(jpeg: Jpegs) -> tuple[bytes, ...]:
    """Return the frames of a question, the oldest first; the one empty frame of a question in words is one too."""
    return (jpeg,) if isinstance(jpeg, bytes) else jpeg


def jpeg_of(frames: Sequence[bytes]) -> Jpegs:
    """Return frames, the oldest first, as a question carries them: one alone, several as a tuple."""
    return frames[0] if len(frames) == 1 else tuple(frames)


def begin_digest(
    prompt: str,
    jpeg: Jpegs,
    sampling: str = "greedy",
    key: int = 0,
    grammar: Grammar = Grammar.FREE,
    schema: str = "",
) -> bytes:
    """Return the 8-byte digest of an empty answer: all that shapes it, in `BeginStep` and `Hello.sampling`."""
    text = prompt.encode()
    frames = frames_of(jpeg)
    head = struct.pack("<IIIQB", PROTOCOL, len(text), len(sampling), key, grammar)
    sizes = struct.pack(f"<I{len(frames)}I", len(frames), *map(len, frames))
    return hashlib.blake2b(
        b"".join((head, text, sampling.encode(), sizes, *frames, schema.encode())), digest_size=8
    ).digest()


def extend_digest(digest: bytes, tokens: list[int]) -> bytes:
    """Return the digest after `tokens`; extending token by token or all at once gives the same value."""
    for token in tokens:
        digest = hashlib.blake2b(digest + struct.pack("<I", token), digest_size=8).digest()
    return digest
