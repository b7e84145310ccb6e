"""Times and memory of real model sizes with random weights: what the papers' tables of times are made of.

Per model: vision tower, prefill, one decoded token (T_p of a draft), verification of gamma drafted tokens (T_q of a
target), each decoder layer, head and early exit, and the verification over batch and length (Early Exits, Tables 5, 8a
and 9). Times do not depend on what the weights are; answers would, and none are made.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.shapes import SHAPES, build
from evaluation.experiment.command import RESULTS, add_save, settings_of
from evaluation.setting import machine
from evaluation.tables import table
from speculation.exits import ExitHeads
from speculation.vlm.cache import KVCache
from speculation.vlm.forward import draft_chunk, final_logits, forward, forward_layers, prefill, to_numpy
from speculation.vlm.load import Vlm
from speculation.vlm.memory import gigabytes, loaded_bytes
from speculation.vlm.positions import Grid, image_token_count, mrope_positions
from speculation.vlm.processing import Inputs
from speculation.vlm.settings import DTYPES
from speculation.vlm.speed import synchronise, timed, words

BATCHES = (1, 2, 3, 4, 8, 12, 16, 32, 64)
"""Early Exits, Table 9."""
LENGTHS = (1, 2, 5, 9, 17, 33)
"""Tokens of one row: the root and 0, 1, 4, 8, 16, 32 drafted ones."""
MERGE, PATCH = 2, 14
EXIT_RANK = 64


def measure(vlm: Vlm, options: argparse.Namespace) -> dict[str, Any]:
    """Return all figures of one model, milliseconds and bytes; a time is None where memory ran out."""
    _reset_peak(vlm.device)
    found: dict[str, Any] = {
        "parameters": sum(weight.numel() for weight in vlm.model.parameters()),
        "weight_bytes": loaded_bytes(vlm.model),
        "cache_bytes_per_token": KVCache(vlm, 1, 1).nbytes // 2,
    }
    inputs = _question(vlm, options) if vlm.sees_images else words(options.prompt)
    found["prompt_tokens"] = len(inputs.ids)
    if vlm.sees_images:
        found["vision_ms"] = _vision(vlm, inputs, options.repeats)
    cache = KVCache(vlm, 1, len(inputs.ids) + options.gamma + 2)
    found["prefill_ms"] = _median(timed(lambda: prefill(vlm, cache, 0, inputs), vlm.device, options.repeats))
    found |= _one_verification(vlm, cache, options)
    found["verify_ms"] = _over_batch_and_length(vlm, len(inputs.ids), options)
    found["peak_bytes"] = _peak(vlm.device)
    return found


def _question(vlm: Vlm, options: argparse.Namespace) -> Inputs:
    rows, columns = (max(MERGE, round(side / PATCH / MERGE) * MERGE) for side in options.frame)
    grid: Grid = (1, rows, columns)
    tokens = image_token_count(grid, MERGE)
    ids = np.array([0] * 4 + [vlm.image_token] * tokens + [0] * options.prompt, dtype=np.int64)
    positions, delta = mrope_positions(ids, vlm.image_token, grid, MERGE)
    pixels = np.zeros((rows * columns, 3 * 2 * PATCH * PATCH), dtype=np.float32)
    return Inputs(ids, pixels, grid, positions, delta)


@torch.no_grad()
def _vision(vlm: Vlm, inputs: Inputs, repeats: int) -> float:
    pixels = torch.from_numpy(inputs.pixel_values).to(vlm.device)
    grid = torch.tensor([inputs.grid], device=vlm.device)
    return _median(timed(lambda: vlm.model.model.get_image_features(pixels, grid), vlm.device, repeats))


@torch.no_grad()
def _one_verification(vlm: Vlm, cache: KVCache, options: argparse.Namespace) -> dict[str, Any]:
    """Time a decode, a verification of gamma tokens, and what that is made of: layers, head, one exit."""
    length, gamma, repeats = cache.length[0], options.gamma, options.repeats
    parents = list(range(-1, gamma - 1))

    def decode() -> None:
        cache.truncate(0, length)
        forward(vlm, cache, [draft_chunk(cache, 0, 0, [], [])])

    def verify() -> None:
        cache.truncate(0, length)
        forward(vlm, cache, [draft_chunk(cache, 0, 0, [0] * gamma, parents)])

    layers: list[list[float]] = []
    hidden = torch.empty(0)
    for _ in range(repeats):
        cache.truncate(0, length)
        marks = [time.perf_counter()]
        for output in forward_layers(vlm, cache, [draft_chunk(cache, 0, 0, [0] * gamma, parents)]):
            synchronise(vlm.device)
            marks.append(time.perf_counter())
            hidden = output.hidden[0]
        layers.append(list(np.diff(marks)))
    verified = _median(timed(verify, vlm.device, repeats))
    found = {
        "decode_ms": _median(timed(decode, vlm.device, repeats)),
        "gamma": gamma,
        "verify_gamma_ms": verified,
        "layer_ms": [_median(times) for times in zip(*layers, strict=True)],
        "head_ms": _median(timed(lambda: to_numpy(final_logits(vlm, hidden)), vlm.device, repeats)),
    }
    middle = (vlm.num_layers - 1) // 2
    if vlm.num_layers > 1:  # after its last layer a model answers by itself
        heads = ExitHeads(vlm, [middle], EXIT_RANK)
        found["exit_ms"] = _median(timed(lambda: to_numpy(heads.logits(middle, hidden)), vlm.device, repeats))
        found["exit_share"] = found["exit_ms"] / verified
    return found


def _over_batch_and_length(vlm: Vlm, context: int, options: argparse.Namespace) -> dict[str, dict[str, float | None]]:
    """Return milliseconds of a forward by rows and tokens of each row, behind `context` cached tokens."""
    times: dict[str, dict[str, float | None]] = {}
    cases = [(batch, length) for batch in options.batches for length in options.lengths]
    cache: KVCache | None = None
    for batch, length in tqdm(cases, unit="case", desc=vlm.name, disable=None):
        row = times.setdefault(str(batch), {})
        try:
            if cache is None or cache.rows != batch:
                cache = None  # before the next is made
                cache = _filled(vlm, batch, context, max(options.lengths))
            row[str(length)] = _batch(vlm, cache, length, options.repeats)
        except (torch.OutOfMemoryError, MemoryError):
            row[str(length)] = cache = None
            _free(vlm.device)
    return times


def _filled(vlm: Vlm, rows: int, context: int, room: int) -> KVCache:
    cache = KVCache(vlm, rows, context + room)
    prompt = words(context + 1)
    for row in range(rows):
        prefill(vlm, cache, row, prompt)
    return cache


def _batch(vlm: Vlm, cache: KVCache, length: int, repeats: int) -> float:
    chain = list(range(-1, length - 2))

    def work() -> None:
        for row in range(cache.rows):
            cache.truncate(row, cache.length[row])
        chunks = [draft_chunk(cache, row, 0, [0] * (length - 1), chain) for row in range(cache.rows)]
        forward(vlm, cache, chunks)

    return _median(timed(work, vlm.device, repeats))


def _median(seconds: Sequence[float]) -> float:
    return round(1e3 * statistics.median(seconds), 4)


def _free(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: torch.device) -> int:
    """Return the most bytes that were held: by torch on a GPU, by this whole process since its start on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def where(device: str) -> str:
    """Return the machine in words, the GPU first where one is used."""
    gpu = f"{torch.cuda.get_device_name(torch.device(device))}, " if device.startswith("cuda") else ""
    return gpu + machine()


