"""MMSpec's form: samples and images of all kinds, turns in the model's chat, and its way of counting."""

from __future__ import annotations

import io
import json
from argparse import Namespace
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from edge_drafter import DecodingStats
from speculation.frames import MAX_PIXELS, jpeg_size
from speculation.language.grammar import Grammars, grammar_for
from speculation.language.prompts import continued
from speculation.language.thinking import split_thinking
from speculation.vlm.load import load_vlm
from speculation.vlm.session import VlmSession
from speculation.wire import MAX_IMAGE_BYTES
from tests.models import THINKING_TEMPLATE, tiny_model
from tests.photographs import PICTURES, TASKS, write_mmspec
from vlm_nav_evaluation.experiment.mmspec import LARGE_SIDE, counted, described, load_questions, mean_accepted_tokens
from vlm_nav_evaluation.experiment.questions import questions
from vlm_nav_evaluation.experiment.run import Answer, Question, Run
from vlm_nav_evaluation.experiment.sockets import Edges
from vlm_nav_evaluation.verifier_process import verifier

SAMPLE = {"id": "a", "image": "a.png", "turns": ["What is it?"], "category": "default", "topic": "general vqa"}


def stored(image: Image.Image, form: str, **how: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **how)
    return file.getvalue()


def folder_of(path: Path, *lines: object, image: bytes | None = None) -> Path:
    (path / "images").mkdir(parents=True)
    (path / "images" / "a.png").write_bytes(image or stored(Image.new("RGB", (48, 32), "red"), "PNG"))
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (path / "mmspec.jsonl").write_text(text, encoding="utf-8")
    return path


def test_photographs_are_asked_in_all_their_turns(tmp_path: Path) -> None:
    folder = write_mmspec(tmp_path / "own")
    asked = questions(f"mmspec:{folder}", 3)
    assert asked == questions(f"mmspec:{folder / 'mmspec.jsonl'}", 3)
    assert {question.category: (question.prompt, *question.later) for question in asked} == TASKS
    for question, name in zip(asked, PICTURES, strict=True):
        assert question.jpeg == (folder / "images" / name).read_bytes(), "a JPEG stays as it is"


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ((), "mmspec.jsonl holds no samples; give one JSON object a line with id, image, turns and category"),
        ((SAMPLE, "{"), "mmspec.jsonl line 2: .*truncated"),
        (({**SAMPLE, "turns": ["ok", "a\x1eb"]},), r"line 1: Expected `str` matching .* at `\$.turns\[1\]`"),
        ((SAMPLE, {**SAMPLE, "image": "b.png"}), "line 2: id 'a' was there before, at .*mmspec.jsonl line 1"),
        (({**SAMPLE, "image": "../a.png"},), "line 1: image '../a.png' is outside .*images; name one in there"),
        (({**SAMPLE, "image": "b.png"},), "line 1: image .*images/b.png cannot be read: No such file"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, lines: tuple[object, ...], sentence: str) -> None:
    folder = folder_of(tmp_path / "own", *lines)
    with pytest.raises(ValueError, match=sentence) as error:
        load_questions(folder, 1)
    assert str(folder) in str(error.value) and "\n" not in str(error.value)


def test_too_few_samples_and_a_folder_without_the_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        load_questions(tmp_path, 1)
    with pytest.raises(ValueError, match="2 prompts were asked for, .* and the file holds 1;"):
        load_questions(folder_of(tmp_path / "own", SAMPLE), 2)


TURNED = Image.Exif()
TURNED[0x0112] = 6


