"""A robot that floods gets its share of the verifier's time and memory, by whatever it floods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from cloud_verifier.interfaces import LayerVerdicts, Row
from speculation.wire import Busy, Idle
from tests.cloud_verifier.bench import HELLO, Bench, begin
from tests.cloud_verifier.fake_target import FakeEngine
from tests.cloud_verifier.test_overload import CONFIG, SLOW, STEP, TOKENS, Robot

SECONDS = 100.0


class Crowd:
    """A server whose prompts, or whose images, take a second, and one honest robot."""

    def __init__(self, slow: str = "prompts") -> None:
        class SlowPrefills(FakeEngine):
            def encode(self, index: int, stop: object = None) -> None:
                super().encode(index)
                bench.post.now += slow == "images"

            def verify(self, rows: Sequence[Row]) -> Iterator[LayerVerdicts]:
                bench.post.now += sum(row.chunk > 0 for row in rows) * (slow == "prompts")
                yield from super().verify(rows)

        self.bench = bench = Bench(CONFIG, SLOW, SlowPrefills(memory=50 * STEP))
        self.honest = Robot(bench, "honest")
        bench.turns(1)

    def alone(self) -> int:
        """Return the answers of the honest robot without any other."""
        self.honest.begin()
        while self.bench.post.now < SECONDS:
            self.bench.turns(1)
            self.honest.turn()
        return len(self.honest.answers)

    def beside_a_flood(self, greets: bool) -> tuple[int, int]:
        """Return the answers of the honest robot, and how often a robot was refused that asks and asks.

        greets: it says Hello before every step.
        """
        bench, flood = self.bench, b"flood"
        bench.welcome(flood)
        self.honest.begin()
        step, until, refused = 0, 0.0, 0
        while bench.post.now < SECONDS:
            if bench.post.now >= until:
                step += 1
                before = len(bench.received(flood))
                if greets:
                    bench.send(flood, HELLO)
                bench.send(flood, begin(step, max_tokens=TOKENS, idle=Idle.WAIT))
                bench.turns(3)
                for message in bench.received(flood)[before:]:
                    if isinstance(message, Busy):
                        until, refused = bench.post.now + message.retry_after_s, refused + 1
            bench.turns(1)
            self.honest.turn()
        return len(self.honest.answers), refused


@pytest.mark.parametrize(("slow", "greets"), [("prompts", False), ("prompts", True), ("images", False)])
def test_prefills_without_end_leave_an_honest_robot_its_half_of_the_time(slow: str, greets: bool) -> None:
    alone = Crowd(slow).alone()
    answers, refused = Crowd(slow).beside_a_flood(greets)
    assert alone > 40 and refused > 5
    assert answers >= 0.48 * alone


def test_who_is_refused_costs_no_decoding_of_its_frame() -> None:
    prepared = list[str]()

    class Counting(FakeEngine):
        def prepare(self, prompt: str, jpeg: bytes) -> tuple[str, bytes]:
            prepared.append(prompt)
            return super().prepare(prompt, jpeg)

    bench = Bench(CONFIG, SLOW, Counting(memory=STEP))
    for number, peer in enumerate((b"holds", b"waits", b"refused")):
        bench.send(peer, HELLO)
        bench.send(peer, begin(prompt=f"lon{number}", max_tokens=TOKENS))
        bench.turns(3)
    assert isinstance(bench.received(b"refused")[-1], Busy)
    assert prepared == ["lon0", "lon1"]
