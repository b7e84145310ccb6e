"""What the page shows, collected from messages; time is given, in seconds of a steady clock."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from spec_vlm_nav.answer_stats import GAIN
from spec_vlm_nav.client import Progress
from spec_vlm_nav.diagnostics import Level, Status

DECISIONS = 8
SILENT_S = 1.5
"""Without a heartbeat for so long, a node counts as silent."""
STALE_S = 2.0
"""Without a frame for so long, the camera counts as silent."""
HEALTH_S = 5.0
"""Diagnostics are sent once a second; a line that is older than this is not shown."""


class View:
    """The state of the page; its attributes are set, and its methods called, by any thread."""

    def __init__(self, nodes: tuple[str, ...]) -> None:
        self.progress = Progress()
        self.instruction = ""
        self.active_goals = 0
        """How many goals the action server has that did not end yet, whoever sent them."""
        self.ours = False
        """Whether one of them is this page's."""
        self.note = ""
        """What this page's goal waits for, or how it ended."""
        self.outcome = ""
        """What came of the last emergency stop or reset."""
        self._lock = threading.Lock()
        self._decisions: deque[dict[str, Any]] = deque(maxlen=DECISIONS)
        self._beats = dict.fromkeys(nodes, float("-inf"))
        self._frame_at = float("-inf")
        self._health: dict[str, tuple[Status, float]] = {}

    def decide(self, goal: int, step: int, action: str, source: str, reasoning: str) -> None:
        """Take a decision; one of the same step replaces the one before, whose answer went on."""
        decision = {"goal": goal, "step": step, "action": action, "source": source, "reasoning": reasoning}
        with self._lock:
            last = self._decisions[0] if self._decisions else None
            if last is not None and (last["goal"], last["step"]) == (goal, step):
                self._decisions.popleft()
            self._decisions.appendleft(decision)

    def beat(self, node: str, now: float) -> None:
        """Take a heartbeat."""
        self._beats[node] = now

    def frame(self, now: float) -> None:
        """Take the arrival of a camera frame."""
        self._frame_at = now

    def health(self, line: Status, now: float) -> None:
        """Take a line of diagnostics."""
        with self._lock:
            self._health[line.name] = (line, now)

    def snapshot(self, now: float) -> dict[str, Any]:
        """Return what a browser gets, as JSON can hold it."""
        with self._lock:
            return self._snapshot(now)

    def _snapshot(self, now: float) -> dict[str, Any]:
        self._health = {name: (line, at) for name, (line, at) in self._health.items() if now - at <= HEALTH_S}
        lines = sorted((line for line, _ in self._health.values()), key=lambda line: (-line.level, line.name))
        progress = self.progress
        return {
            "running": self.ours or self.active_goals > 0,
            "ours": self.ours,
            "instruction": self.instruction,
            "understood": progress.understood,
            "note": self.note,
            "outcome": self.outcome,
            "state": progress.state,
            "reason": progress.reason,
            **self._figures(),
            "answer": progress.answer,
            "guess": progress.guess,
            "done": list(progress.done),
            "nodes": {name: now - at <= SILENT_S for name, at in self._beats.items()},
            "camera": now - self._frame_at <= STALE_S,
            "decisions": [*self._decisions],
            "health": [{"name": line.name, "level": line.level, "message": line.message} for line in lines],
        }

    def _figures(self) -> dict[str, Any]:
        """Return what the lines of diagnostics say of the whole; empty where they say nothing."""
        lines = {name.rpartition("/")[2]: line for name, (line, _) in self._health.items()}
        nothing = Status("", Level.OK, "")
        decoding, link = lines.get("vlm_nav: decoding", nothing).values, lines.get("vlm_nav: link", nothing).values
        battery = lines.get("go2_bridge: battery", nothing)
        return {
            "mode": decoding.get("mode", ""),
            "gain": decoding.get(GAIN, ""),
            # A goal looks more often.
            "link": (self.active_goals and self.progress.link) or link.get("mode", ""),
            "rtt_s": link.get("rtt s", ""),
            "battery": battery.message,
            "is_battery_low": battery.level is not Level.OK,
        }
