"""llama.cpp as a draft engine against torch on the same random weights in float32, alone and in a whole robot."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

pytest.importorskip("llama_cpp", reason="needs the extra llama-cpp")
pytest.importorskip("gguf", reason="needs the package gguf, which writes the models")

from edge_drafter import llama_cpp
from edge_drafter.llama_cpp import LlamaCppModel, LlamaCppSession
from speculation.cancellation import Abandoned
from speculation.vlm.cache import CacheFull
from speculation.vlm.folder import ModelFolderError, gguf_files
from speculation.vlm.load import load_vlm
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession
from speculation.vlm.settings import ModelSettings
from speculation.wire import ROOT
from tests.cloud_verifier.test_engine import jpeg
from tests.edge_drafter.conftest import Robot, Serve
from tests.gguf_models import write_eyes, write_gguf
from tests.models import tiny_model, tiny_text_model
from tests.speculation.vlm.test_session import SessionMachine, greedy

EXACT = 1e-4
SIGHT = 5e-3
"""llama.cpp computes an image's patches in 16 bits."""
PROMPT = "find the silver bottle"
OTHER = "find the silver chair"
SMALL = ModelSettings(min_pixels=56 * 56, max_pixels=56 * 56)
"""The vision tower of a GGUF file does not know that the tiny models see frames of this size."""
TREE = [11, 12, 13, 14, 15, 16], [ROOT, 0, 0, 2, 1, 3]


def loaded(name: Path | str, how: ModelSettings = SMALL) -> LlamaCppModel:
    files = gguf_files(name)
    assert files is not None
    return LlamaCppModel(files, how)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Vlm:
    """A language model alone."""
    return load_vlm(tiny_text_model(tmp_path_factory.mktemp("text")))


@pytest.fixture(scope="module")
def model(text: Vlm, tmp_path_factory: pytest.TempPathFactory) -> LlamaCppModel:
    """The same as a GGUF file."""
    return loaded(write_gguf(text, tmp_path_factory.mktemp("gguf") / "text.gguf"))


