"""A real verifier with the chat API, and what its clients send."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openai import OpenAI

from tests.cloud_verifier.process import Verifier, start
from tests.cloud_verifier.test_engine import PROMPTS, jpeg

LIMIT_S = 120.0


@contextmanager
def serving(model: Path, keys: Path, *arguments: str) -> Iterator[tuple[Verifier, str]]:
    """Serve a model and its chat API; yield the verifier and the API's address. `keys` is the file of API keys."""
    verifier = start(model, "--dtype", "float64", "--http", "0", "--api-keys", str(keys), *arguments)
    try:
        yield verifier, address_in(verifier.log)
    finally:
        if verifier.process.poll() is None:
            assert verifier.stop() == 0, verifier.log


def address_in(log: list[str]) -> str:
    found = [match[1] for line in log if (match := re.search(r"OpenAI chat API of \S+ at (\S+)", line))]
    assert found, log
    return found[0]


def client(url: str, key: str, **how: Any) -> OpenAI:
    return OpenAI(base_url=url, api_key=key, timeout=LIMIT_S, **{"max_retries": 0, **how})


def data_uri(image: bytes, kind: str = "image/jpeg") -> str:
    return f"data:{kind};base64,{base64.b64encode(image).decode()}"


def image_part(image: bytes, kind: str = "image/jpeg") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_uri(image, kind)}}


def as_robot(number: int) -> list[Any]:
    """Return the messages that ask what a robot asks: a frame and an instruction."""
    return [{"role": "user", "content": [image_part(jpeg(number)), {"type": "text", "text": PROMPTS[number]}]}]
