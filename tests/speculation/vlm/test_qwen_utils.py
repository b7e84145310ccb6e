"""qwen-vl-utils and the PIL processor make the same pixels of a frame, and the same sizes of any camera's."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculation.vlm import processing
from speculation.vlm.load import Vlm
from speculation.vlm.processing import Processor, build_processor, qwen_fetch
from tests.models import frame


@pytest.fixture(scope="module")
def vision() -> Iterator[Any]:
    """qwen_vl_utils.vision_process; its image half never calls torchvision, so a stand-in will do to import it."""
    if importlib.util.find_spec("qwen_vl_utils") is None:
        pytest.skip("qwen-vl-utils is not installed")
    before = dict(sys.modules)
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        for name, content in (
            ("torchvision", {"__version__": "0"}),
            ("torchvision.io", {}),
            ("torchvision.transforms", {"InterpolationMode": SimpleNamespace(BICUBIC=None)}),
        ):
            module = ModuleType(name)
            module.__dict__.update(content)
            sys.modules[name] = module
        sys.modules["torchvision"].io = sys.modules["torchvision.io"]  # type: ignore[attr-defined]
        sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]  # type: ignore[attr-defined]
    from qwen_vl_utils import vision_process

    yield vision_process
    for name in set(sys.modules) - set(before):
        if name.split(".")[0] in ("torchvision", "qwen_vl_utils"):
            del sys.modules[name]


def large(processor: Processor) -> Processor:
    processor.limit(56 * 56, 28 * 28 * 400)
    return processor


@pytest.mark.parametrize("size", [(480, 640), (720, 1280), (100, 99), (1200, 200)])
def test_pixels_are_equal(target: Vlm, vision: Any, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = frame(0, 1280)[: size[0], : size[1]]
    processor = large(build_processor(target.tokenizer, 224))
    used: list[int] = []

    def fetch(*arguments: Any, **named: Any) -> Any:
        used.append(1)
        return vision.fetch_image(*arguments, **named)

    monkeypatch.setattr(processing, "qwen_fetch", lambda: fetch)
    with_utils = processor.encode_image(pixels)
    monkeypatch.setattr(processing, "qwen_fetch", lambda: None)
    without = processor.encode_image(pixels)
    assert used
    assert with_utils[1] == without[1]
    np.testing.assert_array_equal(with_utils[0], without[0])


@settings(max_examples=100, deadline=None)
@given(height=st.integers(28, 2000), width=st.integers(28, 2000))
def test_sizes_are_equal(target: Vlm, vision: Any, height: int, width: int) -> None:
    processor = large(build_processor(target.tokenizer, 224))
    size = processor.images.size
    expected = vision.smart_resize(height, width, 28, size["shortest_edge"], size["longest_edge"])
    assert processor.resized(height, width) == expected


def test_frames_of_the_right_size_ask_nobody(target: Vlm, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Callable[..., Any]:
        raise AssertionError("no resize is needed")

    monkeypatch.setattr(processing, "qwen_fetch", refuse)
    assert build_processor(target.tokenizer, 112).encode_image(frame(0, 112))[1] == (1, 8, 8)


def test_without_torchvision_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "qwen_vl_utils.vision_process", None)
    qwen_fetch.cache_clear()
    assert qwen_fetch() is None
    qwen_fetch.cache_clear()
