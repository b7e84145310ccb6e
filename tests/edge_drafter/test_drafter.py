"""A drafter in every mode, on a link that misbehaves: whose answers it gives, in what time, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from edge_drafter import Drafter, DraftingConfig, Interruption, Mode, StepInterrupted, sources_of
from edge_drafter.settings import WHO_DECODES
from speculation.cancellation import Stop
from speculation.sampling import GREEDY, Coupled, SamplingScheme, Split
from speculation.settings import fields_of
from speculation.trace import Kind
from speculation.wire import (
    MAX_IMAGE_BYTES,
    MAX_PROMPT_CHARS,
    AnyMessage,
    Commit,
    Draft,
    EndStep,
    Fault,
    FaultCode,
    Idle,
    Masses,
    decode,
    encode,
)
from tests.edge_drafter.fakes import (
    DRAFT_S,
    EOS,
    WEATHERS,
    Bench,
    FakeClock,
    FakeLink,
    FakeModel,
    NextToken,
    Weather,
    alone,
    counting,
    hashed_draft,
    hashed_target,
    never,
    patient,
    request,
)
from tests.speculation.test_predictor import network

TECHNIQUES = [each.name for each in fields_of(DraftingConfig) if each.kind is bool and each.name not in WHO_DECODES]


@settings(max_examples=100, deadline=None)
@given(
    mode=st.sampled_from([mode for mode in Mode if mode is not Mode.EDGE]),
    seed=st.integers(0, 10_000),
    agreement=st.floats(0.0, 1.0),
    gamma=st.one_of(st.integers(0, 6), st.just("auto")),
    techniques=st.dictionaries(st.sampled_from(TECHNIQUES), st.booleans(), max_size=3),
    sizes=st.fixed_dictionaries(
        {},
        optional={
            "branches": st.integers(0, 4),
            "max_nodes": st.integers(1, 40),
            "leaves": st.integers(1, 3),
            "draft_tokens": st.integers(0, 9),
            "stop_below": st.floats(0.0, 1.0),
            "effort": st.floats(0.0, 1.0),
        },
    ),
    guesses=st.booleans(),
    prefill=st.integers(0, 12),
    max_tokens=st.integers(1, 30),
    weather=WEATHERS,
)
def test_whatever_the_settings_and_the_weather_an_answer_is_the_targets(
    mode: Mode, seed: int, agreement: float, gamma: int | str, techniques: dict[str, bool], sizes: dict[str, Any],
    guesses: bool, prefill: int, max_tokens: int, weather: Weather,
) -> None:  # fmt: skip
    """Also where drafts stop by any predictor, or by the draft's own probability, and while the frame is being read."""
    target = hashed_target(seed)
    if not mode.drafts:
        weather.losses = 0.0
        sizes, techniques = {}, {}
    bench = Bench(
        target, hashed_draft(target, seed, agreement), weather, patient(mode, gamma=gamma, **techniques, **sizes),
        predictor=network(seed) if guesses else None, prefill=prefill,
        sureness=lambda prefix: 0.1 + 6.0 * hashed_target(seed + 1, 0.0)(prefix) / EOS,
    )  # fmt: skip
    for step in (1, 2):
        before = bench.model.forwards
        result = bench.run(request(step, max_tokens))
        stats = result.stats
        assert result.tokens == alone(target, max_tokens)
        assert stats.tokens == len(result.tokens)
        assert stats.draft_forwards == bench.model.forwards - before
        assert 0 <= stats.draft_forwards - stats.wasted_forwards <= stats.tokens
        assert stats.ahead_hits <= stats.hits and stats.ahead_hits <= stats.sent_ahead
        assert sum(stats.early_hits.values()) <= stats.hits and stats.hits + stats.misses <= stats.rounds
        assert stats.accepted <= stats.tokens and stats.abandoned <= stats.wasted_forwards
        assert stats.rounds <= stats.tokens
        assert stats.prefill_s + stats.draft_s + stats.predraft_s + stats.wait_s == pytest.approx(stats.total_s)


