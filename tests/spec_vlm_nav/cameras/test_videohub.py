"""Camera calls: one in flight, given up after a while, and never to another service."""

from __future__ import annotations

import threading

import cv2
import pytest

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


def test_a_call_that_is_lost_is_given_up_and_another_is_made() -> None:
    service = Service(timeout_s=0.3)
    service.silent = 2
    source = service.hub
    while len(service.asked) < 2:
        assert not source.grab()
    assert "not answered within 0.3 s" in source.waiting
    assert_is_frame(first(source))
    assert len(service.asked) >= 3


def test_every_call_brings_a_frame_one_is_in_flight_and_a_late_or_foreign_answer_is_none() -> None:
    service = Service()
    source = service.hub
    for _ in range(3):
        assert_is_frame(first(source))
    assert len(service.asked) == 3 and len(set(service.asked)) == 3
    service.silent = 1
    assert not source.grab() and not source.grab()
    assert len(service.asked) == 4
    service.hub.answered(service.asked[-1], 0, service.answer)
    assert_is_frame(first(source))
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


@pytest.mark.parametrize("namespace", ["", "/dog1"])
@pytest.mark.parametrize("service", ["sport", "obstacles_avoid", "videohub2", "motion_switcher"])
def test_no_service_but_its_own_is_ever_called(service: str, namespace: str) -> None:
    check_topic(f"{namespace}{REQUESTS.name}")
    with pytest.raises(ValueError, match="Damp"):
        check_topic(f"{namespace}/api/{service}/request")
