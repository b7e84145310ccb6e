"""Drafts of sampled answers: every row noised at its own position, and answers that are the target's own draws."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_drafter import Drafter, DraftingConfig, StepInterrupted, StepRequest, sources_of
from edge_drafter.sampled import SampledModel, sampled
from speculation.sampling import GREEDY, MAX_KEY, Coupled, Logits, SamplingScheme, StepDraws, choose, perturbed
from speculation.sampling.coupled import CoupledSampler
from speculation.wire import ROOT
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


@settings(deadline=None)
@given(SETTINGS, KEYS, st.integers(0, 2**16))
def test_every_row_is_noised_at_its_own_answer_position(how: SamplingScheme, key: int, seed: int) -> None:
    """Random growing and committing, against a model that is asked prefix by prefix."""
    dice, plain = random.Random(seed), LogitsModel(1)
    inner = LogitsModel(1)
    model = SampledModel(inner, CoupledSampler(how, key), bytes(8))
    model.begin("p", b"j", [2, 3])
    for _ in range(12):
        if dice.random() < 0.6:
            known = len(inner.nodes)
            tokens, parents, prefixes = [], [], []
            for offset in range(dice.randint(1, 3)):
                parent = dice.randint(ROOT, known + offset - 1)
                before = inner.root if parent == ROOT else [*inner.nodes, *prefixes][parent]
                fresh = [t for t in range(VOCABULARY) if [*before, t] not in [*inner.nodes, *prefixes]]
                if not fresh:  # all that may follow is there
                    break
                tokens.append(dice.choice(fresh))
                parents.append(parent)
                prefixes.append([*before, tokens[-1]])
            rows = model.extend(tokens, parents) if tokens else []
            for row, prefix in zip(rows, prefixes, strict=True):
                assert (row == perturbed(plain._logits(prefix), how, StepDraws(key, len(prefix)))).all()
        else:
            chain = dice.choice([inner.root, *inner.nodes])
            path = [inner.nodes.index(chain[:end]) for end in range(len(inner.root) + 1, len(chain) + 1)]
            model.commit(path, dice.randrange(VOCABULARY))
        assert (model.root_logits() == perturbed(plain._logits(inner.root), how, StepDraws(key, len(inner.root)))).all()


def test_greedy_needs_no_noise() -> None:
    model = LogitsModel(1)
    assert sampled(model, GREEDY, 5, b"") is model


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


@settings(deadline=None)
@given(SETTINGS, KEYS)
def test_mode_edge_draws_too(how: SamplingScheme, key: int) -> None:
    config = DraftingConfig.of("edge")
    drafter = Drafter(sources_of(config, LogitsModel(3)), None, config, FakeClock())
    result = drafter.run(request(how, key, committed=(1, 2)))
    assert result.tokens == alone(LogitsModel(3).drawn(how, key), 24, (1, 2))


def test_a_perfect_draft_is_always_accepted() -> None:
    """Coupling: the same logits and the same noise draw the same, at any temperature."""
    clock, how = FakeClock(), Coupled(1.5)
    link = FakeLink(LogitsModel(5).drawn(how, 9), clock, Weather(sampling=how))
    config = DraftingConfig.of("sd")
    stats = Drafter(sources_of(config, LogitsModel(5, 0.0, clock)), link, config, clock).run(request(how, 9)).stats
    assert stats.drafted >= 7 and stats.accepted == stats.drafted


def test_an_answer_that_is_taken_up_again_goes_on_with_its_draws() -> None:
    clock, how, key = FakeClock(), Coupled(1.0), 77
    target = LogitsModel(11)
    link = FakeLink(target.drawn(how, key), clock, Weather(cut_after=2, sampling=how))
    config = DraftingConfig.of("fsd")
    drafter = Drafter(sources_of(config, LogitsModel(11, 1.0, clock)), link, config, clock)
    with pytest.raises(StepInterrupted) as stop:
        drafter.run(request(how, key))
    link.mend()
    assert stop.value.committed
    result = drafter.run(request(how, key, step=2, committed=stop.value.committed))
    assert result.tokens == alone(target.drawn(how, key), 24)


def test_keys_are_bounded() -> None:
    with pytest.raises(ValueError, match="key is -1; give 0 to 2.63 - 1"):
        request(GREEDY, -1)