def wrong_at(places: set[int]) -> tuple[NextToken, Callable[[Sequence[int]], float]]:
    """A draft of the counting target that is wrong at some answer positions, and unsure exactly there."""
    right = counting(99)
    return (
        lambda prefix: 6 if len(prefix) in places else right(prefix),
        lambda prefix: 0.1 if len(prefix) in places else 9.0,
    )


def test_a_draft_ends_with_the_first_predicted_rejection_and_wastes_one_forward() -> None:
    """Never stopping, the first three of these rounds draft four tokens, of which three, two and one are wasted."""
    draft, sureness = wrong_at({1, 4, 8})
    never, stops = (
        Bench(counting(99), draft, Weather(), DraftingConfig.of("sd", stop_below=below), sureness=sureness)
        for below in (0.0, 0.5)
    )
    before, after = (bench.run(request(max_tokens=12)).stats for bench in (never, stops))
    assert [len(message.tokens) for _, message in stops.drafts] == [2, 3, 4, 2]
    assert (before.rounds, after.rounds) == (4, 4) and before.accepted == after.accepted == 8
    assert (before.wasted_forwards, after.wasted_forwards) == (6, 3)
    assert before.total_s - after.total_s == pytest.approx(3 * DRAFT_S)


@given(seed=st.integers(0, 1000), max_tokens=st.integers(1, 30))
def test_edge_mode_is_the_draft_alone_and_needs_no_link(seed: int, max_tokens: int) -> None:
    draft = hashed_target(seed)
    config = DraftingConfig.of("edge")
    drafter = Drafter(sources_of(config, FakeModel(draft)), None, config, FakeClock())
    result = drafter.run(request(max_tokens=max_tokens))
    assert result.tokens == alone(draft, max_tokens)
    assert result.stats.draft_forwards == len(result.tokens) and result.stats.rounds == 0


def test_stop_and_wait_takes_what_the_paper_says() -> None:
    """Latency of SD (Early Exits, Table 4): n / tau x (2 T_c + gamma T_p + T_q)."""
    target = counting(99)
    bench = Bench(target, target, Weather(), DraftingConfig.of("sd"))
    stats = bench.run(request(max_tokens=20)).stats
    assert (stats.rounds, stats.tau, stats.accepted, stats.hits) == (4, 5.0, 16, 0)
    assert stats.total_s == pytest.approx(4 * (2 * 0.1 + 4 * DRAFT_S + 0.5))
    assert stats.misses == 3 and stats.predraft_s == 0.0 and stats.wasted_forwards == 0


def test_early_tokens_turn_misses_into_hits() -> None:
    """A draft that is always wrong after the first token of a round: only the exits know where the verdict lands."""
    target, (draft, _), weather = counting(99), wrong_at({2, 5, 8, 11, 14, 17}), Weather(exits=2)
    deaf = Bench(target, draft, weather, DraftingConfig.of("fsd", early_tokens=False)).run(request(max_tokens=18)).stats
    bench = Bench(target, draft, weather, DraftingConfig.of("fsd"))
    heard = bench.run(request(max_tokens=18)).stats
    assert (deaf.hits, deaf.misses) == (0, 5) and deaf.early_hits == {}
    assert (heard.hits, heard.misses) == (5, 0) and heard.early_hits == {0: 5}
    assert heard.early_received == 12
    needed = 4 + 4 + 4 + 4 + 2  # the last draft has room for two tokens only
    assert heard.total_s == pytest.approx(deaf.total_s - needed * DRAFT_S)


def test_at_most_one_draft_forward_delays_a_commit() -> None:
    target = hashed_target(3, eos_rate=0.0)
    bench = Bench(target, hashed_draft(target, 3, 0.4), Weather(exits=4, wrong_exits=0.8), DraftingConfig.of("fsd"))
    result = bench.run(request(max_tokens=40))
    drafted_at = [at for at, _ in bench.drafts]
    taken_at = [span.end for span in bench.trace.spans if span.name == Kind.ROUND.value]
    assert result.tokens == alone(target, 40)
    for sent, taken in zip(drafted_at, taken_at, strict=True):
        assert taken - (sent + 0.7) < DRAFT_S + 1e-9


