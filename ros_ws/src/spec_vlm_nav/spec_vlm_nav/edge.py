"""The edge of one robot: draft model, link and drafter tied together; asks for text, gets the target's text."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from spec_vlm_nav.link import LinkConfig, ZmqLink, load_keys
from spec_vlm_nav.navigator import AnswerLate, Reply, VerifierLost
from speculation.drafting.config import DraftingConfig, Mode
from speculation.drafting.drafter import Drafter
from speculation.drafting.model import DraftModel, PacedModel
from speculation.drafting.stats import Interruption, StepInterrupted, StepRequest, StepResult
from speculation.profile import RAW, load_profile
from speculation.trace import Trace
from speculation.vlm.load import load_vlm
from speculation.vlm.session import VlmSession
from speculation.wire import Hello, Welcome


@dataclass(frozen=True)
class EdgeConfig:
    """Settings of an edge.

    draft_model: model folder. verifier: ZeroMQ address. profile: name in config/profiles.json; its delays are waited
    for. keys: folder of CURVE keys, empty for plain TCP. gamma: draft tokens per verification. target: fingerprint of
    the only target that is acceptable, empty for any. resume_s: how long an interrupted answer waits for the link
    before it is given up. capacity: tokens of prompt, image and answer that fit.
    """

    draft_model: Path
    verifier: str = "tcp://127.0.0.1:5555"
    mode: str = "fsd"
    profile: str = "raw"
    keys: str = ""
    gamma: int = 4
    threads: int = 1
    max_tokens: int = 128
    dtype: str = "float32"
    target: str = ""
    silence_s: float = 1.5
    resume_s: float = 1.0
    capacity: int = 2048


class EdgeDecoder:
    """Answers one question at a time, from one thread. Satisfies `spec_vlm_nav.navigator.Decoder`."""

    def __init__(self, config: EdgeConfig, trace: Trace | None = None) -> None:
        """Loads the draft model and starts connecting; does not wait for the verifier.

        Raises ValueError for a missing model folder, an unknown mode or profile, or unusable keys.
        """
        self.config = config
        self.profile = RAW if config.profile in ("", RAW.name) else load_profile(config.profile)
        self.trace = trace if trace is not None else Trace()
        DraftingConfig.of(config.mode, gamma=config.gamma)
        self.vlm = load_vlm(config.draft_model, dtype=config.dtype, threads=config.threads)
        model: DraftModel = VlmSession(self.vlm, config.capacity)
        self._model = model if self.profile.draft_s == 0 else PacedModel(model, self.profile.draft_s)
        self._step = time.time_ns() // 1_000_000_000 % 2**31
        self._drafters: dict[Mode, Drafter] = {}
        self.link: ZmqLink | None = None
        if Mode(config.mode) is not Mode.EDGE:
            self.link = ZmqLink(
                LinkConfig(
                    config.verifier,
                    Hello(self.vlm.tokenizer_fingerprint, self.vlm.vocabulary, model=config.target),
                    keys=load_keys(Path(config.keys)) if config.keys else None,
                    one_way_s=self.profile.one_way_s,
                    silent_s=max(config.silence_s, 2 * self.profile.verify_s),
                )
            )

    def decode(self, prompt: str, jpeg: bytes, deadline_s: float | None = None, mode: str | None = None) -> StepResult:
        """Return the answer's tokens; `mode` decodes this one step in another mode (all but `edge` need a link).

        Raises VerifierLost or AnswerLate, in one sentence, or ValueError for a frame or prompt that cannot be used.
        """
        chosen = Mode(mode or self.config.mode)
        if chosen is Mode.EDGE:
            return self._run(chosen, StepRequest(0, prompt, jpeg, self.vlm.eos, self.config.max_tokens, deadline_s))
        until = time.monotonic() + (3600.0 if deadline_s is None else deadline_s)
        committed: tuple[int, ...] = ()
        before: StepInterrupted | None = None
        while True:
            welcome = self._welcome(before, until)
            self._step += 1
            left = max(0.001, until - time.monotonic())
            request = StepRequest(self._step, prompt, jpeg, tuple(welcome.eos), self.config.max_tokens, left, committed)
            try:
                result = self._run(chosen, request)
            except StepInterrupted as interrupted:
                if before is not None:
                    interrupted.stats.add(before.stats)
                if interrupted.cause is Interruption.DEADLINE:
                    raise AnswerLate(str(interrupted)) from None
                if interrupted.cause is not Interruption.LINK_LOST:
                    raise VerifierLost(str(interrupted)) from None
                before, committed = interrupted, interrupted.committed
                continue
            if before is not None:
                result.stats.add(before.stats)
            return result

    def answer(self, prompt: str, jpeg: bytes, deadline_s: float) -> Reply:
        """Return the answer as text, with its figures. Raises as `decode`."""
        result = self.decode(prompt, jpeg, deadline_s)
        return Reply(self.text(result.tokens), result.stats, self.profile.name, *self.link_figures())

    def text(self, tokens: tuple[int, ...]) -> str:
        """Return the words of an answer, without end tokens."""
        return str(self.vlm.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def link_figures(self) -> tuple[str, float]:
        """Return the link's state in a word and its round trip in seconds (negative if unknown)."""
        if self.link is None:
            return "", -1.0
        rtt = self.link.rtt_s
        return self.link.state.value, -1.0 if rtt is None else rtt

    def close(self) -> None:
        """Close the link."""
        if self.link is not None:
            self.link.close()

    def _welcome(self, before: StepInterrupted | None, until: float) -> Welcome:
        if self.link is None:
            raise VerifierLost("this edge was started in mode edge, without a link")
        nominal = self.link.wait_nominal(min(self.config.resume_s, max(0.0, until - time.monotonic())))
        welcome = self.link.welcome
        if not nominal or welcome is None:
            raise VerifierLost(self.link.why if before is None else str(before))
        return welcome

    def _run(self, mode: Mode, request: StepRequest) -> StepResult:
        drafter = self._drafters.get(mode)
        if drafter is None:
            settings = DraftingConfig.of(mode, gamma=self.config.gamma)
            link = None if mode is Mode.EDGE else self.link
            drafter = self._drafters[mode] = Drafter(self._model, link, settings, trace=self.trace)
        result = drafter.run(request)
        result.stats.mode = mode.value
        return result
