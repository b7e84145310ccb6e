"""The backend on real sockets: one verifier process, and an edge in this process for each set of changes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

from edge_drafter import Mode
from edge_drafter.decoder import EdgeDecoder
from edge_drafter.draft_models import LoadedDraft, load_draft
from edge_drafter.settings import EdgeConfig
from speculation.language.prompts import TURN_END, continued
from speculation.language.thinking import split_thinking
from speculation.settings import fields_of
from vlm_nav_evaluation.experiment.cpu_cores import Cores, placed
from vlm_nav_evaluation.experiment.prompts import in_words
from vlm_nav_evaluation.experiment.questions import check_prompts, check_question
from vlm_nav_evaluation.experiment.run import Answer, Arm, Question, Run, take_turns
from vlm_nav_evaluation.journal import Journal
from vlm_nav_evaluation.results import mark_busy
from vlm_nav_evaluation.verifier_process import CONNECT_LIMIT_S, SILENCE_S, capacity_of, verifier, verifier_flags

UNUSED = ("mode", "target", "seed", "verifier", "frames")
"""These options have a field's name and mean something else."""


def edge_config(options: argparse.Namespace, address: str = "", **changes: Any) -> EdgeConfig:
    """Return an edge's settings: fields that an option names, then `changes`; more patient than a robot's.

    address: of the verifier; empty for the default. Raises ValueError for values that cannot be used.
    """
    known = {field.name for field in fields_of(EdgeConfig)}.difference(UNUSED)
    given = {name: value for name, value in vars(options).items() if name in known}
    base: dict[str, Any] = {"mode": Mode.FSD.value, "silence_s": SILENCE_S, "resume_s": CONNECT_LIMIT_S}
    base["frames"] = getattr(options, "views", 1)
    base["text_only"] = in_words(getattr(options, "frames", ""))
    verifier_at = {"verifier": address} if address else {}
    return EdgeConfig.flat(**{**base, **given, **verifier_at, **changes})


class Edges:
    """Edges that share one copy of each draft model; use `sockets`, which also starts their verifier."""

    def __init__(self, options: argparse.Namespace, address: str, vlm: LoadedDraft) -> None:
        """`vlm`: the options' draft model."""
        self.options = options
        self.address = address
        self.vlm = vlm
        own = edge_config(options, address)
        self._models = {(own.draft_model, own.draft): vlm}
        """What is loaded, by name and settings."""
        self._edges: dict[tuple[tuple[str, Any], ...], EdgeDecoder] = {}

    def edge(self, **changes: Any) -> EdgeDecoder:
        """Return the edge with these changes of `EdgeConfig`. Raises ValueError as `EdgeDecoder`."""
        key = tuple(sorted(changes.items()))
        if key not in self._edges:
            config = edge_config(self.options, self.address, **changes)
            wanted = config.draft_model, config.draft
            if wanted not in self._models:
                self._models[wanted] = load_draft(*wanted)
            self._edges[key] = EdgeDecoder(config, vlm=self._models[wanted])
        return self._edges[key]

    def decoder(self, arm: Arm) -> Callable[[Question], Answer]:
        """Return an arm's own decoder, or the edge that its mode and changes describe."""
        if arm.decode is not None:
            return arm.decode
        edge = self.edge(**arm.changes)

        def decode(question: Question) -> Answer:
            result = edge.decode(question.prompt, question.jpeg, mode=arm.mode)
            return Answer(result.tokens, result.stats, {"rtt_s": edge.link_figures()[1]})

        return decode

    def conversations(self, asked: Sequence[Question]) -> list[Question]:
        """Return each question with its later turns behind it, every one a question of its own, and check that it fits.

        A later turn comes after the answers that the target gives alone (mode `cloud`), so that all arms are asked the
        same. Its name is the first one's with the turn's number. Raises ValueError as `check_question`, VerifierLost.
        """
        found = list[Question]()
        for first in asked:
            found.append(question := first)
            self._check(question)
            for turn, words in enumerate(first.later, start=2):
                prompt = continued(question.prompt, self._answer_alone(question), words)
                question = replace(first, prompt=prompt, name=f"{first.name} turn {turn}", later=())
                self._check(question)
                found.append(question)
        return found

    def _check(self, question: Question) -> None:
        check_question(self.vlm, question, self.options.max_tokens, capacity_of(self.options))

    def _answer_alone(self, question: Question) -> str:
        """Return what the target's own answer says, as chats go on: without what it thinks before, and without tokens
        that a prompt may not have."""
        # An edge of its own: no mode that is measured remembers these answers.
        edge = self.edge(mode=Mode.CLOUD.value)
        _, said = split_thinking(edge.text(edge.decode(question.prompt, question.jpeg).tokens))
        text = said.replace(TURN_END, " ")
        for special in self.vlm.tokenizer.get_added_vocab():
            text = text.replace(special, "")
        return text

    def run(
        self,
        arms: Sequence[Arm],
        asked: Sequence[Question],
        warm_up: Sequence[Question] | None = None,
        journal: Journal | None = None,
    ) -> Run:
        """Let arms take turns (`take_turns`) over the sockets. Raises ValueError, VerifierLost, AnswerLate."""
        capacity = capacity_of(self.options)
        check_prompts(self.vlm, [*(warm_up or ()), *asked], self.options.max_tokens, capacity)
        ready = [replace(arm, decode=self.decoder(arm)) for arm in arms]
        return take_turns(ready, asked, warm_up, seed=self.options.seed, journal=journal)

    def close(self) -> None:
        """Close all links; who asks for an edge gets a new one."""
        while self._edges:
            self._edges.popitem()[1].close()


def modes_as_arms(modes: Sequence[str], **changes: Any) -> list[Arm]:
    """Return one arm for each mode; the tokens of `edge`, which is not verified, are its own."""
    return [Arm(mode, mode, changes, exact=mode != Mode.EDGE.value) for mode in modes]


@contextmanager
def sockets(
    options: argparse.Namespace,
    modes: Sequence[str] = (),
    *flags: str,
    address: str = "",
    vlm: LoadedDraft | None = None,
) -> Iterator[Edges]:
    """Yield edges and their verifier, a process of its own that runs for the time; none where all modes are `edge`.

    The verifier gets the options' target model, `verifier_flags` and `flags`; both sides run on the options' cores.
    address: of a running verifier, in place of a process. vlm: as for `Edges`. Raises RuntimeError where the
    process does not start or ends by itself, ValueError for models that cannot be used.
    """
    mark_busy(options)
    vlm = vlm or load_draft(options.draft_model, edge_config(options).draft)
    cores = getattr(options, "cores", Cores.FREE)
    with ExitStack() as stack:
        if not address and set(modes) != {Mode.EDGE.value}:
            with placed(cores, verifier=True):
                own = verifier_flags(options, modes)
                address = stack.enter_context(verifier(options.target_model, *own, *flags))
        stack.enter_context(placed(cores))
        yield stack.enter_context(closing(Edges(options, address, vlm)))
