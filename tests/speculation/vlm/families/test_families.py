"""Every family's own forward is transformers'; what is left out of it is refused at load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters_training.encoding import Encoder
from adapters_training.frozen_target.batches import collate
from adapters_training.frozen_target.hidden_states import outputs
from adapters_training.sources import Sample, Turn
from cloud_verifier.engine import Prefill
from speculation.images import pixels_jpeg
from speculation.vlm import cache, load_check
from speculation.vlm.cache import KVCache
from speculation.vlm.families import KINDS, Seen
from speculation.vlm.families.qwen3_vl import Qwen3VL
from speculation.vlm.families.qwen_vl import QwenVL
from speculation.vlm.folder import ModelFolderError
from speculation.vlm.forward import final_logits, forward_layers
from speculation.vlm.inputs import prepare
from speculation.vlm.load import load_vlm
from speculation.vlm.load_check import difference, library_logits, own_logits, small_question
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession
from tests.models import FAMILIES, TEXT_FAMILIES, TILED, frame, scratch_inputs, tiny_model, tiny_text_model

EXACT = 1e-9
DEEP = ["qwen3_vl", "qwen3_vl_moe"]


@pytest.fixture(scope="module", params=[*FAMILIES, *TILED])
def seeing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Vlm:
    folder = tiny_model(tmp_path_factory.mktemp(request.param), layers=3, family=request.param)
    return load_vlm(folder, dtype="float64")


def test_every_family_has_tiny_models() -> None:
    assert {*FAMILIES, *TILED, *TEXT_FAMILIES} == set(KINDS)


@settings(max_examples=6, deadline=None)  # of each of six families
@given(data=st.data())
def test_prompts_in_chunks_beside_each_other_are_as_transformers_reads_them_whole(
    seeing: Vlm, data: st.DataObject
) -> None:
    """Two rows of one forward, cut anywhere, within their images too."""
    prompts = [prepare(seeing, "find it", (frame(0, 112), frame(1))), prepare(seeing, "go", frame(2, 84))]
    prefills = [Prefill.of(seeing, inputs) for inputs in prompts]
    cache = KVCache(seeing, 2, 128)
    hidden: list[list[torch.Tensor]] = [[], []]
    for row, each in enumerate(prefills):
        cache.open(row, [], each.inputs.delta)
        each.encode(seeing)
    while any(left := [len(each.ids) - 1 - cache.length[row] for row, each in enumerate(prefills)]):
        rows = [row for row in range(2) if left[row]]
        counts = [data.draw(st.integers(1, left[row])) for row in rows]
        chunks = [prefills[row].chunk(row, cache.length[row], count) for row, count in zip(rows, counts, strict=True)]
        *_, last = forward_layers(seeing, cache, chunks)
        for row, part in zip(rows, last.hidden, strict=True):
            hidden[row].append(part)
    for row, inputs in enumerate(prompts):
        found = final_logits(seeing, torch.cat(hidden[row]))
        torch.testing.assert_close(found, library_logits(seeing, inputs)[:-1], rtol=0, atol=EXACT)


def test_layers_give_what_exits_and_fed_heads_were_trained_on(seeing: Vlm) -> None:
    """Training's layer loop and the verifier's tap the same place: behind what DeepStack adds."""
    picture = pixels_jpeg(frame(5))
    turns = (Turn("user", "find it"), Turn("assistant", "Action: stop"))
    encoded = Encoder(seeing, 256).encode(Sample(turns, "one", picture))
    batch = collate([encoded], pad=0)
    trained = [hidden[0] for _, hidden in outputs(seeing, batch)]

    inputs = prepare(seeing, "find it", picture)
    cache = KVCache(seeing, 1, 256)
    cache.open(0, [], inputs.delta)
    prompt = Prefill.of(seeing, inputs)
    prompt.encode(seeing)
    chunk = prompt.chunk(0, 0, len(inputs.ids) - 1)
    served = [output.hidden[0] for output in forward_layers(seeing, cache, [chunk])]
    for layer, (one, other) in enumerate(zip(trained, served, strict=True)):
        torch.testing.assert_close(one[: len(other)], other, rtol=0, atol=EXACT, msg=f"layer {layer}")


@pytest.mark.parametrize("frames", [1, 3])
def test_answers_are_those_of_generate(seeing: Vlm, frames: int) -> None:
    pictures = tuple(frame(number, 84 + 28 * number) for number in range(frames))
    inputs = prepare(seeing, "find the silver bottle", pictures)
    seeing.family.forget(seeing.model)
    expected = seeing.model.generate(
        **scratch_inputs(seeing, inputs), do_sample=False, max_new_tokens=16, eos_token_id=list(seeing.eos),
        pad_token_id=0,
    )[0, len(inputs.ids) :].tolist()  # fmt: skip
    session = VlmSession(seeing, 256)
    assert [token for token, _ in session.greedy("find the silver bottle", pictures, 16)] == expected


# --- the check at load


@pytest.mark.parametrize("family", [*FAMILIES, *TILED, *TEXT_FAMILIES])
def test_a_model_differs_by_its_rounding_alone(family: str, tmp_path: Path) -> None:
    build: Any = tiny_text_model if family in TEXT_FAMILIES else tiny_model
    folder = build(tmp_path, family=family, layers=3)
    for dtype, limit in (("float64", 1e-12), ("float32", 1e-5), ("bfloat16", 0.02)):
        vlm = load_vlm(folder, dtype=dtype, load_check=False)
        inputs = small_question(vlm)
        assert difference(own_logits(vlm, inputs), library_logits(vlm, inputs)) < limit


@pytest.mark.parametrize("family", DEEP)
def test_a_forward_without_deepstack_is_refused_with_both_numbers(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, see = tiny_model(tmp_path, family=family), Qwen3VL.see
    monkeypatch.setattr(Qwen3VL, "see", lambda self, *given: Seen(see(self, *given).features))
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(ModelFolderError, match=r"transformers' own by 0\.\d+ of their spread in \w+, at"):
            load_vlm(folder, dtype=dtype)
    assert load_vlm(folder, load_check=False)


def test_wrong_positions_behind_a_second_image_are_refused(tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    positions = QwenVL.positions

    def off(*given: Any) -> Any:
        found, delta = positions(*given)
        found[0, -4:] += len(given[-1]) > 1
        return found, delta

    monkeypatch.setattr(QwenVL, "positions", off)
    with pytest.raises(ModelFolderError, match="differ from transformers' own"):
        load_vlm(tiny_target)


def test_a_tree_whose_branches_see_each_other_is_refused(tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    visible = cache.visible_slots
    monkeypatch.setattr(cache, "visible_slots", lambda *given: np.ones_like(visible(*given)))
    with pytest.raises(ModelFolderError, match="differ from transformers' own"):
        load_vlm(tiny_target)


def test_one_token_that_is_fed_wrong_is_refused_in_any_dtype(
    tiny_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = load_check.draft_chunk
    monkeypatch.setattr(
        load_check, "draft_chunk", lambda cache, row, root, *rest: chunk(cache, row, (root + 1) % 300, *rest)
    )
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(ModelFolderError, match=rf"of their spread in {dtype}, at most"):
            load_vlm(tiny_target, dtype=dtype)


def test_logits_that_are_no_numbers_are_refused(tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    see, library = QwenVL.see, load_check.library_logits
    with monkeypatch.context() as patch:
        patch.setattr(QwenVL, "see", lambda self, *given: Seen(see(self, *given).features * torch.nan))
        with pytest.raises(ModelFolderError, match="by nan of their spread"):
            load_vlm(tiny_target)
    monkeypatch.setattr(load_check, "library_logits", lambda *given: library(*given) * torch.inf)
    with pytest.raises(ModelFolderError, match="in float32 its logits are no finite numbers; choose bfloat16"):
        load_vlm(tiny_target)


# --- what is not known


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("idefics3", "take SmolVLM2"),
        ("internvl_chat", "whose name ends in -HF"),
        ("qwen3_5", "recurrent state"),
        ("gpt2", "open an issue"),
    ],
)
def test_what_is_not_known_says_what_to_do(kind: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(ModelFolderError, match=words):
        load_vlm(tmp_path)
