"""The same attacks, chosen by what code they reach (atheris, libFuzzer): bytes stand in for the random numbers."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

ACTS, MOST_BYTES = 60, 4096
"""Limits of one life; an act takes some tens of bytes."""
KINDS = 32
"""How many lives differ in their scheme of sampling and their scheduler's policy."""
STARTS = 24
"""Lives of random bytes to begin with."""
OUT = Path("out/fuzz")
"""Where the bytes that failed, and those that reached something new, are written."""


def guided(side_name: str, messages: int, seed: int) -> int:
    """Attack one side until about so many messages were sent; ends the process, with a traceback where one failed."""
    try:
        import atheris
    except ImportError:
        print("--guided needs the package atheris (Linux, CPython): pip install atheris", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=["speculation", "cloud_verifier", "edge_drafter"]):
        from tests.fuzz.edge import EdgeSide
        from tests.fuzz.verifier import VerifierSide
    from tests.fuzz.campaign import Act, Side, watchdog
    from tests.fuzz.generator import Given

    side: Side = VerifierSide() if side_name == "server" else EdgeSide()

    def one(data: bytes) -> None:
        rng, count = Given(data), 0

        def choose(knows: Any) -> Act | None:
            nonlocal count
            count += 1
            return side.act(knows, rng) if count <= ACTS and not rng.is_empty else None

        with watchdog():
            side.life(f"guided/{rng.randrange(KINDS)}").live(choose)

    corpus = OUT / side_name
    corpus.mkdir(parents=True, exist_ok=True)
    for number in range(STARTS):
        (corpus / f"start_{seed}_{number}").write_bytes(random.Random(f"{seed}/{number}").randbytes(MOST_BYTES))
    flags = [f"-runs={max(1, messages // ACTS)}", f"-seed={seed}", f"-max_len={MOST_BYTES}", f"-artifact_prefix={OUT}/"]
    atheris.Setup([sys.argv[0], *flags, "-len_control=0", "-print_final_stats=1", str(corpus)], one)
    atheris.Fuzz()
    return 0
