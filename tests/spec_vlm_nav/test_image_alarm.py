"""The image alarm: quiet while the draft model sees, raised in bounded time when it does not, over when it does."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from edge_drafter.decoder import EdgeDecoder
from edge_drafter.image_dependence import SwapTest
from edge_drafter.settings import EdgeConfig
from edge_drafter.stats import DecodingStats
from spec_vlm_nav.diagnostics import Level
from spec_vlm_nav.graph import PROJECT
from spec_vlm_nav.image_alarm import TESTS, ImageAlarm, SwapQuestion
from speculation.vlm.load import load_vlm
from speculation.vlm.session import VlmSession
from vlm_nav_evaluation.bags.frames import BagFrame, FrameSource, Selection

MODELS = PROJECT / "models"


def alarm_of(every: int) -> ImageAlarm:
    """Return an alarm whose tests the caller makes."""
    return ImageAlarm(every, lambda question: None, print)


def judged(alarm: ImageAlarm, count: int, changed: int, tokens: int = 25) -> list[str]:
    test = SwapTest(tokens, tokens, tokens - changed, changed)
    return [sentence for _ in range(count) if (sentence := alarm.take(test, 1.0))]


@given(st.lists(st.integers(0, 25), max_size=60))
def test_the_alarm_is_the_share_of_the_latest_tests(changes: list[int]) -> None:
    alarm = alarm_of(8)
    for index, changed in enumerate(changes):
        before = alarm.raised
        sentence = judged(alarm, 1, changed)
        latest = changes[max(0, index + 1 - TESTS) : index + 1]
        share = sum(latest) / (25 * len(latest))
        if index + 1 < TESTS:
            assert not alarm.raised
        elif share < 0.01 or share >= 0.02:
            assert alarm.raised == (share < 0.01)
        else:
            assert alarm.raised == before, "between the two nothing changes"
        assert bool(sentence) == (alarm.raised != before)
        assert alarm.status(2.0).level is (Level.ERROR if alarm.raised else Level.OK)
        assert alarm.status(2.0).values["last test, s ago"] == 1.0


def test_a_blind_draft_is_an_alarm_until_it_sees_and_tests_can_be_off() -> None:
    off, alarm = alarm_of(0), alarm_of(8)
    assert off.due("prompt", "0", b"0") is off.due("prompt", "1", b"1") is None
    assert off.status(0.0).message == "swap tests are off"
    assert "not judged yet: 8 more tests" in alarm.status(0.0).message
    (began,) = judged(alarm, 8, 0)
    assert began == "ALARM: another image changes 0.0 % of 200 draft tokens"
    (over,) = judged(alarm, 8, 2)
    assert over.endswith("the alarm is over")


@given(st.lists(st.sampled_from("abc"), max_size=80), st.integers(1, 10), st.lists(st.booleans(), max_size=80))
def test_a_test_is_of_two_views_and_never_too_often(answers: list[str], every: int, done: list[bool]) -> None:
    """Frames are named by their answer and number, so that a view can be known from its frame."""
    alarm = alarm_of(every)
    finished = iter(done)
    last = -1
    for index, answer in enumerate(answers):
        question = alarm.due("prompt", answer, f"{answer}{index}".encode())
        if question is not None:
            assert index - last >= every
            assert (question.answer, question.jpeg) == (answer, f"{answer}{index}".encode())
            assert question.other[:1] != question.jpeg[:1] and int(question.other[1:]) < index
            if next(finished, True):
                alarm.take(SwapTest(10, 9, 8, 1), float(index))
                last = index
    if len(set(answers)) == 1:
        assert last == -1, "one view shows nothing"


def watched(alarm: ImageAlarm, count: int, mode: str = "full") -> None:
    """Give it answers that all differ, each after the test of the one before."""
    for index in range(count):
        alarm.answered("find it", f"answer {index}", DecodingStats(mode=mode), b"frame %d" % index)
        if alarm.test is not None:
            alarm.test.join(60.0)


def test_tests_run_beside_the_answers_and_raise_the_alarm() -> None:
    sentence: list[str] = []
    asked: list[SwapQuestion] = []

    def blind(question: SwapQuestion) -> SwapTest:
        assert threading.current_thread() is not threading.main_thread()
        asked.append(question)
        return SwapTest(20, 18, 18, 0)

    alarm = ImageAlarm(8, blind, sentence.append, lambda: 5.0)
    watched(alarm, 63)
    assert sentence == [] and not alarm.raised
    watched(alarm, 10)
    assert sentence == ["ALARM: another image changes 0.0 % of 160 draft tokens"] and alarm.raised
    assert alarm.status(6.0).level is Level.ERROR and alarm.status(6.0).values["last test, s ago"] == 1.0
    assert all(question.jpeg != question.other for question in asked)
    alarm.close()
    assert not alarm.raised and alarm.status(6.0).level is Level.OK


def test_the_draft_models_own_answers_are_not_tested_and_a_failed_test_gets_its_reason() -> None:
    sentence: list[str] = []
    count = 0

    def broken(question: SwapQuestion) -> SwapTest | None:
        nonlocal count
        count += 1
        if count % 2:
            raise ValueError("no image")
        return None

    alarm = ImageAlarm(8, broken, sentence.append)
    watched(alarm, 50, "edge")
    assert count == 0
    watched(alarm, 11)
    assert count == 4, "made again after each answer"
    assert sentence == ["a swap test of the draft model failed: no image"] * 2


# --- the real pair


@pytest.fixture(scope="module")
def answered() -> list[tuple[str, str, bytes]]:
    """Prompt, target's answer and frame of a part of the sample bag."""
    target = VlmSession(load_vlm(MODELS / "target"), 1024)
    with FrameSource(MODELS / "sample_bag", Selection(skip=4, limit=10)) as source:
        return [
            (frame.prompt, target.answer(frame.prompt, frame.jpeg, 64), frame.jpeg)
            for frame in source
            if isinstance(frame, BagFrame)
        ]


@pytest.fixture(scope="module")
def draft() -> Iterator[EdgeDecoder]:
    edge = EdgeDecoder(EdgeConfig.flat(MODELS / "draft", mode="edge"))
    yield edge
    edge.close()


def blank() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((224, 224, 3), 110, np.uint8)).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.mark.parametrize("sees", [True, False], ids=["sees", "gets a blank image"])
def test_the_embedded_draft_passes_and_one_with_a_blank_image_does_not(
    draft: EdgeDecoder, answered: list[tuple[str, str, bytes]], sees: bool
) -> None:
    alarm = alarm_of(1)
    tests = 0
    for prompt, answer, frame in answered:
        question = alarm.due(prompt, answer, frame)
        if question is not None:
            if not sees:
                question = SwapQuestion(question.prompt, question.answer, blank(), blank())
            found = draft.swap_test(*question)
            assert found is not None
            alarm.take(found, float(tests))
            tests += 1
    assert tests >= 8
    status = alarm.status(10.0)
    assert alarm.raised is not sees, status
    if sees:
        assert float(status.values["accepted"]) > float(status.values["accepted with another image"])
        assert float(status.values["changed by another image"]) > 0.03
    else:
        assert status.values["changed by another image"] == 0.0
