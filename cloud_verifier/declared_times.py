"""Engines whose forwards take at least as long as a device profile declares: the real work, then a wait for the rest.

The verdicts are the engine's own, only the time is declared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from cloud_verifier.interfaces import DraftEngine, Engine, LayerVerdicts, Row
from cloud_verifier.machine import Machine
from cloud_verifier.tree import Tree
from speculation.profiles import DeviceProfile

_log = logging.getLogger("cloud_verifier")


class Paced:
    """An engine with declared times. What is not a forward is the engine's own, and takes the time that it takes."""

    def __init__(
        self,
        engine: Engine | DraftEngine,
        profile: DeviceProfile,
        wait_until: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        """`wait_until` a moment of `clock`; it may return early where nobody wants the forward any more."""
        self._engine: Any = engine
        self._profile, self._wait_until, self._clock = profile, wait_until, clock
        self._has_warned = False

    def __getattr__(self, name: str) -> Any:
        """Return what the engine has under this name."""
        return getattr(self._engine, name)

    def _check(self, what: str, seconds: float, declared: float) -> None:
        """Warn, once, where the real work takes longer than is declared."""
        if seconds > declared and not self._has_warned:
            self._has_warned = True
            text = "%s took %.1f ms, profile %s declares %.1f ms: times are not the profile's (logged once)"
            _log.warning(text, what, seconds * 1e3, self._profile.name, declared * 1e3)


class PacedEngine(Paced):
    """A target whose forward takes `verify_s`, layer by layer alike. One over prompts alone is not paced."""

    def verify(self, rows: Sequence[Row]) -> Iterator[LayerVerdicts]:
        started, layers = self._clock(), self._engine.model.num_layers
        has_chunks, is_paced = any(row.chunk for row in rows), not all(row.chunk for row in rows)
        for output in self._engine.verify(rows):
            if output.layer == layers - 1 and not has_chunks:
                self._check("a forward", self._clock() - started, self._profile.verify_s)
            if is_paced:
                self._wait_until(started + self._profile.layer_due_s(output.layer, layers))
            yield output


class PacedDraftEngine(Paced):
    """A draft model beside the target whose forwards take `server_draft_s` each. Its prefill is not paced."""

    def draft(self, rows: Sequence[Row]) -> Iterator[Mapping[int, Tree]]:
        started = last = self._clock()
        for turn, drafts in enumerate(self._engine.draft(rows), start=1):
            self._check("a draft forward", self._clock() - last, self._profile.server_draft_s)
            self._wait_until(started + turn * self._profile.server_draft_s)
            yield drafts
            last = self._clock()


def paced_machine(machine: Machine, wait_until: Callable[[float], None], clock: Callable[[], float]) -> Machine:
    """Return a machine whose forwards take at least what its profile declares; see `Paced`."""
    profile, engine, draft = machine.profile, machine.engine, machine.draft_engine
    if profile.verify_s:
        engine = cast(Engine, PacedEngine(engine, profile, wait_until, clock))
    if draft is not None and profile.server_draft_s:
        draft = cast(DraftEngine, PacedDraftEngine(draft, profile, wait_until, clock))
    return replace(machine, engine=engine, draft_engine=draft)
