"""A robot that floods gets its share of the verifier's time and memory, by whatever it floods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from cloud_verifier.interfaces import LayerVerdicts, Row
from speculation.wire import Busy, Idle
from tests.cloud_verifier.bench import HELLO, Bench, begin
from tests.cloud_verifier.fake_target import FakeEngine
from tests.cloud_verifier.test_overload import CONFIG, SLOW, STEP, TOKENS, robot_of

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
        self.honest = robot_of(bench, "honest")

    def run(self, floods: bool, greets: bool) -> tuple[int, int]:
        """Return the answers of the honest robot, and how often a robot was refused that asks and asks, if it floods.

        greets: it says Hello before every step.
        """
        bench, flood = self.bench, b"flood"
        bench.welcome(flood)
        step, until, refused = 0, 0.0, 0
        while bench.post.now < SECONDS:
            if floods and bench.post.now >= until:
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
        return self.honest.answers, refused


@pytest.mark.parametrize(("slow", "greets"), [("prompts", False), ("prompts", True), ("images", False)])
def test_prefills_without_end_leave_an_honest_robot_its_half_of_the_time(slow: str, greets: bool) -> None:
    alone, _ = Crowd(slow).run(floods=False, greets=False)
    answers, refused = Crowd(slow).run(floods=True, greets=greets)
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
