"""Write a model folder with its weights in 8 bits, half the bytes.

Robot and verifier load such a folder as any other; plain transformers refuses it. The stored model is a model of its
own: exits, fed heads and cost profiles of the original do not belong to it, train and measure them on this folder.
`evaluate` tells what it costs in answers.

example:
  python -m adapters_training store --model models/target --out out/target-int8
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from adapters_training.files import filling
from adapters_training.settings import Command
from speculation.vlm.folder import weight_files
from speculation.vlm.memory import gigabytes
from speculation.vlm.storage import store


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is stored."""

    model: Annotated[Path, Meta(description="model folder")]
    out: Annotated[Path, Meta(description="folder to write; it must not exist")]


def _run(config: StoreConfig) -> int:
    """Store, and print the sizes. Raises ValueError or OSError for folders of no use."""
    if config.out.exists():
        raise ValueError(f"--out {config.out} exists already; give another folder")
    with filling(config.out) as part:
        store(config.model, part)
    sizes = [sum(path.stat().st_size for path in weight_files(folder)) for folder in (config.model, config.out)]
    print(f"{config.out}: {gigabytes(sizes[1])} of weights, {gigabytes(sizes[0])} in {config.model}")
    return 0


COMMAND = Command("store", "a model folder with its weights in 8 bits", __doc__, StoreConfig, _run)
