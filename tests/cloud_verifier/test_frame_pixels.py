"""--frame-pixels: a frame that is too large for this verifier is refused by its header."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from cloud_verifier.config import ServerConfig
from speculation.wire import BeginStep, Fault, FaultCode
from tests.cloud_verifier.bench import Bench


def frame(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height)).save(buffer, "JPEG")
    return buffer.getvalue()


def asked(jpeg: bytes) -> str:
    """Return what a verifier of 20,000 pixels answers; its engine decodes nothing that begins as a JPEG does."""
    bench = Bench(ServerConfig.of(Path("model"), frame_pixels=20_000))
    bench.welcome(b"robot")
    (fault,) = bench.ask(b"robot", BeginStep(1, "find it", jpeg))
    assert isinstance(fault, Fault) and fault.code is FaultCode.BAD_IMAGE and fault.step == 1
    return fault.message


def test_a_frame_that_is_too_large_is_refused_before_the_engine_has_it() -> None:
    assert "image of 201 x 100 pixels exceeds the limit of 20000 pixels" in asked(frame(201, 100))
    assert "does not decode" in asked(frame(200, 100)), "the engine has it"
