"""The server on a virtual clock: what each message costs and brings, whoever sends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_verifier.interfaces import CapacityError, ModelInfo
from cloud_verifier.outbox import REFUSALS_AT_ONCE
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.server import WORKING_S
from cloud_verifier.sessions import SILENT_S
from speculation import wire
from speculation.cancellation import Abandoned, Stop
from speculation.profiles import DeviceProfile
from speculation.wire import (
    PROTOCOL,
    BeginStep,
    Busy,
    Commit,
    Draft,
    EarlyTokens,
    EndStep,
    Fault,
    FaultCode,
    Hello,
    Idle,
    Ping,
    Pong,
    Stage,
    Working,
)
from tests.cloud_verifier.bench import CONFIG, HELLO, JPEG, Bench, begin, draft, faults, tokens_of
from tests.cloud_verifier.fake_target import EXITS, LAYERS, VOCABULARY, FakeEngine, FakeSelfDraft, greedy


def test_a_welcome_has_what_the_edge_must_know() -> None:
    welcome = Bench(CONFIG.changed(max_draft=9), DeviceProfile("slow", verify_s=1.0)).welcome(b"a")
    assert (welcome.model, welcome.tokenizer, welcome.vocabulary) == ("f" * 16, "t" * 16, VOCABULARY)
    assert (welcome.num_layers, tuple(welcome.exit_layers), welcome.eos) == (LAYERS, EXITS, [0])
    assert (welcome.max_draft, welcome.profile) == (9, "slow") and len(welcome.session) >= 16


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"protocol": PROTOCOL - 1}, FaultCode.PROTOCOL_MISMATCH),
        ({"tokenizer": "another"}, FaultCode.TOKENIZER_MISMATCH),
        ({"vocabulary": 7}, FaultCode.TOKENIZER_MISMATCH),
        ({"model": "another"}, FaultCode.MODEL_MISMATCH),
        ({"sampling": "coupled"}, FaultCode.UNSUPPORTED_SAMPLING),
        ({"service_class": "emergency"}, FaultCode.MALFORMED),
    ],
)
def test_an_edge_that_does_not_fit_gets_the_reason(change: dict[str, object], code: FaultCode) -> None:
    fields = {name: getattr(HELLO, name) for name in HELLO.__struct_fields__} | change
    (fault,) = Bench().ask(b"a", Hello(**fields))
    assert isinstance(fault, Fault) and fault.code is code
    assert str(next(iter(change.values()))) in fault.message


def test_early_tokens_leave_while_later_layers_still_run() -> None:
    bench = Bench(profile=DeviceProfile("slow", verify_s=0.4)).with_robots(b"a")
    bench.ask(b"a", begin())
    truth = greedy("long", JPEG, 9)
    started = bench.post.now
    bench.ask(b"a", draft(truth[:2], round=3))
    received = [(at - started, m) for at, _, m in bench.post.sent if at > started]
    times = {type(m).__name__ + str(getattr(m, "layer", "")): at for at, m in received}
    wrong_first = truth[2] % 2 == 0
    assert times["EarlyTokens1"] == pytest.approx(0.2, abs=0.01)
    assert ("EarlyTokens2" in times) == wrong_first  # the same verdict is not sent twice
    assert times["Commit"] == pytest.approx(0.4, abs=0.01)
    early = next(m for _, _, m in bench.post.sent if isinstance(m, EarlyTokens))
    assert (early.step, early.round, early.node, early.confidence) == (1, 3, 1, 0.5)
    commit = bench.received(b"a")[-1]
    assert isinstance(commit, Commit) and commit.compute_s == pytest.approx(0.4, abs=0.01)


def test_an_early_token_names_the_node_of_the_draft_that_was_sent() -> None:
    """A past draft is walked down; its early tokens still name the nodes that the edge knows."""
    bench = Bench().with_robots(b"a")
    truth = greedy("long", JPEG, 9)
    bench.ask(b"a", begin(), draft(truth[:1]))
    received = bench.ask(b"a", draft(truth[:4], round=2))
    nodes = [m.node for m in received if isinstance(m, EarlyTokens)]
    assert nodes and set(nodes) == {3}
    assert tokens_of(received) == truth[2:5]


def test_an_exits_verdict_behind_a_hint_stays_here() -> None:
    """The edge does not know the hint's nodes: only what follows the root has a name."""
    bench = Bench(profile=DeviceProfile("slow", verify_s=0.4)).with_robots(b"a")
    truth = greedy("long", JPEG, 12)
    received = bench.ask(b"a", begin(max_tokens=12, idle=Idle.LEDGER, hints=[truth]))
    assert tokens_of(received) == truth
    single = {m.start for m in received if isinstance(m, Commit) and len(m.tokens) == 1}
    assert {m.start for m in received if isinstance(m, EarlyTokens)} == single and len(single) < 4
    assert {m.round for m in received if isinstance(m, (Commit, EarlyTokens))} == {0}


