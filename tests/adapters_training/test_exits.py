"""Trainings of exits on tiny targets: adapters learn, only they do, and what cannot be trained is one sentence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from adapters_training.__main__ import main
from adapters_training.exits import ExitTrainer
from adapters_training.frozen_target import training
from adapters_training.frozen_target.training import RESULTS_FILE, finished_results
from adapters_training.records import Task, write_shard
from adapters_training.settings import write
from adapters_training.shapes import build_model
from adapters_training.trainer import CHECKPOINT_FILE
from spec_vlm_nav.runner import free_address
from speculation.exits import WEIGHTS_FILE, ExitHeads
from speculation.vlm.load import load_vlm
from speculation.vlm.processing import Processor
from tests.adapters_training.frames import TINY, make_frame
from tests.adapters_training.targets import of_exits as config
from tests.adapters_training.targets import weights
from tests.forked import Forked

train, prepare = partial(training.train, ExitTrainer), partial(training.prepare, ExitTrainer)
ROOT = Path(__file__).resolve().parents[2]


def test_each_loss_lowers_what_it_is_about(llama: Path, chat: Path, tmp_path: Path) -> None:
    untrained = train(config(llama, chat, tmp_path / "none", steps=1, learning_rate=1e-9))
    results = {loss: train(config(llama, chat, tmp_path / loss, steps=80, loss=loss)) for loss in ("ce", "kl")}
    for layer in (0, 1, 2):
        assert results["ce"]["cross-entropy"][layer] < 0.6 * untrained["cross-entropy"][layer]
        assert results["kl"]["divergence"][layer] < 0.9 * untrained["divergence"][layer]
        assert results["kl"]["divergence"][layer] < results["ce"]["divergence"][layer]
    assert untrained["agreement"] == untrained["agreement without adapter"], "an untrained adapter changes nothing"
    assert results["ce"]["agreement"][2] < untrained["agreement"][2] < results["kl"]["agreement"][2], (
        "this target says nothing that the data say"
    )


def test_only_adapters_learn_and_they_load(
    llama: Path, chat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(config(llama, chat, tmp_path / "exits", layers=[0, 2]))
    monkeypatch.setattr(training, "prepare", lambda kind, config: prepared)
    before = {name: weight.clone() for name, weight in prepared.vlm.model.named_parameters()}
    train(prepared.config)
    for name, weight in prepared.vlm.model.named_parameters():
        assert torch.equal(weight, before[name]) and weight.grad is None, name
    heads = ExitHeads.load(tmp_path / "exits", load_vlm(llama))
    assert heads.layers == (0, 2)
    assert all(bool(adapter.up.weight.any()) for adapter in heads.adapters.values())
    assert 0.0 < heads.reliability(2, 0.5) < 1.0
    assert not (tmp_path / "exits" / CHECKPOINT_FILE).exists()
    assert finished_results(prepared.config) is not None
    assert finished_results(msgspec.structs.replace(prepared.config, rank=9)) is None


def test_exits_that_are_worse_than_at_the_start_are_not_written(
    llama: Path, chat: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "exits"
    line = ["exits", "--target", str(llama), "--data", str(chat), "--out", str(out), "--rank", "8", "--steps", "8",
            "--batch", "2", "--context", "96", "--device", "cpu", "--loss", "kl", "--learning-rate", "1"]  # fmt: skip
    assert main(line) == 1
    (sentence,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("adapters_training")]
    assert "what was trained is worse than what it began with and is not written; give a lower --learning-r" in sentence
    assert not (out / WEIGHTS_FILE).exists() and not (out / RESULTS_FILE).exists()
    assert main([*line[:-1], "1e-3", "--out", str(tmp_path / "good")]) == 0
    assert (tmp_path / "good" / WEIGHTS_FILE).exists()


def test_gradients_do_not_depend_on_how_a_step_is_cut(llama: Path, chat: Path, tmp_path: Path) -> None:
    gradients = []
    for batch, accumulation, head_tokens in ((4, 1, 512), (2, 2, 512), (1, 4, 7)):
        settings = config(llama, chat, tmp_path, batch=batch, accumulation=accumulation, head_tokens=head_tokens)
        trainer = ExitTrainer(prepare(settings))
        done = trainer.learn(next(trainer.stream(0, 1, 0)))
        assert done.learned > 40
        gradients.append(torch.cat([p.grad.flatten() for p in trainer.heads.parameters() if p.grad is not None]))
    assert gradients[0].abs().max() > 0
    for other in gradients[1:]:
        torch.testing.assert_close(gradients[0], other, rtol=1e-3, atol=1e-4)


def test_two_processes_learn_what_one_does_in_twice_the_forwards(llama: Path, chat: Path, tmp_path: Path) -> None:
    """Both begin with what `torchrun` gives a process."""
    settings = config(llama, chat, tmp_path / "one", steps=6, batch=2, accumulation=2)
    train(settings)
    write(msgspec.structs.replace(settings, out=str(tmp_path / "two"), accumulation=1), tmp_path / "two.yaml")
    command = [sys.executable, "-m", "adapters_training", "exits", "--config", str(tmp_path / "two.yaml")]
    port = free_address().rpartition(":")[2]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = [
        Forked(
            command, ROOT, subprocess.STDOUT, subprocess.PIPE, os.environ | place | {"RANK": rank, "LOCAL_RANK": rank}
        )
        for rank in ("0", "1")
    ]
    said = []
    for each in started:
        assert each.stdout is not None
        with each.stdout as pipe:
            said.append(pipe.read())
        assert each.wait(120.0) == 0, said[-1]
    assert "".join(said).count("agreement with the last layer") == 1, "one process reports"
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def embedded(processor_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a target of the embedded shape, beside it a folder `frames` of shards."""
    folder = tmp_path_factory.mktemp("embedded")
    shutil.copytree(processor_folder, folder / "target")
    build_model(TINY, Processor.load(processor_folder).tokenizer, 0).save_pretrained(folder / "target")
    (folder / "frames").mkdir()
    rng = np.random.default_rng(0)
    frames = [make_frame(rng, side) for side in ("left", "ahead", "right", "slightly left")] * 2
    write_shard(folder / "frames" / "seeds-0000000-0000025.msgpack", frames)
    return folder / "target"