def report(found: dict[str, dict[str, Any]]) -> str:
    """Return the figures as tables: the models side by side, then each one's times over batch and length."""
    names = list(found)
    rows = [
        ["weights", *(gigabytes(found[name]["weight_bytes"]) for name in names)],
        ["peak memory", *(gigabytes(found[name]["peak_bytes"]) for name in names)],
    ]
    for key, label in (
        ("vision_ms", "vision tower, ms"),
        ("prefill_ms", "prefill with vision, ms"),
        ("decode_ms", "decode 1 token (T_p), ms"),
        ("verify_gamma_ms", "verify gamma + 1 (T_q), ms"),
        ("head_ms", "head, ms"),
        ("exit_ms", "one exit, full head, ms"),
    ):
        rows.append([label, *(_cell(found[name].get(key)) for name in names)])
    rows.append(["one layer, ms", *(_cell(statistics.median(found[name]["layer_ms"])) for name in names)])
    rows.append(["exit / verification", *(f"{found[name].get('exit_share', 0.0):.1%}" for name in names)])
    text = [table(["", *names], rows)]
    for name in names:
        grid = found[name]["verify_ms"]
        lengths = list(next(iter(grid.values())))
        body = [[batch, *(_cell(times[length]) for length in lengths)] for batch, times in grid.items()]
        text.append(f"{name}: ms of a forward, rows down, tokens a row across")
        text.append(table(["rows", *lengths], body))
    return "\n".join(text)