def test_mail_is_read_between_layers_and_a_new_step_drops_the_old_verdict() -> None:
    bench = Bench(profile=DeviceProfile("slow", verify_s=0.4)).with_robots(b"a")
    first = tokens_of(bench.ask(b"a", begin()))
    bench.send(b"a", draft([1], behind=first))
    bench.send(b"a", Ping(5), after=0.15)
    bench.send(b"a", begin(2, "long again", idle=Idle.DECODE, max_tokens=1), after=0.25)
    started = bench.post.now
    bench.turns()
    received = [(at - started, m) for at, _, m in bench.post.sent if at >= started]
    assert [at for at, m in received if isinstance(m, Pong)] == [pytest.approx(0.15, abs=0.01)]
    assert all(at < 0.25 for at, m in received if isinstance(m, EarlyTokens))
    commits = [m for _, m in received if isinstance(m, Commit)]
    assert [(m.step, m.tokens) for m in commits] == [(2, greedy("long again", JPEG, 1))]


@pytest.mark.parametrize(("wrong", "gamma", "passes"), [(0, 4, 4), (3, 4, 6), (1, 4, 13), (0, 64, 2), (0, 1, 7)])
def test_a_verifier_with_a_draft_model_answers_by_itself(wrong: int, gamma: int, passes: int) -> None:
    """The right tokens cost fewer forwards the more of them the draft model has; wrong ones cost nothing but time.

    The first token comes with the prefill, before anything is drafted.
    """
    bench = Bench(self_draft=FakeSelfDraft(wrong)).with_robots(b"a")
    received = bench.ask(b"a", begin(max_tokens=13, self_draft=gamma))
    assert tokens_of(received) == greedy("long", JPEG, 13) and received[-1].done  # type: ignore[union-attr]
    assert len(bench.engine.batches) == len(received) == passes
    assert all(isinstance(message, Commit) and message.round == 0 for message in received)


def test_without_a_draft_model_the_edge_gets_what_to_start() -> None:
    bench = Bench().with_robots(b"a")
    (fault,) = bench.ask(b"a", begin(self_draft=4))
    assert isinstance(fault, Fault) and (fault.code, fault.step) == (FaultCode.MODEL_MISMATCH, 1)
    assert "start it with --draft-model FOLDER" in fault.message
    assert tokens_of(bench.ask(b"a", begin(max_tokens=5, idle=Idle.DECODE))) == greedy("long", JPEG, 5)


def test_a_draft_model_that_fails_costs_nobody_else_of_the_batch() -> None:
    bench = Bench(self_draft=FakeSelfDraft(fail_on="long x")).with_robots(b"b", b"a")
    bench.send(b"a", begin(max_tokens=40, idle=Idle.DECODE))
    bench.turns(6)
    bench.send(b"b", begin(prompt="long x", max_tokens=40, self_draft=4))
    bench.turns(60)
    assert faults(bench.received(b"b")) == [FaultCode.INTERNAL]
    assert tokens_of(bench.received(b"a")) == greedy("long", JPEG, 40) and not faults(bench.received(b"a"))


