"""Passes messages between the thread that decodes a step and the link's own, and reports the link's state."""

from __future__ import annotations

import logging
import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from enum import Enum

from edge_drafter.protocols import Clock, LinkLost, VerifierBusy
from speculation.text import printable
from speculation.wire import (
    MAX_MESSAGE_BYTES,
    AnyMessage,
    BeginStep,
    EndStep,
    WireError,
    check_tokens,
    decode,
    encode,
    prefix_of,
)

_log = logging.getLogger(__name__)
INBOX_MESSAGES, INBOX_BYTES = 1024, 2 * MAX_MESSAGE_BYTES
"""What waits for the step; more is dropped, and a lost commit is sent again on demand."""
LOOK_S = 0.02
"""How often who waits for the link looks whether that is still wanted."""
MALFORMED_LOG_S = 1.0


class LinkState(str, Enum):
    """How the link is. Only in NOMINAL can a step begin."""

    CONNECTING = "connecting"
    NOMINAL = "nominal"
    BUSY = "busy"
    SILENT = "silent"
    REFUSED = "refused"


class StepExchange(ABC):
    """The half of a link that the thread of a step uses, with what its own thread puts there.

    A step is bound to the session that stood when it began. What waits for it is bounded.
    """

    def __init__(self, changed: threading.Condition, clock: Clock, vocabulary: int, why: str) -> None:
        """`vocabulary` bounds the tokens of messages; `why` says what the link does at first."""
        self._changed = changed
        self._clock = clock
        self._vocabulary = vocabulary
        self.state, self.why = LinkState.CONNECTING, why
        """Say how the link is now, and why, in a sentence."""
        self.bytes_up = self.bytes_down = 0
        """Payload bytes of the steps' messages sent and received; pings and Hellos are not counted."""
        self._epoch = self._step_epoch = 0
        """The number of the session, and of that which the step began in."""
        self._prefix = b""
        """Names the beginning of the last prompt, by which a gateway finds a verifier that has read it."""
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._outbox: deque[bytes] = deque()
        self._step, self._step_ended = -1, False
        """The number of the step that was begun last, and whether this side has ended it."""
        self._turned_away = ""
        """Why a full verifier did not take that step; empty where it did."""
        self._malformed, self._malformed_at = 0, -math.inf

    def wait_nominal(self, timeout: float, cancelled: Callable[[], bool] = lambda: False) -> bool:
        """Return whether the link is nominal, at the latest after `timeout` seconds; a refusal is final for now.

        `cancelled` ends the wait within `LOOK_S`.
        """
        until = self._clock() + timeout
        with self._changed:
            while self.state not in (LinkState.NOMINAL, LinkState.REFUSED) and not cancelled():
                left = until - self._clock()
                if left <= 0.0:
                    break
                self._changed.wait(min(left, LOOK_S))
            return self.state is LinkState.NOMINAL

    def send(self, message: AnyMessage) -> None:
        """Queue a message; a `BeginStep` binds what follows to the session that stands now. Raises LinkLost.

        An `EndStep` may come from another thread than the step's, and is the last message of its step that is sent.
        """
        payload = encode(message)
        with self._changed:
            if isinstance(message, BeginStep):
                self._step_epoch = self._epoch
                self._inbox.clear()
                self._inbox_bytes = 0
                self._step, self._step_ended, self._turned_away = message.step, False, ""
                self._prefix = prefix_of(message.prompt)
            self._check()
            if self._step_ended and not isinstance(message, EndStep):
                return
            self.bytes_up += len(payload)
            self._outbox.append(payload)
            # Its thread may be late, and a newer step begun.
            if isinstance(message, EndStep) and message.step == self._step:
                self._step_ended = True
                self._changed.notify_all()
        self._wake()

    def receive(self, timeout: float) -> AnyMessage | None:
        """Return the next message of the step, None after `timeout` seconds. Raises LinkLost, with the reason.

        Where the step was ended here it waits for none.
        """
        until = self._clock() + timeout
        while True:
            with self._changed:
                while not self._inbox:
                    self._check()
                    left = until - self._clock()
                    if left <= 0.0 or self._step_ended:
                        return None
                    self._changed.wait(left)
                payload = self._inbox.popleft()
                self._inbox_bytes -= len(payload)
            try:
                message = decode(payload)
                check_tokens(message, self._vocabulary)
            except WireError as error:
                self._note_malformed(error)
            else:
                return message

    def _check(self) -> None:
        if self._turned_away:
            raise VerifierBusy(self._turned_away)
        if self.state is not LinkState.NOMINAL:
            raise LinkLost(self.why)
        if self._step_epoch != self._epoch:
            raise LinkLost("the verifier was restarted or lost this session; the step must begin again")

    # -- for the link's thread

    @abstractmethod
    def _wake(self) -> None:
        """Have the link's thread look at what is to be sent."""

    def _keep(self, payload: bytes) -> None:
        """Keep a message of the step for `receive`, as far as there is room."""
        with self._changed:
            if len(self._inbox) < INBOX_MESSAGES and self._inbox_bytes + len(payload) <= INBOX_BYTES:
                self.bytes_down += len(payload)
                self._inbox.append(payload)
                self._inbox_bytes += len(payload)
                self._changed.notify_all()

    def _note_malformed(self, error: WireError) -> None:
        """Log malformed messages, once a second at most."""
        now = self._clock()
        with self._changed:
            self._malformed += 1
            if now - self._malformed_at < MALFORMED_LOG_S:
                return
            self._malformed_at, count, self._malformed = now, self._malformed, 0
        _log.warning("ignored %d messages of the verifier, the last: %s", count, printable(str(error)))

    def _become(self, state: LinkState, why: str, turns_away: bool = False) -> None:
        """Change the state. `turns_away`: the step that was begun last is turned away."""
        with self._changed:
            if turns_away:
                self._turned_away = why
            if (state, why) == (self.state, self.why):
                return
            changed = state is not self.state
            self.state, self.why = state, why
            self._changed.notify_all()
        if changed:
            (_log.info if state is LinkState.NOMINAL else _log.warning)("link %s: %s", state.value, why)