def test_an_image_too_large_for_a_message_is_scaled(tmp_path: Path) -> None:
    side = 5 + int(MAX_PIXELS**0.5)
    huge = stored(Image.new("RGB", (side, side // 2 * 2), (200, 30, 30)), "JPEG", exif=TURNED)
    noise = np.random.default_rng(0).integers(0, 256, (2400, 1800, 3), np.uint8)
    heavy = stored(Image.fromarray(noise), "JPEG", quality=100, subsampling=0)
    assert len(heavy) > MAX_IMAGE_BYTES
    for name, data, size in (("huge", huge, None), ("heavy", heavy, (LARGE_SIDE, 1536))):
        (question,) = load_questions(folder_of(tmp_path / name, SAMPLE, image=data), 1)
        assert isinstance(question.jpeg, bytes) and len(question.jpeg) <= MAX_IMAGE_BYTES
        assert max(jpeg_size(question.jpeg)) == LARGE_SIDE and size in (None, jpeg_size(question.jpeg))


@pytest.mark.parametrize("data", [b"", b"no image", stored(Image.new("RGB", (48, 32)), "WEBP")[:30]])
def test_what_is_no_image_is_named(tmp_path: Path, data: bytes) -> None:
    folder = folder_of(tmp_path / "own", SAMPLE)
    (folder / "images" / "a.png").write_bytes(data)
    with pytest.raises(ValueError, match=r"line 1: image .*a.png: (an? )?image") as error:
        load_questions(folder, 1)
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("forked_verifiers")
def test_a_later_turn_comes_behind_what_was_said_and_not_what_was_thought(tmp_path: Path) -> None:
    vlm = load_vlm(tiny_model(tmp_path / "thinks", layers=2, template=THINKING_TEMPLATE), dtype="float64")
    first = Question("find the silver bottle", questions("random", 1)[0].jpeg, "a", later=("Which colour?",))
    options = Namespace(draft_model=vlm.folder, max_tokens=30, dtype="float64", answers="constrained", capacity=512)
    flags = ("--dtype", "float64", "--capacity", "512")
    with verifier(vlm.folder, *flags) as address, closing(Edges(options, address, vlm)) as edges:
        _, second = edges.conversations([first])
    grammar = Grammars(vlm.tokenizer, vlm.vocabulary).of(grammar_for(first.prompt), vlm.eos, vlm.thinking)
    thought, said = split_thinking(VlmSession(vlm, 512).answer(first.prompt, first.jpeg, 30, grammar))
    assert thought and second.prompt == continued(first.prompt, said, "Which colour?")


def stats(tokens: int, rounds: int, seconds: float) -> DecodingStats:
    return DecodingStats(tokens=tokens, rounds=rounds, total_s=seconds)


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 8), min_size=1), min_size=1, max_size=5))
def test_mean_accepted_tokens_are_the_accepted_ones_and_one_more(answers: list[list[int]]) -> None:
    rounds = [accepted + 1 for each in answers for accepted in each]
    mean = pytest.approx(sum(rounds) / len(rounds))
    # A prefill brings one token and verifies nothing; where it verifies a draft it is a round as all others.
    ours = [stats(1 + sum(each) + len(each), 1 + len(each), 1.0) for each in answers]
    assert mean_accepted_tokens(ours) == mean
    theirs = [stats(sum(each) + len(each), len(each), 1.0) for each in answers]
    assert mean_accepted_tokens(theirs, at_prefill=True) == mean
    assert mean_accepted_tokens([stats(1, 1, 1.0)]) is None, "an answer of one token verifies nothing"


def test_figures_are_of_each_category_and_of_all() -> None:
    asked = [
        Question("a", b"", category="vqa"),
        Question("b", b"", category="chart"),
        Question("c", b"", category="vqa"),
    ]
    times = {"target": (1.0, 4.0, 3.0), "sd": (0.5, 4.0, 1.0), "edge": (0.1, 0.1, 0.1)}
    rounds = {"target": 9, "sd": 3, "edge": 9}
    answers = {arm: [Answer((), stats(9, rounds[arm], each)) for each in taken] for arm, taken in times.items()}
    found = counted(Run(answers, exact=["target", "sd"]), asked, "target")
    assert list(found) == ["vqa", "chart", "all"] and list(found["all"]) == ["target", "sd"]
    assert found["vqa"]["sd"] == {
        "turns": 2,
        "tokens": 18,
        "mean_accepted_tokens": 4.0,
        "walltime_ratio": 2.5,
        "walltime_ratio_of_totals": pytest.approx(4.0 / 1.5),
    }
    assert (found["chart"]["sd"]["walltime_ratio"], found["all"]["sd"]["walltime_ratio"]) == (1.0, 2.0)
    assert all(found[category]["target"]["mean_accepted_tokens"] == 1.0 for category in found)
    table = described(found, "target").splitlines()
    assert "walltime against 'target', prefill included" in table[0] and len(table) == 2 + 6
    assert table[3].split() == ["vqa:", "sd", "2", "18", "4.00", "2.50x", "2.67x"]
