"""A fed head as a source: when it begins, what replaces what, and what it does without features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec import structs

from edge_drafter import Drafter, DraftingConfig, Mode, StepRequest, sources_of
from edge_drafter.sources.fed import FedSource
from edge_drafter.tree import TokenTree
from speculation.cancellation import Abandoned
from speculation.wire import AnyMessage, BeginStep, Commit, Draft, Features, Idle
from tests.edge_drafter.fakes import (
    EOS,
    VOCABULARY,
    FakeClock,
    FakeLink,
    FakeModel,
    NextToken,
    Weather,
    alone,
    hashed_target,
    lone_step,
)

DIGEST = b"12345678"
PROMPT_END = [3, 3]
"""Tokens in front of every answer here."""


class FakeFed(FakeModel):
    """Drafts the target's tokens where it was fed up to the root, else the end. Features are one byte a token, 1."""

    def __init__(self, target: NextToken) -> None:
        super().__init__(lambda prefix: target(prefix) if self.fed >= len(self.root) else EOS)
        self.tokens = np.arange(VOCABULARY)
        self.fed = -1
        """Up to which answer position features came."""
        self.taken: list[tuple[list[int], int]] = []

    def begin(self, prompt: str, image: bytes, committed: Sequence[int] = (), stop: object = None) -> None:
        super().begin(prompt, image, committed)
        self.fed = -1

    @property
    def root_is_new(self) -> bool:
        return not self._root_is_fed

    def feed(self, tokens: Sequence[int], end: int, packed: bytes) -> None:
        if packed != b"\1" * len(tokens):
            raise ValueError("features of another size")
        assert list(tokens)[max(0, len(tokens) - end) :] == self.root[max(0, end - len(tokens)) : end]
        self.taken.append((list(tokens), end))
        self.fed = max(self.fed, end)
        self._root_is_fed = False


def begun(target: NextToken, committed: tuple[int, ...] = (), width: int = 2) -> tuple[FedSource, FakeFed, TokenTree]:
    model = FakeFed(target)
    source = FedSource(model)
    step = lone_step(DraftingConfig(width=width), committed=committed)
    source.begin(step)
    source.read()
    return source, model, step.tree


def commit(start: int, tokens: list[int], packed: bytes | None = None) -> Commit:
    return Commit(1, 0, start, tokens, DIGEST, False, features=b"\1" * len(tokens) if packed is None else packed)


def prompt(position: int = 0, answer: Sequence[int] = ()) -> Features:
    tokens = [*PROMPT_END, *answer]
    return Features(1, position, tokens, b"\1" * len(tokens))


def test_features_that_do_not_fit_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    source, model, tree = begun(hashed_target(1))
    source.feed(Features(1, 0, PROMPT_END, bytes(4)))
    with pytest.raises(Abandoned):
        source.grow([tree.root])
    assert not source.ready, "nothing is known yet"
    source.commit(tree.reroot([4]), commit(0, [4], bytes(3)))
    source.grow([tree.root])
    assert model.taken == [] and tree[tree.root].proposals is not None
    assert caplog.text.count("features of the target are left out") == 1


class FeedingLink(FakeLink):
    """A verifier that sends features, or none of the prompt's."""

    def __init__(self, target: NextToken, clock: FakeClock, weather: Weather, prompts: bool = True) -> None:
        super().__init__(target, clock, weather)
        self._prompts = prompts

    def _deliver(self, payload: bytes) -> None:
        super()._deliver(payload)
        message = self._inbox[-1]
        if isinstance(message, Commit):
            self._inbox[-1] = structs.replace(message, features=b"\1" * len(message.tokens))

    def _serve(self, message: AnyMessage, now: float) -> None:
        if isinstance(message, BeginStep) and self._prompts:
            self._reply(prompt(len(message.committed), message.committed), now)
        super()._serve(message, now)


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode.drafts and mode is not Mode.EDGE])
@pytest.mark.parametrize("prompts", [True, False])
@pytest.mark.parametrize("committed", [(), (1, 2)])
def test_a_whole_answer(mode: Mode, prompts: bool, committed: tuple[int, ...]) -> None:
    """Fed drafts are always right here, so that all of them are accepted; a lost prompt costs one wait at most."""
    clock, target = FakeClock(), hashed_target(3, eos_rate=0.0)
    config = DraftingConfig.of(mode, ngrams=False)
    link = FeedingLink(target, clock, Weather(verify_s=0.05, one_way_s=0.01), prompts)
    drafter = Drafter(sources_of(config, None, fed=FakeFed(target)), link, config, clock)
    result = drafter.run(StepRequest(1, "p", b"j", (EOS,), 20, committed=committed))
    assert result.tokens == alone(target, 20, committed)
    waits = config.idle is Idle.WAIT and not prompts
    assert result.stats.resent == waits
    assert result.stats.accepted >= 12
    drafts = [message for _, message in link.sent if isinstance(message, Draft)]
    assert all(draft.tokens for draft in drafts[waits:])