def test_drafts_that_nobody_can_use_hold_no_memory_for_ever() -> None:
    """A step that waits gives way to others after a while, though drafts of an unknown prefix keep coming for it."""
    bench = Bench(CONFIG.changed(max_draft=64), engine=FakeEngine(memory=6)).with_robots(b"a", b"b")
    bench.ask(b"a", begin(max_tokens=9, idle=Idle.WAIT))
    bench.send(b"b", begin(max_tokens=9, idle=Idle.DECODE))
    for round in range(1, 9):
        bench.send(b"a", Draft(1, round, 5, bytes(8), [1]))
        bench.send(b"b", Ping(round))
        bench.turns(60)
    assert tokens_of(bench.received(b"b")) == greedy("long", JPEG, 9)


def test_a_draft_model_without_room_for_a_step_leaves_it_to_decode() -> None:
    class Small(FakeSelfDraft):
        def begin(self, index: int, inputs: tuple[str, bytes], max_tokens: int) -> int:
            raise CapacityError("too small")

    bench = Bench(self_draft=Small()).with_robots(b"a")
    assert tokens_of(bench.ask(b"a", begin(max_tokens=6, idle=Idle.LEDGER))) == greedy("long", JPEG, 6)
    assert faults(bench.ask(b"a", begin(2, max_tokens=6, self_draft=3))) == [FaultCode.TOO_LARGE]


GARBAGE = [b"", b"\xc1", b"hello", wire.encode(Ping(1)) + b"x", wire.encode(Commit(1, 1, 0, [], bytes(8), True))]


@pytest.mark.parametrize("payload", GARBAGE)
def test_a_malformed_message_costs_its_sender_a_fault_and_nobody_anything(payload: bytes) -> None:
    bench = Bench().with_robots(b"a", b"b")
    bench.send(b"b", payload)
    bench.send(b"c", payload)
    received = bench.ask(b"a", begin(max_tokens=5, idle=Idle.DECODE))
    assert tokens_of(received) == greedy("long", JPEG, 5) and not faults(received)
    assert faults(bench.received(b"b")) == [FaultCode.MALFORMED]
    assert bench.ask(b"b", Ping(3)) == [Pong(3)]


def test_who_sends_nothing_but_garbage_is_not_read_any_more_for_a_while() -> None:
    bench = Bench().with_robots(b"a")
    for _ in range(200):
        bench.send(b"b", b"\xc1")
    assert tokens_of(bench.ask(b"a", begin(max_tokens=5, idle=Idle.DECODE))) == greedy("long", JPEG, 5)
    assert len(faults(bench.received(b"b"))) == REFUSALS_AT_ONCE
    bench.post.now += 1.0
    assert len(bench.ask(b"b", HELLO)) == 1, "after a while its Hello is read"


def test_a_message_that_nobody_thought_of_ends_a_step_and_not_the_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench().with_robots(b"a", b"b")
    offer = Scheduler.offer

    def fails(scheduler: Scheduler, row: int, message: Draft, now: float) -> list[Commit]:
        if message.round == 13:
            raise ZeroDivisionError("who would have thought")
        return offer(scheduler, row, message, now)

    monkeypatch.setattr(Scheduler, "offer", fails)
    bench.ask(b"a", begin())
    (fault,) = bench.ask(b"a", draft([1], round=13))
    assert isinstance(fault, Fault) and (fault.code, fault.step) == (FaultCode.INTERNAL, 1)
    assert "ZeroDivisionError" in fault.message and "a Draft could not be taken" in caplog.text
    for peer in (b"a", b"b"):
        assert tokens_of(bench.ask(peer, begin(2, max_tokens=3, idle=Idle.DECODE))) == greedy("long", JPEG, 3)


