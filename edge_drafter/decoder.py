"""EdgeDecoder: draft models, link and drafters of one robot; a frame and a question in, a committed answer out."""

from __future__ import annotations

import gc
import logging
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import torch

from edge_drafter.background import Background
from edge_drafter.draft_models import DraftModels, LoadedDraft, load_draft_models
from edge_drafter.drafter import Drafter, sources_of
from edge_drafter.image_dependence import SwapTest, swap_test
from edge_drafter.link import LinkConfig, LinkState, ZmqLink, load_keys
from edge_drafter.question import CANCELLED, AnswerLate, Cancelled, Question, Reply, VerifierLost, VerifierRefused
from edge_drafter.settings import EdgeConfig, Mode
from edge_drafter.stats import DecodingStats
from edge_drafter.step import Interruption, StepInterrupted, StepRequest, StepResult
from edge_drafter.verifier import Verifier
from speculation.cancellation import Abandoned
from speculation.connection import give_back_memory
from speculation.language.grammar import FREE, grammar_for
from speculation.language.prompts import Vocabulary
from speculation.language.thinking import begun, reader
from speculation.links import declared_name, load_link
from speculation.logits_processors import RepetitionPenalty
from speculation.machine_info import machine_id
from speculation.profiles import load_profile
from speculation.sampling import question_key
from speculation.trace import Trace
from speculation.vlm.frame_size import reduced
from speculation.vlm.inputs import prepare
from speculation.vlm.model import Vlm
from speculation.wire import TRACE_BYTES, FaultCode, Hello, Jpegs, Welcome

_log = logging.getLogger(__name__)
BAD_REQUEST = (FaultCode.BAD_IMAGE, FaultCode.TOO_LARGE)
FOREVER_S = 3600.0
SWAP_TOKENS = 128
"""Tokens of an answer that a swap test drafts at most: each takes a row of logits, and thinking is long."""


def _never() -> bool:
    return False


