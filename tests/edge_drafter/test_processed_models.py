"""Drafts of sampled answers: every row noised at its own position, and answers that are the target's own draws."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_drafter import Drafter, DraftingConfig, StepRequest, sources_of
from speculation.sampling import MAX_KEY, Coupled, Logits, SamplingScheme, StepDraws, choose
from tests.edge_drafter.fakes import EOS, VOCABULARY, FakeClock, FakeLink, FakeModel, NextToken, Weather, alone

KEYS = st.integers(0, MAX_KEY)
SETTINGS = st.sampled_from([Coupled(0.7), Coupled(1.0, 4), Coupled(1.5, 6, 0.9)])


class LogitsModel(FakeModel):
    """A model whose logits are hashed from the last tokens; `error` stirs them, which makes a draft of a target."""

    def __init__(self, seed: int, error: float = 0.0, clock: FakeClock | None = None) -> None:
        super().__init__(lambda prefix: 0, clock, draft_s=0.03)
        self._seed, self._error = seed, error

    def _logits(self, prefix: Sequence[int]) -> Logits:
        number = zlib.crc32(repr((self._seed, list(prefix[-3:]))).encode())
        dice = np.random.default_rng(number)
        row: Logits = 2.0 * dice.normal(size=VOCABULARY)
        row[EOS] -= 2.0
        return row + self._error * dice.normal(size=VOCABULARY)

    def drawn(self, how: SamplingScheme, key: int) -> NextToken:
        """Return the model alone: what it draws after a prefix."""
        return lambda prefix: choose(self._logits(prefix), how, StepDraws(key, len(prefix)))[0]


def request(how: SamplingScheme, key: int, **changes: object) -> StepRequest:
    fields: dict[str, object] = {"step": 1, "prompt": "p", "jpeg": b"j", "eos": (EOS,), "max_tokens": 24, **changes}
    return StepRequest(**fields, sampling=how, key=key)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["cloud", "sd", "fsd", "proactive", "pipelined", "full"]),
    SETTINGS,
    KEYS,
    st.integers(0, 99),
    st.integers(0, 99),
)
def test_answers_are_the_target_s_own_draws(
    mode: str, how: SamplingScheme, key: int, models: int, weather: int
) -> None:
    """Over a link that delays, reorders, repeats and loses, with exits that are often wrong."""
    clock = FakeClock()
    target = LogitsModel(models)
    link = FakeLink(
        target.drawn(how, key), clock,
        Weather(0.2, 0.02, 0.2, duplicates=0.2, losses=0.1 if mode == "sd" else 0.0, exits=2, wrong_exits=0.4,
                seed=weather, sampling=how),
    )  # fmt: skip
    draft = None if mode == "cloud" else LogitsModel(models, 1.0, clock)
    config = DraftingConfig.of(mode, gamma=3)
    result = Drafter(sources_of(config, draft), link, config, clock).run(request(how, key))
    assert result.tokens == alone(target.drawn(how, key), 24)
    assert link.begun[0].key == key