def pair_line(found: dict[str, dict[str, Any]], gamma: int) -> str:
    """Return the pair's row of Early Exits, Table 5, where two models were timed: gamma T_p, T_q, c = T_p / T_q."""
    if len(found) != 2:
        return ""
    draft, target = sorted(found, key=lambda name: int(found[name]["parameters"]))
    t_p, t_q = found[draft]["decode_ms"], found[target]["verify_gamma_ms"]
    drafting, ratio = f"{gamma} T_p {gamma * t_p:.2f} ms", f"c = T_p / T_q {t_p / t_q:.3f}"
    return f"draft {draft}, target {target}: {drafting}, T_q {t_q:.2f} ms, {ratio}"


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(
        prog="python -m benchmarks.model_timings", description=(__doc__ or "").splitlines()[0]
    )
    line.add_argument("--preset", nargs="+", default=["tiny"], choices=list(SHAPES), help="shapes (default: tiny)")
    line.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    line.add_argument("--dtype", default="bfloat16", choices=[name for name in DTYPES if name != "float64"])
    line.add_argument("--gamma", type=int, default=4, help="drafted tokens of a verification (default: 4)")
    line.add_argument("--prompt", type=int, default=64, help="words of the prompt, in tokens (default: 64)")
    line.add_argument(
        "--frame", nargs=2, type=int, default=[480, 640], metavar=("HEIGHT", "WIDTH"), help="pixels (default: 480 640)"
    )
    line.add_argument("--batches", nargs="+", type=int, default=list(BATCHES), help="rows of a forward (Table 9's)")
    line.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS), help="tokens of a row, the root too")
    line.add_argument("--repeats", type=int, default=10, help="timed repetitions, of which the median (default: 10)")
    line.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    line.add_argument("--out", type=Path, help="write the figures to this JSON file")
    add_save(line)
    return line


def check(options: argparse.Namespace) -> None:
    """Raise ValueError, naming the option, for a number that is out of range."""
    limits = {"gamma": 1, "prompt": 1, "repeats": 1, "threads": 1}
    for name, least in limits.items():
        if getattr(options, name) < least:
            raise ValueError(f"--{name} {getattr(options, name)}: give at least {least}")
    if min(options.batches) < 1 or min(options.lengths) < 1 or min(options.frame) < PATCH * MERGE:
        raise ValueError(f"--batches and --lengths must be at least 1, --frame at least {PATCH * MERGE} pixels a side")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code: 0, or 2 after one sentence on stderr."""
    options = parser().parse_args(arguments)
    found: dict[str, dict[str, Any]] = {}
    try:
        check(options)
        torch.set_num_threads(options.threads)
        torch.empty(0, device=options.device)
        for name in options.preset:
            found[name] = measure(build(name, options.device, options.dtype), options)
            _free(torch.device(options.device))
    except (ValueError, RuntimeError, AssertionError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        print(f"model_timings: {reason}", file=sys.stderr)
        return 2
    print(f"random weights, {options.dtype}, on {where(options.device)}")
    print(report(found))
    if pair := pair_line(found, options.gamma):
        print(pair)
    folder = RESULTS / f"model_timings_{'_'.join(options.preset)}_{options.dtype}_{options.device.split(':')[0]}.json"
    for path in [each for each in (options.out, folder if options.save else None) if each is not None]:
        path.parent.mkdir(parents=True, exist_ok=True)
        data = {"settings": settings_of(options, "out", "save"), "machine": where(options.device), "models": found}
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        print(f"saved {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
