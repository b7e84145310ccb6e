"""Prompt files: every form, every bad line in a sentence that names it, and questions made of them."""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

import pytest

from speculation.vlm.load import load_vlm
from speculation.wire import MAX_PROMPT_CHARS
from tests.models import tiny_text_model
from vlm_nav_evaluation.experiment.command import result_name
from vlm_nav_evaluation.experiment.prompts import SAMPLE, in_words, load_prompts
from vlm_nav_evaluation.experiment.questions import (
    add_questions,
    asked_as,
    check_prompts,
    questions,
    read_source,
    warmed_up,
)
from vlm_nav_evaluation.experiment.run import Question
from vlm_nav_evaluation.options import add_pair

GSM8K = {"question": "How many legs have two dogs?", "answer": "2 * 4 = <<2*4=8>>8\n#### 8"}
HUMAN_EVAL = {
    "task_id": "Own/0",
    "prompt": "def two():\n",
    "entry_point": "two",
    "canonical_solution": "    return 2\n",
}
MT_BENCH = {"question_id": 81, "category": "writing", "turns": ["Write a line.", "Now another."]}
SPEC_BENCH = {"question_id": 1, "category": "rag", "turns": ["Is it\u2028open?"]}


def written(path: Path, *lines: object) -> Path:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (GSM8K, GSM8K["question"]),
        (HUMAN_EVAL, HUMAN_EVAL["prompt"]),
        (MT_BENCH, "Write a line."),
        (SPEC_BENCH, "Is it\u2028open?"),
    ],
)
def test_every_form_is_read_word_for_word(tmp_path: Path, line: dict[str, object], text: str) -> None:
    for name in ("some.jsonl", "some.jsonl.gz"):
        assert load_prompts(written(tmp_path / name, line, "", line, "")) == [text, text]


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (("\n", " "), "holds no prompts; give one JSON object a line with question"),
        ((GSM8K, "{"), "line 2: .*truncated"),
        (("[" * 100_000,), "line 1: "),
        (({"id": 1, "ask": "what"},), "line 1 asks nothing; it needs question"),
        (({**GSM8K, "question": " "},), r"line 1: Expected `str` matching .* at `\$.question`"),
        (({**GSM8K, "question": "x" * (MAX_PROMPT_CHARS + 1)},), r"length <= 12000 - at `\$.question`"),
        (({**MT_BENCH, "turns": []},), "line 1: Expected `array` of length >= 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, lines: tuple[object, ...], sentence: str) -> None:
    path = written(tmp_path / "bad.jsonl", *lines)
    with pytest.raises(ValueError, match=sentence) as error:
        load_prompts(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_questions_in_words_have_no_frame(tmp_path: Path) -> None:
    known = set(load_prompts(SAMPLE))
    asked = questions("text", 5)
    assert len({question.prompt for question in asked} & known) == 5 and not any(question.jpeg for question in asked)
    assert questions(f"text:{written(tmp_path / 'one.jsonl', GSM8K)}", 1) == [Question(GSM8K["question"], b"")]
    assert in_words("text") and in_words("text:some") and not in_words("random")
    assert read_source("text:some file") == "text:some file" and read_source("random") == "random"
    for source in ("camera", "text:", ""):
        with pytest.raises(
            argparse.ArgumentTypeError, match="choose simulation, random, text, text:PATH or mmspec:PATH"
        ):
            read_source(source)


def test_a_target_is_asked_what_it_can_answer(tiny_target: Path, tmp_path: Path) -> None:
    line = argparse.ArgumentParser()
    add_pair(line)
    add_questions(line)
    with pytest.raises(ValueError, match="--frames text asks in words, and target .* sees images"):
        asked_as(line.parse_args(["--frames", "text", "--target-model", str(tiny_target)]))
    asked_as(line.parse_args(["--target-model", str(tiny_target)]))
    blind = tiny_text_model(tmp_path / "blind", layers=1)
    asked_as(line.parse_args(["--frames", "text", "--target-model", str(blind)]))
    with pytest.raises(ValueError, match="is a language model alone; ask it with --frames text"):
        asked_as(line.parse_args(["--frames", "random", "--target-model", str(blind)]))
    assert result_name("latency", "text:some") == "latency_text" and result_name("latency", "random") == "latency"


def test_prompts_that_no_session_holds_are_named_before_work(tmp_path: Path) -> None:
    vlm = load_vlm(tiny_text_model(tmp_path / "text", layers=1))
    check_prompts(vlm, [Question("short", b""), Question("x" * 5000, b"a frame")], 128)
    with pytest.raises(ValueError, match=r"prompt 'abc .*\.\.\.' has \d+ tokens; with an answer of 128 and a draft"):
        check_prompts(vlm, [Question("short", b""), Question("abc " * 600, b"")], 128)
    with pytest.raises(ValueError, match="prompt 'say <|im_end|>': the instruction contains the special token"):
        check_prompts(vlm, [Question("say <|im_end|>", b"")], 128)


def test_no_question_of_the_warm_up_is_measured(tiny_target: Path, tmp_path: Path) -> None:
    line = argparse.ArgumentParser()
    add_pair(line)
    add_questions(line)
    blind = tiny_text_model(tmp_path / "blind", layers=1)
    for words in (f"--frames text --target-model {blind}", f"--frames random --target-model {tiny_target}"):
        before, asked = warmed_up(line.parse_args(words.split()), 5, 2)
        assert (len(before), len(asked)) == (2, 5) and not set(before) & set(asked)
