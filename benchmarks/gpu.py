"""Everything that needs a GPU, in one run: does it work, is it exact, and what does a pass cost beside its floor?

Stages run one after another, each in a process of its own, and each writes what it has found as it goes, so that a run
that is cut off leaves what it had. The models have the papers' sizes and random weights; times do not depend on those.

  tests      the tests that need a GPU
  exactness  every mode of the embedded pair against `cloud` on the same verifier
  passes     a verification of Qwen2.5-VL-7B's size: plain and captured as CUDA graphs; rows and tokens;
             what an exit adds; beside it transformers' own generation and the device's bandwidth
  draft      a decode of a draft of 2B's size
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import cv2
import numpy as np
import torch

from benchmarks.shapes import build
from edge_drafter import Mode
from edge_drafter.decoder import EdgeDecoder
from edge_drafter.settings import EdgeConfig
from spec_vlm_nav.graph import PROJECT
from speculation.exits import ExitHeads
from speculation.sampling import FIRST_DRAWS, GREEDY
from speculation.vlm.cache import KVCache
from speculation.vlm.forward import draft_chunk, final_logits, forward_layers, prefill
from speculation.vlm.graphs import PassGraphs
from speculation.vlm.load import Vlm
from speculation.vlm.sampling import choose_rows
from speculation.vlm.speed import synchronise, text_inputs, timed
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.setting import verifier

STAGES = ("tests", "exactness", "passes", "draft")
CASES = ((1, 1), (1, 2), (1, 5), (1, 17), (1, 41), (4, 5), (8, 5), (16, 5))
"""Rows, and tokens a row, of a verification."""
KINDS = ("plain", "captured")
EXIT_RANK = 64
PICTURE = PROJECT / "docs" / "simulation_randomised.jpg"
PROMPTS = ("find the silver bottle", "go to the red chair", "find the blue ball")


class Report:
    """A JSON file that is written anew with every figure, and each figure on a line of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, Any] = {"machine": _machine(), "command": " ".join(sys.argv)}

    def add(self, name: str, value: Any) -> None:
        """Keep a figure and print it."""
        self._found[name] = value
        self._path.write_text(json.dumps(self._found, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {json.dumps(value)}", flush=True)


def run_tests(out: Path, options: argparse.Namespace) -> None:
    """Run the tests marked gpu."""
    log = out / "tests.txt"
    words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *options.tests]
    with log.open("w") as sink:
        subprocess.run(words, cwd=PROJECT, stdout=sink, stderr=subprocess.STDOUT, check=False)
    print(log.read_text()[-4000:], flush=True)


def run_exactness(out: Path, options: argparse.Namespace) -> None:
    """Compare every mode of the embedded pair with `cloud`, both sides on the GPU."""
    report = Report(out / "exactness.json")
    pair = PROJECT / "models"
    modes = [mode for mode in Mode if mode is not Mode.EDGE]
    asked = _questions(options.frames)
    for dtype in ("float32", "bfloat16"):
        flags = ["--device", options.device, "--dtype", dtype, "--draft-model", str(pair / "draft")]
        with ExitStack() as stack:
            address = stack.enter_context(verifier(pair / "target", *flags))
            config = EdgeConfig.flat(verifier=address, draft_model=pair / "draft", device=options.device, dtype=dtype,
                                     mode="full", silence_s=60.0, resume_s=60.0, max_tokens=48)  # fmt: skip
            edge = stack.enter_context(closing(EdgeDecoder(config)))
            answers: dict[str, list[tuple[int, ...]]] = {mode.value: [] for mode in modes}
            seconds: dict[str, list[float]] = {mode.value: [] for mode in modes}
            for prompt, jpeg in asked:
                for mode in modes:
                    result = edge.decode(prompt, jpeg, mode=mode.value)
                    answers[mode.value].append(result.tokens)
                    seconds[mode.value].append(result.stats.total_s)
            for mode in modes:
                same = sum(own == other for own, other in zip(answers[mode.value], answers["cloud"], strict=True))
                ms = round(1e3 * median(seconds[mode.value]), 2)
                report.add(f"{dtype} {mode.value}", {"identical": same, "of": len(asked), "median_ms": ms})


def run_passes(out: Path, options: argparse.Namespace) -> None:
    """Time verifications of the target, plain and captured."""
    report = Report(out / "passes.json")
    copied = _bandwidth(options.device)
    report.add("copy_gb_s", copied)
    vlm = build(options.target, options.device, "bfloat16")
    passes = Passes(vlm, options)
    report.add("read_bytes", passes.read_bytes)
    for name, shape in _projections(vlm).items() if vlm.device.type == "cuda" else ():
        report.add(f"linear {name}", {str(count): _linear_share(vlm.device, shape, count) for count in (1, 5, 17, 41)})
    for kind in options.kinds:
        began = time.perf_counter()
        try:
            for rows, width in CASES:
                ms = passes.verify_ms(kind, rows, width)
                share = passes.read_bytes / (ms / 1e3) / 1e9 / copied
                report.add(f"{kind} {rows}x{width}", {"ms": ms, "share": round(share, 3)})
            report.add(f"{kind} 1x5 with exits", {"ms": passes.verify_ms(kind, 1, 5, exits=True)})
            report.add(f"{kind} kernels", passes.kernels(kind))
        except Exception as error:
            report.add(f"{kind} failed", repr(error)[:600])
        report.add(f"{kind} took_s", round(time.perf_counter() - began, 1))
    report.add("generate_ms_a_token", _generate_ms(vlm))


def run_draft(out: Path, options: argparse.Namespace) -> None:
    """Time decodes of the draft."""
    report = Report(out / "draft.json")
    passes = Passes(build(options.draft, options.device, "bfloat16"), options)
    for kind in options.kinds:
        report.add(f"{kind} 1x1", {"ms": passes.verify_ms(kind, 1, 1)})


class Passes:
    """Verifications of one model behind a prompt, each way to run them."""

    def __init__(self, vlm: Vlm, options: argparse.Namespace) -> None:
        self._vlm, self._options = vlm, options
        middle = vlm.num_layers // 2
        self._exits = ExitHeads(vlm, [middle // 2, middle], EXIT_RANK)
        self._caches: dict[tuple[str, int], tuple[KVCache, PassGraphs | None]] = {}

    @property
    def read_bytes(self) -> int:
        """Bytes of weights that a pass reads: the decoder's and the head's."""
        parts = [*self._vlm.text.layers.parameters(), *self._vlm.model.lm_head.parameters()]
        return sum(each.nbytes for each in parts)

    def verify_ms(self, kind: str, rows: int, width: int, exits: bool = False) -> float:
        """Return the median milliseconds of a verification, verdicts at the host."""
        return round(1e3 * median(timed(partial(self.verify, kind, rows, width, exits), self._vlm.device, 20)), 4)

    @torch.no_grad()
    def verify(self, kind: str, rows: int, width: int, exits: bool = False) -> None:
        """Run one verification."""
        cache, graphs = self._prepared(kind, rows)
        parents = range(-1, width - 2)
        chunks = [draft_chunk(cache, row, 1, [2] * (width - 1), parents) for row in range(rows)]
        schemes, draws = [GREEDY] * rows * width, [FIRST_DRAWS] * rows * width
        for output in forward_layers(self._vlm, cache, chunks, graphs):
            if exits and output.layer in self._exits.layers:
                choose_rows(self._exits.logits(output.layer, torch.cat(output.hidden)), schemes, draws)
        choose_rows(final_logits(self._vlm, torch.cat(output.hidden)), schemes, draws)
        for row in range(rows):
            cache.truncate(row, cache.length[row])

    def kernels(self, kind: str) -> list[tuple[str, int, float]]:
        """Return the kernels of a verification of 1 x 5 that take longest: name, count, microseconds in all."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
            self.verify(kind, 1, 5)
            synchronise(self._vlm.device)
        events = [each for each in found.key_averages() if each.self_device_time_total > 0]
        events.sort(key=lambda each: -each.self_device_time_total)
        total = sum(each.self_device_time_total for each in events)
        counts = sum(each.count for each in events)
        head = [(each.key[:90], each.count, round(each.self_device_time_total, 1)) for each in events[:24]]
        return [("all", counts, round(total, 1)), *head]

    def _prepared(self, kind: str, rows: int) -> tuple[KVCache, PassGraphs | None]:
        if (kind, rows) not in self._caches:
            self._caches.clear()
            cache = KVCache(self._vlm, rows, self._options.context + 64)
            for row in range(rows):
                prefill(self._vlm, cache, row, text_inputs(self._options.context + 1))
            layers = self._exits.layers
            graphs = None if kind == "plain" else PassGraphs(self._vlm, cache, layers)
            self._caches[kind, rows] = cache, graphs
        return self._caches[kind, rows]


def _questions(count: int) -> list[tuple[str, bytes]]:
    picture = cv2.imread(str(PICTURE))
    assert picture is not None, "the picture is in the repository"
    rng = np.random.default_rng(0)
    found = []
    for index in range(count):
        top, left = (int(rng.integers(0, side - size)) for side, size in zip(picture.shape, (160, 200), strict=False))
        _, jpeg = cv2.imencode(".jpg", picture[top : top + 160, left : left + 200])
        found.append((PROMPTS[index % len(PROMPTS)], jpeg.tobytes()))
    return found


def _bandwidth(device: str) -> float:
    source = torch.ones(1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = median(timed(lambda: target.copy_(source), source.device, 10))
    return round(2 * source.nbytes / seconds / 1e9, 1)


def _projections(vlm: Vlm) -> dict[str, tuple[int, int]]:
    layer = vlm.text.layers[0]
    names = {"out": layer.self_attn.o_proj, "gate_up/2": layer.mlp.gate_proj, "down": layer.mlp.down_proj,
             "head": vlm.model.lm_head}  # fmt: skip
    return {name: tuple(module.weight.shape) for name, module in names.items()}


def _linear_share(device: torch.device, shape: tuple[int, int], count: int) -> float:
    """Return the GB/s at which one product of `count` tokens reads weights that no cache holds."""
    copies = max(2, (1 << 30) // (shape[0] * shape[1] * 2))
    weights = torch.randn(copies, *shape, device=device, dtype=torch.bfloat16)
    tokens = torch.randn(count, shape[1], device=device, dtype=torch.bfloat16)

    def work() -> None:
        for weight in weights:
            torch.nn.functional.linear(tokens, weight)

    return round(weights.nbytes / median(timed(work, tokens.device, 5)) / 1e9, 1)


@torch.no_grad()
def _generate_ms(vlm: Vlm) -> float:
    ids = torch.ones(1, 64, dtype=torch.long, device=vlm.device)
    lengths = []
    for count in (4, 36):
        settings: dict[str, Any] = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
        work = partial(vlm.model.generate, ids, attention_mask=torch.ones_like(ids), **settings)
        lengths.append(median(timed(work, vlm.device, 2)))
    return round(1e3 * (lengths[1] - lengths[0]) / 32, 3)


def _machine() -> str:
    if not torch.cuda.is_available():
        return "no GPU"
    words = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    shown = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    return f"{shown}; torch {torch.__version__}"


RUNS: dict[str, Callable[[Path, argparse.Namespace], None]] = {
    "tests": run_tests, "exactness": run_exactness, "passes": run_passes, "draft": run_draft,
}  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command.command_line("benchmarks.gpu", __doc__)
    line.add_argument("--stages", nargs="+", default=list(STAGES), choices=STAGES, help="(default: all)")
    line.add_argument("--out", type=Path, default=PROJECT / "out" / "gpu", help="(default: out/gpu)")
    line.add_argument("--minutes", type=float, default=12.0, help="after these no stage begins, and the one that runs "
                      "ends (default: 12)")  # fmt: skip
    line.add_argument("--target", default="qwen2.5-vl-7b", help="size of the target (default: %(default)s)")
    line.add_argument("--draft", default="qwen2-vl-2b", help="size of the draft (default: %(default)s)")
    line.add_argument("--context", type=int, default=1000, help="cached tokens of a row (default: 1000)")
    line.add_argument(
        "--kinds", nargs="+", default=list(KINDS), choices=KINDS, help="ways to run a pass (default: all)"
    )
    line.add_argument("--frames", type=int, default=40, help="frames of the exactness (default: 40)")
    line.add_argument("--tests", nargs="+", default=["tests"], help="where the tests are looked for (default: tests)")
    line.add_argument("--device", default="cuda", help="(default: cuda)")
    line.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    return line


def run(options: argparse.Namespace) -> None:
    """Run the stages. Raises ValueError where there is no GPU."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch sees no GPU here")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.alone:
        RUNS[options.stages[0]](options.out, options)
        return
    end = time.monotonic() + 60 * options.minutes
    for stage in options.stages:
        print(f"== {stage}", flush=True)
        began = time.monotonic()
        if began >= end:
            print("no time left", flush=True)
            continue
        given = {name: value for name, value in vars(options).items() if name not in ("stages", "alone")}
        words = list(chain.from_iterable(_words(name, value) for name, value in given.items()))
        process = [sys.executable, "-m", "benchmarks.gpu", "--alone", "--stages", stage, *words]
        try:
            subprocess.run(process, cwd=PROJECT, env=dict(os.environ), timeout=end - began, check=False)
        except subprocess.TimeoutExpired:
            print("out of time", flush=True)
        print(f"== {stage}: {time.monotonic() - began:.0f} s", flush=True)


def _words(name: str, value: Any) -> Sequence[str]:
    return [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}", str(value)]


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
