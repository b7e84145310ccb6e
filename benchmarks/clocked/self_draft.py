"""A draft model beside the target that reads its drafts off facts, for mode `server_sd` on virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from benchmarks.clocked.facts import Recording
from benchmarks.clocked.models import FINGERPRINT, FactsDraftModel, Sleep
from benchmarks.clocked.timings import Timings
from cloud_verifier.work import Row


class FactsSelfDraft:
    """A `cloud_verifier.work.DraftEngine`: the recorded draft, one forward for all steps that share it."""

    def __init__(self, recording: Recording, timings: Timings, sleep: Sleep) -> None:
        self._recording = recording
        self._timings = timings
        self._sleep = sleep
        self._rows: dict[int, tuple[FactsDraftModel, bytes]] = {}

    @property
    def name(self) -> str:
        """See `DraftEngine.name`."""
        return FINGERPRINT

    def prepare(self, prompt: str, jpeg: bytes) -> bytes:
        """See `DraftEngine.prepare`."""
        return jpeg

    def prefill(self, index: int, inputs: bytes, max_tokens: int) -> None:
        """See `DraftEngine.prefill`."""
        self._sleep(self._timings.server_draft_prefill_s)
        # It takes no time of its own: one forward serves all rows.
        known = self._rows.get(index)
        model = known[0] if known is not None else FactsDraftModel(self._recording, self._timings, _no_time)
        self._rows[index] = (model, inputs)

    def draft(self, rows: Sequence[Row]) -> Iterator[Mapping[int, tuple[int, ...]]]:
        """See `DraftEngine.draft`."""
        models = {row.index: self._behind_answer(row) for row in rows}
        asked = {row.index: row.self_draft for row in rows}
        drafts: dict[int, tuple[int, ...]] = dict.fromkeys(models, ())
        while models:
            self._sleep(self._timings.server_draft_s)
            for index, model in list(models.items()):
                known = drafts[index]
                logits = model.extend(known[-1:], [len(known) - 2])[0] if known else model.root_logits()
                token = int(np.argmax(logits))
                drafts[index] = (*known, token)
                if len(drafts[index]) >= asked[index] or token in self._recording.eos:
                    del models[index]
            yield drafts

    def _behind_answer(self, row: Row) -> FactsDraftModel:
        model, image = self._rows[row.index]
        model.begin("", image, row.answer)
        return model


def _no_time(seconds: float) -> None:
    """Let no time pass."""
