"""What scaling frames on the robot saves: bytes of a frame, its time on a link, and processor time on both sides.

Frames are rooms of the simulator with a sensor's noise, or pictures that are named, in the sizes of common cameras;
each is sent as the camera gave it, and in the size in which the target sees it. The time on a link is declared: the
upload at its rate and its mean delay, without losses. Robot: scaling, and decoding and preparing for the draft model;
verifier: decoding and preparing for the target. Processor time of one thread, the median of repeats.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import cv2
import numpy as np

from spec_vlm_nav.graph import PROJECT
from speculation.frames import Frame, decode_jpeg
from speculation.links import load_link
from speculation.vlm.folder import find_model
from speculation.vlm.processing import Processor, reduced
from speculation.wire import frames_of
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.setting import machine
from vlm_nav_evaluation.tables import MS, Column, figures_table
from vlm_nav_simulation.dataset import encode_jpeg
from vlm_nav_simulation.scene import UNSEEN_SEED, Difficulty, make_scene
from vlm_nav_simulation.world import World

SIZES = {"1080p": (1080, 1920), "720p": (720, 1280), "480p": (480, 640)}
LINKS = ("wifi", "lte", "congested")
RENDERED = 960
NOISE = 4.0
"""Standard deviation of a sensor's noise, of 256 levels; what a camera's JPEG is large by."""
COLUMNS = (
    Column("bytes", "bytes", ",.0f"),
    *(Column(f"{link} ms", f"{link}_s", ".1f", MS) for link in LINKS),
    Column("robot ms", "robot_s", ".1f", MS),
    Column("verifier ms", "verifier_s", ".1f", MS),
    Column("tokens", "tokens", ".0f"),
)


def rooms(count: int) -> list[Frame]:
    """Return what the robot sees in held-out rooms, square."""
    found = []
    for seed in range(UNSEEN_SEED, UNSEEN_SEED + count):
        with World(make_scene(seed, Difficulty.MIDDLE), RENDERED) as world:
            found.append(world.render())
    return found


def shown(picture: Frame, height: int, width: int, seed: int) -> bytes:
    """Return a picture, its middle, as a camera of this size would give it."""
    rows, columns = picture.shape[:2]
    scale = min(rows / height, columns / width)
    top, left = (round((whole - part * scale) / 2) for whole, part in ((rows, height), (columns, width)))
    middle = picture[top : top + round(height * scale), left : left + round(width * scale)]
    large = cv2.resize(middle, (width, height), interpolation=cv2.INTER_CUBIC)
    noise = np.random.default_rng(seed).normal(0.0, NOISE, large.shape)
    return encode_jpeg(np.clip(large + noise, 0, 255).astype(np.uint8))


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median of a call's processor time."""
    found = []
    for _ in range(repeats):
        began = time.thread_time()
        work()
        found.append(time.thread_time() - began)
    return median(found)


def figures(processor: Processor, frames: Sequence[bytes], scaled: bool, repeats: int) -> dict[str, Any]:
    """Return the means over frames of what one costs, sent whole or `scaled`."""

    def scale(frame: bytes) -> bytes:
        # Bytes behind its end make it another frame: what was scaled before is remembered.
        (small,) = frames_of(reduced(frame + b"\0" * next(pads), *processor.sizes))
        return small

    def see(frame: bytes) -> tuple[int, int, int]:
        return processor.encode_image(decode_jpeg(frame))[1]

    pads = iter(range(repeats * len(frames) * 2 + len(frames)))
    sent = [scale(frame) if scaled else frame for frame in frames]
    reading = [seconds(partial(see, frame), repeats) for frame in sent]
    scaling = [seconds(partial(scale, frame), repeats) if scaled else 0.0 for frame in frames]
    size = mean(map(len, sent))
    ways = {link: load_link(link).up for link in LINKS}
    return {
        "bytes": size,
        **{f"{link}_s": way.sending_s(round(size)) + way.delay_s + way.jitter_s / 2 for link, way in ways.items()},
        "robot_s": mean(map(sum, zip(scaling, reading, strict=True))),
        "verifier_s": mean(reading),
        "tokens": mean(int(np.prod(see(frame))) for frame in sent) / int(processor.images.merge_size) ** 2,
    }


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(prog="python -m benchmarks.frame_scaling", description=__doc__)
    line.add_argument("--target-model", type=Path, default=PROJECT / "models" / "target")
    line.add_argument("--image", type=Path, nargs="+", default=[], help="pictures, in place of the simulator's rooms")
    line.add_argument("--steps", type=int, default=4, help="rooms (default: 4)")
    line.add_argument("--repeats", type=int, default=5, help="times that each step is timed (default: 5)")
    command.add_save(line)
    return line


def run(options: argparse.Namespace) -> None:
    """Run the benchmark. Raises ValueError, in one sentence, where it cannot."""
    if options.repeats < 1:
        raise ValueError(f"--repeats {options.repeats}: give at least 1")
    processor = Processor.load(find_model(options.target_model))
    pictures = [_read(path) for path in options.image] or rooms(options.steps)
    entries = {}
    for name, size in SIZES.items():
        frames = [shown(picture, *size, seed) for seed, picture in enumerate(pictures)]
        for scaled in (False, True):
            entries[f"{name}, {'scaled' if scaled else 'whole'}"] = figures(processor, frames, scaled, options.repeats)
    print(f"target {options.target_model.name}, {len(pictures)} pictures; means over them")
    print(figures_table("frame", entries, COLUMNS))
    print(measured_on := machine())
    if options.save:
        data = {"settings": command.settings_of(options), "machine": measured_on, "figures": entries}
        command.write_result("frame_scaling", data)


def _read(path: Path) -> Frame:
    try:
        picture = cv2.imread(str(path))
    except cv2.error:
        picture = None
    if picture is None:
        raise ValueError(f"{path} is no picture that can be read")
    return np.ascontiguousarray(picture[..., ::-1])


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
