"""Which early token first: server queue x edge queue x threads, where sending a message takes time (Table 7).

Early tokens are made faster than the link carries them, so they wait at the verifier, and more of them arrive than the
edge has threads (Early Exits, Sec. 4.3 and Appendix A). Virtual time; sampled exits, and recorded ones of a target that
has 25.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.decoding.common import GSM8K_SYNTHETIC, VIRTUAL, arm_figures, declared, save
from benchmarks.recordings import add_recorded, first_answers, recorded_file, suffix
from cloud_verifier.exit_queue import QueuePolicy as ServerPolicy
from edge_drafter.config import QueuePolicy as EdgePolicy
from vlm_nav_evaluation.experiment.run import Arm
from vlm_nav_evaluation.tables import Column, figures_table
from vlm_nav_evaluation.virtual_time import SERVER, Recording, Timings, VirtualTime
from vlm_nav_evaluation.virtual_time.timings import DEFAULT_COST

STEPS = (6, 1, "synthetic answers")
THREADS = (3, 5, 10)
PRINTED: Mapping[tuple[str, str], tuple[float, float, float]] = {
    ("priority", "priority"): (79.85, 62.93, 27.57),
    ("priority", "fifo"): (80.40, 63.48, 27.73),
    ("random", "priority"): (82.32, 63.25, 26.92),
    ("random", "fifo"): (84.56, 65.36, 27.68),
    ("fifo", "priority"): (82.61, 64.43, 27.69),
    ("fifo", "fifo"): (85.43, 65.67, 27.84),
}
"""Table 7: (edge queue, server queue) -> cache miss rate in percent with 3, 5 and 10 threads."""
PAIRS = (*PRINTED, *((edge, ServerPolicy.NEWEST.value) for edge in dict.fromkeys(edge for edge, _ in PRINTED)))
"""Edge queue and server queue: the paper's, and ours at the server."""
EARLY_BYTES = 20
"""An early token's payload."""
RESEND_S = 60.0
"""No draft is sent again because a slow link is slow."""
COLUMNS = tuple(
    Column(f"{head} {count}T", f"{key}.{place}", form, factor)
    for key, head, form, factor in (
        ("miss_rate", "misses %", ".1f", 100.0),
        ("paper", "paper", ".2f", 1.0),
        ("ms_per_token", "ms/token", ".0f", 1.0),
    )
    for place, count in enumerate(THREADS)
)


def add_options(line: argparse.ArgumentParser) -> None:
    """Register --message-ms, --finish and --recorded."""
    add_recorded(line)
    line.add_argument("--finish", action="store_true", help="edge threads finish what they began (Algorithm 1)")
    line.add_argument("--message-ms", type=float, default=20.0, help="milliseconds that sending an early token "
                      "takes before it is on its way (default: %(default)g)")  # fmt: skip


def run(options: argparse.Namespace) -> None:
    """Print our miss rates beside the paper's, and save what was asked."""
    if not 0.1 <= options.message_ms <= 1000.0:
        raise ValueError(f"--message-ms {options.message_ms:g} is outside 0.1 to 1000")
    timings = slow_link(options.message_ms / 1e3, options.cost)
    path = recorded_file(options)
    recording = first_answers(path, options.recorded) if path else GSM8K_SYNTHETIC.draw(options.steps)
    what = path.name if path else repr(GSM8K_SYNTHETIC)
    rows = miss_rates(recording, timings, options.message_ms / 1e3, options.finish)
    print(f"{len(recording.steps)} answers: {what}\n{timings}\n{VIRTUAL}")
    print(f"an early token takes {options.message_ms:g} ms to leave and {1e3 * timings.one_way_s:g} ms on its way\n")
    print(report(rows))
    name = "queues" + suffix(path) + "_finish" * options.finish
    save(name, options, {"kind": VIRTUAL, "answers": what, "rows": rows}, timings)


def slow_link(message_s: float, cost: str = DEFAULT_COST) -> Timings:
    """Return the RTX's times with a way down on which an early token takes `message_s` to leave."""
    return replace(declared("rtx_vicuna_7b", cost), down_bits_per_s=8.0 * EARLY_BYTES / message_s)


def miss_rates(recording: Recording, timings: Timings, message_s: float, finish: bool = False) -> list[dict[str, Any]]:
    """Return a row for each pair of queues: miss rate and ms a token by threads, and the paper's percentages; None
    where it has none.

    The verifier's queue is paced to the link; what it has sent cannot be reordered or withdrawn any more.
    """
    rows = []
    for edge, server in PAIRS:
        config = SERVER.changed(queue_policy=ServerPolicy(server), early_rate=1.0 / message_s, early_burst=1)
        same = {"server": config, "queue_policy": EdgePolicy(edge), "resend_s": RESEND_S, "finish": finish}
        arms = [Arm[Any](f"{count}", "fsd", {"branches": count, "leaves": count, **same}) for count in THREADS]
        found = arm_figures(VirtualTime(recording, timings).run(arms), timings, "miss_rate").values()
        ours = {key: [each[key] for each in found] for key in ("miss_rate", "ms_per_token")}
        rows.append({"edge": edge, "server": server, **ours, "paper": PRINTED.get((edge, server))})
    return rows


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with a row for each pair of queues: misses in percent by threads, ours and the paper's."""
    cells = {
        f"{row['edge']}, {row['server']}": {
            key: {str(place): value for place, value in enumerate(row[key] or ())}
            for key in ("miss_rate", "paper", "ms_per_token")
        }
        for row in rows
    }
    return figures_table("edge queue, server queue", cells, COLUMNS)
