"""Times and memory of real model sizes with random weights: what the papers' tables of times are made of.

Per model: vision tower, prefill, one decoded token (T_p of a draft), verification of gamma drafted tokens (T_q of a
target), each decoder layer, head and early exit, and the verification over batch and length (Early Exits, Tables 5, 8a
and 9); beside it how much of the memory's speed a verification uses. Times do not depend on what the weights are;
answers would, and none are made.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adapters_training.devices import machine
from adapters_training.exit_choice.timing import time_forward
from benchmarks.generation import beside_library
from benchmarks.shapes import SHAPES, build
from speculation.exits import ExitHeads, Head
from speculation.progress import progress
from speculation.text import first_line
from speculation.vlm.cache import KVCache
from speculation.vlm.forward import draft_chunk, encode_image, forward, prefill
from speculation.vlm.graphs import PassGraphs, graphs_of
from speculation.vlm.inputs import Inputs
from speculation.vlm.memory import gigabytes, loaded_bytes
from speculation.vlm.model import Vlm
from speculation.vlm.speed import text_inputs, timed
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.options import add_edge_flags, add_save
from vlm_nav_evaluation.results import commit, settings_of, write_json, write_result
from vlm_nav_evaluation.tables import Column, figures_table, table

BATCHES = (1, 2, 3, 4, 8, 12, 16, 32, 64)
"""Early Exits, Table 9."""
LENGTHS = (1, 2, 5, 9, 17, 33)
"""Tokens of one row: the root and 0, 1, 4, 8, 16, 32 drafted ones."""
EXIT_RANK = 64
ROWS = (
    Column("vision tower, ms", "vision_ms"),
    Column("prefill with vision, ms", "prefill_ms"),
    Column("decode 1 token (T_p), ms", "decode_ms"),
    Column("transformers' prefill, ms", "library_prefill_ms"),
    Column("transformers' decode, ms", "library_decode_ms"),
    Column("prefill / transformers'", "prefill_to_library"),
    Column("decode / transformers'", "decode_to_library"),
    Column("verify gamma + 1 (T_q), ms", "verify_gamma_ms"),
    Column("head, ms", "head_ms"),
    Column("one exit, full head, ms", "exit_ms"),
    Column("one layer, ms", "layer_median_ms"),
    Column("exit / verification", "exit_share", ".1%"),
    Column("weights' bytes a second / those of a copy", "read_share", ".1%"),
)


@torch.no_grad()
def measure(vlm: Vlm, options: argparse.Namespace) -> dict[str, Any]:
    """Return all figures of one model, milliseconds and bytes; a time is None where memory ran out."""
    on_gpu = vlm.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(vlm.device)
    inputs = _question(vlm, options) if vlm.sees_images else text_inputs(options.prompt)
    context = len(inputs.ids)
    found: dict[str, Any] = {
        "parameters": sum(weight.numel() for weight in vlm.model.parameters()),
        "weight_bytes": loaded_bytes(vlm.model),
        "cache_bytes_per_token": KVCache(vlm, 1, 1).nbytes // 2,
        "prompt_tokens": context,
    }
    if vlm.sees_images:
        found["vision_ms"] = _median(vlm, options, lambda: encode_image(vlm, inputs))
    cache = KVCache(vlm, 1, context + options.gamma + 2)
    found["prefill_ms"] = _median(vlm, options, lambda: prefill(vlm, cache, 0, inputs))
    graphs = graphs_of(vlm, cache, ()) if options.cuda_graphs else None
    found["decode_ms"] = _batch(vlm, cache, 1, options, graphs)
    own = partial(prefill, vlm, cache, 0, inputs), partial(_pass, vlm, cache, 1, graphs)
    found |= beside_library(vlm, inputs, *own, options.repeats)
    found["verify_with_logits_ms"] = _batch(vlm, cache, options.gamma + 1, options, graphs)
    read = sum(each.nbytes for part in (vlm.text.layers, vlm.model.lm_head) for each in part.parameters())
    found["read_share"] = read / (found["verify_with_logits_ms"] / 1e3) / _copy_rate(vlm, options)
    middle = (vlm.num_layers - 1) // 2
    heads = ExitHeads(vlm, [middle], EXIT_RANK) if vlm.num_layers > 1 else None  # the last layer is no exit
    times = time_forward(vlm, heads, drafted=options.gamma, context=context, repeats=options.repeats)
    (layers, head), verify_s = times.medians(), float(np.median(times.forward))
    found |= {"gamma": options.gamma, "clock": times.clock.value, "verify_gamma_ms": _ms(verify_s)}
    found |= {"layer_ms": [_ms(layer) for layer in layers], "head_ms": _ms(head)}
    if heads is not None:
        exit_s = times.cost_s(Head.FULL, middle)
        found |= {"exit_ms": _ms(exit_s), "exit_share": exit_s / verify_s}
    found["verify_ms"] = _over_batch_and_length(vlm, context, options)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found["peak_bytes"] = torch.cuda.max_memory_allocated(vlm.device) if on_gpu else resident
    return found


def _question(vlm: Vlm, options: argparse.Namespace) -> Inputs:
    frames = vlm.processor.frames
    assert frames is not None
    pixels, grid = frames.encode(np.zeros((*options.frame, 3), dtype=np.uint8))
    ids = np.array([0] * 4 + [vlm.image_token] * frames.tokens(grid) + [0] * options.prompt, dtype=np.int64)
    positions, delta = vlm.family.positions(vlm.model, ids, vlm.image_token, [grid])
    return Inputs(ids, pixels, (grid,), positions, delta)


def _over_batch_and_length(vlm: Vlm, context: int, options: argparse.Namespace) -> dict[str, dict[str, float | None]]:
    """Return milliseconds of a forward by rows and tokens of each row, behind `context` cached tokens."""
    times: dict[str, dict[str, float | None]] = {}
    cases = [(batch, length) for batch in options.batches for length in options.lengths]
    cache: KVCache | None = None
    graphs: PassGraphs | None = None
    for batch, length in progress(cases, unit="case", desc=vlm.name):
        row = times.setdefault(str(batch), {})
        try:
            if cache is None or cache.rows != batch:
                cache = graphs = None  # before the next is made
                cache = _filled(vlm, batch, context, max(options.lengths))
                graphs = graphs_of(vlm, cache, ()) if options.cuda_graphs else None
            row[str(length)] = _batch(vlm, cache, length, options, graphs)
        except (torch.OutOfMemoryError, MemoryError):
            row[str(length)] = cache = graphs = None
            torch.cuda.empty_cache()
    return times


def _filled(vlm: Vlm, rows: int, context: int, room: int) -> KVCache:
    cache = KVCache(vlm, rows, context + room)
    for row in range(rows):
        prefill(vlm, cache, row, text_inputs(context + 1))
    return cache


def _batch(vlm: Vlm, cache: KVCache, length: int, options: argparse.Namespace, graphs: PassGraphs | None) -> float:
    return _median(vlm, options, partial(_pass, vlm, cache, length, graphs))


def _pass(vlm: Vlm, cache: KVCache, length: int, graphs: PassGraphs | None) -> None:
    """Feed every row of a cache a root and a chain behind it, `length` tokens, and fetch their logits."""
    for row in range(cache.rows):
        cache.truncate(row, cache.length[row])
    chain = range(-1, length - 2)
    chunks = [draft_chunk(cache, row, 0, [0] * (length - 1), chain) for row in range(cache.rows)]
    forward(vlm, cache, chunks, graphs=graphs)


def _copy_rate(vlm: Vlm, options: argparse.Namespace) -> float:
    """Return how many bytes a second a plain copy reads and writes on the model's device: what no pass can exceed."""
    source = torch.ones(1 << 28, dtype=torch.uint8, device=vlm.device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / statistics.median(timed(lambda: target.copy_(source), vlm.device, options.repeats))


def _median(vlm: Vlm, options: argparse.Namespace, work: Callable[[], object]) -> float:
    return _ms(statistics.median(timed(work, vlm.device, options.repeats)))


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 4)


