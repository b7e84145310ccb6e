"""Features on the wire: who asks gets them with every commit, and all of them again when it comes back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import pytest

from cloud_verifier.interfaces import LayerVerdicts, ModelInfo, Row, RowFeatures
from speculation import wire
from speculation.wire import Commit, FaultCode, Features, Idle
from tests.cloud_verifier.bench import CONFIG, HELLO, JPEG, Bench, begin, draft, faults, tokens_of
from tests.cloud_verifier.fake_target import LAYERS, FakeEngine, greedy

NAME = "f" * 16
FED = msgspec.structs.replace(HELLO, features=NAME)
SIZE = 3
PROMPT = [2, 4, 3]
"""The last tokens of every prompt, as the fake engine has it."""


def packed(tokens: Sequence[int]) -> bytes:
    """Return what the fake engine makes of tokens."""
    return b"".join(bytes([token]) * SIZE for token in tokens)


@dataclass
class FedEngine(FakeEngine):
    """Its features are the tokens that they come with."""

    asked: list[int] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    """Tokens at the prompt's end whose features each step was begun for."""

    @property
    def model(self) -> ModelInfo:
        return replace(super().model, features=NAME, prompt_features=len(PROMPT))

    def begin(
        self, index: int, inputs: tuple[str, bytes], committed: Sequence[int], max_tokens: int, features: int = 0
    ) -> int:
        self.begun.append(features)
        return super().begin(index, inputs, committed, max_tokens, features)

    def verify(self, rows: Sequence[Row]) -> Iterator[LayerVerdicts]:
        self.asked += [row.features for row in rows]
        for output in super().verify(rows):
            found = {}
            for row in rows if output.layer == LAYERS - 1 else ():
                if not row.features:
                    continue
                tokens: list[int] = []
                if row.chunk:
                    known = [*PROMPT, *self.rows[row.index].answer]
                    end = len(known) - self.rows[row.index].left
                    tokens = known[end - row.features : end]
                if (verdict := output.verdicts.get(row.index)) is not None:
                    tokens += [*(row.tokens[node] for node in verdict.path), verdict.token]
                found[row.index] = RowFeatures(tuple(tokens), packed(tokens))
            yield replace(output, features=found)


@pytest.fixture(params=[0, 1, 30])
def bench(request: pytest.FixtureRequest) -> Bench:
    """Prompts are fed whole, or token by token, or in large chunks."""
    return Bench(CONFIG.changed(prefill_chunk=request.param), engine=FedEngine())


def test_features_come_after_the_prefill_and_with_every_commit(bench: Bench) -> None:
    bench.welcome(b"robot", FED)
    truth = greedy("long", JPEG, 9)
    found = bench.ask(b"robot", begin(max_tokens=9, idle=Idle.WAIT, features=True))
    assert found[0] == Features(1, 0, PROMPT, packed(PROMPT))
    assert [each.features for each in found[1:] if isinstance(each, Commit)] == [packed(truth[:1])]
    assert isinstance(bench.engine, FedEngine) and bench.engine.begun == [len(PROMPT)]
    digest = wire.begin_digest("long", JPEG)
    commits = [each for each in bench.ask(b"robot", wire.Draft(1, 1, 0, digest, [*truth[:3], truth[3] % 5 + 1]))
               if isinstance(each, Commit)]  # fmt: skip
    assert [commit.tokens for commit in commits] == [truth[1:4]]
    assert commits[0].features == packed(truth[1:4])
    (again,) = bench.ask(b"robot", wire.Draft(1, 1, 0, digest, truth[:1]))
    assert isinstance(again, Commit) and again.passes == 0 and again.features == packed(again.tokens), (
        "a commit is repeated with its features"
    )


def test_who_comes_back_gets_them_again(bench: Bench) -> None:
    welcome = bench.welcome(b"robot", FED)
    bench.ask(b"robot", begin(max_tokens=9, idle=Idle.WAIT, features=True))
    truth = greedy("long", JPEG, 9)
    bench.ask(b"robot", draft(truth[:3]))
    bench.welcome(b"other", msgspec.structs.replace(FED, resume=welcome.session))
    found = bench.ask(b"other", begin(max_tokens=9, idle=Idle.WAIT, features=True, committed=truth[:2]))
    known = [*PROMPT, *truth[:2]]
    assert found[0] == Features(1, 2, known, packed(known)), "by the session that goes on"
    assert isinstance(found[1], Commit) and found[1].features == packed(truth[2:4])
    restarted = Bench(CONFIG, engine=FedEngine())
    restarted.welcome(b"robot", FED)
    found = restarted.ask(b"robot", begin(max_tokens=9, idle=Idle.WAIT, features=True, committed=truth[:2]))
    assert found[0] == Features(1, 2, known, packed(known)), "by a verifier that knows nothing"
    assert tokens_of(found[1:]) == truth[2:3]


@pytest.mark.parametrize(("engine", "has"), [(FakeEngine(), "has none"), (FedEngine(), f"has '{NAME}'")])
def test_other_features_are_refused_in_a_sentence(engine: FakeEngine, has: str) -> None:
    bench = Bench(engine=engine)
    (fault,) = bench.ask(b"robot", msgspec.structs.replace(HELLO, features="other"))
    assert faults([fault]) == [FaultCode.MODEL_MISMATCH]
    assert f"Hello.features 'other': this verifier {has}; start it with --fed-head" in fault.message  # type: ignore[union-attr]