class EdgeDecoder:
    """Decodes one step at a time. Satisfies `spec_vlm_nav.navigator.Decoder`."""

    def __init__(self, config: EdgeConfig, trace: Trace | None = None, vlm: LoadedDraft | None = None) -> None:
        """Load the draft model and start connecting, without waiting for the verifier; mode `edge` has no link.

        `vlm`: the draft model where it is loaded already; several decoders may share it.

        Raises ValueError, in one sentence, for a model folder, predictor, profile, link, mode, address or keys that
        cannot be used.
        """
        self.config = config
        self.profile = load_profile(config.profile or "raw")
        way = config.connection
        one_way = self.profile.one_way_s if way.rtt_s is None else way.rtt_s / 2.0
        self.conditions = load_link(way.link).delayed(one_way + way.extra_rtt_s / 2.0)
        keys = load_keys(Path(way.keys)) if way.keys else None
        self.trace = trace if trace is not None else Trace()
        models = load_draft_models(config, self.profile, vlm)
        self._models: DraftModels | None = models
        self._objects, self._tokenizer = models.objects, models.loaded.tokenizer
        self._read = reader(models.loaded.tokenizer, constrained=models.grammars is not None)
        self._own_thinking = self._thinking = models.loaded.thinking
        """How the draft model, and the one that answered last, think before they answer."""
        # Grows from start to start too, so that a resumed session never meets an old step's number.
        self._step = time.time_ns() // 1_000_000_000 % 2**31
        self._questions = 0
        self.sampling = config.draws.settings
        if self.sampling.note:
            _log.warning("sampling %s: %s", self.sampling.text, self.sampling.note)
        self._decoding = threading.Lock()
        self._wanted = threading.Event()
        """A question waits for the draft model."""
        self._asking = threading.Lock()
        self._question: Question | None = None
        self._worker = ThreadPoolExecutor(1, "question")
        self._background: Background | None = None
        self._drafters: dict[tuple[Mode, int], Drafter] = {}
        self.link: ZmqLink | None = None
        if config.decoding.settings(config.decoding.mode).needs_link:
            self._background = Background()
            hello = Hello(
                models.loaded.tokenizer_fingerprint, models.loaded.vocabulary, way.target, self.sampling.text,
                way.service_class, features=models.features,
            )  # fmt: skip
            silent_s = max(way.silence_s, 2.0 * self.profile.verify_s)
            self.link = ZmqLink(
                LinkConfig(way.verifier, hello, keys, self.conditions, silent_s=silent_s, allow_plain=way.allow_plain)
            )
        self._verifier = Verifier(config, self.link)

    @property
    def models(self) -> DraftModels:
        """The draft models. Raises RuntimeError after `close`."""
        if self._models is None:
            raise RuntimeError("this decoder is closed")
        return self._models

    @property
    def declared(self) -> str:
        """What is declared and waited for: the device profile, and the link where one is emulated."""
        return declared_name(self.profile.name, self.conditions.name if self.link is not None else "")

    @property
    def problem(self) -> str:
        """Why the verifier refuses this robot, in a sentence; empty where it does not."""
        return self.link.why if self.link is not None and self.link.state is LinkState.REFUSED else ""

    def connect(self, limit_s: float, cancelled: Callable[[], bool] = _never) -> Welcome:
        """Wait for the verifier at most `limit_s` seconds and return its Welcome.

        Raises VerifierLost, VerifierRefused where it refuses this robot, both with the reason, and Cancelled soon after
        `cancelled` returns True.
        """
        return self._verifier.connected(limit_s, cancelled)[1]

    def ask(self, prompt: str, jpeg: Jpegs, deadline_s: float, mode: str | None = None) -> Question:
        """Begin to decode in a thread of the decoder's and return at once; `Question.result` is the answer.

        A question that still runs is cancelled, as a BeginStep supersedes the step before; this one waits, within its
        deadline, only until the draft model is free. Raises ValueError for an unknown mode, RuntimeError after `close`.
        """
        chosen = Mode(mode or self.config.decoding.mode)
        with self._asking:
            _ = self.models  # raises where the decoder is closed
            if self._question is not None:
                self._question.cancel()
            question = self._question = Question(self._read)
            self._worker.submit(self._pursue, question, prompt, jpeg, deadline_s, chosen)
        return question

    def decode(self, prompt: str, jpeg: Jpegs, deadline_s: float | None = None, mode: str | None = None) -> StepResult:
        """Return the answer's tokens; `mode` decodes this one step in another mode (all but `edge` need a link).

        After a lost link the answer goes on where it stood, if the link comes back within `resume_s` seconds, or
        another verifier is found within `resume_elsewhere_s`. Raises VerifierLost when the verifier cannot be reached
        or refuses, its target cannot answer within `max_tokens`, or another one takes over that thinks otherwise,
        AnswerLate after `deadline_s` seconds, ValueError for a frame or prompt that cannot be used, or where drafting
        fails, RuntimeError after `close`.
        """
        chosen = Mode(mode or self.config.decoding.mode)
        limit = FOREVER_S if deadline_s is None else deadline_s
        self._wanted.set()
        with self._decoding:
            self._wanted.clear()
            return self._decode(prompt, jpeg, limit, chosen)

    def objects(self, limit_s: float, mode: str | None = None) -> Vocabulary | None:
        """Return the objects that the model which answers was trained to find; None where it takes any instruction.

        The target's, as the verifier reports them; in mode `edge` (`mode`, or else the config's) the draft model's own.
        Waits for a lost verifier as `decode` does, at most `limit_s` seconds. Raises VerifierLost where it cannot be
        reached or refuses.
        """
        if not Mode(mode or self.config.decoding.mode).needs_link:
            return self._objects
        _, welcome = self._verifier.connected(min(self._verifier.patience_s, limit_s), _never)
        return Vocabulary.of(welcome.colours, welcome.classes, welcome.form)

    def swap_test(self, prompt: str, answer: str, jpeg: Jpegs, other: Jpegs) -> SwapTest | None:
        """Return how far the draft of a given answer depends on its frame, see `edge_drafter.image_dependence`.

        For idle time, in any thread: None where a question is being answered, and as soon as one comes, which waits for
        the layer under way. Raises ValueError as `edge_drafter.image_dependence.swap_test`.
        """
        models = self._models
        if models is None or not self._decoding.acquire(blocking=False):
            return None
        try:
            answer = answer.removeprefix(begun(self._own_thinking))
            tokens = self._tokenizer(answer, add_special_tokens=False)["input_ids"]
            tokens = tokens[: min(self.config.decoding.max_tokens, SWAP_TOKENS)]
            own, swapped = self._scaled(jpeg), self._scaled(other)
            return swap_test(models.model, prompt, tokens, own, swapped, self._wanted.is_set)
        except Abandoned:
            return None
        finally:
            self._decoding.release()

    def text(self, tokens: tuple[int, ...]) -> str:
        """Return the text of the last answer, without the tokens that only mark its end."""
        return begun(self._thinking) + self._read(tokens)

    def link_figures(self) -> tuple[str, float]:
        """Return the link's state and its round trip in seconds (negative if unknown)."""
        if self.link is None:
            return "", -1.0
        rtt = self.link.rtt_s
        return self.link.state.value, -1.0 if rtt is None else rtt

    def close(self) -> None:
        """Cancel the question that runs, close the link and free the draft model; safe to repeat.

        A model that was given to this decoder is its giver's to free. Waits for a draft forward under way.
        """
        with self._asking:
            if self._question is not None:
                self._question.cancel()
            models, self._models = self._models, None
        self._worker.shutdown()
        if self._background is not None:
            self._background.close()
        if self.link is not None:
            self.link.close()
        if models is not None:
            del models
            self._drafters.clear()
            gc.collect()  # a model that is spread over devices has hooks that refer to it
            give_back_memory()
            torch.cuda.empty_cache()

    def _pursue(self, question: Question, prompt: str, jpeg: Jpegs, limit: float, mode: Mode) -> None:
        outcome: Reply | Exception
        try:
            self._wanted.set()
            with self._decoding:
                self._wanted.clear()
                if question.cancelled:
                    raise Cancelled(CANCELLED)
                result = self._decode(prompt, jpeg, limit, mode, question)
                outcome = Reply(self.text(result.tokens), result.stats, self.declared, *self.link_figures())
        except Exception as error:
            outcome = error
        question.finish(outcome)

    def _decode(
        self, prompt: str, jpeg: Jpegs, limit: float, mode: Mode, question: Question | None = None
    ) -> StepResult:
        models = self.models
        lost_at = time.perf_counter()
        began = lost_at if question is None else question.began
        stats = DecodingStats(mode=mode.value)
        committed: tuple[int, ...] = ()
        trace, why = secrets.token_bytes(TRACE_BYTES), ""
        key = 0 if self.sampling.greedy else question_key(self.config.draws.seed, self._questions)
        self._questions += 1
        # The same for all of an answer, whoever goes on with it.
        sent: Jpegs | None = None
        while True:
            patient_until = min(lost_at + self._verifier.patience_s, began + limit)
            eos, drafter = self._ready(mode, patient_until, stats, why, question, goes_on=bool(committed))
            if question is not None:
                question.begun(begun(self._thinking))
            if sent is None:
                sent = self._scaled(jpeg) if mode.needs_link else jpeg
            grammars = models.grammars
            grammar = None if grammars is None else grammars.of(grammar_for(prompt), eos, self._thinking)
            max_tokens = self.config.decoding.max_tokens
            if grammar is not None and max_tokens < grammar.least_tokens:
                raise VerifierRefused(
                    f"max_tokens is {max_tokens}; a constrained answer of this target, with what it thinks before, "
                    f"takes at least {grammar.least_tokens}: raise max_tokens, or take answers {FREE}"
                )
            since = time.perf_counter() - began
            self._step += 1
            request = StepRequest(
                self._step, prompt, sent, eos, max_tokens, max(0.0, limit - since), committed,
                self.sampling, key, trace, grammar, self._penalty(mode, prompt, sent),
            )  # fmt: skip
            try:
                result = drafter.run(request, question)
            except StepInterrupted as stop:
                stats.add(stop.stats, since)
                # A verifier that is full again and again, and commits nothing in between, is lost once.
                if not stop.stats.busy or len(stop.committed) > len(committed):
                    lost_at = time.perf_counter()
                committed, why = stop.committed, str(stop)
                if stop.cause is not Interruption.LINK_LOST:
                    _raise_as_outcome(stop, limit)
                _log.warning(
                    "step %d interrupted after %d tokens: %s trace=%s", self._step, len(committed), why, trace.hex()
                )
            else:
                stats.add(result.stats, since)
                stats.total_s = time.perf_counter() - began
                _log.info(
                    "step %d answered: tokens=%d total=%.1fms trace=%s",
                    self._step, stats.tokens, stats.total_s * 1e3, trace.hex(),
                )  # fmt: skip
                return StepResult(result.tokens, stats)

    def _penalty(self, mode: Mode, prompt: str, jpeg: Jpegs) -> RepetitionPenalty | None:
        """Return the repetition penalty of the model that answers; None where it has none, or nothing is drafted here.

        The target's is a hint here, for which the words of the prompt do. The draft model's own decides its answer, so
        the frame counts, which is prepared once more for it. Raises ValueError for a prompt or frame that cannot be
        used.
        """
        loaded, welcome = self.models.loaded, self.link.welcome if self.link is not None else None
        if mode.needs_link:
            factor = welcome.repetition_penalty if welcome is not None and mode.drafts else 1.0
        else:
            factor = loaded.repetition_penalty
        if factor == 1.0:
            return None
        if not mode.needs_link and isinstance(loaded, Vlm):
            return loaded.penalty(prepare(loaded, prompt, jpeg).ids)
        return RepetitionPenalty.of(factor, loaded.words(prompt), loaded.vocabulary)

    def _scaled(self, jpeg: Jpegs) -> Jpegs:
        """Return frames as they are sent: in the size in which the verifier's model sees them, where they are larger.

        The draft model looks at them too, so that both see the same pixels.
        """
        welcome = self.link.welcome if self.link is not None else None
        if not self.config.connection.scale_frames or welcome is None or welcome.sight is None:
            return jpeg
        sight = welcome.sight
        return reduced(jpeg, sight.unit, sight.least, sight.most)

    def _ready(
        self, mode: Mode, until: float, stats: DecodingStats, why: str, question: Question | None, goes_on: bool
    ) -> tuple[tuple[int, ...], Drafter]:
        """Return the answer's end tokens and the drafter, after waiting for the link if the mode needs one.

        Raises VerifierLost, besides what the wait raises, where a part of the answer is committed (`goes_on`) and the
        target that would go on with it thinks otherwise than the one which began it.
        """
        if not mode.needs_link:
            self._thinking = self._own_thinking
            return self.models.loaded.eos, self._drafter(mode, None, 0)
        started = time.perf_counter()
        cancelled = _never if question is None else lambda: question.cancelled
        link, welcome = self._verifier.connected(until - started, cancelled, why)
        stats.wait_s += time.perf_counter() - started
        if goes_on and welcome.thinking != self._thinking:
            raise VerifierLost(
                "the target that would go on with this answer marks its thinking otherwise than the one that began it, "
                "so an action could be read out of the thinking; ask again"
            )
        self._thinking = welcome.thinking
        predictor = self.models.predictor
        if self._verifier.is_new_target(welcome, None if predictor is None else predictor.target):
            # What was measured and learned of one target holds for no other.
            self._drafters.clear()
        if self._background is not None:
            # Only a verifier on this very machine gains where a prefill here gives way to others.
            self._background.yields = welcome.machine != "" and welcome.machine == machine_id()
        most = min(welcome.max_draft, self.sampling.draft_limit(welcome.vocabulary))
        return tuple(welcome.eos), self._drafter(mode, link, most)

    def _drafter(self, mode: Mode, link: ZmqLink | None, max_draft: int) -> Drafter:
        """Return the mode's drafter, whose estimates outlive a step."""
        drafter = self._drafters.get((mode, max_draft))
        if drafter is None:
            models = self.models
            predictor = models.predictor if models.fed is None or not mode.drafts else None
            stop_below = predictor.threshold if predictor is not None else 0.0
            config = self.config.decoding.settings(mode, stop_below=stop_below)
            sources = sources_of(config, models.model, predictor, models.fed)
            drafter = Drafter(sources, link, config, trace=self.trace, max_draft=max_draft, background=self._background)
            self._drafters[mode, max_draft] = drafter
        return drafter


def _raise_as_outcome(stop: StepInterrupted, limit: float) -> NoReturn:
    """Raise what a question ends in after a step that ended so, for another cause than a lost link."""
    why = str(stop)
    if stop.cause is Interruption.CANCELLED:
        raise Cancelled(why) from None
    if stop.cause is Interruption.DEADLINE:
        _, then, doing = why.partition("; ")
        raise AnswerLate(f"no complete answer within the deadline of {limit:g} s{then}{doing}") from None
    if stop.code in BAD_REQUEST:
        raise ValueError(why) from None
    if stop.cause in (Interruption.UNREADABLE, Interruption.FAILED):
        raise ValueError(f"{stop.cause.value}: {why}") from stop
    raise VerifierLost(why) from None