def exits(*words: object) -> int:
    return main(["exits", *map(str, words)])


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


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """Frames that ask for an object which the pair does not know."""
    frame = make_frame(np.random.default_rng(0))
    task = Task("plaid", "ball", None, "stop", "search")
    write_shard(tmp_path / "seeds-0000000-0000025.msgpack", [msgspec.structs.replace(frame, tasks=[task])])
    return tmp_path


@pytest.mark.parametrize(
    ("target", "data", "more", "sentence"),
    [
        ("nowhere", "chat", (), "model folder nowhere does not exist"),
        ("llama", "chat", ("--images", "nowhere"), "--images nowhere is no folder"),
        ("llama", "frames", (), "is a language model alone: give conversations of text"),
        ("embedded", "chat", ("--packed",), "--packed takes folders of simulator shards only"),
        ("embedded", "strange", ("--packed",), "the data ask for plaid ball, which"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(
    target: str, data: str, more: tuple[str, ...], sentence: str, llama: Path, chat: Path, embedded: Path,
    strange: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    places = {
        "llama": llama,
        "chat": chat,
        "embedded": embedded,
        "frames": embedded.parent / "frames",
        "strange": strange,
    }
    words: list[Any] = ["--target", places.get(target, target), "--data", places[data], "--held-out", places[data]]
    assert exits(*words, "--out", tmp_path / "out", "--rank", 4, "--device", "cpu", *more) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.splitlines()[-1].startswith("adapters_training exits: ")
    assert not (tmp_path / "out").exists()
