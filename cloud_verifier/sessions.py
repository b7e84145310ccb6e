"""Keeps who is connected, on which engine row, and refuses who cannot be served. Times are in seconds."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from cloud_verifier.interfaces import ModelInfo
from speculation.language.prompts import asked_form
from speculation.machine_info import machine_id
from speculation.sampling import GREEDY, SamplingScheme
from speculation.service_classes import INTERACTIVE, service_class
from speculation.wire import (
    PROTOCOL,
    AnyMessage,
    Fault,
    FaultCode,
    Hello,
    Welcome,
    WireError,
    check_tokens,
    decode,
    encode,
)

SILENT_S = 6.0
"""An edge pings four times a second. A session that was silent for so long is closed when a new one needs its row."""


@dataclass
class Session:
    """A session is one robot's connection, with what is known of it. Times are seconds."""

    number: int
    """Names it in logs."""
    token: str
    """Resumes it, so it is a secret."""
    index: int
    """Names its row in the engine."""
    peer: bytes | None
    """None where its edge is gone."""
    last_seen: float
    """When something last came or was sent."""
    last_received: float
    told_at: float = 0.0
    """When its robot was last told that its step is worked on."""
    client: str = ""
    """Names the key that its robot has; empty where there are no keys."""
    sampling: SamplingScheme = GREEDY
    service_class: str = INTERACTIVE.name
    features: bool = False
    """Whether its robot may draft from the target's features."""

    @property
    def name(self) -> str:
        """Return what it is called in the log: its number and, where there are keys, whose it is."""
        return f"session {self.number} ({self.client})" if self.client else f"session {self.number}"

    @property
    def user(self) -> str | int:
        """Return by what its quotas are counted: its client or, without keys, itself."""
        return self.client or self.number


def message_of(frames: Sequence[bytes]) -> AnyMessage:
    """Return the message that came in these frames. Raises WireError for more than one frame, or for no message."""
    if len(frames) != 1:
        raise WireError("malformed message: more than one frame, expected 1")
    return decode(frames[0])


def refusal(hello: Hello, model: ModelInfo) -> Fault | None:
    """Return why this model cannot serve that edge, None where it can."""
    if hello.protocol != PROTOCOL:
        text = f"Hello.protocol {hello.protocol}: this verifier has {PROTOCOL}; install the same version"
        return Fault(FaultCode.PROTOCOL_MISMATCH, text)
    if hello.tokenizer != model.tokenizer_fingerprint:
        text = (
            f"Hello.tokenizer {hello.tokenizer!r} is not the target's {model.tokenizer_fingerprint!r}; "
            "draft and target must share one tokenizer (`python -m speculation.vlm inspect` shows which do)"
        )
        return Fault(FaultCode.TOKENIZER_MISMATCH, text)
    if hello.vocabulary != model.vocabulary:
        text = f"Hello.vocabulary {hello.vocabulary} is not the target's {model.vocabulary} (length of the tokenizer)"
        return Fault(FaultCode.TOKENIZER_MISMATCH, text)
    if hello.model and hello.model != model.fingerprint:
        text = f"Hello.model {hello.model!r} is not served here; this verifier has {model.fingerprint!r} ({model.name})"
        return Fault(FaultCode.MODEL_MISMATCH, text)
    if hello.features and hello.features != model.features:
        has = f"has {model.features!r}" if model.features else "has none"
        text = (
            f"Hello.features {hello.features!r}: this verifier {has}; start it with --fed-head and the folder of the "
            "robot's fed head, or let the robot draft with its draft model"
        )
        return Fault(FaultCode.MODEL_MISMATCH, text)
    try:
        SamplingScheme.parse(hello.sampling)
    except ValueError as error:
        return Fault(FaultCode.UNSUPPORTED_SAMPLING, f"Hello.sampling: {error}")
    try:
        service_class(hello.service_class)
    except ValueError as error:
        return Fault(FaultCode.MALFORMED, f"Hello.service_class: {error}")
    return None


def welcome(token: str, model: ModelInfo, max_draft: int, profile: str, server_draft: bool = False) -> Welcome:
    """Return what describes this verifier to the edge of the session with this token.

    That is its model, the name of a declared profile, and whether a draft model stands beside the target.
    """
    return Welcome(
        session=token,
        model=model.fingerprint,
        tokenizer=model.tokenizer_fingerprint,
        vocabulary=model.vocabulary,
        num_layers=model.num_layers,
        exit_layers=list(model.exit_layers),
        eos=list(model.eos),
        max_draft=max_draft,
        profile=profile,
        colours=list(model.objects.colours) if model.objects is not None else [],
        classes=list(model.objects.classes) if model.objects is not None else [],
        form=asked_form(model.objects),
        machine=machine_id(),
        sight=model.sight,
        server_draft=server_draft,
        thinking=model.thinking,
        repetition_penalty=model.repetition_penalty,
    )


def check_welcome(model: ModelInfo, max_draft: int, profile: str) -> None:
    """Raise ValueError, naming the field, for a verifier whose `Welcome` no edge could read."""
    try:
        check_tokens(decode(encode(welcome("", model, max_draft, profile))), model.vocabulary)
    except WireError as error:
        text = str(error).removeprefix("malformed message: ")
        raise ValueError(f"no robot could read what this verifier is ({text}); change that of {model.name}") from None


class SessionTable:
    """The table has at most `limit` sessions, one a peer, each on an engine row."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.opened = 0
        self._sessions: dict[int, Session] = {}
        self._peers: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def all(self) -> tuple[Session, ...]:
        return tuple(self._sessions.values())

    @property
    def full(self) -> bool:
        return len(self._sessions) >= self.limit

    def of_peer(self, peer: bytes) -> Session | None:
        return self._peers.get(peer)

    def of_index(self, index: int) -> Session | None:
        return self._sessions.get(index)

    def of_client(self, client: str) -> list[Session]:
        """Return a client's sessions, the one that was silent for longest first."""
        return sorted((s for s in self._sessions.values() if s.client == client), key=lambda s: s.last_received)

    def of_token(self, token: str) -> Session | None:
        """Return the session that a resume token names."""
        found = (s for s in self._sessions.values() if secrets.compare_digest(s.token.encode(), token.encode()))
        return next(found, None) if token else None

    def open(self, peer: bytes, now: float, row: int | None = None, client: str = "") -> Session:
        """Return a new session for `peer`, with the key of `client`, on a free row, on `row` if that is free.

        Raises ValueError where the table is full.
        """
        rows = range(self.limit) if row is None else (row, *range(self.limit))
        index = next((index for index in rows if index not in self._sessions), None)
        if index is None:
            raise ValueError(f"all {self.limit} sessions are taken")
        self.opened += 1
        session = Session(self.opened, secrets.token_hex(8), index, peer, now, now, client=client)
        self._sessions[index] = self._peers[peer] = session
        return session

    def attach(self, session: Session, peer: bytes, now: float) -> None:
        """Continue a session at a new address."""
        self.detach(session)
        session.peer, session.last_seen, session.last_received = peer, now, now
        self._peers[peer] = session

    def detach(self, session: Session) -> None:
        """Note that its peer is gone; the session stays, to be resumed or to expire."""
        if session.peer is not None:
            self._peers.pop(session.peer, None)
            session.peer = None

    def close(self, session: Session) -> None:
        """Drop a session; its row is free."""
        self.detach(session)
        self._sessions.pop(session.index, None)
