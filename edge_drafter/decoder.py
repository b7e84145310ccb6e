"""EdgeDecoder: draft model, link and drafter of one robot; a frame and a question in, a committed answer out."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_drafter import (
    DecodingStats,
    Drafter,
    DraftingConfig,
    DraftModel,
    Interruption,
    Mode,
    PacedModel,
    StepInterrupted,
    StepRequest,
    StepResult,
)
from edge_drafter.link import LinkConfig, LinkState, ZmqLink, check_verifier, load_keys
from edge_drafter.reply import AnswerLate, Reply, VerifierLost, VerifierRefused
from speculation.emulation import LinkConditions, declared_name, load_link
from speculation.predictor import AUTO, Predictor, find
from speculation.profile import load_profile
from speculation.prompts import Vocabulary
from speculation.sampling import GREEDY, MAX_KEY, SamplingSettings, question_key
from speculation.trace import Trace
from speculation.vlm.load import Vlm, load_vlm
from speculation.vlm.session import VlmSession
from speculation.vlm.speed import announce
from speculation.wire import FaultCode, Hello, Welcome

_log = logging.getLogger(__name__)
BAD_REQUEST = (FaultCode.BAD_IMAGE, FaultCode.TOO_LARGE)
FOREVER_S = 3600.0
MAX_RTT_S = 10.0


@dataclass(frozen=True)
class EdgeConfig:
    """What one robot decodes with. `keys` is a folder of CURVE keys, empty for plain TCP.

    draft_model: a folder, or a name on the hub. device to allow_download: how it is loaded, see `ModelSettings`.
    gamma: draft tokens per verification, or "auto" or "balance". drafting: what a mode that drafts does otherwise than
    it is known for, "NAME=VALUE,...", see `read_changes`. target: fingerprint that the verifier must have, empty for
    any. silence_s: hearing nothing for so long is a lost link.
    resume_s: how long a step waits for a lost verifier before it is given up. capacity: cache slots of the draft
    model: image and prompt, answer and token tree must fit. link: the link of config/links.json whose conditions are
    emulated, empty for none; the profile's communication time comes on top of its delays. rtt_s: round trip declared
    in place of the profile's own. extra_rtt_s: one on top of it; half of them each way. text_only: the draft model is a
    language model alone and is asked with an empty frame (benchmarks; a robot has none). predictor: what ends drafts
    at the first predicted rejection: a folder, "auto" for the one in the draft model's folder if there is one, "off"
    for none. sampling: how tokens are drawn, "greedy", "coupled(temperature=0.7,top_k=50,top_p=0.9)" or another rule
    of `SamplingSettings`. seed: of the draws, 0 to 2^63 - 1; the n-th question to two decoders of one seed is drawn
    alike. allow_plain: without keys, trust a verifier on another machine all the same.
    """

    draft_model: Path
    verifier: str = "tcp://127.0.0.1:5555"
    mode: str = Mode.FULL.value
    profile: str = "raw"
    keys: str = ""
    gamma: int | str = 4
    drafting: str = ""
    threads: int = 1
    max_tokens: int = 128
    target: str = ""
    device: str = "cpu"
    dtype: str = "float32"
    attention: str = "sdpa"
    quantisation: str = "none"
    min_pixels: int = 0
    max_pixels: int = 0
    allow_download: bool = False
    capacity: int = 2048
    silence_s: float = 1.5
    resume_s: float = 1.0
    link: str = ""
    rtt_s: float | None = None
    extra_rtt_s: float = 0.0
    text_only: bool = False
    predictor: str = AUTO
    sampling: str = GREEDY.text
    seed: int = 0
    allow_plain: bool = False

    def __post_init__(self) -> None:
        for name in ("rtt_s", "extra_rtt_s"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value <= MAX_RTT_S:
                raise ValueError(f"{name} is {value}; give 0 to {MAX_RTT_S:g} seconds")
        self.settings(self.mode).check_sampling(SamplingSettings.parse(self.sampling))
        if not 0 <= self.seed <= MAX_KEY:
            raise ValueError(f"seed is {self.seed}; give 0 to 2^63 - 1")
        if self.settings(self.mode).needs_link:
            # Here too, since the link is made after the models are loaded, which takes a minute on a robot.
            check_verifier(self.verifier, bool(self.keys), self.allow_plain)

    def settings(self, mode: Mode | str, **more: Any) -> DraftingConfig:
        """Return the drafting settings of `mode` with this robot's changes. A mode that drafts nothing takes none."""
        return DraftingConfig.of(mode, self.drafting, gamma=self.gamma, **more)