@pytest.fixture(scope="module")
def seeing(tiny_draft: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny draft that sees, as GGUF files of its language model and its vision tower."""
    folder, draft = tmp_path_factory.mktemp("seeing"), load_vlm(tiny_draft)
    return f"{write_gguf(draft, folder / 'draft.gguf')},{write_eyes(draft, folder / 'mmproj.gguf')}"


@pytest.fixture(scope="module")
def eyes(seeing: str) -> LlamaCppModel:
    return loaded(seeing)


@pytest.fixture
def session(model: LlamaCppModel) -> LlamaCppSession:
    session = LlamaCppSession(model, 256)
    session.begin(PROMPT, b"")
    return session


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each of the library's forwards computed."""
    counts: list[int] = []
    fill = LlamaCppSession._fill

    def counting(self: LlamaCppSession, entries: Any) -> None:
        counts.append(len(entries))
        fill(self, entries)

    monkeypatch.setattr(LlamaCppSession, "_fill", counting)
    return counts


# --- the model


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_chains_and_trees_have_torchs_logits(family: str, tmp_path: Path) -> None:
    vlm = load_vlm(tiny_text_model(tmp_path / "model", family=family))
    ours, torchs = LlamaCppSession(loaded(write_gguf(vlm, tmp_path / "x.gguf")), 256), VlmSession(vlm, 256)
    for prompt in (PROMPT, OTHER):
        for each in (ours, torchs):
            each.begin(prompt, b"")
        np.testing.assert_allclose(ours.root_logits(), torchs.root_logits(), rtol=0, atol=EXACT)
        for _ in range(2):
            np.testing.assert_allclose(ours.extend(*TREE), torchs.extend(*TREE), rtol=0, atol=EXACT)
            assert ours.commit([0], 13) == torchs.commit([0], 13)
            np.testing.assert_allclose(ours.extend([20], [0]), torchs.extend([20], [0]), rtol=0, atol=EXACT)
            assert ours.commit([0], 99) == torchs.commit([0], 99) == {}
        assert greedy(ours, 10) == greedy(torchs, 10)


def test_it_sees_what_torch_sees(eyes: LlamaCppModel, tiny_draft: Path) -> None:
    ours, torchs = LlamaCppSession(eyes, 256), VlmSession(load_vlm(tiny_draft), 256)
    roots = []
    for image in (jpeg(0), jpeg(1), (jpeg(0), jpeg(1)), jpeg(0)):
        for each in (ours, torchs):
            each.begin(PROMPT, image)
        roots.append(torchs.root_logits())
        np.testing.assert_allclose(ours.root_logits(), roots[-1], rtol=0, atol=SIGHT)
        np.testing.assert_allclose(ours.extend(*TREE), torchs.extend(*TREE), rtol=0, atol=SIGHT)
        assert ours.commit([0], 13) == torchs.commit([0], 13)
        np.testing.assert_allclose(ours.extend([20], [0]), torchs.extend([20], [0]), rtol=0, atol=SIGHT)
    assert np.abs(roots[0] - roots[1]).max() > 20 * SIGHT


class Machine(SessionMachine):
    """Of any sequence of extends and commits the logits are those of a forward over the path alone."""

    exact = EXACT
    model: LlamaCppModel

    def new_session(self) -> LlamaCppSession:
        return LlamaCppSession(self.model, 128)

    def image(self, seed: int) -> bytes:
        return b""


def test_any_sequence_of_extends_and_commits_is_a_fresh_forward(text: Vlm, model: LlamaCppModel) -> None:
    Machine.vlm, Machine.model = text, model
    run_state_machine_as_test(Machine, settings=settings(max_examples=30, stateful_step_count=10, deadline=None))


def test_a_prompt_is_read_from_where_it_differs(session: LlamaCppSession, fed: list[int]) -> None:
    before = len(session.model.encode(PROMPT, b""))
    session.begin(PROMPT, b"")
    assert sum(fed) == 0
    session.begin(PROMPT, b"", [11, 12])
    session.root_logits()
    assert sum(fed) == 3  # the root and what is committed
    session.begin(OTHER, b"")
    assert 0 < sum(fed) - 3 < before - 5
    fresh = LlamaCppSession(session.model, 256)
    fresh.begin(OTHER, b"")
    np.testing.assert_allclose(session.root_logits(), fresh.root_logits(), rtol=0, atol=EXACT)


def stop_at(call: int) -> Callable[[], bool]:
    calls = iter(range(1, 10**6))
    return lambda: next(calls) >= call


@pytest.mark.parametrize("call", [1, 2, 5, 20])
def test_a_forward_that_is_given_up_changes_nothing(
    session: LlamaCppSession, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_cpp, "LOOK_S", 0.0)
    with pytest.raises(Abandoned):
        session.root_logits(stop_at(call))
    root = session.root_logits()
    with pytest.raises(Abandoned):
        session.extend(*TREE, stop_at(call))
    assert session.node_count == 0
    rows = session.extend(*TREE)
    with pytest.raises(Abandoned):
        session.extend([30, 31, 32], [3, 6, ROOT], stop_at(call))
    more = session.extend([30, 31, 32], [3, 6, ROOT])
    fresh = LlamaCppSession(session.model, 256)
    fresh.begin(PROMPT, b"")
    np.testing.assert_allclose(root, fresh.root_logits(), rtol=0, atol=EXACT)
    np.testing.assert_allclose(rows, fresh.extend(*TREE), rtol=0, atol=EXACT)
    np.testing.assert_allclose(more, fresh.extend([30, 31, 32], [3, 6, ROOT]), rtol=0, atol=EXACT)


def test_a_prompt_that_is_given_up_leaves_no_step(eyes: LlamaCppModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "LOOK_S", 0.0)
    session = LlamaCppSession(eyes, 256)
    session.begin(PROMPT, jpeg(0))
    wanted = session.root_logits()
    for call in (1, 2, 3, 30, 60):
        with pytest.raises(Abandoned):
            session.begin(PROMPT, jpeg(1), stop=stop_at(call))
        with pytest.raises(RuntimeError, match="call begin first"):
            session.root_logits()
    session.begin(PROMPT, jpeg(0))
    np.testing.assert_allclose(session.root_logits(), wanted, rtol=0, atol=EXACT)


def test_refusals_change_nothing(session: LlamaCppSession) -> None:
    session.extend([11, 12], [ROOT, 0])
    vocabulary = session.model.vocabulary
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: session.extend([1], [2]), r"parent 2 of node 2 must be in -1\.\.1"),
        (lambda: session.extend([1], []), "1 tokens but 0 parents"),
        (lambda: session.extend([vocabulary], [0]), "outside the vocabulary"),
        (lambda: session.commit([1], 5), "node 1 does not follow node -1"),
        (lambda: session.commit([0], vocabulary), "outside the vocabulary"),
        (lambda: session.begin(" ", b""), "the instruction is empty"),
        (lambda: session.begin(PROMPT, b"", [vocabulary]), "outside the vocabulary"),
    ]
    for call, sentence in refused:
        with pytest.raises(ValueError, match=sentence):
            call()
    with pytest.raises(CacheFull, match="cannot take 300 more"):
        session.extend([1] * 300, range(ROOT, 299))
    assert session.node_count == 2
    assert session.commit([0], 12) == {1: ROOT}
    with pytest.raises(CacheFull):
        session.begin(f"{PROMPT} {'x ' * 300}", b"")
    with pytest.raises(ValueError, match="was made for 2048 tokens"):
        LlamaCppSession(session.model, 4096)


