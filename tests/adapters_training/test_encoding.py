"""Labels stand on the assistant's tokens alone whatever the template, and positions are those of serving."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from adapters_training.encoding import Encoded, Encoder
from adapters_training.frozen_target.batches import collate
from adapters_training.frozen_target.hidden_states import read
from adapters_training.packing import IGNORE
from adapters_training.sources import BadRecord, Sample, Turn
from speculation.vlm.forward import final_logits
from speculation.vlm.inputs import prepare
from speculation.vlm.load import load_vlm
from speculation.vlm.model import Vlm
from tests.models import frame, scratch_logits, tiny_text_model

TURNS = (Turn("user", "find the red ball"), Turn("assistant", "I see it."), Turn("user", "and now?"),
         Turn("assistant", "Action: stop"))  # fmt: skip
SYSTEM = Turn("system", "Be brief.")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Vlm:
    return load_vlm(tiny_text_model(tmp_path_factory.mktemp("llama")), dtype="float64")


def labelled(vlm: Vlm, encoded: Encoded) -> list[str]:
    """Return the runs of tokens that are learned, as text."""
    places = np.flatnonzero(encoded.labels != IGNORE)
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    return [vlm.tokenizer.decode(encoded.labels[run]) for run in runs]


@pytest.mark.parametrize("turns", [TURNS, (SYSTEM, *TURNS)])
def test_labels_are_the_answers_and_their_ends(llama: Vlm, turns: tuple[Turn, ...]) -> None:
    encoded = Encoder(llama, 200).encode(Sample(turns, "here"))
    assert labelled(llama, encoded) == ["I see it.<|im_end|>", "Action: stop<|im_end|>"]
    learned = encoded.labels != IGNORE
    assert (encoded.labels[:-1][learned[:-1]] == encoded.ids[1:][learned[:-1]]).all()
    assert not encoded.truncated and encoded.pixels is None


def test_vicunas_conversation_is_labelled_too(tmp_path: Path) -> None:
    vlm = load_vlm(tiny_text_model(tmp_path, template=""))
    encoded = Encoder(vlm, 400).encode(Sample(TURNS, "here"))
    end = vlm.tokenizer.eos_token
    assert labelled(vlm, encoded) == [f" I see it.{end}", f" Action: stop{end}"]


def test_the_prompt_is_the_one_that_is_served(target: Vlm) -> None:
    image = frame(3, 84)
    from adapters_training import encoding

    sample = Sample(TURNS[:2], "here", b"jpeg")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "decode_jpeg", lambda data: image)
        encoded = Encoder(target, 200).encode(sample)
    served = prepare(target, TURNS[0].text, image)
    count = len(served.ids)
    assert encoded.ids[:count].tolist() == served.ids.tolist()
    assert encoded.positions[:, :count].tolist() == served.positions.tolist()
    assert (encoded.grid,) == served.grids and encoded.pixels is not None and served.pixel_values is not None
    assert np.array_equal(encoded.pixels, served.pixel_values)


def test_long_conversations_are_cut_and_hopeless_ones_refused(llama: Vlm, target: Vlm) -> None:
    whole = Encoder(llama, 200).encode(Sample(TURNS, "here"))
    cut = Encoder(llama, len(whole.ids) - 6).encode(Sample(TURNS, "here"))
    assert cut.truncated and len(cut.ids) == len(whole.ids) - 6
    assert labelled(llama, cut)[0] == "I see it.<|im_end|>"
    with pytest.raises(BadRecord, match="here: no answer within the first 8 tokens"):
        Encoder(llama, 8).encode(Sample(TURNS, "here"))
    wide = jpeg_of(800)
    with pytest.raises(BadRecord, match=r"here: its image takes \d+ tokens, which does not fit the context of 8"):
        Encoder(target, 8).encode(Sample(TURNS, "here", wide))
    with pytest.raises(BadRecord, match="here: image cannot be used"):
        Encoder(target, 200).encode(Sample(TURNS, "here", b"no jpeg"))


def jpeg_of(size: int) -> bytes:
    import cv2

    return bytes(cv2.imencode(".jpg", frame(0, size))[1].tobytes())


def test_a_padded_batch_gives_the_targets_own_logits(target: Vlm, llama: Vlm) -> None:
    for vlm, images in ((llama, (None, None)), (target, (jpeg_of(60), jpeg_of(120)))):
        encoder = Encoder(vlm, 300)
        samples = [Sample(TURNS[: 2 + 2 * index], "here", image) for index, image in enumerate(images)]
        rows = [encoder.encode(sample) for sample in samples]
        features = read(vlm, collate(rows, 0), (0, 1))
        logits = final_logits(vlm, features.last)
        assert set(features.hidden) == {0, 1}
        assert features.labels.tolist() == [label for row in rows for label in row.labels if label != IGNORE]
        places = np.flatnonzero(rows[0].labels != IGNORE)
        served = prepare(vlm, TURNS[0].text, samples[0].image if isinstance(samples[0].image, bytes) else None)
        said = rows[0].ids[len(served.ids) : places[-1] + 1].tolist()
        expected = torch.from_numpy(scratch_logits(vlm, served, said))
        torch.testing.assert_close(logits[: len(places)], expected[: len(places)], rtol=0, atol=1e-9)
