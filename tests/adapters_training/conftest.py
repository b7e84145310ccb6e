"""Processor, tiny language model and conversations that many of these tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters_training import shapes
from adapters_training.shapes import BLOCKERS, known_objects, write_processor
from speculation.vlm.processing import Processor
from tests.adapters_training.targets import chats
from tests.models import tiny_text_model


@pytest.fixture(scope="session")
def processor_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the embedded pair's processor, with a tokenizer of fewer sentences: all words are in them."""
    folder = tmp_path_factory.mktemp("processor")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "CORPUS_LINES", 2000)
        write_processor(folder, known_objects(), BLOCKERS)
    return folder


@pytest.fixture(scope="session")
def processor(processor_folder: Path) -> Processor:
    """The embedded pair's processor."""
    return Processor.load(processor_folder)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random 4-layer Llama."""
    return tiny_text_model(tmp_path_factory.mktemp("llama"), layers=4)


@pytest.fixture(scope="session")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of conversations."""
    return chats(tmp_path_factory.mktemp("data") / "chat.json")
