"""Questions to a decoder over real sockets: shown as they are committed, cancelled in every mode and phase."""

from __future__ import annotations

import signal
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edge_drafter.decoder import EdgeDecoder
from edge_drafter.link import LinkState
from edge_drafter.question import AnswerLate, Cancelled, Question, VerifierLost, VerifierRefused
from spec_vlm_nav.runner import free_address
from speculation.cancellation import Abandoned, Stop
from tests.cloud_verifier.process import Verifier
from tests.cloud_verifier.test_engine import jpeg
from tests.edge_drafter.conftest import Robot
from tests.edge_drafter.test_decoder import PROMPT, greedy
from tests.edge_drafter.waiting import LIMIT_S, wait_for

CANCELLED = "ended by the edge: the question was cancelled"


@pytest.fixture(scope="module")
def truths(tiny_target: Path, tiny_draft: Path) -> dict[str, list[int]]:
    """The answers about frame 1 of the target, and of the draft alone."""
    return {"": greedy(tiny_target, [jpeg(1)])[0], "edge": greedy(tiny_draft, [jpeg(1)])[0]}


@pytest.fixture
def edge(verifier: Verifier, robot: Robot) -> EdgeDecoder:
    # Silent as long as a test may stop the verifier.
    decoder = robot(verifier.address, silence_s=60.0)
    decoder.connect(LIMIT_S)
    return decoder


class Gate:
    """A draft model that stands still in one phase, between two layers, until it is asked to stop."""

    def __init__(self, model: Any, phase: str) -> None:
        self._model, self._phase = model, phase
        self.reached = threading.Event()

    def begin(self, prompt: str, image: bytes, committed: Sequence[int] = (), stop: Stop | None = None) -> None:
        self._wait("prefill", stop)
        self._model.begin(prompt, image, committed, stop)

    def root_logits(self, stop: Stop | None = None) -> Any:
        self._wait("drafting", stop)
        return self._model.root_logits(stop)

    def extend(self, tokens: Sequence[int], parents: Sequence[int], stop: Stop | None = None) -> Any:
        self._wait("drafting", stop)
        return self._model.extend(tokens, parents, stop)

    def commit(self, path: Sequence[int], next_token: int) -> Any:
        return self._model.commit(path, next_token)

    def _wait(self, phase: str, stop: Stop | None) -> None:
        if phase != self._phase or stop is None or self.reached.is_set():
            return
        self.reached.set()
        end = time.monotonic() + LIMIT_S
        while not stop():
            assert time.monotonic() < end, "it was never asked to stop"
            time.sleep(0.001)
        raise Abandoned


def held(edge: EdgeDecoder, gate: Gate, mode: str) -> Question:
    """Ask until the draft model stands at the gate: a busy machine's verifier may have answered all before that."""
    question = edge.ask(PROMPT, jpeg(1), 60.0, mode)
    end = time.monotonic() + 3 * LIMIT_S
    while not gate.reached.wait(0.02):
        assert time.monotonic() < end, "the draft model has nothing to do"
        if question.done:
            question = edge.ask(PROMPT, jpeg(1), 60.0, mode)
    return question


def ended(verifier: Verifier) -> int:
    """How many steps the verifier has ended because they were cancelled."""
    return sum(CANCELLED in line for line in verifier.log)


def wait_for_end(verifier: Verifier, known: int, step: int, mode: str) -> None:
    """Wait for the log, from line `known` on, to say that the verifier works on a cancelled step no more."""
    # In mode full it may have gone on alone, to the answer's end, before it heard of the cancellation.
    ends = (CANCELLED, " done:") if mode == "full" else (CANCELLED,)
    name = f" step {step} "
    wait_for(lambda: any(name in line and any(end in line for end in ends) for line in verifier.log[known:]))


def expect_cancelled(question: Question) -> None:
    assert question.done and question.cancelled and question.guess == ""
    with pytest.raises(Cancelled):
        question.result()