def test_a_tree_of_more_leaves_than_the_library_has_sequences_is_refused_whole(session: LlamaCppSession) -> None:
    leaves = llama_cpp.SEQUENCES - 1
    wide = LlamaCppSession(session.model, 1024)
    wide.begin(PROMPT, b"")
    with pytest.raises(CacheFull, match=f"{leaves} leaves"):
        wide.extend([1] * (leaves + 1), [ROOT] * (leaves + 1))
    rows = wide.extend(list(range(leaves)), [ROOT] * leaves)
    np.testing.assert_allclose(rows[7], session.extend([7], [ROOT])[0], rtol=0, atol=EXACT)
    with pytest.raises(CacheFull):
        wide.extend([1], [ROOT])
    # A leaf that goes on needs no sequence of its own.
    np.testing.assert_allclose(wide.extend([9], [7])[0], session.extend([9], [0])[0], rtol=0, atol=EXACT)
    assert wide.commit([], 7) == {7: ROOT, leaves: 0}
    assert len(wide.extend([1] * 200, [ROOT] * 200)) == 200


# --- what people bring


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"quantisation": "nf4"}, "a GGUF file is rounded already"),
        ({"device": "cuda:0,cuda:1"}, "runs on cpu, cuda or one of several"),
        ({"device": "mps"}, "runs on cpu, cuda or one of several"),
    ],
)
def test_settings_that_it_has_not_are_refused_by_name(model: LlamaCppModel, how: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        loaded(model.files.weights, ModelSettings(**how))


def test_files_that_are_no_such_model_are_refused_in_a_sentence(seeing: str, text: Vlm, tmp_path: Path) -> None:
    weights, eyes = map(Path, seeing.split(","))
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    words = write_gguf(text, tmp_path / "words.gguf")
    for name, sentence in (
        (tmp_path / "none.gguf", "does not exist"),
        (eyes, "is a vision tower"),
        (f"{weights},{weights}", "not a vision tower"),
        (f"{weights},{eyes},{eyes}", "names 3 files"),
        (cut, "cannot be loaded"),
    ):
        with pytest.raises(ModelFolderError, match=sentence):
            loaded(name)
    # Of equal width, so that the library takes the eyes; a file of another width it refuses.
    other = load_vlm(tiny_model(tmp_path / "wide", layers=1, hidden=96))
    with pytest.raises(ModelFolderError, match="cannot be loaded as the eyes of"):
        loaded(f"{words},{write_eyes(other, tmp_path / 'wide.gguf')}")


def test_a_vision_tower_is_found_beside_its_model(seeing: str) -> None:
    weights, eyes = map(Path, seeing.split(","))
    files = gguf_files(f"{weights},{eyes.name}")
    assert files is not None and files.eyes == eyes
    assert gguf_files("Qwen/Qwen2-VL-2B-Instruct") is None
    assert gguf_files(weights.parent) is None


# --- in a robot


def test_every_mode_gives_the_targets_own_tokens(
    serve: Serve, tiny_target: Path, target: Vlm, seeing: str, robot: Robot
) -> None:
    edge = robot(serve(tiny_target).address, Path(seeing), min_pixels=56 * 56, max_pixels=56 * 56)
    session = VlmSession(target, 512)
    accepted = 0
    for seed in range(4):
        truth = [token for token, _ in session.greedy(PROMPT, jpeg(seed), 20)]
        for mode in ("cloud", "sd", "fsd", "proactive", "pipelined", "full"):
            result = edge.decode(PROMPT, jpeg(seed), 60.0, mode)
            assert list(result.tokens) == truth, mode
            accepted += result.stats.accepted if mode == "sd" else 0
    assert accepted > 0
    alone = edge.decode(PROMPT, jpeg(0), 60.0, "edge")
    assert len(alone.tokens) > 1
    found = edge.swap_test(PROMPT, edge.text(alone.tokens), jpeg(0), jpeg(1))
    assert found is not None and found.changed > 0


def test_without_eyes_it_drafts_blind_and_says_so_once(
    serve: Serve, tiny_target: Path, target: Vlm, seeing: str, robot: Robot, caplog: pytest.LogCaptureFixture
) -> None:
    weights = Path(seeing.split(",")[0])
    with caplog.at_level(logging.INFO):
        edge = robot(serve(tiny_target).address, weights, mode="full")
    assert sum("has no vision tower" in line for line in caplog.messages) == 1
    assert any("llama.cpp, " in line and "of weights on cpu" in line for line in caplog.messages)
    session = VlmSession(target, 512)
    for seed in range(2):
        truth = [token for token, _ in session.greedy(PROMPT, jpeg(seed), 20)]
        assert list(edge.decode(PROMPT, jpeg(seed), 60.0).tokens) == truth
    found = edge.swap_test(PROMPT, "Action: stop", jpeg(0), jpeg(1))
    assert found is not None and found.changed == 0
