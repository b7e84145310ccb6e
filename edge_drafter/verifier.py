"""The verifier of a robot: how long it is waited for, and whether it fits the robot's settings."""

from __future__ import annotations

import logging
from collections.abc import Callable

from edge_drafter.link import LinkState, ZmqLink
from edge_drafter.question import Cancelled, VerifierLost, VerifierRefused
from edge_drafter.settings import Decoding, EdgeConfig, Mode
from speculation.text import printable
from speculation.wire import Welcome

_log = logging.getLogger(__name__)


class Verifier:
    """The verifier at the other end of a link, as `config` needs it. `link` is None in mode edge."""

    def __init__(self, config: EdgeConfig, link: ZmqLink | None) -> None:
        self.link = link
        self._config = config
        self._known_target = ""

    @property
    def patience_s(self) -> float:
        """How long a step waits for a lost or full verifier.

        Where another one may go on, that is for longer than it takes to find it: the gateway may send the robot once
        more to one that is frozen, which only its silence shows.
        """
        way = self._config.connection
        elsewhere = self.link is not None and self.link.has_elsewhere
        return max(way.resume_s, way.resume_elsewhere_s) if elsewhere else way.resume_s

    def connected(self, limit_s: float, cancelled: Callable[[], bool], why: str = "") -> tuple[ZmqLink, Welcome]:
        """Return the link and the verifier's Welcome, after at most `limit_s` seconds.

        Raises VerifierLost, for the reason `why` if given, VerifierRefused where it refuses this robot or does not fit,
        and Cancelled soon after `cancelled` returns True.
        """
        link = self.link
        if link is None:
            raise VerifierLost("this edge was started in mode edge, without a link; start it in the mode that you want")
        nominal = link.wait_nominal(max(0.0, limit_s), cancelled)
        if cancelled():
            raise Cancelled("nobody waits for the verifier any more")
        welcome = link.welcome
        if not nominal or welcome is None:
            if link.state is LinkState.REFUSED:
                raise VerifierRefused(link.why)
            raise VerifierLost(why or link.why)
        self._check(welcome)
        return link, welcome

    def is_new_target(self, welcome: Welcome, expected: str | None) -> bool:
        """Whether another target answers than before; warns of one that is not `expected`."""
        if expected is not None and self._known_target != welcome.model != expected:
            _log.warning(
                "the predictor was trained for target %s, the verifier serves %s: drafts may end badly",
                expected,
                printable(welcome.model, 64),
            )
        decoding = self._config.decoding
        if self._known_target != welcome.model and welcome.thinking is not None:
            log = _log.warning if decoding.max_tokens <= Decoding().max_tokens else _log.info
            log("the target thinks before it answers; max_tokens %d is for both", decoding.max_tokens)
        is_new = self._known_target not in ("", welcome.model)
        self._known_target = welcome.model
        return is_new

    def _check(self, welcome: Welcome) -> None:
        config = self._config
        taken = welcome.sight.frames if welcome.sight is not None else 1
        if config.frames > taken:
            raise VerifierRefused(
                f"frames is {config.frames}, but the verifier's model takes {taken} a question; set frames to {taken}, "
                f"or start the verifier with --frames {config.frames}"
            )
        if config.decoding.mode == Mode.SERVER_SD.value and not welcome.server_draft:
            raise VerifierRefused(
                "mode server_sd needs a draft model beside the verifier's target, and this verifier has none: start it "
                "with --draft-model FOLDER (server_draft:=FOLDER of its launch file), or choose another mode"
            )
