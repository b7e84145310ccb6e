"""Decides which step may hold how many blocks of keys and values, whose go, and when those without come back.

A step that finds no room waits in a short *line*, which is taken in the order of turns and never overtaken, so that a
large step gets its blocks too. Where the line is as long as the memory, more robots are refused with a time to return:
nothing waits without bound.

A session's *turn* is a time, as in a virtual clock (Zhang 1990): a step that gets its blocks puts the next turn of its
session off by what these blocks are at an equal share of memory and time. While others wait a session is refused until
its turn; so whoever asks for many blocks, or again and again, gets its share and not more. Nobody is refused for longer
than MOST_WAIT_S: then it may join the line, however long.

Prefill has shares too, of time, by what a session has used of late.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from cloud_verifier.limits import DecayingSum

LEAST_WAIT_S, MOST_WAIT_S = 0.25, 30.0
"""A refused robot waits for so long, and a turn is put off so far, at least and at most."""
SPREAD = 0.5
"""Waits differ by this share at random, so that robots that were refused together do not return together."""
GRACE_S = 2.0
"""How long after its time a refused robot is expected."""
FIRST_STEP_S = 1.0
"""A step is taken to last so long before any has ended."""
NEW_WEIGHT = 0.125
"""So much the latest step weighs in the means."""
PREFILL_HALF_LIFE_S = 5.0


class NoRoom(RuntimeError):
    """A step cannot be taken now; its robot may ask again after `retry_after_s`."""

    def __init__(self, text: str, retry_after_s: float) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class _Waiting:
    turn: float
    blocks: int


@dataclass(frozen=True)
class _Refused:
    since: float
    until: float
    """When its robot is expected no more."""


class KvAdmission:
    """Shares `blocks` of memory among sessions that are named by their row. Times are seconds on any clock.

    The sum of what is held never exceeds `blocks`.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._dice = random.Random(0)
        self._held: dict[int, tuple[int, float]] = {}
        """How many blocks a row holds, and since when."""
        self._line: dict[int, _Waiting] = {}
        self._refused: dict[int, _Refused] = {}
        self._turns: dict[int, float] = {}
        self._prefills = defaultdict[int, DecayingSum](lambda: DecayingSum(PREFILL_HALF_LIFE_S))
        self._step_s = FIRST_STEP_S
        self._step_blocks = 1.0

    # --- queries

    @property
    def free(self) -> int:
        """Blocks that no step holds."""
        return self.blocks - sum(blocks for blocks, _ in self._held.values())

    @property
    def line(self) -> tuple[int, ...]:
        """Rows that wait for blocks, the next one first."""
        return tuple(sorted(self._line, key=lambda index: self._line[index].turn))

    def held(self, index: int) -> int:
        """Return the blocks that a row holds."""
        return self._held[index][0] if index in self._held else 0

    # --- memory

    def check(self, index: int, now: float) -> None:
        """Raise NoRoom where a new step of a row cannot join the line now."""
        self._refused = {row: each for row, each in self._refused.items() if each.until > now}
        refused = self._refused.get(index)
        waiting = sum(each.blocks for row, each in self._line.items() if row != index)
        # Those in the line may only be waiting for the end of a pass, not for blocks.
        if waiting <= self.free + self.held(index) or (refused is not None and now - refused.since >= MOST_WAIT_S):
            if refused is not None:  # it keeps its age while its frame is decoded
                self._refused[index] = replace(refused, until=now + MOST_WAIT_S)
            return
        early = self._turns.get(index, now) - now
        if early <= 0.0 and waiting < self.blocks:
            return
        others = len(self._refused.keys() - {index})
        drained = (waiting + (1 + others) * self._step_blocks) * self._step_s / self.blocks
        wait = self.later(max(early, drained))
        self._refused[index] = _Refused(refused.since if refused is not None else now, now + wait + GRACE_S)
        why = "this robot had its share of it" if early > 0.0 else f"{len(self._line)} others wait for theirs"
        raise NoRoom(f"the memory is taken by other robots' steps, and {why}", wait)

    def ask(self, index: int, blocks: int, now: float) -> None:
        """Let a row, which holds nothing, wait for so many blocks, no more than there are. Raises NoRoom."""
        self.check(index, now)
        self._refused.pop(index, None)
        self._line[index] = _Waiting(max(now, self._turns.get(index, now)), blocks)

    def grant(self, now: float, idle: Sequence[int] = ()) -> tuple[list[int], list[int]]:
        """Give the first of the line their blocks as far as they reach; return those rows, and the rows that gave way.

        `idle` rows hold blocks that they may lose, the first one first, for who cannot have enough without.
        """
        granted: list[int] = []
        evicted: list[int] = []
        victims = [row for row in idle if row in self._held]
        for index in self.line:
            waiting, gone = self._line[index], 0
            lacking = waiting.blocks - self.free
            while lacking > 0 and gone < len(victims):
                lacking -= self.held(victims[gone])
                gone += 1
            if lacking > 0:
                break
            for row in victims[:gone]:
                del self._held[row]
            evicted += victims[:gone]
            del victims[:gone]
            granted.append(index)
            del self._line[index]
            self._held[index] = (waiting.blocks, now)
            self._put_off(index, waiting, now)
        return granted, evicted

    def release(self, index: int, now: float) -> None:
        """Note that a row's step is over: its blocks are free, or it waits no longer."""
        self._line.pop(index, None)
        blocks, since = self._held.pop(index, (0, now))
        if blocks:
            self._step_s += NEW_WEIGHT * (now - since - self._step_s)

    def forget(self, index: int) -> None:
        """Note that a row's session is over: the next one begins without a record. What it holds is not released."""
        for each in (self._refused, self._turns, self._prefills):
            each.pop(index, None)

    def later(self, seconds: float) -> float:
        """Return a time to wait of about so many seconds: bounded, and another one for each robot."""
        bounded = min(max(seconds, LEAST_WAIT_S / (1.0 - SPREAD)), MOST_WAIT_S)
        return bounded * (1.0 - SPREAD * self._dice.random())

    def _put_off(self, index: int, waiting: _Waiting, now: float) -> None:
        self._step_blocks += NEW_WEIGHT * (waiting.blocks - self._step_blocks)
        robots = len(self._held.keys() | self._line.keys() | self._refused.keys())
        share = waiting.blocks * robots / self.blocks * self._step_s
        self._turns[index] = min(waiting.turn + share, now + MOST_WAIT_S)

    # --- prefill

    def prefilled(self, index: int, seconds: float, now: float) -> None:
        """Note that a row's session has used so much of the model's time for a prefill."""
        self._prefills[index].add(seconds, now)

    def check_prefill(self, index: int, now: float, others: Collection[int]) -> None:
        """Raise NoRoom where a session has used more than its share of the time for prefills of late.

        `others` are the sessions that have work waiting; where there are none everything is its share.
        """
        usage = self._prefills.get(index)
        if usage is None or not others:
            return
        # Somebody who always prefills comes to half-life / ln 2.
        share = PREFILL_HALF_LIFE_S / math.log(2.0) / (1 + len(others))
        used = usage.now(now)
        if used > share:
            text = f"prefills of this robot took {used:.1f} s of late, {share:.1f} s are its share while others wait"
            raise NoRoom(text, self.later(PREFILL_HALF_LIFE_S * math.log2(used / share)))
