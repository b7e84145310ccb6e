"""A robot's patience begins anew where its answer has grown, and is longer where another verifier may go on."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from edge_drafter import decoder
from edge_drafter.decoder import EdgeDecoder
from edge_drafter.reply import VerifierLost
from speculation.vlm.load import Vlm
from speculation.wire import AnyMessage, BeginStep, Busy, Commit, begin_digest, extend_digest
from tests.cloud_verifier.test_engine import jpeg
from tests.edge_drafter.test_busy import ANSWER, FullVerifier
from tests.edge_drafter.test_decoder import PROMPT, config


class Piecemeal(FullVerifier):
    """Turns so many steps away at `most`, after `each` tokens; `pass_s` seconds pass meanwhile."""

    most = 1 << 30

    def __init__(self, vlm: Vlm, each: int) -> None:
        self.each, self.more_s, self.pass_s = each, 0.0, 10.0
        super().__init__(vlm, 0.05, hellos_refused=0, steps_refused=0)

    def now(self) -> float:
        return time.perf_counter() + self.more_s

    def _answer(self, peer: bytes, message: AnyMessage) -> None:
        if not isinstance(message, BeginStep):
            super()._answer(peer, message)
            return
        self.begun.append(message)
        start = len(message.committed)
        prefix = extend_digest(begin_digest(message.prompt, message.jpeg), message.committed)
        tokens = ANSWER[start : start + self.each]
        done = start + len(tokens) == len(ANSWER)
        if len(self.begun) > self.most:
            tokens, done = ANSWER[start:], True
        if tokens:
            self._reply(peer, Commit(message.step, 0, start, tokens, extend_digest(prefix, tokens), done))
        if not done:
            self.more_s += self.pass_s
            self._reply(peer, Busy(self._retry_s, "no room for the answer", message.step))


@pytest.mark.parametrize("each", [0, 1])
def test_a_full_verifier_is_lost_only_where_the_answer_stands_still(
    each: int, draft: Vlm, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier = Piecemeal(draft, each)
    monkeypatch.setattr(decoder, "time", SimpleNamespace(perf_counter=verifier.now, time_ns=time.time_ns))
    edge = EdgeDecoder(config(Path(), verifier.address, mode="cloud", resume_s=15.0), vlm=draft)
    try:
        edge.connect(20.0)
        if each:
            assert list(edge.decode(PROMPT, jpeg(0), 600.0).tokens) == ANSWER
            assert [len(begun.committed) for begun in verifier.begun] == [0, 1, 2, 3]
        else:
            with pytest.raises(VerifierLost, match="is full: no room for the answer"):
                edge.decode(PROMPT, jpeg(0), 600.0)
            assert 1 <= len(verifier.begun) <= 2
    finally:
        edge.close()
        verifier.stop()


@pytest.mark.parametrize("others", ["", ",tcp://127.0.0.1:9"])
def test_a_step_waits_for_longer_where_another_verifier_may_go_on(
    others: str, draft: Vlm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As shipped: a door may send the robot twice to one that is frozen, which takes the robot's silence each time."""
    verifier = Piecemeal(draft, 0)
    verifier.most, verifier.pass_s = 2, 4.0
    monkeypatch.setattr(decoder, "time", SimpleNamespace(perf_counter=verifier.now, time_ns=time.time_ns))
    edge = EdgeDecoder(config(Path(), verifier.address + others, mode="cloud"), vlm=draft)
    try:
        edge.connect(20.0)
        if others:
            assert list(edge.decode(PROMPT, jpeg(0), 600.0).tokens) == ANSWER
        else:
            with pytest.raises(VerifierLost, match="is full: no room for the answer"):
                edge.decode(PROMPT, jpeg(0), 600.0)
    finally:
        edge.close()
        verifier.stop()