class SlowEngine(FakeEngine):
    """Frames that begin with "jpeg slow" are decoded when `gate` opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.entered = threading.Event(), threading.Event()

    def prepare(self, prompt: str, jpeg: bytes) -> tuple[str, bytes]:
        if jpeg.startswith(b"jpeg slow"):
            self.entered.set()
            assert self.gate.wait(120.0)
        return super().prepare(prompt, jpeg)


def test_a_frame_that_is_slow_to_decode_holds_nobody_up() -> None:
    engine = SlowEngine()
    bench = Bench(CONFIG.changed(idle_s=86400.0), engine=engine, threads=2).with_robots(b"a", b"b")
    bench.send(b"a", BeginStep(1, "long", b"jpeg slow", max_tokens=4, idle=Idle.DECODE))
    bench.turns(2)
    assert engine.entered.wait(60.0)
    bench.send(b"b", begin(max_tokens=4, idle=Idle.DECODE))
    until = time.monotonic() + 60.0
    while len(tokens_of(bench.received(b"b"))) < 4 and time.monotonic() < until:
        bench.server.turn()
        # The threads' turn: the clock of this server is virtual, they are not.
        time.sleep(0.01)
    assert tokens_of(bench.received(b"b")) == greedy("long", JPEG, 4) and not tokens_of(bench.received(b"a"))
    engine.gate.set()
    while len(tokens_of(bench.received(b"a"))) < 4 and time.monotonic() < until:
        bench.server.turn()
        time.sleep(0.01)
    assert tokens_of(bench.received(b"a")) == greedy("long", b"jpeg slow", 4)


def test_a_row_that_cannot_be_judged_ends_its_step_and_the_others_get_their_commits() -> None:
    bench = Bench(engine=(engine := FakeEngine()))
    first = {}
    for peer, prompt in ((b"a", "long good"), (b"b", "long bad")):
        bench.welcome(peer)
        first[prompt] = tokens_of(bench.ask(peer, begin(prompt=prompt)))
    engine.not_judged = "long bad"
    for peer, prompt in ((b"b", "long bad"), (b"a", "long good")):
        bench.send(peer, draft(greedy(prompt, JPEG, 3)[1:], prompt=prompt, behind=first[prompt]))
    bench.turns()
    assert engine.batches[-1] == (0, 1) or engine.batches[-1] == (1, 0)
    assert tokens_of(bench.received(b"a")) == greedy("long good", JPEG, 4) and not faults(bench.received(b"a"))
    *_, fault = bench.received(b"b")
    assert isinstance(fault, Fault) and (fault.code, fault.step) == (FaultCode.INTERNAL, 1)
    assert "could not judge this step: logits are not finite" in fault.message
    assert tokens_of(bench.received(b"b")) == first["long bad"]
    assert tokens_of(bench.ask(b"b", begin(2, max_tokens=3, idle=Idle.DECODE))) == greedy("long", JPEG, 3)


def test_an_exits_confidence_is_calibrated_before_it_is_sent() -> None:
    class Rate:
        def rate(self, confidence: float) -> float:
            return {0.5: 0.125, 0.75: 0.875}[confidence]

    class Measured(FakeEngine):
        @property
        def model(self) -> ModelInfo:
            return replace(super().model, reliability={EXITS[1]: Rate()})

    bench = Bench(engine=Measured(), profile=DeviceProfile("slow", verify_s=0.4)).with_robots(b"a")
    bench.ask(b"a", begin(max_tokens=6, idle=Idle.LEDGER))
    early = {(m.layer, m.confidence) for m in bench.received(b"a") if isinstance(m, EarlyTokens)}
    assert early <= {(EXITS[0], 0.5), (EXITS[1], 0.875)} and (EXITS[1], 0.875) in early


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        (BeginStep(1, "long", b"gif"), FaultCode.BAD_IMAGE, "does not decode"),
        (begin(max_tokens=500), FaultCode.TOO_LARGE, "do not fit 400"),
        (begin(prompt="boom", idle=Idle.DECODE), FaultCode.INTERNAL, "out of memory"),
    ],
)
def test_a_step_that_fails_is_a_fault_and_the_next_one_works(message: BeginStep, code: FaultCode, words: str) -> None:
    bench = Bench(engine=FakeEngine(capacity=400, fail_on="boom")).with_robots(b"a")
    (fault,) = bench.ask(b"a", message)
    assert isinstance(fault, Fault) and fault.code is code and words in fault.message and fault.step == 1
    assert tokens_of(bench.ask(b"a", begin(2, max_tokens=3, idle=Idle.DECODE))) == greedy("long", JPEG, 3)


def test_a_full_server_refuses_and_a_dead_session_makes_room() -> None:
    bench = Bench().with_robots(b"a", b"b")
    (busy,) = bench.ask(b"c", HELLO)
    assert isinstance(busy, Busy) and busy.step is None and "all 2 sessions are taken" in busy.message
    assert 0.0 < busy.retry_after_s <= SILENT_S
    bench.post.gone.add(b"a")
    assert bench.welcome(b"c")
    assert bench.ask(b"b", Ping(1)) == [Pong(1)]


def test_a_session_resumes_at_a_new_address_with_what_it_missed() -> None:
    bench = Bench()
    token = bench.welcome(b"old").session
    truth = greedy("long", JPEG, 20)
    bench.ask(b"old", begin(), draft(truth[:3]))
    assert bench.welcome(b"new", Hello(HELLO.tokenizer, VOCABULARY, resume=token)).session == token
    prefills = dict(bench.engine.rows)
    received = bench.ask(b"new", begin(committed=truth[:1]))
    assert tokens_of(received) == truth[1:4] and bench.engine.rows == prefills
    assert faults(bench.ask(b"old", Ping(1))) == [FaultCode.NO_SESSION]


def test_an_edge_that_is_gone_stops_costing_forwards_and_may_come_back() -> None:
    bench = Bench()
    token = bench.welcome(b"a").session
    bench.send(b"a", begin(max_tokens=50, idle=Idle.DECODE))
    bench.turns(5)
    bench.post.gone.add(b"a")
    bench.turns(20)
    passes = len(bench.engine.batches)
    assert passes < 10
    known = tokens_of(bench.received(b"a"))
    bench.welcome(b"a2", Hello(HELLO.tokenizer, VOCABULARY, resume=token))
    bench.send(b"a2", begin(max_tokens=50, idle=Idle.DECODE, committed=known))
    bench.turns(80)
    assert known + tokens_of(bench.received(b"a2")) == greedy("long", JPEG, 50)


def test_an_edge_that_leaves_gives_its_place_back_at_once() -> None:
    bench = Bench().with_robots(b"a", b"b")
    bench.send(b"a", begin(max_tokens=50, idle=Idle.DECODE))
    bench.turns(5)
    bench.ask(b"a", Fault(FaultCode.NO_SESSION, "the robot has closed its link"))
    passes = len(bench.engine.batches)
    assert bench.welcome(b"c") and len(bench.engine.batches) == passes
    assert faults(bench.ask(b"a", Ping(1))) == [FaultCode.NO_SESSION]


def test_a_silent_session_expires_and_gets_a_fault_when_it_comes_back() -> None:
    bench = Bench(CONFIG.changed(idle_s=2.0)).with_robots(b"a")
    bench.turns(30)
    assert faults(bench.ask(b"a", Ping(1))) == [FaultCode.NO_SESSION]


SLOW = DeviceProfile("slow", verify_s=0.4, server_draft_s=0.2)


@settings(deadline=None, max_examples=30)
@given(
    after=st.floats(0.0, 3.0),
    idle=st.sampled_from(Idle),
    self_draft=st.integers(0, 4),
    tokens=st.lists(st.integers(0, VOCABULARY - 1), max_size=4),
)
def test_nothing_of_a_step_leaves_after_its_end(after: float, idle: Idle, self_draft: int, tokens: list[int]) -> None:
    bench = Bench(CONFIG.changed(early_rate=5.0, early_burst=1), SLOW, self_draft=FakeSelfDraft()).with_robots(b"a")
    started = bench.post.now
    bench.send(b"a", begin(max_tokens=9, idle=idle, self_draft=self_draft))
    bench.send(b"a", draft(tokens))
    bench.send(b"a", EndStep(1, "cancelled"), after=after)
    bench.turns(80)
    assert bench.post.now > started + after, "the end has come"
    late = [message for at, _, message in bench.post.sent if at > started + after]
    assert not [message for message in late if isinstance(message, (Commit, EarlyTokens, Fault))]
    rest = bench.ask(b"a", begin(2, max_tokens=3, idle=Idle.DECODE))
    assert tokens_of(rest) == greedy("long", JPEG, 3)


class Watching(FakeEngine):
    """Calls `during` in the midst of each encoding, and counts them."""

    encodings = 0
    during: Callable[[], None] = staticmethod(lambda: None)

    def encode(self, index: int, stop: Stop | None = None) -> None:
        self.encodings += 1
        self.during()
        if stop is not None and stop():
            raise Abandoned
        super().encode(index, stop)


@pytest.mark.parametrize("same", [True, False])
def test_a_robot_that_lost_its_link_takes_up_a_prefill_that_still_runs(same: bool) -> None:
    """Its question comes under the next number, from another address; it is one question by its trace."""
    bench = Bench(engine=(engine := Watching()))
    token = bench.welcome(b"old").session
    trace = b"t" * wire.TRACE_BYTES

    def reconnect() -> None:
        engine.during = lambda: None
        bench.send(b"new", Hello(HELLO.tokenizer, VOCABULARY, resume=token))
        bench.send(b"new", begin(2, idle=Idle.DECODE, max_tokens=8, trace=trace if same else b"u" * wire.TRACE_BYTES))

    engine.during = reconnect
    bench.ask(b"old", begin(1, idle=Idle.DECODE, max_tokens=8, trace=trace))
    commits = [message for message in bench.received(b"new") if isinstance(message, Commit)]
    assert tokens_of(commits) == greedy("long", JPEG, 8) and {commit.step for commit in commits} == {2}
    assert engine.encodings == (1 if same else 2)


def test_an_answer_that_went_on_while_its_robot_was_away_is_not_begun_again() -> None:
    bench = Bench(engine=(engine := Watching()))
    token = bench.welcome(b"old").session
    trace = b"t" * wire.TRACE_BYTES
    first = tokens_of(bench.ask(b"old", begin(1, idle=Idle.DECODE, max_tokens=8, trace=trace)))
    bench.ask(b"new", Hello(HELLO.tokenizer, VOCABULARY, resume=token))
    again = bench.ask(b"new", begin(2, idle=Idle.DECODE, max_tokens=8, trace=trace, committed=first[:3]))
    assert tokens_of(again) == first[3:] == greedy("long", JPEG, 8)[3:] and engine.encodings == 1
    # Another question about the same frame is computed, whatever is known.
    bench.ask(b"new", begin(3, idle=Idle.DECODE, max_tokens=8, trace=b"u" * wire.TRACE_BYTES))
    assert engine.encodings == 2


def test_a_robot_hears_what_is_being_done_where_no_commit_comes() -> None:
    """Not while it is the robot's turn: a draft that was lost is the robot's to repeat."""
    bench = Bench(profile=DeviceProfile("slow", verify_s=4.0)).with_robots(b"a")
    bench.ask(b"a", begin(1, max_tokens=3))
    assert not [message for message in bench.received(b"a") if isinstance(message, Working)]
    bench.ask(b"a", begin(2, max_tokens=3, idle=Idle.DECODE))
    said = [(at, message) for at, _, message in bench.post.sent if isinstance(message, Working)]
    assert len(said) >= 8 and {(message.step, message.stage) for _, message in said} == {(2, Stage.ANSWER)}
    assert all(later - earlier >= WORKING_S for (earlier, _), (later, _) in pairwise(said))


def test_while_nobody_reads_messages_every_robot_gets_a_sign_of_life() -> None:
    """The one whose step waits for a draft, too: perhaps it has come."""
    bench = Bench(CONFIG.changed(max_sessions=4)).with_robots(b"idle", b"waits", b"done")
    bench.ask(b"waits", begin(1))
    bench.ask(b"done", begin(1, idle=Idle.DECODE, max_tokens=1))
    before = len(bench.post.sent)
    bench.post.now += WORKING_S
    bench.server._tell(bench.post.now, held_up=True)
    said = {peer: message for _, peer, message in bench.post.sent[before:]}
    assert said == {b"idle": Ping(0), b"waits": Working(1, Stage.QUEUED), b"done": Ping(0)}
