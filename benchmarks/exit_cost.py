"""What exits add to a verification: full heads against short lists, over the number of exits.

Timed in real forwards over a root and a draft: every exit's adapter, norm, head, copy to the host and verdict. What an
exit costs depends on its sizes alone, so adapters are untrained and the short list is any N tokens. Without a GPU a big
vocabulary still shows with a real shape cut to a few layers: the cost in layers is that of the real size on this
machine, the share of the whole is computed for all layers from the median layer and is labelled as computed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from adapters_training.exit_choice.report import machine
from adapters_training.exit_choice.timing import PassTimes, time_forward
from benchmarks.shapes import SHAPES, add_forwards, build, check_machine
from spec_vlm_nav.graph import PROJECT
from speculation.exits import ExitHeads, Head
from speculation.progress import progress
from speculation.vlm.load import Vlm, load_vlm
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.figures import spread
from vlm_nav_evaluation.tables import MS, Column, figures_table, spread_columns


def spaced(count: int, layers: int) -> list[int]:
    """Return `count` exit layers spread evenly over all but the last layer. ValueError for more than there are."""
    if not 1 <= count <= layers - 1:
        raise ValueError(f"--counts {count}: a target of {layers} layers takes 1 to {layers - 1} exits")
    return sorted({int((index + 0.5) * (layers - 1) / count) for index in range(count)})


def measure(vlm: Vlm, tokens: int, whole_layers: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the figures of every number of exits; `tokens` are the short list's, `whole_layers` as in `figures`."""
    entries = []
    for count in progress(options.counts, unit="count"):
        heads = ExitHeads(vlm, spaced(count, vlm.num_layers), options.rank)
        heads.set_short_list(np.linspace(0, vlm.vocabulary - 1, tokens).astype(np.int64).tolist())
        how = {"drafted": options.gamma, "context": options.context, "repeats": options.repeats, "seed": count}
        entries.append(figures(time_forward(vlm, heads, **how), whole_layers))
    return entries


def figures(times: PassTimes, whole_layers: int) -> dict[str, Any]:
    """Return one entry: seconds (min, median, max) and shares of the median verification.

    `share_of_all_layers` is computed for a target of `whole_layers` layers as long as the median one that ran.
    """
    layer, verify = float(np.median(times.layers)), float(np.median(times.forward))
    whole = float(np.median(times.head)) + whole_layers * layer
    entry: dict[str, Any] = {
        "exits": len(next(iter(times.exits.values()))),
        "clock": times.clock.value,
        "verify_s": spread(times.forward.tolist()),
        "layer_s": spread(times.layers.ravel().tolist()),
    }
    for head, by_layer in times.exits.items():
        total = np.sum(list(by_layer.values()), axis=0)
        cost = float(np.median(total))
        shares = {"share": cost / verify, "share_of_all_layers": cost / whole, "layers": cost / layer}
        entry[head.value] = {"cost_s": spread(total.tolist()), **shares}
    return entry


def table_of(entries: Sequence[dict[str, Any]], whole_layers: int | None, cut: bool) -> str:
    """Return a row for every number of exits and head; `cut`: the share of all layers is computed, and marked so."""
    computed = Column(f"share of {whole_layers} layers (computed)", "share_of_all_layers", ".1%")
    columns = [
        *spread_columns("cost_s", form=".2f"),
        Column("verification ms", "verify_s.median", ".2f", MS),
        Column("share", "share", ".1%"),
        *([computed] if cut else []),
        Column("in layers", "layers"),
    ]
    rows = {f"{each['exits']} {head.value}": each | each[head.value] for each in entries for head in Head}
    return figures_table("exits, head", rows, columns)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command.command_line("benchmarks.exit_cost", __doc__)
    line.add_argument("--target-model", type=Path, default=PROJECT / "models" / "target")
    line.add_argument("--shape", choices=SHAPES, help="instead: random weights of this checkpoint's shape")
    line.add_argument("--layers", type=int, help="with --shape: build only so many of its layers")
    line.add_argument("--short-list", type=int, help="tokens of the short list (default: 4096, or an eighth of fewer)")
    line.add_argument("--counts", type=int, nargs="+", default=[1, 3, 6], help="numbers of exits (default: 1 3 6)")
    line.add_argument("--rank", type=int, default=64, help="of the adapters (default: 64)")
    line.add_argument("--context", type=int, default=128, help="tokens before the draft (default: 128)")
    add_forwards(line, repeats=50, dtype="float32")
    return line


def run(options: argparse.Namespace) -> None:
    """Run the benchmark. Raises ValueError or RuntimeError, in one sentence, where it cannot."""
    if min(options.repeats, options.rank, *options.counts) < 1 or min(options.gamma, options.context) < 0:
        raise ValueError("--repeats, --rank and --counts must be at least 1, --gamma and --context at least 0")
    if options.shape is not None:
        check_machine(options)
        vlm = build(options.shape, options.device, options.dtype, options.layers)
    elif options.layers is not None:
        raise ValueError("--layers needs --shape: a model folder has the layers that it has")
    else:
        vlm = load_vlm(options.target_model, device=options.device, dtype=options.dtype, threads=options.threads)
    whole = int(SHAPES[options.shape].text["num_hidden_layers"]) if options.shape else None
    tokens = options.short_list or min(4096, vlm.vocabulary // 8)
    if not 1 <= tokens <= vlm.vocabulary:
        raise ValueError(f"--short-list {tokens}: the target has {vlm.vocabulary} tokens")
    for count in options.counts:
        spaced(count, vlm.num_layers)
    entries = measure(vlm, tokens, whole or vlm.num_layers, options)
    cut = whole is not None and whole != vlm.num_layers
    what = f"random {vlm.name}" if whole else f"target {vlm.name}"
    what += f", {vlm.num_layers} of its {whole} layers" if cut else ""
    size = tokens * vlm.hidden_size * vlm.dtype.itemsize / 1e6
    print(f"{what}: {vlm.num_layers} layers of {vlm.hidden_size}, {vlm.vocabulary} tokens; short list {tokens} "
          f"({size:.1f} MB); {entries[0]['clock']} time")  # fmt: skip
    print(table_of(entries, whole, cut))
    print(machine(options.device))
    if options.save:
        sizes = {"layers": vlm.num_layers, "layers_of_the_whole": whole or vlm.num_layers, "hidden": vlm.hidden_size,
                 "vocabulary": vlm.vocabulary, "short_list": tokens}  # fmt: skip
        about = {"settings": command.settings_of(options), "machine": machine(options.device)}
        name = options.shape or vlm.folder.name
        name += f"_{vlm.num_layers}_layers" if options.layers else ""
        name += f"_{options.device.partition(':')[0]}_{options.dtype}"
        command.write_result(f"exit_cost_{name}", {**about, **sizes, "counts": entries})


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