def test_an_interrupted_answer_goes_on_where_it_stood() -> None:
    target = hashed_target(5, eos_rate=0.0)
    for mode in ("cloud", "sd", "fsd"):
        bench = Bench(target, hashed_draft(target, 5, 0.7), Weather(cut_after=4), DraftingConfig.of(mode))
        with pytest.raises(StepInterrupted) as caught:
            bench.run(request(1, 30))
        stopped = caught.value
        assert stopped.cause is Interruption.LINK_LOST and "gone" in str(stopped)
        assert 0 < len(stopped.committed) < 30 and stopped.stats.interruptions == 1
        bench.link.mend()
        rest = bench.run(request(2, 30, stopped.committed))
        assert rest.tokens == alone(target, 30)
        assert bench.link.begun[-1].committed == list(stopped.committed)
        stopped.stats.add(rest.stats)
        assert stopped.stats.tokens == 30 and stopped.stats.first_commit_s is not None


def test_a_silent_verifier_is_a_lost_link_after_the_patience() -> None:
    bench = Bench(counting(9), never, Weather(losses=1.0), DraftingConfig.of("sd", patience_s=5.0, resend_s=1.0))
    with pytest.raises(StepInterrupted, match="committed nothing") as caught:
        bench.run()
    assert caught.value.cause is Interruption.LINK_LOST
    assert caught.value.stats.resent == 4 and bench.clock.now == pytest.approx(5.0)


def test_patience_ends_at_the_instant_that_was_waited_for() -> None:
    """A clock that wakes at a start plus the patience may show a difference that rounds to less than it."""
    start, patience_s = 63.66192426159518, 6.0
    assert start + patience_s - start < patience_s
    bench = Bench(counting(9), never, Weather(losses=1.0), DraftingConfig.of("cloud", patience_s=patience_s))
    bench.clock.now = start
    looks = 0
    receive = bench.link.receive

    def counted(timeout_s: float) -> Any:
        nonlocal looks
        looks += 1
        assert looks < 100, "the loop turns without end"
        return receive(timeout_s)

    bench.link.receive = counted
    with pytest.raises(StepInterrupted, match="committed nothing"):
        bench.run()


@pytest.mark.parametrize("agreement", [0.0, 0.7])
@pytest.mark.parametrize("mode", [mode for mode in Mode if mode.drafts and mode.needs_link])
def test_no_step_stalls_where_every_second_message_is_lost(mode: Mode, agreement: float) -> None:
    """A silence of 200 tries, each unanswered with 1 - 0.5**2, would be no chance: 0.75**200 = 1e-25."""
    target = hashed_target(5, eos_rate=0.0)
    weather = Weather(jitter_s=0.1, duplicates=0.1, losses=0.5, exits=2, wrong_exits=0.2, seed=5)
    config = DraftingConfig.of(mode, gamma="auto", patience_s=400.0)
    bench = Bench(target, hashed_draft(target, 5, agreement), weather, config)
    for step in (1, 2):
        result = bench.run(request(step))
        assert result.tokens == alone(target, 24)
        assert result.stats.resent > 0


@pytest.mark.parametrize("mode", ["cloud", "edge", "sd", "fsd"])
def test_the_deadline_ends_a_step_in_every_mode(mode: str) -> None:
    bench = Bench(hashed_target(1, 0.0), hashed_target(1, 0.0), Weather(), DraftingConfig.of(mode))
    with pytest.raises(StepInterrupted, match="deadline of 0.6 s") as caught:
        bench.run(request(1, 500, deadline_s=0.6))
    assert caught.value.cause is Interruption.DEADLINE
    assert 0.6 <= bench.clock.now <= 0.6 + DRAFT_S
    if mode != "edge":
        assert isinstance(bench.link.sent[-1][1], EndStep)


def test_a_fault_about_this_step_ends_it_with_its_sentence() -> None:
    bench = Bench(counting(9), never, Weather(), DraftingConfig.of("sd"))
    bench.link._inbox.append(Fault(FaultCode.BAD_IMAGE, "BeginStep.jpeg is no JPEG", 0))
    bench.link._inbox.append(Fault(FaultCode.BAD_IMAGE, "BeginStep.jpeg is a PNG", 1))
    with pytest.raises(StepInterrupted, match="is a PNG") as caught:
        bench.run()
    assert caught.value.cause is Interruption.REFUSED


