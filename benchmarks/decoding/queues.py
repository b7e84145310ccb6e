"""Which early token first: server queue x edge queue x threads, where sending a message takes time (Table 7).

Early tokens are made faster than the link carries them, so they wait at the verifier, and more of them arrive than the
edge has threads (Early Exits, Sec. 4.3 and Appendix A). Drawn facts, virtual time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from benchmarks.analytic.early_exits import QUEUES, THREADS
from benchmarks.clocked import SERVER, Recording, Timings, load_timings
from benchmarks.clocked.figures import figures_of, run_mode
from benchmarks.decoding.common import GSM8K_FACTS, VIRTUAL, add_steps, number, save, steps_of
from cloud_verifier.exit_queue import QueuePolicy as ServerPolicy
from edge_drafter.config import QueuePolicy as EdgePolicy
from evaluation.plots import add_outputs
from evaluation.tables import table

MESSAGE_MS = 20.0
EARLY_BYTES = 20
"""An early token's payload."""
EDGES = tuple(dict.fromkeys(edge for edge, _ in QUEUES))
PATIENT_S = 60.0
"""No draft is sent again because a slow link is slow."""
PAIRS = (*QUEUES, *((edge, ServerPolicy.NEWEST.value) for edge in EDGES))
"""Edge queue and server queue: the paper's, and ours at the server."""


def add_options(line: argparse.ArgumentParser) -> None:
    """Register what `queues` takes."""
    add_outputs(line)
    add_steps(line, 6, 1, "drawn answers")
    line.add_argument("--message-ms", type=float, default=MESSAGE_MS, help="milliseconds that sending an early token "
                      "takes before it is on its way (default: %(default)g)")  # fmt: skip


def run(options: argparse.Namespace) -> None:
    """Print our miss rates beside the paper's, and save what was asked."""
    if not 0.1 <= options.message_ms <= 1000.0:
        raise ValueError(f"--message-ms {options.message_ms:g} is outside 0.1 to 1000")
    recording, timings = GSM8K_FACTS.draw(steps_of(options)), slow_link(options.message_ms / 1e3)
    with tqdm(total=len(PAIRS) * len(THREADS), unit="run", disable=None) as bar:
        rows = miss_rates(recording, timings, options.message_ms / 1e3, bar.update)
    print(f"{len(recording.steps)} drawn answers: {GSM8K_FACTS}\n{timings}\n{VIRTUAL}")
    print(f"an early token takes {options.message_ms:g} ms to leave and {1e3 * timings.one_way_s:g} ms on its way\n")
    print(report(rows))
    save("queues", options, {"kind": VIRTUAL, "facts": repr(GSM8K_FACTS), "rows": rows}, timings)


def slow_link(message_s: float) -> Timings:
    """Return the RTX's times with a way down on which an early token takes `message_s` to leave."""
    return replace(load_timings("rtx_vicuna_7b"), down_bits_per_s=8.0 * EARLY_BYTES / message_s)


def miss_rates(
    recording: Recording, timings: Timings, message_s: float, tell: Callable[[], object] = lambda: None
) -> list[dict[str, Any]]:
    """Return a row for each pair of queues: miss rate and ms a token by threads, and the paper's percentages; None
    where it has none.

    The verifier's queue is paced to the link; what it has sent cannot be reordered or withdrawn any more.
    """
    rows = []
    for edge, server in PAIRS:
        config = replace(SERVER, queue_policy=ServerPolicy(server), early_rate=1.0 / message_s, early_burst=1)
        misses, per_token = [], []
        for threads in THREADS:
            results = run_mode(
                "fsd", recording, timings, server=config, branches=threads, leaves=threads,
                queue_policy=EdgePolicy(edge), resend_s=PATIENT_S,
            )  # fmt: skip
            figures = figures_of(results, timings)
            misses.append(figures["miss_rate"])
            per_token.append(1e3 * figures["per_token_s"]["median"])
            tell()
        rows.append({"edge": edge, "server": server, "miss_rate": misses, "ms_per_token": per_token,
                     "paper": QUEUES.get((edge, server))})  # fmt: skip
    return rows


def report(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table with a row for each pair of queues: misses in percent by threads, ours and the paper's."""
    header = (
        "edge queue, server queue", *(f"misses % {count}T" for count in THREADS),
        *(f"paper {count}T" for count in THREADS), *(f"ms/token {count}T" for count in THREADS),
    )  # fmt: skip
    return table(
        header,
        [
            (
                f"{row['edge']}, {row['server']}",
                *(number(None if rate is None else 100.0 * rate, 1) for rate in row["miss_rate"]),
                *(number(rate) for rate in row["paper"] or [None] * len(THREADS)),
                *(number(value, 0) for value in row["ms_per_token"]),
            )
            for row in rows
        ],
    )
