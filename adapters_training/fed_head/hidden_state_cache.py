"""What a frozen target makes of every record, computed once and kept on disk: later epochs cost the head alone.

Parts of records, each a safetensors file that is mapped, not read: outputs of the layers that make features and of the
last one, bfloat16, for the entries of `Runs`. A record keeps the wording and mirroring that it was computed with.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from adapters_training.fed_head.config import FedHeadConfig
from adapters_training.fed_head.runs import Runs, gather
from adapters_training.files import replacing
from adapters_training.frozen_target.trainer import Prepared
from adapters_training.packing import IGNORE
from speculation.progress import progress
from speculation.vlm.memory import gigabytes

PART = 64
"""Records of a part."""
SETTINGS_FILE, RUNS = "kept.json", "runs"
_DECIDE = ("packed", "questions", "batch", "context", "max_pixels", "seed", "dtype", "quantisation", "mixed_precision",
           "prompt_tokens")  # fmt: skip
"""Settings that decide what the target makes of a record, besides target, data and layers."""


class CachedRuns:
    """A `Maker` of runs. Parts that are not there yet are computed first, by all processes of a training together."""

    def __init__(self, prepared: Prepared[FedHeadConfig]) -> None:
        """Raises ValueError, in one sentence, for a folder of other settings and for a full disk."""
        self._folder = Path(prepared.config.kept)
        numbers = np.sort(prepared.plan.order(0))
        self._parts = [numbers[at : at + PART] for at in range(0, len(numbers), PART)]
        self._place = {int(number): divmod(place, PART) for place, number in enumerate(numbers)}
        """Part and place in it, by the record's number."""
        self._open: dict[int, Any] = {}
        self._claim(prepared)
        self._compute(prepared)
        prepared.replicas.wait()

    def __call__(self, number: Callable[[int], int], first: int, count: int, seed: int) -> Runs | None:
        """Return the runs of a batch, None where it has no answer; the seed decides nothing, what is kept stands."""
        tokens, labels, outputs, rows = list[Tensor](), list[Tensor](), list[Tensor](), list[int]()
        for row, place in enumerate(range(first, first + count)):
            part, within = self._place[number(place)]
            file = self._file(part)
            for _, low, high in (each for each in file.get_tensor(RUNS).tolist() if each[0] == within):
                for name, kept in (("tokens", tokens), ("labels", labels), ("outputs", outputs)):
                    kept.append(file.get_slice(name)[low:high])
                rows.append(row)
        if not rows:
            return None
        whole = pad_sequence(outputs, batch_first=True).unbind(2)
        return Runs(
            pad_sequence(tokens, batch_first=True),
            list(whole[:-1]),
            pad_sequence(labels, batch_first=True, padding_value=IGNORE),
            whole[-1],
            torch.tensor(rows),
        )

    def _path(self, part: int) -> Path:
        return self._folder / f"{part:06d}.safetensors"

    def _file(self, part: int) -> Any:
        if part not in self._open:
            self._open[part] = safe_open(str(self._path(part)), framework="pt")
        return self._open[part]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": {}}  # a worker maps the files anew

    def _claim(self, prepared: Prepared[FedHeadConfig]) -> None:
        config = msgspec.to_builtins(prepared.config)
        mine = {name: config[name] for name in _DECIDE} | {
            "target": prepared.vlm.fingerprint,
            "data": list(prepared.config.data),
            "records": prepared.plan.records,
            "layers": list(prepared.layers),
        }
        path = self._folder / SETTINGS_FILE
        if path.exists():
            there = json.loads(path.read_text())
            other = [name for name in mine if there.get(name) != mine[name]]
            if other:
                raise ValueError(
                    f"--kept {self._folder} is of other settings ({other[0]}: {there.get(other[0])} there, "
                    f"{mine[other[0]]} now): choose another folder, or delete it"
                )
        elif prepared.replicas.is_first:
            self._folder.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write_text(json.dumps(mine, indent=1) + "\n")
        prepared.replicas.wait()

    def _compute(self, prepared: Prepared[FedHeadConfig]) -> None:
        index, count = prepared.replicas.rank, prepared.replicas.size
        missing = [part for part in range(index, len(self._parts), count) if not self._path(part).exists()]
        for place, part in enumerate(progress(missing, unit="part", desc="target", hidden=index > 0)):
            with replacing(self._path(part)) as file:
                save_file(self._part(prepared, part), str(file))
            if not place:
                self._check_room(self._path(part).stat().st_size * (len(missing) - 1))

    def _check_room(self, needed: int) -> None:
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            raise ValueError(
                f"--kept {self._folder} needs {gigabytes(needed)} more, {gigabytes(free)} are free: choose another "
                "folder, or leave it out"
            )

    @torch.no_grad()
    def _part(self, prepared: Prepared[FedHeadConfig], part: int) -> dict[str, Tensor]:
        """Return the tensors of a part: its entries one behind the other, and (record, begin, end) of each run."""
        config, numbers, base = prepared.config, self._parts[part], part * PART
        spans = list[tuple[int, int, int]]()
        columns: dict[str, list[Tensor]] = {"tokens": [], "labels": [], "outputs": []}
        end = 0
        for first in range(0, len(numbers), config.batch):
            count = min(config.batch, len(numbers) - first)
            batch = prepared.maker(
                lambda place: int(numbers[(place - base) % len(numbers)]), base + first, count, config.seed
            )
            with prepared.autocast():
                runs = gather(prepared.vlm, batch.to(prepared.vlm.device), prepared.layers, config.prompt_tokens)
            if runs is None:
                continue
            outputs = torch.stack([*runs.hidden, runs.last], dim=2).to(torch.bfloat16)
            for place, row in enumerate(runs.rows.tolist()):
                # Padding has no label, and the last entry of an answer has one.
                length = int((runs.labels[place] != IGNORE).nonzero().max()) + 1
                for name, whole in (("tokens", runs.tokens), ("labels", runs.labels), ("outputs", outputs)):
                    columns[name].append(whole[place, :length].cpu())
                spans.append((first + row, end, end + length))
                end += length
        found = {name: torch.cat(parts) if parts else torch.empty(0) for name, parts in columns.items()}
        return found | {RUNS: torch.tensor(spans).reshape(-1, 3)}
