from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters_training.losses import read, see
from adapters_training.packing import Packer, choose, mirror
from adapters_training.records import Seen, Task
from adapters_training.shapes import build_model, known_objects
from speculation.vlm.processing import Processor
from tests.adapters_training.frames import TINY, make_frame


def test_packed_questions_have_the_logits_of_separate_ones(processor: Processor) -> None:
    torch.set_num_threads(1)
    model = build_model(TINY, processor.tokenizer, seed=0).double().eval()
    packer = Packer(processor.tokenizer, known_objects(), questions=2)
    frame = make_frame(np.random.default_rng(0))
    batch = packer.batch([frame], random.Random(1), augment=False)
    image = see(model, batch.with_pixels(processor).pixels.double())
    packed = read(model, batch, image)[-1][0]
    start = batch.image_slice.stop
    blocks = torch.diff(batch.positions[0, 0, start:]) < 0
    second = start + 1 + int(blocks.nonzero()[0])
    ids = processor.encode_text("find the red ball", [processor.frames.place * 64])
    assert list(ids[:start]) == batch.ids[0, :start].tolist(), "the packed prefix must be the prompt's own"
    alone = torch.cat([batch.ids[:, :start], batch.ids[:, second:]], dim=1)
    apart = torch.cat([batch.positions[..., :start], batch.positions[..., second:]], 2)
    single = replace(batch, ids=alone, positions=apart, blocks=torch.zeros_like(alone))
    separate = read(model, single, image)[-1][0]
    assert torch.allclose(packed[second:], separate[start:], atol=1e-4)
    assert not torch.allclose(packed[start:second][:5], separate[start:][:5], atol=1e-4)


@settings(max_examples=40)
@given(st.lists(st.booleans(), min_size=1, max_size=14), st.integers(1, 6), st.integers(0, 9))
def test_what_a_walk_is_for_is_always_asked(visible: list[bool], limit: int, seed: int) -> None:
    seen = Seen("red", "ball", "ahead", 1.0)
    tasks = [
        Task("red", "ball", seen if shows else None, "stop", "search", query=f"find {index}")
        for index, shows in enumerate(visible)
    ]
    chosen = choose(tasks, random.Random(seed), limit)
    assert tasks[-1] in chosen
    assert len(chosen) <= limit and len({task.query for task in chosen}) == len(chosen)
    assert sum(task.seen is None for task in chosen) <= 2


def test_mirroring_twice_is_the_frame_and_once_swaps_sides() -> None:
    frame = make_frame(np.random.default_rng(0), side="slightly left")
    assert mirror(mirror(frame)) == frame
    flipped = mirror(frame)
    assert flipped.seen[0].side == "slightly right"
    assert flipped.tasks[0].action == "turn right medium"
    assert flipped.tasks[1].action == "turn left large", "a search turns left in the mirror too"
    assert np.frombuffer(flipped.cell_class, np.uint8).reshape(8, 8)[4, 5] == 2


def test_a_search_goes_on_in_the_mirror_as_its_mirrored_turns_began() -> None:
    frame = make_frame(np.random.default_rng(0))
    for why, done, action, flipped in (
        ("search", ("forward large",), "turn left large", "turn left large"),
        ("search", ("forward large", "turn left large"), "turn left large", "turn right large"),
        ("search", ("turn right large",), "turn right large", "turn left large"),
        ("search", ("turn left large blocked",), "turn right large", "turn left large"),
        ("explore", ("forward large",), "turn left large", "turn left large"),
        ("explore", ("turn right large",), "turn right large", "turn left large"),
        ("explore", ("forward large",), "turn left small", "turn right small"),
        ("door", ("forward large",), "turn left large", "turn right large"),
    ):
        memory = ("Seen: here 3/8", "Doors: left 2 m")
        task = msgspec.structs.replace(
            frame.tasks[1], reason=why, done=done, action=action, memory=memory, query="find the red ball"
        )
        twin = mirror(msgspec.structs.replace(frame, tasks=[task])).tasks[0]
        assert twin.action == flipped and twin.memory[1] == "Doors: right 2 m"
        assert mirror(mirror(msgspec.structs.replace(frame, tasks=[task]))).tasks[0] == task