def report(found: dict[str, dict[str, Any]]) -> str:
    """Return the figures as tables: the models side by side, then each one's times over batch and length."""
    entries = [{**each, "layer_median_ms": statistics.median(each["layer_ms"])} for each in found.values()]
    rows = [(title, *(gigabytes(each[name]) for each in entries))
            for title, name in (("weights", "weight_bytes"), ("peak memory", "peak_bytes"))]  # fmt: skip
    rows += [(row.title, *(row.cell(each) for each in entries)) for row in ROWS]
    text = [table(("", *found), rows)]
    for name, each in found.items():
        lengths = [Column(length, length) for length in next(iter(each["verify_ms"].values()))]
        text.append(f"{name}: ms of a forward, rows down, tokens a row across")
        text.append(figures_table("rows", each["verify_ms"], lengths))
    return "\n".join(text)


def pair_line(found: dict[str, dict[str, Any]], gamma: int) -> str:
    """Return the pair's row of Early Exits, Table 5, where two models were timed: gamma T_p, T_q, c = T_p / T_q."""
    draft, target = sorted(found, key=lambda name: int(found[name]["parameters"]))
    t_p, t_q = found[draft]["decode_ms"], found[target]["verify_gamma_ms"]
    drafting, ratio = f"{gamma} T_p {gamma * t_p:.2f} ms", f"c = T_p / T_q {t_p / t_q:.3f}"
    return f"draft {draft}, target {target}: {drafting}, T_q {t_q:.2f} ms, {ratio}"


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command.command_line("benchmarks.model_timings", __doc__)
    line.add_argument("--preset", nargs="+", default=["tiny"], choices=list(SHAPES), help="shapes (default: tiny)")
    line.add_argument("--prompt", type=int, default=64, help="words of the prompt, in tokens (default: 64)")
    line.add_argument(
        "--frame", nargs=2, type=int, default=[480, 640], metavar=("HEIGHT", "WIDTH"), help="pixels (default: 480 640)"
    )
    line.add_argument("--batches", nargs="+", type=int, default=list(BATCHES), help="rows of a forward (Table 9's)")
    line.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS), help="tokens of a row, the root too")
    line.add_argument("--out", type=Path, help="write the figures to this JSON file")
    shown = "passes as the verifier runs them on a GPU: captured, with fused projections"
    line.add_argument("--cuda-graphs", action="store_true", help=shown)
    line.add_argument("--gamma", type=int, default=4, help="drafted tokens of a verification (default: 4)")
    line.add_argument("--repeats", type=int, default=10, help="timed forwards (default: 10)")
    add_edge_flags(line, "device", "dtype", "threads", dtype="bfloat16")
    add_save(line)
    return line


