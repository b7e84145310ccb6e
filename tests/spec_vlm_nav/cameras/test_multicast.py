"""The stream: real RTP on the loopback interface, joined in its middle, lost and found."""

from __future__ import annotations

import socket
import time

import pytest

from spec_vlm_nav.camera import Capture, SourceSettings
from spec_vlm_nav.cameras import multicast
from spec_vlm_nav.cameras.multicast import Multicast, address_of
from spec_vlm_nav.optics import Image
from tests.cameras import (
    GROUP,
    KEY_FRAME_EVERY,
    Sender,
    assert_is_frame,
    encoded,
    first,
    free_port,
    multicast_works,
)
from tests.spec_vlm_nav.cameras.test_rtp import payloads_of
from tests.spec_vlm_nav.cameras.test_rtp import rtp as rtp_packet
from tests.spec_vlm_nav.test_camera import Log, until

on_loopback = pytest.mark.skipif(not multicast_works(), reason="the loopback interface carries no multicast here")


def settings(port: int) -> SourceSettings:
    return SourceSettings(source="multicast", interface="lo", group=GROUP, port=port)


def opened(port: int) -> Multicast:
    source = Multicast(settings(port))
    source.open()
    return source


@on_loopback
def test_a_stream_that_is_not_there_names_what_it_waits_for_and_is_joined_in_its_middle_when_it_comes() -> None:
    port = free_port()
    source = opened(port)
    assert not source.grab()
    assert source.waiting == f"no packet comes in from {GROUP}:{port} at 127.0.0.1"
    with Sender(port, payload_type=111, skip=KEY_FRAME_EVERY // 2) as sender:
        for _ in range(4):
            assert_is_frame(first(source))
        sender.paused.set()
        while source.grab():
            pass
        assert "stopped" in source.waiting
        sender.paused.clear()
        assert_is_frame(first(source))
    source.close()


@on_loopback
def test_a_sender_that_ends_and_another_that_begins_are_one_camera() -> None:
    port, log = free_port(), Log()
    images: list[Image] = []
    capture = Capture(Multicast(settings(port)), 60.0, 0.5, lambda image, _: images.append(image), log)
    with Sender(port):
        capture.start(time.monotonic())
        until(lambda: len(images) > 3, "frames")
    until(lambda: bool(capture.tick(time.monotonic()) or log.lines), "loss")
    assert "no frame from multicast" in log.lines[0] and "interface lo" in log.lines[0]
    before = len(images)
    with Sender(port, skip=3):
        until(lambda: bool(capture.tick(time.monotonic()) or len(images) > before + 2), "frames again")
    assert_is_frame(images[-1])
    assert capture.reconnects >= 1
    capture.stop()


def frames_after_a_loss(lossy: int, frames: int) -> list[int]:
    """Return which frames of a stream are shown when the first packet of frame `lossy` does not arrive."""
    port, shown, sequence = free_port(), [], 0
    source = opened(port)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        for number, units in enumerate(encoded(frames)):
            payloads = payloads_of(units, 400, together=False)
            for at, payload in enumerate(payloads):
                if number != lossy or at > 0:
                    last = at == len(payloads) - 1
                    sender.sendto(rtp_packet(payload, sequence, 6000 * number, last), (GROUP, port))
                sequence += 1
            try:
                if source.grab():
                    assert_is_frame(source.retrieve())
                    shown.append(number)
            except ValueError as error:
                assert "packets" in str(error)
    source.close()
    return shown


@on_loopback
def test_a_stream_without_key_frames_is_shown_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multicast, "SMEARED_S", 0.0)
    lossy = KEY_FRAME_EVERY + 3
    assert lossy + 3 in frames_after_a_loss(lossy, 2 * KEY_FRAME_EVERY)


@on_loopback
def test_packets_that_are_no_rtp_are_an_error_not_a_frame() -> None:
    port = free_port()
    source = opened(port)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        sender.sendto(b"hello", (GROUP, port))
    with pytest.raises(ValueError, match="a packet of 5 bytes is no RTP"):
        source.grab()
    source.close()


def test_an_unknown_interface_is_named_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match=r"interface 'enp9s9' does not exist; name the one .* of lo, "):
        address_of("enp9s9")
    with pytest.raises(ValueError, match=r"interface is empty; .*\blo\b"):
        Multicast(SourceSettings(source="multicast"))
    assert address_of("lo") == "127.0.0.1"


def test_an_interface_without_an_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object) -> bytes:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(multicast.fcntl, "ioctl", down)
    with pytest.raises(ValueError, match="interface lo has no IPv4 address"):
        address_of("lo")


@pytest.mark.parametrize("group", ["192.168.1.1", "ff02::1"])
def test_a_group_that_is_none_is_refused(group: str) -> None:
    with pytest.raises(ValueError, match=f"group '{group}' is no IPv4 multicast address"):
        Multicast(SourceSettings(source="multicast", interface="lo", group=group))


def test_a_missing_decoder_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multicast, "find_spec", lambda _: None)
    with pytest.raises(RuntimeError, match="pip install av"):
        Multicast(settings(free_port()))
