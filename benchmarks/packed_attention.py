"""What it saves a training step to compute packed questions in one line: processor time of forward and backward.

Compared are whole rows with a mask, as serving would compute them, and the line without padding of
`adapters_training.attention`, in bfloat16 on the CPU, one thread. Each batch goes both ways, in turn; frames and
questions are the simulator's, weights are random.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from adapters_training.attention import for_training
from adapters_training.data import convert
from adapters_training.losses import read, see, word_losses
from adapters_training.packing import IGNORE, Batch, Packer
from adapters_training.shapes import BLOCKERS, DRAFT, TARGET, build_model, known_objects, write_processor
from speculation.vlm.processing import Processor
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.setting import machine
from vlm_nav_evaluation.tables import table
from vlm_nav_simulation.dataset import sample_frames
from vlm_nav_simulation.scene import UNSEEN_SEED, Difficulty

SHAPES = {"target": TARGET, "draft": DRAFT}


def whole_rows(model: Any, batch: Batch, image_tokens: Tensor) -> Tensor:
    """Return the last hidden states [B, N, hidden]; all pairs of a row are computed, and masked.

    The slow exact reference beside `adapters_training.losses.read`.
    """
    language, image = model.model.language_model, batch.image_slice
    embedded = language.embed_tokens(batch.ids)
    parts = embedded[:, : image.start], image_tokens.to(embedded.dtype), embedded[:, image.stop :]
    hidden = torch.cat(parts, dim=1)
    rotary = language.rotary_emb(hidden, batch.positions)
    for layer in language.layers:
        hidden = layer(hidden, attention_mask=batch.mask, position_embeddings=rotary)
    result: Tensor = language.norm(hidden)
    return result


def seconds(model: Any, batch: Batch, line: bool) -> float:
    """Return the processor time of a forward and a backward."""
    began = time.process_time()
    with torch.autocast("cpu", torch.bfloat16):
        image = see(model, batch.pixels)
        states = read(model, batch, image)[-1] if line else whole_rows(model, batch, image)
        asked = batch.labels != IGNORE
        loss = word_losses(model.lm_head(states[asked]).float(), batch.labels[asked], batch.weights[asked])[0]
    loss.backward()  # type: ignore[no-untyped-call]
    model.zero_grad()
    return time.process_time() - began


def batches(processor: Processor, count: int, frames: int) -> list[Batch]:
    """Return batches of the simulator's frames, four questions each."""
    packer, dice = Packer(processor.tokenizer, known_objects()), random.Random(0)
    found = [
        convert(frame)
        for seed in range(UNSEEN_SEED, UNSEEN_SEED + count)
        for frame in sample_frames(seed, Difficulty.MIDDLE, frames)
    ]
    dice.shuffle(found)
    return [packer.batch(found[at : at + frames], dice).with_pixels(processor) for at in range(0, len(found), frames)]


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(prog="python -m benchmarks.packed_attention", description=__doc__)
    line.add_argument("--role", choices=sorted(SHAPES), default="target", help="whose sizes (default: %(default)s)")
    line.add_argument("--steps", type=int, default=8, help="batches (default: %(default)s)")
    line.add_argument("--frames", type=int, default=6, help="frames of each (default: %(default)s)")
    command.add_save(line)
    return line


def run(options: argparse.Namespace) -> None:
    """Run the benchmark. Raises ValueError, in one sentence, where it cannot."""
    for name in ("steps", "frames"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} {getattr(options, name)}: give at least 1")
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        write_processor(Path(folder), known_objects(), BLOCKERS)
        processor = Processor.load(Path(folder))
    made = batches(processor, options.steps, options.frames)
    model = build_model(SHAPES[options.role], processor.tokenizer, seed=0)
    for_training(model)
    seconds(model, made[0], True)
    taken = [[seconds(model, batch, line) for line in (False, True)] for batch in made]
    rows, lines = zip(*taken, strict=True)
    ratios = [row / line for row, line in taken]
    shares = [len(batch.layout.tokens) / batch.ids.numel() for batch in made]

    def spread(values: Any) -> dict[str, float]:
        return {"min": min(values), "median": median(values), "max": max(values)}

    figures = {"whole rows, s": spread(rows), "one line, s": spread(lines), "times as fast": spread(ratios),
               "share of a row that is no padding": spread(shares)}  # fmt: skip
    print(f"{options.role}, {len(made)} batches of {options.frames} frames, forward and backward, processor time")
    print(
        table(("", "min", "median", "max"), [(name, *(f"{v:.2f}" for v in f.values())) for name, f in figures.items()])
    )
    print(measured_on := machine())
    if options.save:
        data = {"settings": command.settings_of(options), "machine": measured_on, "figures": figures}
        command.write_result(f"packed_attention_{options.role}", data)


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
