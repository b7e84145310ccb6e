"""The Go2's H.264 stream, RTP over UDP multicast on one network interface, decoded by PyAV."""

from __future__ import annotations

import fcntl
import ipaddress
import math
import socket
import struct
import time
from importlib.util import find_spec
from typing import Any

import numpy as np

from spec_vlm_nav.camera import GRAB_S, SourceSettings
from spec_vlm_nav.cameras.rtp import AccessUnit, Depacketizer
from spec_vlm_nav.optics import Image

_SIOCGIFADDR = 0x8915
_PACKET_BYTES = 1 << 16
_BUFFER_BYTES = 1 << 22
SMEARED_S = 5.0
"""After a loss, frames are shown again this late where no key frame comes: some encoders refresh bit by bit."""


def interfaces() -> list[str]:
    """Return the names of this machine's network interfaces."""
    return [name for _, name in socket.if_nameindex()]


def address_of(interface: str) -> str:
    """Return the IPv4 address of a network interface. Raises ValueError, with those that exist, where there is none."""
    known = interfaces()
    if interface not in known:
        what = f"interface {interface!r} does not exist" if interface else "interface is empty"
        raise ValueError(f"{what}; name the one that leads to the robot, of {', '.join(known)}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", interface.encode()))
        except OSError as error:
            raise ValueError(
                f"interface {interface} has no IPv4 address ({error.strerror}); the robot's network is 192.168.123.0/24"
            ) from None
    return socket.inet_ntoa(answer[20:24])


class Multicast:
    """The stream on one interface; it may be joined at any time and shows frames from the next key frame on.

    After a loss no frame is handed on before the next key frame, or `SMEARED_S` where none comes: what a decoder makes
    of the rest looks like a view and is none.

    Raises ValueError for an interface or group that cannot work, RuntimeError where PyAV is not installed.
    """

    def __init__(self, settings: SourceSettings) -> None:
        try:
            multicast = ipaddress.IPv4Address(settings.group).is_multicast
        except ValueError:
            multicast = False
        if not multicast:
            raise ValueError(f"group {settings.group!r} is no IPv4 multicast address, 224.0.0.0 to 239.255.255.255")
        address_of(settings.interface)
        if find_spec("av") is None:
            raise RuntimeError("nothing here decodes the multicast stream's H.264: pip install av")
        self._settings, self.waiting = settings, ""
        self.name = f"multicast {settings.group}:{settings.port} on {settings.interface}"
        self.advice = (
            f"that interface {settings.interface} is the one that leads to the robot (ping 192.168.123.161), that no "
            f"firewall drops UDP port {settings.port} (tcpdump -i {settings.interface} udp port {settings.port}), and "
            "that no Wi-Fi lies between"
        )

    def open(self) -> None:
        import av

        chosen = self._settings
        try:
            address = address_of(chosen.interface)
        except ValueError as error:
            raise OSError(str(error)) from None
        # FFmpeg's complaints about a stream that is joined in its middle; what matters is raised.
        av.logging.set_level(None)
        self._av = av
        self._at = f"{chosen.group}:{chosen.port}"
        self._socket = _joined(chosen.group, chosen.port, address)
        self._packets = Depacketizer()
        self._codec: Any = av.CodecContext.create("h264", "r")
        # More threads decode more frames at a time, each of them later.
        self._codec.thread_count = 1
        self._codec.flags |= av.codec.context.Flags.low_delay
        self._frame: Any = None
        self._damaged_until = -math.inf
        self.waiting = f"no packet comes in from {self._at} at {address}"

    def grab(self) -> bool:
        end = time.monotonic() + GRAB_S
        while True:
            try:
                unit = self._packets.push(self._socket.recv(_PACKET_BYTES))
            except TimeoutError:
                if self._frame is not None:
                    self.waiting = f"packets from {self._at} stopped"
                return False
            if unit is not None:
                return self._decode(unit)
            if time.monotonic() > end:
                return False

    def retrieve(self) -> Image:
        return np.asarray(self._frame.to_ndarray(format="bgr24"), np.uint8)

    def close(self) -> None:
        self._socket.close()

    def _decode(self, unit: AccessUnit) -> bool:
        now = time.monotonic()
        if unit.lost:
            self._damaged_until = now + SMEARED_S
        try:
            frames = self._codec.decode(self._av.Packet(unit.data))
        except self._av.error.FFmpegError as error:
            raise ValueError(f"packets arrive, but no picture: {error.strerror}; is there a key frame?") from None
        if not frames:
            return False
        frame = frames[-1]
        if frame.key_frame and not unit.lost:
            self._damaged_until = -math.inf
        if frame.is_corrupt or now < self._damaged_until:
            raise ValueError("packets were lost; frames are dropped until the next key frame")
        self._frame = frame
        return True


def _joined(group: str, port: int, address: str) -> socket.socket:
    """Return a socket that receives the group, on the interface of that address only."""
    joined = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    joined.settimeout(GRAB_S)
    # What arrives while the decoder is held up waits here; the kernel grants less where its limit is lower.
    joined.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    joined.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        joined.bind((group, port))
        member = socket.inet_aton(group) + socket.inet_aton(address)
        joined.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    except OSError:
        joined.close()
        raise
    return joined
