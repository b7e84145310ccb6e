"""Adapter trainings on tiny targets: they learn, only they learn, and a killed one ends as an unbroken one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from adapters_training.__main__ import main
from adapters_training.course import TrainingFailed
from adapters_training.exits.command import compare
from adapters_training.exits.config import ExitsConfig
from adapters_training.exits.training import ExitTrainer
from adapters_training.frozen_target import preparation, training
from adapters_training.frozen_target.training import RESULTS_FILE, finished_results
from adapters_training.settings import make, write
from adapters_training.trainer import CHECKPOINT_FILE, END_SHARE, Schedule, learning_rate
from speculation.exits import WEIGHTS_FILE, ExitHeads
from speculation.vlm.load import load_vlm
from tests.adapters_training.exits.targets import chats, config
from tests.models import tiny_text_model

train, prepare = partial(training.train, ExitTrainer), partial(preparation.prepare, ExitTrainer)
ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_text_model(tmp_path_factory.mktemp("llama"), layers=4)


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chats(tmp_path_factory.mktemp("data") / "chat.json")


def weights(out: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(str(out / WEIGHTS_FILE)))


def equal(left: Path, right: Path) -> bool:
    first, second = weights(left), weights(right)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_each_loss_lowers_what_it_is_about(llama: Path, chat: Path, tmp_path: Path) -> None:
    settings = config(llama, chat, tmp_path / "exits", steps=80)
    untrained = train(msgspec.structs.replace(settings, out=str(tmp_path / "none"), steps=1, learning_rate=1e-9))
    results = compare(settings)
    for layer in (0, 1, 2):
        assert results["ce"]["cross-entropy"][layer] < 0.6 * untrained["cross-entropy"][layer]
        assert results["kl"]["divergence"][layer] < 0.9 * untrained["divergence"][layer]
        assert results["kl"]["divergence"][layer] < results["ce"]["divergence"][layer]
    assert untrained["agreement"] == untrained["agreement without adapter"], "an untrained adapter changes nothing"
    assert results["ce"]["agreement"][2] < untrained["agreement"][2] < results["kl"]["agreement"][2], (
        "this target says nothing that the data say"
    )


def test_only_adapters_learn_and_they_load(llama: Path, chat: Path, tmp_path: Path) -> None:
    prepared = prepare(config(llama, chat, tmp_path / "exits", layers=[0, 2]))
    before = {name: weight.clone() for name, weight in prepared.vlm.model.named_parameters()}
    train(prepared.config, prepared)
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


def test_a_loss_that_is_no_number_is_not_learned_from(llama: Path, chat: Path, tmp_path: Path) -> None:
    trainer = ExitTrainer(prepare(config(llama, chat, tmp_path)))
    before = [weight.clone() for weight in trainer.heads.parameters()]
    done = trainer.learn(next(trainer.stream(0, 1, 0)))
    done.losses[1, 0] = torch.nan
    with pytest.raises(TrainingFailed, match="the loss is nan at step 1"):
        trainer.update(done)
    assert all(torch.equal(now, then) for now, then in zip(trainer.heads.parameters(), before, strict=True))


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


def test_processes_that_prepare_data_change_nothing(llama: Path, chat: Path, tmp_path: Path) -> None:
    trainer = ExitTrainer(prepare(config(llama, chat, tmp_path, accumulation=2)))
    alone = list(trainer.stream(10, 14, 0))  # over the end of the first epoch, 23 records
    helped = list(trainer.stream(10, 14, 2))
    assert [len(batches) for batches in helped] == [2] * 4
    for one, other in zip(alone, helped, strict=True):
        for batch, twin in zip(one, other, strict=True):
            assert torch.equal(batch.ids, twin.ids) and torch.equal(batch.labels, twin.labels)
    assert not torch.equal(alone[0][0].ids, alone[3][0].ids)


def test_a_killed_process_leaves_a_run_that_goes_on(llama: Path, chat: Path, tmp_path: Path) -> None:
    settings = config(llama, chat, tmp_path / "whole", steps=40)
    train(settings)
    killed = msgspec.structs.replace(settings, out=str(tmp_path / "killed"), checkpoint_seconds=0.0)
    write(killed, tmp_path / "killed.yaml")
    program = (
        "import os, signal, sys\n"
        "from adapters_training.__main__ import main\n"
        "from adapters_training.exits.training import ExitTrainer\n"
        "save = ExitTrainer.save\n"
        "def kill(self):\n"
        "    if self.step == 13: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    if self.step % 4 == 0: save(self)\n"
        "ExitTrainer.save = kill\n"
        "sys.exit(main(['exits', '--config', sys.argv[1]]))\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "killed.yaml")], cwd=ROOT, env=ENVIRONMENT, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert torch.load(tmp_path / "killed" / CHECKPOINT_FILE, weights_only=True)["step"] == 12
    train(killed)
    assert equal(tmp_path / "whole", tmp_path / "killed")


def test_two_processes_learn_what_one_does_in_twice_the_forwards(llama: Path, chat: Path, tmp_path: Path) -> None:
    settings = config(llama, chat, tmp_path / "one", steps=6, batch=2, accumulation=2)
    train(settings)
    write(msgspec.structs.replace(settings, out=str(tmp_path / "two"), accumulation=1), tmp_path / "two.yaml")
    launched = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "-m", "adapters_training", "exits", "--config", str(tmp_path / "two.yaml")],
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert launched.returncode == 0, launched.stderr
    assert launched.stdout.count("agreement with the last layer") == 1, "one process reports"
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-3, atol=1e-4)


def test_learning_rates() -> None:
    settings = make(ExitsConfig, {"target": "t", "data": ["d"], "out": "o", "learning_rate": 1.0})
    assert [learning_rate(settings, step, 10) for step in (0, 9)] == [1.0, 1.0]
    warm = msgspec.structs.replace(settings, warmup_steps=4)
    assert [learning_rate(warm, step, 10) for step in (0, 1, 3, 9)] == [0.25, 0.5, 1.0, 1.0]
    linear = msgspec.structs.replace(settings, schedule=Schedule.LINEAR)
    assert [learning_rate(linear, step, 10) for step in (0, 5, 10)] == [1.0, 0.5, END_SHARE]
    assert learning_rate(linear, 5, 10) < learning_rate(warm, 5, 10)
    cosine = msgspec.structs.replace(settings, schedule=Schedule.COSINE)
    assert learning_rate(cosine, 10, 10) == pytest.approx(END_SHARE)