class EdgeDecoder:
    """Decodes one step at a time. Satisfies `spec_vlm_nav.navigator.Decoder`."""

    def __init__(
        self,
        config: EdgeConfig,
        trace: Trace | None = None,
        on_state: Callable[[LinkState, str], None] | None = None,
        vlm: Vlm | None = None,
        conditions: LinkConditions | None = None,
    ) -> None:
        """Load the draft model and start connecting, without waiting for the verifier; mode `edge` has no link.

        `on_state` hears how the link is, in the link's thread. `vlm`: the draft model where it is loaded already;
        several decoders may share it. `conditions`: a link that has no name, in place of the config's.

        Raises ValueError, in one sentence, for a model folder, predictor, profile, link, mode, address or keys that
        cannot be used.
        """
        self.config = config
        self.profile = load_profile(config.profile or "raw")
        one_way = self.profile.one_way_s if config.rtt_s is None else config.rtt_s / 2.0
        named = conditions if conditions is not None else load_link(config.link)
        self.conditions = named.delayed(one_way + config.extra_rtt_s / 2.0)
        needs_link = config.settings(config.mode).needs_link
        keys = load_keys(Path(config.keys)) if config.keys else None
        self.trace = trace if trace is not None else Trace()
        self.vlm = vlm or self._load(config)
        folder = find(config.predictor, self.vlm.folder)
        self.predictor = Predictor.load(folder, self.vlm.fingerprint) if folder is not None else None
        session = VlmSession(self.vlm, config.capacity)
        self._model: DraftModel = (
            PacedModel(session, self.profile.draft_s, layers=self.vlm.num_layers) if self.profile.draft_s else session
        )
        # Grows from start to start too, so that a session taken up again never meets an old step's number.
        self._step = time.time_ns() // 1_000_000_000 % 2**31
        self._questions = 0
        self.sampling = SamplingSettings.parse(config.sampling)
        if self.sampling.note:
            _log.warning("sampling %s: %s", self.sampling.text, self.sampling.note)
        self._lock = threading.Lock()
        self._drafters: dict[tuple[Mode, int], Drafter] = {}
        self._told_profile = self.profile.name
        self._told_target = ""
        self._own_objects = Vocabulary.load(self.vlm.folder)
        self.link: ZmqLink | None = None
        if needs_link:
            self.link = ZmqLink(
                LinkConfig(
                    config.verifier,
                    Hello(self.vlm.tokenizer_fingerprint, self.vlm.vocabulary, config.target, self.sampling.text),
                    keys,
                    self.conditions,
                    silent_s=max(config.silence_s, 2.0 * self.profile.verify_s),
                    allow_plain=config.allow_plain,
                ),
                on_state,
            )

    @staticmethod
    def _load(config: EdgeConfig) -> Vlm:
        vlm = load_vlm(
            config.draft_model,
            device=config.device,
            dtype=config.dtype,
            threads=config.threads,
            attention=config.attention,
            quantisation=config.quantisation,
            min_pixels=config.min_pixels,
            max_pixels=config.max_pixels,
            allow_download=config.allow_download,
        )
        if vlm.sees_images == config.text_only:
            raise ValueError(
                f"draft model {vlm.name} sees images, text_only wants a language model alone; leave text_only out"
                if config.text_only
                else f"draft model {vlm.name} is a language model alone; choose one that sees"
            )
        announce(vlm, _log)
        return vlm

    @property
    def declared(self) -> str:
        """What is declared and waited for, in a word: the device profile, and the link where one is emulated."""
        return declared_name(self.profile.name, self.conditions.name if self.link is not None else "")

    @property
    def problem(self) -> str:
        """Why the verifier refuses this robot, in a sentence; empty where it does not."""
        return self.link.why if self.link is not None and self.link.state is LinkState.REFUSED else ""

    def decode(self, prompt: str, jpeg: bytes, deadline_s: float | None = None, mode: str | None = None) -> StepResult:
        """Return the answer's tokens; `mode` decodes this one step in another mode (all but `edge` need a link).

        A lost link is taken up again where the answer stood, if it comes back within `resume_s` seconds. Raises
        VerifierLost when the verifier cannot be reached or refuses, AnswerLate after `deadline_s` seconds, ValueError
        for a frame or prompt that cannot be used, or where drafting fails; the sentence says which.
        """
        chosen = Mode(mode or self.config.mode)
        limit = FOREVER_S if deadline_s is None else deadline_s
        with self._lock:
            return self._decode(prompt, jpeg, limit, chosen)

    def objects(self, limit_s: float) -> Vocabulary | None:
        """Return the objects that the model which answers was trained to find; None where it takes any instruction.

        The target's, as the verifier reports them; in mode `edge` the draft model's own. Waits for a lost verifier as
        `decode` does, at most `limit_s` seconds. Raises VerifierLost where it cannot be reached or refuses.
        """
        if Mode(self.config.mode) is Mode.EDGE:
            return self._own_objects
        _, welcome = self._met(limit_s)
        return Vocabulary.of(welcome.colours, welcome.classes)

    def answer(self, prompt: str, jpeg: bytes, deadline_s: float) -> Reply:
        """Return the answer as text, with its figures. Raises as `decode`."""
        result = self.decode(prompt, jpeg, deadline_s)
        return Reply(self.text(result.tokens), result.stats, self.declared, *self.link_figures())

    def text(self, tokens: tuple[int, ...]) -> str:
        """Return the words of an answer, without the tokens that only mark its end."""
        return str(self.vlm.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def link_figures(self) -> tuple[str, float]:
        """Return the link's state in a word and its round trip in seconds (negative if unknown)."""
        if self.link is None:
            return "", -1.0
        rtt = self.link.rtt_s
        return self.link.state.value, -1.0 if rtt is None else rtt

    def close(self) -> None:
        """Close the link; safe to repeat."""
        if self.link is not None:
            self.link.close()

    def _decode(self, prompt: str, jpeg: bytes, limit: float, mode: Mode) -> StepResult:
        began = time.perf_counter()
        stats = DecodingStats(mode=mode.value)
        committed: tuple[int, ...] = ()
        key = 0 if self.sampling.greedy else question_key(self.config.seed, self._questions)
        self._questions += 1
        why = ""
        while True:
            eos, drafter = self._ready(mode, began + limit, stats, why)
            since = time.perf_counter() - began
            self._step += 1
            left = max(0.0, limit - since)
            request = StepRequest(
                self._step, prompt, jpeg, eos, self.config.max_tokens, left, committed, self.sampling, key
            )
            try:
                result = drafter.run(request)
            except StepInterrupted as stop:
                stats.add(stop.stats, since)
                committed, why = stop.committed, str(stop)
                if stop.cause is Interruption.DEADLINE:
                    raise AnswerLate(f"no complete answer within the deadline of {limit:g} s") from None
                if stop.code in BAD_REQUEST:
                    raise ValueError(why) from None
                if stop.cause in (Interruption.UNREADABLE, Interruption.FAILED):
                    raise ValueError(f"{stop.cause.value}: {why}") from stop
                if stop.cause is not Interruption.LINK_LOST:
                    raise VerifierLost(why) from None
                _log.warning("step %d interrupted after %d tokens: %s", self._step, len(committed), why)
            else:
                stats.add(result.stats, since)
                stats.total_s = time.perf_counter() - began
                return StepResult(result.tokens, stats)

    def _ready(self, mode: Mode, until: float, stats: DecodingStats, why: str) -> tuple[tuple[int, ...], Drafter]:
        """Return the answer's end tokens and the drafter, after waiting for the link if the mode needs one."""
        if mode is Mode.EDGE:
            return self.vlm.eos, self._drafter(mode, None, 0)
        started = time.perf_counter()
        link, welcome = self._met(until - started, why)
        stats.wait_s += time.perf_counter() - started
        self._compare_profiles(welcome)
        self._compare_targets(welcome)
        most = min(welcome.max_draft, self.sampling.draft_limit(welcome.vocabulary))
        return tuple(welcome.eos), self._drafter(mode, link, most)

    def _met(self, limit_s: float, why: str = "") -> tuple[ZmqLink, Welcome]:
        """Return the link and what the verifier says about itself. Raises VerifierLost, for the reason `why` if given.

        Waits at most `resume_s` and `limit_s` seconds.
        """
        link = self.link
        if link is None:
            raise VerifierLost("this edge was started in mode edge, without a link; start it in the mode that you want")
        nominal = link.wait_nominal(max(0.0, min(self.config.resume_s, limit_s)))
        welcome = link.welcome
        if not nominal or welcome is None:
            if link.state is LinkState.REFUSED:
                raise VerifierRefused(link.why)
            raise VerifierLost(why or link.why)
        return link, welcome

    def _drafter(self, mode: Mode, link: ZmqLink | None, max_draft: int) -> Drafter:
        """Return the mode's drafter, whose estimates outlive a step."""
        drafter = self._drafters.get((mode, max_draft))
        if drafter is None:
            config = self._drafting(mode)
            drafter = Drafter(
                self._model, link, config, trace=self.trace, max_draft=max_draft, predictor=self.predictor
            )
            self._drafters[mode, max_draft] = drafter
        return drafter

    def _drafting(self, mode: Mode | str) -> DraftingConfig:
        stop_below = self.predictor.threshold if self.predictor is not None else 0.0
        return self.config.settings(mode, stop_below=stop_below)

    def _compare_targets(self, welcome: Welcome) -> None:
        if self.predictor is not None and self._told_target != welcome.model != self.predictor.target:
            _log.warning(
                "the predictor was trained for target %s, the verifier serves %s: drafts may end badly",
                self.predictor.target,
                welcome.model,
            )
        self._told_target = welcome.model

    def _compare_profiles(self, welcome: Welcome) -> None:
        if welcome.profile not in (self.profile.name, self._told_profile):
            _log.warning(
                "this robot declares profile %s but the verifier %s: times are neither's",
                self.profile.name,
                welcome.profile or "none",
            )
        self._told_profile = welcome.profile
