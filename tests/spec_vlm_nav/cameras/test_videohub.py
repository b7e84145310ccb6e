"""Camera calls: one in flight, given up after a while, and never to another service."""

from __future__ import annotations

import threading

import cv2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_vlm_nav.cameras.videohub import REQUESTS, Videohub, check_topic
from tests.cameras import assert_is_frame, first, frame


def jpeg(number: int = 0) -> bytes:
    return bytes(cv2.imencode(".jpg", frame(number))[1])


class Service:
    """Answers from a thread of its own, as a middleware does; `silent` loses the next so many calls."""

    def __init__(self, max_hz: float = 60.0, timeout_s: float = 60.0) -> None:
        self.asked: list[int] = []
        self.silent, self.code = 0, 0
        self.answer = jpeg()
        self.hub = Videohub(self._ask, max_hz, timeout_s)

    def _ask(self, identity: int) -> None:
        self.asked.append(identity)
        if self.silent:
            self.silent -= 1
            return
        threading.Thread(target=self.hub.answered, args=(identity, self.code, self.answer)).start()


def test_every_call_brings_a_frame() -> None:
    service = Service()
    source = service.hub
    for _ in range(3):
        assert_is_frame(first(source))
    assert len(service.asked) == 3 and len(set(service.asked)) == 3


def test_a_call_that_is_lost_is_given_up_and_another_is_made() -> None:
    service = Service(timeout_s=0.3)
    service.silent = 2
    source = service.hub
    while len(service.asked) < 2:
        assert not source.grab()
    assert "not answered within 0.3 s" in source.waiting
    assert_is_frame(first(source))
    assert len(service.asked) >= 3


def test_one_call_is_in_flight() -> None:
    service = Service()
    service.silent = 99
    source = service.hub
    for _ in range(3):
        assert not source.grab()
    assert len(service.asked) == 1


def test_a_late_or_foreign_answer_is_no_frame() -> None:
    service = Service()
    source = service.hub
    first(source)
    service.hub.answered(service.asked[-1] - 1, 0, b"another's")
    service.answer = jpeg(7)
    assert_is_frame(first(source))


def test_a_refusal_and_a_broken_image_are_errors() -> None:
    service = Service()
    service.code = 3104
    with pytest.raises(ValueError, match="refused with code 3104"):
        while not service.hub.grab():
            pass
    service.code, service.answer = 0, jpeg()[:100]
    while not service.hub.grab():
        pass
    with pytest.raises(ValueError):
        service.hub.retrieve()


@pytest.mark.parametrize("name", [REQUESTS.name, "/dog1/api/videohub/request"])
def test_its_own_service_may_be_called(name: str) -> None:
    check_topic(name)


@given(st.sampled_from(["sport", "obstacles_avoid", "videohub2", "motion_switcher"]), st.sampled_from(["", "/dog1"]))
def test_no_other_service_is_ever_called(service: str, namespace: str) -> None:
    with pytest.raises(ValueError, match="Damp"):
        check_topic(f"{namespace}/api/{service}/request")
