"""The swap test: what it counts, and that it never gets in the way of a question."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_drafter import decoder
from edge_drafter.decoder import EdgeDecoder
from edge_drafter.image_dependence import SwapTest, swap_test
from edge_drafter.settings import EdgeConfig
from speculation.cancellation import Abandoned, Stop
from speculation.distributions import Logits
from speculation.vlm.session import VlmSession
from tests.cloud_verifier.test_engine import jpeg
from tests.edge_drafter.fakes import VOCABULARY, FakeModel

PROMPT = "find the silver bottle"
OWN, OTHER = b"own", b"other"
ANSWERS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12)


class SeeingModel(FakeModel):
    """A fake model whose drafts depend on the image."""

    def __init__(self, following: Callable[[bytes, Sequence[int]], int]) -> None:
        super().__init__(lambda prefix: following(self._image, prefix))
        self._image = b""

    def begin(self, prompt: str, image: bytes, committed: Sequence[int] = (), stop: Stop | None = None) -> None:
        super().begin(prompt, image, committed, stop)
        self._image = image


@settings(max_examples=40)
@given(ANSWERS, ANSWERS)
def test_places_are_compared_one_by_one_behind_the_answers_own_tokens(answer: list[int], drafted: list[int]) -> None:
    drafted = (drafted * len(answer))[: len(answer)]
    fed = []

    def following(image: bytes, prefix: Sequence[int]) -> int:
        assert list(prefix) == answer[: len(prefix)]
        fed.append(len(prefix))
        return answer[len(prefix)] if image == OWN else drafted[len(prefix)]

    model = SeeingModel(following)
    found = swap_test(model, PROMPT, answer, OWN, OTHER)
    differ = sum(a != b for a, b in zip(answer, drafted, strict=True))
    assert found == SwapTest(len(answer), len(answer), len(answer) - differ, differ)
    assert model.begun == 2 and model.forwards == 2 and sorted(fed) == sorted([*range(len(answer))] * 2)


@pytest.fixture(scope="module")
def edge(tiny_draft: Path) -> EdgeDecoder:
    return EdgeDecoder(EdgeConfig.flat(tiny_draft, mode="edge", dtype="float64", max_tokens=20))


def test_it_is_not_made_while_a_question_is_answered(edge: EdgeDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    running, go_on, root_logits = threading.Event(), threading.Event(), VlmSession.root_logits

    def slow(session: VlmSession, stop: Stop | None = None) -> Logits:
        running.set()
        assert go_on.wait(60.0)
        return root_logits(session, stop)

    monkeypatch.setattr(VlmSession, "root_logits", slow)
    question = threading.Thread(target=edge.decode, args=(PROMPT, jpeg(0), 60.0))
    question.start()
    assert running.wait(60.0)
    assert edge.swap_test(PROMPT, "I see it.", jpeg(0), jpeg(1)) is None
    go_on.set()
    question.join(60.0)
    assert edge.swap_test(PROMPT, "I see it.", jpeg(0), jpeg(1)) is not None


def test_it_gives_way_to_a_question_whose_answer_is_none_the_worse(
    edge: EdgeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = edge.decode(PROMPT, jpeg(0), 60.0).tokens
    running = threading.Event()

    def until_stopped(*arguments: object) -> SwapTest:
        *_, stop = arguments
        running.set()
        while not stop():  # type: ignore[operator]
            time.sleep(0.001)
        raise Abandoned

    found: list[SwapTest | None] = []
    with monkeypatch.context() as patch:
        patch.setattr(decoder, "swap_test", until_stopped)
        test = threading.Thread(target=lambda: found.append(edge.swap_test(PROMPT, "I see it.", jpeg(0), jpeg(1))))
        test.start()
        assert running.wait(60.0)
        assert edge.decode(PROMPT, jpeg(0), 60.0).tokens == expected
        test.join(60.0)
    assert found == [None]
    with pytest.raises(ValueError, match="does not decode"):
        edge.swap_test(PROMPT, "I see it.", b"no image", jpeg(1))
    assert edge.swap_test(PROMPT, "I see it.", jpeg(0), jpeg(1)) is not None
    assert edge.decode(PROMPT, jpeg(0), 60.0).tokens == expected
