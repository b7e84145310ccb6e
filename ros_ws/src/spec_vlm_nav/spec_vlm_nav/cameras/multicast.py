"""The Go2's H.264 stream, RTP over UDP multicast: which interface, which decoder, and the decoder without GStreamer."""

from __future__ import annotations

import fcntl
import io
import ipaddress
import socket
import struct
from importlib.util import find_spec
from typing import Any

import cv2
import numpy as np

from spec_vlm_nav.camera import GRAB_S, Decoder, Source, SourceSettings
from spec_vlm_nav.cameras.gstreamer import OpenCvPipeline, Pipeline, bindings, pipeline
from spec_vlm_nav.optics import Image

_SIOCGIFADDR = 0x8915
_RTP_VERSION = 2
_PACKET_BYTES = 2048


def address_of(interface: str) -> str:
    """Return the IPv4 address of a network interface. Raises ValueError, with those that exist, where there is none."""
    known = ", ".join(name for _, name in socket.if_nameindex())
    if interface not in known.split(", "):
        what = f"interface {interface!r} does not exist" if interface else "interface is empty"
        raise ValueError(f"{what}; name the one that leads to the robot, of {known}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", interface.encode()))
        except OSError as error:
            raise ValueError(
                f"interface {interface} has no IPv4 address ({error.strerror}); the robot's network is 192.168.123.0/24"
            ) from None
    return socket.inet_ntoa(answer[20:24])


def decoder_here(wanted: Decoder) -> Decoder:
    """Return the decoder that is used. Raises RuntimeError where the wanted one, or any at all, is missing."""
    missing: dict[Decoder, str] = {}
    try:
        bindings()
    except RuntimeError as error:
        missing[Decoder.PYGOBJECT] = str(error)
    if not any("GStreamer" in line and "YES" in line for line in cv2.getBuildInformation().splitlines()):
        missing[Decoder.OPENCV] = "this OpenCV is built without GStreamer, as those of PyPI are"
    if find_spec("av") is None:
        missing[Decoder.PYAV] = "PyAV is missing: pip install av"
    for decoder in (Decoder.PYGOBJECT, Decoder.OPENCV, Decoder.PYAV):
        if wanted in (decoder, Decoder.AUTO) and decoder not in missing:
            return decoder
    why = missing.get(wanted, "nothing here decodes H.264: pip install av")
    raise RuntimeError(f"decoder {wanted.value}: {why}")


class Multicast:
    """The stream on one interface. Raises ValueError for an interface or group that cannot work, RuntimeError where no
    decoder is installed.
    """

    def __init__(self, settings: SourceSettings) -> None:
        try:
            multicast = ipaddress.IPv4Address(settings.group).is_multicast
        except ValueError:
            multicast = False
        if not multicast:
            raise ValueError(f"group {settings.group!r} is no IPv4 multicast address, 224.0.0.0 to 239.255.255.255")
        address_of(settings.interface)
        self._settings, self._decoder = settings, decoder_here(settings.decoder)
        self.name = f"multicast {settings.group}:{settings.port} on {settings.interface} by {self._decoder.value}"
        self.advice = (
            f"that interface {settings.interface} is the one that leads to the robot (ping 192.168.123.161), that no "
            f"firewall drops UDP port {settings.port} (tcpdump -i {settings.interface} udp port {settings.port}), and "
            "that no Wi-Fi lies between"
        )

    def open(self) -> Source:
        """See `Opener`."""
        chosen = self._settings
        try:
            address = address_of(chosen.interface)
        except ValueError as error:
            raise OSError(str(error)) from None
        if self._decoder is Decoder.PYAV:
            return RtpStream(chosen.group, chosen.port, address)
        text = pipeline(chosen.group, chosen.port, chosen.interface, chosen.gst_decode)
        return OpenCvPipeline(text) if self._decoder is Decoder.OPENCV else Pipeline(text)


class RtpStream:
    """The stream by PyAV; it may be joined at any time and shows frames from the next key frame on."""

    def __init__(self, group: str, port: int, address: str) -> None:
        import av

        # FFmpeg's complaints about a stream that is joined in its middle; what matters is raised.
        av.logging.set_level(None)
        self._av = av
        self._group, self._port, self._address = group, port, address
        self._socket: socket.socket | None = self._join()
        self._container: Any = None
        self._stream: Any = None
        self._frame: Any = None
        self.waiting = f"no packet comes in from {group}:{port} at {address}"

    def grab(self) -> bool:
        """See `Source`."""
        if self._container is None and not self._begin():
            return False
        try:
            packet = next(self._container.demux(self._stream))
        except StopIteration:
            raise OSError("the stream has ended") from None
        except self._av.error.ExitError:
            self.waiting = f"packets from {self._group}:{self._port} stopped"
            return False
        try:
            frames = [frame for frame in packet.decode() if not frame.is_corrupt]
        except self._av.error.FFmpegError as error:
            raise ValueError(f"packets arrive, but no picture: {error.strerror}; is there a key frame?") from None
        if frames:
            self._frame = frames[-1]
        return bool(frames)

    def retrieve(self) -> Image:
        """See `Source`."""
        return np.asarray(self._frame.to_ndarray(format="bgr24"), np.uint8)

    def close(self) -> None:
        """See `Source`."""
        if self._socket is not None:
            self._socket.close()
        if self._container is not None:
            self._container.close()

    def _join(self) -> socket.socket:
        """Return a socket that receives the group, on our interface only."""
        joined = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        joined.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        joined.settimeout(GRAB_S)
        try:
            joined.bind((self._group, self._port))
            member = socket.inet_aton(self._group) + socket.inet_aton(self._address)
            joined.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        except OSError:
            joined.close()
            raise
        return joined

    def _begin(self) -> bool:
        """Open the container once a packet shows that the stream is there, and which payload type it has.

        FFmpeg alone drops packets of any other type than its SDP names, without a word.
        """
        assert self._socket is not None
        try:
            packet = self._socket.recv(_PACKET_BYTES)
        except TimeoutError:
            return False
        if len(packet) < 12 or packet[0] >> 6 != _RTP_VERSION:
            raise ValueError(f"packets on {self._group}:{self._port} are no RTP")
        session = (
            f"v=0\r\no=- 0 0 IN IP4 {self._address}\r\ns=camera\r\nc=IN IP4 {self._group}/1\r\nt=0 0\r\n"
            f"m=video {self._port} RTP/AVP {packet[1] & 0x7F}\r\na=rtpmap:{packet[1] & 0x7F} H264/90000\r\n"
        )
        options = {
            "protocol_whitelist": "udp,rtp",
            "localaddr": self._address,
            "fflags": "nobuffer",
            # The decoder finds size and format in the stream itself; looking ahead for them would only delay it.
            "analyzeduration": "0",
            "probesize": "32",
        }
        try:
            self._container = self._av.open(
                io.BytesIO(session.encode()), format="sdp", options=options, timeout=(2.0, GRAB_S)
            )
        except self._av.error.FFmpegError as error:
            raise ValueError(f"the stream cannot be opened: {error.strerror}") from None
        self._socket.close()
        self._socket = None
        self._stream = self._container.streams.video[0]
        # More threads decode more frames at a time, each of them later.
        self._stream.codec_context.thread_count = 1
        self._stream.codec_context.flags |= self._av.codec.context.Flags.low_delay
        return True