def expect_exact(edge: EdgeDecoder, truths: dict[str, list[int]], mode: str) -> None:
    truth = truths["edge" if mode == "edge" else ""]
    reply = edge.ask(PROMPT, jpeg(1), 60.0, mode).result()
    assert (reply.text, reply.stats.tokens, reply.stats.mode) == (edge.text(tuple(truth)), len(truth), mode)


@pytest.mark.parametrize("mode", ["cloud", "full", "edge"])
def test_what_is_committed_grows_to_the_whole_answer(
    edge: EdgeDecoder, truths: dict[str, list[int]], mode: str
) -> None:
    truth = truths["edge" if mode == "edge" else ""]
    question, shown, guesses = edge.ask(PROMPT, jpeg(1), 60.0, mode), [""], set[str]()
    while not question.done:
        guesses.add(question.guess)
        shown.append(question.committed)
        time.sleep(0.001)  # a loop without a pause holds the interpreter, which the decoder needs between its layers
    reply = question.result()
    assert question.committed == reply.text == edge.text(tuple(truth))
    assert all(late.startswith(early) for early, late in zip(shown, [*shown[1:], reply.text], strict=True))
    counts, seconds = [count for _, count in question.times], [at for at, _ in question.times]
    assert counts == sorted(set(counts)) and counts[-1] == reply.stats.tokens == len(truth)
    assert seconds == sorted(seconds) and seconds[0] > 0.0
    assert mode not in ("cloud", "edge") or guesses <= {""}


@pytest.mark.parametrize(
    ("mode", "phase"), [("sd", "prefill"), ("full", "drafting"), ("edge", "prefill"), ("edge", "drafting")]
)
def test_a_cancel_ends_what_the_draft_model_does(
    edge: EdgeDecoder, verifier: Verifier, truths: dict[str, list[int]], mode: str, phase: str
) -> None:
    known = len(verifier.log)
    gate = Gate(edge.models.model, phase)
    edge.models.model = gate
    question = held(edge, gate, mode)
    assert not question.done
    if mode != "edge":  # the verifier works on the step, or waits for its draft
        wait_for(lambda: edge.link is not None and edge.link.bytes_up > 0)
    question.cancel()
    expect_cancelled(question)
    if mode != "edge":
        wait_for_end(verifier, known, edge._step, mode)
    expect_exact(edge, truths, mode)
    assert edge.link is not None and edge.link.state is LinkState.NOMINAL


@pytest.mark.parametrize("mode", ["cloud", "full"])
def test_a_cancel_ends_the_wait_for_a_commit(
    edge: EdgeDecoder, verifier: Verifier, truths: dict[str, list[int]], mode: str
) -> None:
    known, link = ended(verifier), edge.link
    assert link is not None
    verifier.process.send_signal(signal.SIGSTOP)
    try:
        question = edge.ask(PROMPT, jpeg(1), 60.0, mode)
        wait_for(lambda: link.bytes_up > len(jpeg(1)))
        question.cancel()
        expect_cancelled(question)
        # The decoding thread is free although no message has come: it answers alone.
        expect_exact(edge, truths, "edge")
    finally:
        verifier.process.send_signal(signal.SIGCONT)
    wait_for(lambda: ended(verifier) > known)
    expect_exact(edge, truths, mode)


@pytest.mark.parametrize("mode", ["cloud", "full"])
def test_a_cancel_ends_the_wait_for_the_link(robot: Robot, truths: dict[str, list[int]], mode: str) -> None:
    edge = robot("tcp://127.0.0.1:9", resume_s=60.0)
    question = edge.ask(PROMPT, jpeg(1), 60.0, mode)
    question.cancel()
    expect_cancelled(question)
    expect_exact(edge, truths, "edge")
    asked = list[int]()
    with pytest.raises(Cancelled):
        edge.connect(LIMIT_S, lambda: asked.append(1) or len(asked) > 2)  # type: ignore[func-returns-value]


