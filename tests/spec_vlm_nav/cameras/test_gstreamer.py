"""The pipeline through PyGObject, where that and GStreamer's plugins are installed."""

from __future__ import annotations

import pytest

from spec_vlm_nav.camera import H264Decoder, SourceSettings
from spec_vlm_nav.cameras.gstreamer import Pipeline, pipeline
from spec_vlm_nav.cameras.multicast import Multicast
from tests.cameras import GROUP, Sender, assert_is_frame, first, free_port, multicast_works

gi = pytest.importorskip("gi", reason="PyGObject is not installed")
try:
    gi.require_version("Gst", "1.0")
    gi.require_version("GstApp", "1.0")
    from gi.repository import Gst
except (ImportError, ValueError) as missing:
    pytest.skip(f"GStreamer is not installed: {missing}", allow_module_level=True)
Gst.init(None)
DECODERS = [name for name in ("avdec_h264", "openh264dec") if Gst.ElementFactory.find(name) is not None]


@pytest.mark.skipif(not DECODERS, reason="GStreamer has no H.264 decoder here")
@pytest.mark.skipif(not multicast_works(), reason="the loopback interface carries no multicast here")
def test_the_stream_is_decoded_from_its_middle() -> None:
    port = free_port()
    decode = f"{DECODERS[0]} ! videoconvert"
    settings = SourceSettings("multicast", "lo", GROUP, port, H264Decoder.PYGOBJECT, decode)
    source = Multicast(settings).open()
    assert not source.grab()
    with Sender(port, skip=5):
        for _ in range(3):
            assert_is_frame(first(source))
    source.close()


def test_rows_that_gstreamer_pads_are_cut() -> None:
    text = "videotestsrc num-buffers=1 pattern=white ! video/x-raw,format=BGR,width=21,height=8 ! appsink name=appsink"
    if Gst.ElementFactory.find("videotestsrc") is None:
        pytest.skip("GStreamer has no videotestsrc here")
    source = Pipeline(text)
    image = first(source)
    assert image.shape == (8, 21, 3) and image.min() > 250
    with pytest.raises(OSError, match="ended"):
        while True:
            source.grab()
    source.close()


def test_a_wrong_element_is_an_error_that_names_it() -> None:
    with pytest.raises(OSError, match="nosuchdecoder"):
        Pipeline(pipeline(GROUP, free_port(), "lo", "nosuchdecoder"))
