"""Where a training runs, and that its losses keep to one device."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from adapters_training.devices import AUTO, Device, chosen, resolved
from adapters_training.losses import Probes, compute, see
from adapters_training.packing import Batch, Packer
from adapters_training.shapes import build_model, known_objects
from speculation.vlm.processing import Processor
from speculation.vlm.settings import ModelSettings
from tests import devices as lazy
from tests.adapters_training.frames import TINY, make_frame


def batch(processor: Processor) -> Batch:
    packer = Packer(processor.tokenizer, known_objects(), questions=2)
    frames = [make_frame(np.random.default_rng(seed), side) for seed, side in enumerate(("left", "right"))]
    return packer.batch(frames, random.Random(0)).with_pixels(processor)


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> list[int]:
    """Let there be so many GPUs; return those that processes take."""
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    return taken


def test_a_gpu_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)
    assert chosen(Device.AUTO).type == chosen(Device.CPU).type == "cpu"
    with pytest.raises(ValueError, match="finds no GPU here; give --device cpu"):
        chosen(Device.CUDA)
    assert resolved(ModelSettings(device=AUTO)).device == "cpu"
    taken = gpus(monkeypatch, 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert str(chosen(Device.AUTO)) == str(chosen(Device.CUDA)) == "cuda:1" and taken == [1, 1]
    assert chosen(Device.CPU).type == "cpu"
    assert resolved(ModelSettings(device="cuda:0")).device == "cuda:0"
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match="on 2 GPUs"):
        chosen(Device.AUTO)


def forwards(processor: Processor, device: torch.device) -> list[torch.Tensor]:
    """Return losses of answers with a teacher, of a step without words and of the vision tower alone."""
    model = build_model(TINY, processor.tokenizer, seed=0).requires_grad_(False).to(device)
    torch.manual_seed(3)
    probes = Probes(TINY.hidden, TINY.layers, known_objects()).requires_grad_(False).to(device)
    moved = batch(processor).to(device)
    losses, bare = (compute(model, moved, probes, model, has_words) for has_words in (True, False))
    return [losses.words, losses.dense, losses.asked, bare.asked, probes.eyes(see(model, moved.pixels), moved.cells)]


def test_losses_make_no_tensor_on_another_device(processor: Processor) -> None:
    """A device that takes no tensor of the CPU, as a GPU does not."""
    there = torch.device(f"{lazy.KIND}:0")
    alone, found = forwards(processor, torch.device("cpu")), forwards(processor, there)
    assert all(each.device == there for each in found)
    assert [each.cpu().tolist() for each in found] == pytest.approx([each.item() for each in alone], rel=1e-4)


@pytest.mark.gpu
def test_a_gpu_has_the_losses_of_the_cpu(processor: Processor) -> None:
    found = []
    for device in ("cpu", "cuda"):
        model = build_model(TINY, processor.tokenizer, seed=0).to(device)
        torch.manual_seed(3)
        probes = Probes(TINY.hidden, TINY.layers, known_objects()).to(device)
        losses = compute(model, batch(processor).to(torch.device(device)), probes)
        (losses.words + losses.dense + losses.asked).backward()
        gradient = model.model.language_model.layers[0].self_attn.q_proj.weight.grad.cpu()
        found.append((losses.words.item(), losses.dense.item(), losses.asked.item(), gradient))
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-5)