def test_a_finished_answer_is_not_asked_for_again() -> None:
    bench = Bench(counting(3), never, Weather(), DraftingConfig.of("sd"))
    assert bench.run(request(1, 24, (0, 1, EOS))).tokens == (0, 1, EOS)
    assert bench.link.sent == []


def test_a_mode_without_its_parts_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a draft model"):
        sources_of(DraftingConfig.of("sd"), None)
    for mode in ("sd", "edge"):
        with pytest.raises(ValueError, match="needs a source of drafts"):
            Drafter((), FakeLink(never, FakeClock(), Weather()), DraftingConfig.of(mode))
    with pytest.raises(ValueError, match="needs a link"):
        Drafter((), None, DraftingConfig.of("cloud"))


@pytest.mark.parametrize("how", [GREEDY, Coupled(1.0), Split(1.0)])
def test_a_frame_is_hashed_once_on_each_side(how: SamplingScheme, hashes_of: Callable[[bytes], int]) -> None:
    frame = b"a frame" * 100
    config = DraftingConfig.of("sd", width=1, draft_tokens=0)
    bench = Bench(counting(6), counting(6), Weather(sampling=how), config)
    bench.run(replace(request(), jpeg=frame, sampling=how, max_tokens=3))
    assert len(bench.link.begun) == 1 and hashes_of(frame) == 2


class Refusing(FakeModel):
    """A draft model that raises `error` when it is asked for `what`."""

    what, error = "", Exception()

    def begin(self, prompt: str, image: bytes, committed: Sequence[int] = (), stop: Stop | None = None) -> None:
        if self.what == "begin":
            raise self.error
        super().begin(prompt, image, committed, stop)

    def commit(self, path: Sequence[int], next_token: int) -> dict[int, int]:
        if self.what == "commit":
            raise self.error
        return super().commit(path, next_token)


FAILURES = [
    ("begin", Interruption.UNREADABLE, "image of 4 bytes does not decode"),
    ("commit", Interruption.FAILED, "token 9 is outside the vocabulary 0..7"),
    ("commit", Interruption.FAILED, "long " * 1000),
]


@pytest.mark.parametrize("mode", ["sd", "edge"])
@pytest.mark.parametrize(("what", "cause", "sentence"), FAILURES)
def test_a_step_that_fails_says_why_and_closes_its_figures(
    what: str, cause: Interruption, sentence: str, mode: str
) -> None:
    bench = Bench(counting(20), never, Weather(), DraftingConfig.of(mode), Refusing)
    bench.model.what, bench.model.error = what, ValueError(sentence)
    bench.clock.sleep(1.0)
    with pytest.raises(StepInterrupted) as caught:
        bench.run()
    stop = caught.value
    assert (stop.cause, str(stop)) == (cause, sentence) and isinstance(stop.__cause__, ValueError)
    assert stop.stats.tokens == len(stop.committed) == (0 if what == "begin" else 1 if mode == "sd" else 0)
    assert [span.name for span in bench.trace.spans].count(Kind.STEP.value) == 1
    if mode == "sd":
        assert stop.stats.bytes_up == bench.link.bytes_up > 0
        last = bench.link.sent[-1][1]
        assert isinstance(last, EndStep) and last.reason == f"{cause.value}: {sentence}"[:1000]
        assert decode(encode(last)) == last


def test_an_unforeseen_error_ends_the_step_at_the_verifier_and_closes_its_figures() -> None:
    bench = Bench(counting(20), never, Weather(), DraftingConfig.of("sd"), Refusing)
    bench.model.what, bench.model.error = "begin", RuntimeError("out of memory")
    with pytest.raises(RuntimeError, match="^out of memory$"):
        bench.run()
    assert [span.name for span in bench.trace.spans].count(Kind.STEP.value) == 1
    assert bench.link.sent[-1][1] == EndStep(1, "the edge failed: out of memory")


class Leaving(FakeLink):
    """A verifier whose commits leave their next token to the edge, with nothing that it could be sampled from."""

    def _deliver(self, payload: bytes) -> None:
        super()._deliver(payload)
        if self._inbox and isinstance(message := self._inbox[-1], Commit):
            self._inbox[-1] = structs.replace(message, rest=Masses(b"", 1.0))