def test_a_newer_question_takes_the_place_of_the_one_before(
    edge: EdgeDecoder, verifier: Verifier, truths: dict[str, list[int]]
) -> None:
    known = len(verifier.log)
    gate = Gate(edge.models.model, "drafting")
    edge.models.model = gate
    first = held(edge, gate, "full")
    step = edge._step
    second = edge.ask(PROMPT, jpeg(2), 60.0, "full")
    expect_exact(edge, truths, "full")
    expect_cancelled(first)
    expect_cancelled(second)
    wait_for_end(verifier, known, step, "full")


def test_a_question_ends_in_the_reasons_that_an_answer_does(
    edge: EdgeDecoder, verifier: Verifier, truths: dict[str, list[int]]
) -> None:
    verifier.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(AnswerLate, match="deadline of 0.005 s"):
            edge.ask(PROMPT, jpeg(1), 0.005).result()
    finally:
        verifier.process.send_signal(signal.SIGCONT)
    with pytest.raises(ValueError, match="does not decode"):
        edge.ask(PROMPT, b"no jpeg", 10.0).result()
    with pytest.raises(ValueError, match="not a valid Mode"):
        edge.ask(PROMPT, jpeg(1), 10.0, "clairvoyant")
    assert edge.ask(PROMPT, jpeg(1), 60.0).result().text == edge.text(tuple(truths[""]))


def test_connecting_waits_for_the_welcome_or_says_why_there_is_none(verifier: Verifier, robot: Robot) -> None:
    """Not only `resume_s`: a verifier that is loading its model is waited for."""
    nobody = free_address()
    assert robot(verifier.address, resume_s=0.0).connect(LIMIT_S).model
    for address, changes, limit_s, why in (
        (verifier.address, {"target": "not-this-one"}, LIMIT_S, "refuses: .*not-this-one"),
        (verifier.address, {"mode": "server_sd"}, LIMIT_S, "server_sd needs a draft model beside"),
        (nobody, {}, 0.05, nobody),
        (nobody, {"mode": "edge"}, LIMIT_S, "without a link"),
    ):
        with pytest.raises(VerifierLost, match=why) as lost:
            robot(address, **changes).connect(limit_s)
        assert isinstance(lost.value, VerifierRefused) is (address != nobody)


def live_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith(("question", "link"))}


def test_closing_cancels_the_question_and_frees_the_draft_model(
    verifier: Verifier, tiny_draft: Path, robot: Robot
) -> None:
    """Weights and cache go although decoder and questions, one with an error, are kept."""
    # A verifier that waits for drafts cannot end the answer before the edge, on a busy machine, has drafted.
    edge = robot(verifier.address, tiny_draft, drafting="idle=wait")
    edge.ask(PROMPT, jpeg(1), 60.0).result()
    failed = edge.ask(PROMPT, b"no jpeg", 60.0)
    with pytest.raises(ValueError, match="does not decode"):
        failed.result()
    session = edge.models.model
    gate = Gate(session, "drafting")
    edge.models.model = gate
    edge._drafters.clear()
    running = edge.ask(PROMPT, jpeg(1), 60.0)
    assert gate.reached.wait(LIMIT_S)
    weights = weakref.ref(edge.models.loaded.text.layers[0].mlp.up_proj.weight)
    cache, model = weakref.ref(session._cache), weakref.ref(edge.models.loaded.model)  # type: ignore[union-attr]
    del session, gate
    edge.close()
    edge.close()
    expect_cancelled(running)
    assert (weights(), cache(), model()) == (None, None, None)
    assert not live_threads()
    assert edge.text(()) == "" and edge.config.decoding.mode == "full"
    for use in (lambda: edge.ask(PROMPT, b"", 1.0), lambda: edge.decode(PROMPT, b"", 1.0), lambda: edge.models):
        with pytest.raises(RuntimeError, match="this decoder is closed"):
            use()
