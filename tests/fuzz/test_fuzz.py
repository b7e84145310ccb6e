"""20,000 messages a side, and the fuzzer itself: what it sends, that a seed names it, that it finds planted faults."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from cloud_verifier.scheduler import Scheduler
from edge_drafter import step_exchange
from speculation import wire
from speculation.wire import Commit, Draft, Features
from tests.fuzz.campaign import Act, Broken, Failed, Side, campaign
from tests.fuzz.edge import EDGE, VOCABULARY
from tests.fuzz.generator import KINDS, fields_of, invalid, pack, valid
from tests.fuzz.verifier import VERIFIER

MESSAGES = 20_000
CHECKED_TOGETHER = (Draft, Commit, Features)
"""Kinds with fields that must fit each other, not their limits alone."""


def test_anything_to_the_verifier() -> None:
    report = campaign(VERIFIER, MESSAGES, seed=18, life=MESSAGES // 2)
    assert report.messages == MESSAGES
    assert report.counts["honest answers"] > 100 and report.counts["faults"] > 1000
    assert report.counts["ignored"] < MESSAGES / 20, "what is not read tests nothing"


def test_anything_to_the_robot() -> None:
    report = campaign(EDGE, MESSAGES, seed=18, life=MESSAGES // 8)
    assert report.messages == MESSAGES
    assert all(report.counts[each] > 10 for each in ("answers", "actions", "contradiction", "link lost", "refused"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_sent_within_its_limits_and_beyond(kind: type[wire.Message]) -> None:
    rng, tag = random.Random(1), kind.__struct_config__.tag
    for _ in range(50):
        content = [tag, *(valid(field.type, rng) for field in fields_of(kind))]
        try:
            assert type(wire.decode(pack(content))) is kind
        except wire.WireError:
            assert kind in CHECKED_TOGETHER
    for place, field in enumerate(fields_of(kind), start=1):
        refused = 0
        for _ in range(40):
            content = [tag, *(valid(each.type, rng) for each in fields_of(kind))]
            content[place] = invalid(field.type, rng)
            try:
                wire.decode(pack(content))
            except wire.WireError as error:
                refused += 1
                assert len(str(error)) < 1000
        assert refused > 3, f"{kind.__name__}.{field.name} has no limit that is tried"


def sent(side: Side, seed: str, count: int) -> list[Act]:
    """Return what is sent in a life."""
    rng, acts = random.Random(seed), list[Act]()

    def choose(knows: Any) -> Act | None:
        if len(acts) == count:
            return None
        acts.append(side.act(knows, rng))
        return acts[-1]

    side.life(seed).live(choose)
    return acts


@pytest.mark.parametrize("side", [VERIFIER, EDGE], ids=lambda side: side.name)
def test_a_seed_names_all_that_is_sent(side: Side) -> None:
    first, again, other = (sent(side, f"{seed}/{side.name}/0", 600) for seed in (7, 7, 8))
    assert len(first) == 600 and first == again != other


def test_a_server_that_fails_over_one_message_is_found_and_the_message_too(monkeypatch: pytest.MonkeyPatch) -> None:
    end = Scheduler.end

    def fails(self: Scheduler, index: int, number: int | None = None) -> Any:
        if number is not None and number % 7 == 3:
            raise RuntimeError("a bug")
        return end(self, index, number)

    monkeypatch.setattr(Scheduler, "end", fails)
    with pytest.raises(Failed, match="a bug") as caught:
        campaign(VERIFIER, MESSAGES, seed=1)
    ended = re.findall(r"EndStep\(step=(\d+)", str(caught.value))
    assert any(int(step) % 7 == 3 for step in ended) and "'1/server/0'" in str(caught.value)


def test_a_robot_that_takes_tokens_it_cannot_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_exchange, "check_tokens", lambda message, vocabulary: None)
    rng, left = random.Random(1), iter(range(MESSAGES))
    with pytest.raises(Broken, match=f"outside the vocabulary 0..{VOCABULARY - 1}"):
        EDGE.life("1").live(lambda knows: EDGE.act(knows, rng) if next(left, None) is not None else None)
