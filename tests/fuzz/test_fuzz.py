"""20,000 messages a side, and the fuzzer itself: what it sends, that a seed names it, that it finds planted faults."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from cloud_verifier.inbox import Inbox
from cloud_verifier.scheduler import Scheduler
from cloud_verifier.sessions import Session
from edge_drafter import step_exchange
from speculation import wire
from speculation.wire import BeginStep, Busy, Commit, Draft, Features
from tests.fuzz.__main__ import main
from tests.fuzz.campaign import Act, Broken, Failed, Side, campaign
from tests.fuzz.edge import VOCABULARY, EdgeSide
from tests.fuzz.generator import KINDS, fields_of, invalid, pack, valid
from tests.fuzz.verifier import HONEST, FuzzPost, VerifierSide

MESSAGES = 20_000
CHECKED_TOGETHER = (Draft, Commit, Features)
"""Kinds with fields that must fit each other, not their limits alone."""


def test_anything_to_the_verifier() -> None:
    report = campaign(VerifierSide(), MESSAGES, seed=18, life=MESSAGES // 2)
    assert report.messages == MESSAGES
    assert report.counts["honest answers"] > 100 and report.counts["faults"] > 1000
    assert report.counts["ignored"] < MESSAGES / 20, "what is not read tests nothing"


def test_anything_to_the_robot() -> None:
    report = campaign(EdgeSide(), MESSAGES, seed=18, life=MESSAGES // 8)
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


@pytest.mark.parametrize("side", [VerifierSide(), EdgeSide()], ids=lambda side: side.name)
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
        campaign(VerifierSide(), MESSAGES, seed=1)
    ended = re.findall(r"EndStep\(step=(\d+)", str(caught.value))
    assert any(int(step) % 7 == 3 for step in ended) and "'1/server/0'" in str(caught.value)


def test_a_server_that_only_puts_the_honest_robot_off_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatch = Inbox._dispatch

    def puts_off(self: Inbox, session: Session, message: wire.AnyMessage) -> None:
        if session.peer == HONEST and isinstance(message, BeginStep):
            self._outbox.send(session, Busy(1.0, "full", message.step))
        else:
            dispatch(self, session, message)

    monkeypatch.setattr(Inbox, "_dispatch", puts_off)
    side, rng, left = VerifierSide(), random.Random(1), iter(range(MESSAGES))
    with pytest.raises(Broken, match="got no further for 9"):
        side.life("1").live(lambda knows: side.act(knows, rng) if next(left, None) is not None else None)


def test_a_resume_token_that_works_under_another_key_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are keys the vandals try the honest robot's token; here all are taken for one client."""
    monkeypatch.setattr(FuzzPost, "client", lambda self, peer: "")
    with pytest.raises(Broken, match="to the honest robot"):
        for seed in range(1, 9):  # which messages come at which seed changes with every new field
            side, rng, left = VerifierSide(), random.Random(seed), iter(range(MESSAGES))
            life = side.life("1")
            life.post.has_keys = True
            life.live(lambda knows, side=side, rng=rng, left=left:  # type: ignore[misc]
                      side.act(knows, rng) if next(left, None) is not None else None)  # fmt: skip


def test_a_robot_that_takes_tokens_it_cannot_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_exchange, "check_tokens", lambda message, vocabulary: None)
    side, rng, left = EdgeSide(), random.Random(1), iter(range(MESSAGES))
    with pytest.raises(Broken, match=f"outside the vocabulary 0..{VOCABULARY - 1}"):
        side.life("1").live(lambda knows: side.act(knows, rng) if next(left, None) is not None else None)


def test_the_command_prints_figures_or_what_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--messages", "300", "--side", "edge", "--seed", "4"]) == 0
    assert "edge: 300 messages" in capsys.readouterr().out
    monkeypatch.setattr(VerifierSide, "life", lambda self, seed: 1 / 0)
    assert main(["--messages", "300", "--side", "server", "--seed", "4"]) == 1
    assert "life '4/server/0', failed at message 0: ZeroDivisionError" in capsys.readouterr().err