def run(options: argparse.Namespace) -> None:
    """Run the benchmark. Raises ValueError or RuntimeError, in one sentence, where it cannot."""
    for name in ("gamma", "prompt", "repeats"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} {getattr(options, name)}: give at least 1")
    if min(options.batches) < 1 or min(options.lengths) < 1 or min(options.frame) < 1:
        raise ValueError("--batches and --lengths must be at least 1, --frame at least 1 pixel a side")
    torch.set_num_threads(options.threads)
    try:
        torch.empty(0, device=options.device)
    except (RuntimeError, AssertionError) as error:  # torch's words for: no such device
        raise ValueError(f"--device {options.device}: {first_line(error)}") from None
    found: dict[str, dict[str, Any]] = {}
    for name in options.preset:
        found[name] = measure(build(name, options.device, options.dtype), options)
        torch.cuda.empty_cache()
    print(f"random weights, {options.dtype}, on {machine(options.device)}")
    print(report(found))
    if len(found) == 2:
        print(pair_line(found, options.gamma))
    about = {"settings": settings_of(options), "commit": commit(), "machine": machine(options.device), "pair": {}}
    data = {**about, "models": found}
    if options.out is not None:
        write_json(options.out, data)
        print(f"saved {options.out.name}")
    if options.save:
        device = options.device.partition(":")[0]
        write_result(f"model_timings_{'_'.join(options.preset)}_{options.dtype}_{device}", data)


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
