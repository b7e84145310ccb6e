"""`python -m adapters_training exits`: dry runs of every kind of data, and one sentence for what cannot be trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from adapters_training.__main__ import main
from adapters_training.records import write_shard
from adapters_training.shapes import Shape, build_model, write_processor
from speculation.exits import ExitHeads
from speculation.language.prompts import Vocabulary
from speculation.vlm.load import load_vlm
from speculation.vlm.processing import Processor
from tests.adapters_training.exits.targets import chats, pictures
from tests.adapters_training.frames import make_frame
from tests.models import tiny_text_model

Command = Callable[..., int]
SHORT = ("--device", "cpu", "--rank", "8", "--context", "96", "--batch", "2")
WORDS = Vocabulary(("red", "blue"), ("ball", "chair"))
TINY = Shape(hidden=48, layers=3, heads=2, kv_heads=2, mlp=64, vision=32, vision_layers=1, vision_heads=2)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_text_model(tmp_path_factory.mktemp("llama"), layers=4)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a target of the embedded shape, beside it a folder `frames` of shards."""
    folder = tmp_path_factory.mktemp("embedded")
    write_processor(folder / "target", WORDS, ("wall",))
    build_model(TINY, Processor.load(folder / "target").tokenizer, 0).save_pretrained(folder / "target")
    (folder / "frames").mkdir()
    rng = np.random.default_rng(0)
    frames = [make_frame(rng, side) for side in ("left", "ahead", "right", "slightly left")] * 2
    write_shard(folder / "frames" / "seeds-0000000-0000025.msgpack", frames)
    return folder / "target"


def exits(*words: object) -> int:
    return main(["exits", *map(str, words)])


def test_a_dry_run_says_what_the_whole_run_takes(
    llama: Path, tiny_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for target, data in ((llama, chats(tmp_path / "chat.json")), (tiny_target, pictures(tmp_path))):
        assert exits("--target", target, "--data", data, "--out", tmp_path / "out", *SHORT, "--dry-run") == 0
        said = capsys.readouterr()
        assert "dry run: 2 steps" in said.out and "exits saved and loaded. A full run: " in said.out
        assert "= 10." in said.out and "3 exits of rank 8" in said.out and "s a step about" in said.out
    assert "missing.png does not exist" in said.err and "data: 6 records, 1 left out" in said.err
    assert not (tmp_path / "out").exists()


def test_packed_frames_of_the_embedded_target(
    embedded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--target", embedded, "--data", embedded.parent / "frames", "--held-out", embedded.parent / "frames",
             "--out", tmp_path / "exits", "--rank", 4, "--packed", "--questions", 2, "--batch", 2, "--layers", "0,1",
             "--loss", "kl", "--steps", 4, "--device", "cpu"]  # fmt: skip
    assert exits(*words) == 0
    assert "agreement with the last layer on" in capsys.readouterr().out
    results = json.loads((tmp_path / "exits" / "results.json").read_text())
    assert results["steps"] == 4 and set(results["agreement"]) == {"0", "1"}
    assert (tmp_path / "exits" / "config.yaml").exists() and list((tmp_path / "exits" / "tensorboard").iterdir())
    assert ExitHeads.load(tmp_path / "exits", load_vlm(embedded)).layers == (0, 1)
    assert exits(*words) == 0
    assert "holds exits of these settings already" in capsys.readouterr().out
    assert exits(*words, "--loss", "ce") == 2
    assert "holds exits of other settings; choose another folder, or add --overwrite" in capsys.readouterr().err
    assert exits(*words, "--loss", "ce", "--overwrite") == 0


def test_losses_are_compared_in_a_table(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--target", llama, "--data", chats(tmp_path / "chat.json"), "--out", tmp_path / "out", *SHORT]
    assert exits(*words, "--steps", 3, "--compare") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["after", "layer", "no", "adapter", "ce", "kl"]
    assert len(lines) == 6
    assert set(json.loads((tmp_path / "out" / "compare.json").read_text())) == {"ce", "kl"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"--target": "nowhere"}, "model folder nowhere does not exist"),
        ({"--data": "nowhere.json"}, "--data nowhere.json does not exist: give a .json"),
        ({"--layers": "0,3"}, "--layers 0 3: give distinct layers of 0 to 2, ascending"),
        ({"--rank": "64"}, "--rank 64 is no bottleneck in a target of width 64"),
        ({"--images": "nowhere"}, "--images nowhere is no folder"),
        ({"--context": "8"}, "setting context is '8': Expected `int` >= 16"),
        ({"--data": "VQA"}, "is a language model alone: give conversations of text"),
    ],
)
def test_bad_input_is_one_sentence(
    llama: Path, tmp_path: Path, changes: dict[str, str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if changes.get("--data") == "VQA":
        changes = {"--data": str(pictures(tmp_path))}
    words: dict[str, object] = {"--target": llama, "--data": chats(tmp_path / "chat.json"), "--out": tmp_path / "out"}
    words |= {"--rank": 8, "--device": "cpu", **changes}
    assert exits(*(word for pair in words.items() for word in pair)) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.splitlines()[-1].startswith("adapters_training exits: ")
    assert not (tmp_path / "out").exists()


def test_data_that_the_target_cannot_use_are_one_sentence(
    embedded: Path, llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames, chat = embedded.parent / "frames", chats(tmp_path / "chat.json")
    unknown = tmp_path / "frames"
    unknown.mkdir()
    frame = make_frame(np.random.default_rng(0))
    task = type(frame.tasks[0])("pink", "ball", None, "stop", "search")
    write_shard(unknown / "seeds-0000000-0000025.msgpack", [msgspec.structs.replace(frame, tasks=[task])])
    cases: tuple[tuple[Path, Path, str], ...] = (
        (embedded, chat, "--packed takes folders of simulator shards only"),
        (embedded, unknown, "the data ask for pink ball, which"),
    )
    for target, data, sentence in cases:
        assert exits("--target", target, "--data", data, "--held-out", frames, "--out", tmp_path / "out", "--packed",
                     "--rank", 4, "--device", "cpu") == 2  # fmt: skip
        assert sentence in capsys.readouterr().err