@pytest.mark.parametrize(("how", "sentence"), [(GREEDY, "drawn by another rule"), (Split(1.0), "Commit.rest")])
def test_a_token_that_cannot_be_sampled_contradicts(how: SamplingScheme, sentence: str) -> None:
    config = DraftingConfig.of("sd", width=1, draft_tokens=0)
    bench = Bench(counting(20), never, Weather(sampling=how), config, link=Leaving)
    with pytest.raises(StepInterrupted, match=sentence) as stopped:
        bench.run(replace(request(), sampling=how))
    assert stopped.value.cause is Interruption.CONTRADICTION


@pytest.mark.parametrize("mode", ["full", "pipelined", "fsd"])
@pytest.mark.parametrize("layers", [0, 1, 2, 5, 40])
def test_commits_are_taken_while_the_frame_is_read(mode: str, layers: int) -> None:
    """The first token does not wait for the edge's prefill, which ends with the answer at the latest."""
    target = hashed_target(5, 0.0)
    config = DraftingConfig.of(mode, idle=Idle.DECODE)
    bench = Bench(target, hashed_draft(target, 5, 0.8), Weather(), config, prefill=layers)
    result = bench.run(request(max_tokens=12))
    assert result.tokens == alone(target, 12)
    assert result.stats.first_commit_s is not None
    assert result.stats.first_commit_s <= 0.1 + 0.5 + 0.1 + 0.5, "way up, verification, way down, one layer"
    assert bench.clock.now <= 12 * 0.5 + 0.1 + 0.1 + 0.5
    assert result.stats.prefill_s == pytest.approx(min(0.5 * layers, result.stats.total_s))


GARBLED = Fault(FaultCode.MALFORMED, "malformed message: Draft.tokens: \x1b[2J")


class Garbling(FakeLink):
    """A link on which the first drafts arrive as garbage."""

    garbled = 2

    def send(self, message: AnyMessage) -> None:
        if isinstance(message, Draft) and self.garbled:
            self.garbled -= 1
            # What a verifier answers, which may have read whose step it was.
            self._inbox.append(Fault(GARBLED.code, GARBLED.message, message.step if message.step % 2 else None))
            return
        super().send(message)


@pytest.mark.parametrize("step", [1, 2])
def test_what_was_garbled_is_sent_again(step: int) -> None:
    bench = Bench(counting(9), counting(9), Weather(), DraftingConfig.of(Mode.SD, resend_s=1.0), link=Garbling)
    result = bench.run(request(step))
    assert result.tokens == alone(counting(9), 24) and result.stats.resent >= 2


def test_where_all_is_garbled_the_reason_is_named() -> None:
    config = DraftingConfig.of(Mode.SD, resend_s=1.0, patience_s=5.0)
    bench = Bench(counting(9), counting(9), Weather(), config, link=Garbling)
    bench.link.garbled = 1000
    with pytest.raises(
        StepInterrupted, match="committed nothing for 5.0 s .* it could not read a message: "
    ) as stopped:
        bench.run()
    assert stopped.value.cause is Interruption.LINK_LOST and "\x1b" not in str(stopped.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"prompt": ""}, "the prompt has 0 characters, give 1 to 12000"),
        ({"prompt": "a" * (MAX_PROMPT_CHARS + 1)}, "the prompt has 12001 characters"),
        ({"jpeg": bytes(MAX_IMAGE_BYTES + 1)}, "the question's frames have 4194305 bytes, the limit is 4194304"),
        ({"jpeg": (b"old", bytes(MAX_IMAGE_BYTES))}, "the question's frames have 4194307 bytes"),
        ({"jpeg": (b"frame",) * 5}, "the question has 5 frames, give at most 4"),
    ],
)
def test_what_no_message_can_take_is_refused_here(changes: dict[str, object], sentence: str) -> None:
    bench = Bench(counting(9), counting(9), Weather(), DraftingConfig.of(Mode.SD))
    with pytest.raises(StepInterrupted, match=sentence) as stopped:
        bench.run(replace(request(), **changes))  # type: ignore[arg-type]
    assert stopped.value.cause is Interruption.FAILED
    assert not any(len(encode(message)) > 100 for _, message in bench.link.sent)
