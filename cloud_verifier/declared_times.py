"""Lets forwards take at least as long as a device profile declares: the real work, then a wait for the rest.

The verdicts are the engine's own, only the time is declared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from cloud_verifier.interfaces import DraftEngine, Engine, LayerVerdicts, Row
from cloud_verifier.tree import Tree
from speculation.profiles import DeviceProfile

_log = logging.getLogger("cloud_verifier")


class DeclaredTimes:
    """Runs forwards in the times of a profile.

    What the profile declares nothing of, prefills among it, takes the time that it takes.
    """

    def __init__(self, profile: DeviceProfile, wait_until: Callable[[float], None], clock: Callable[[], float]) -> None:
        """`wait_until` a moment of `clock`; it may return early where nobody wants the forward any more."""
        self._profile, self._wait_until, self._clock = profile, wait_until, clock
        self._warned = set[str]()

    def verify(self, engine: Engine, rows: Sequence[Row]) -> Iterator[LayerVerdicts]:
        """Run a target forward, which takes `verify_s`, layer by layer alike. One over prompts alone is not paced."""
        started, layers = self._clock(), engine.model.num_layers
        declared = 0.0 if all(row.chunk for row in rows) else self._profile.verify_s
        for output in engine.verify(rows):
            if declared:
                if output.layer == layers - 1 and not any(row.chunk for row in rows):
                    self._check("a forward", self._clock() - started, declared)
                self._wait_until(started + self._profile.layer_due_s(output.layer, layers))
            yield output

    def draft(self, engine: DraftEngine, rows: Sequence[Row]) -> Iterator[Mapping[int, Tree]]:
        """Draft with the model beside the target, whose forwards take `server_draft_s` each."""
        started = last = self._clock()
        declared = self._profile.server_draft_s
        for turn, drafts in enumerate(engine.draft(rows), start=1):
            if declared:
                self._check("a draft forward", self._clock() - last, declared)
                self._wait_until(started + turn * declared)
            yield drafts
            last = self._clock()

    def _check(self, what: str, seconds: float, declared: float) -> None:
        """Warn, once for each kind of work, where it takes longer than is declared."""
        if seconds > declared and what not in self._warned:
            self._warned.add(what)
            text = "%s took %.1f ms, profile %s declares %.1f ms: times are not the profile's (logged once)"
            _log.warning(text, what, seconds * 1e3, self._profile.name, declared * 1e3)
