"""A trained target's own greedy answers, many in one ragged batch: what a draft should learn to predict.

A draft that learns the oracle's wordings is good at sentences that the target never generates (sequence-level
distillation, Kim and Rush, arXiv 1606.07947). Answers are given about
  the simulator's frames          into shards with prompts and answers, for `pair --teacher`, `exits`, `fed-head`;
  a file of conversations         into another such file (.jsonl), for `text-draft` and `fed-head` of a language model
                                  alone: the first question of every record, as one step asks it;
  walks, a LeRobot v3 data set    into a folder with conversations.jsonl and pictures: its tasks about evenly spaced
                                  frames. Answers that name no action are left out.
A killed run goes on with the same command.

examples (about ten answers a second):
  python -m adapters_training answers --model out/models/target --data out/data --out out/answers
  python -m adapters_training answers --model TARGET --data questions.jsonl --out out/answers.jsonl
  python -m adapters_training answers --model TARGET --data walks --out out/walks
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple, TextIO

import msgspec
import numpy as np
from msgspec import Meta

from adapters_training import wording
from adapters_training.devices import ModelConfig, resolved
from adapters_training.files import replacing, whole_lines
from adapters_training.packing import choose
from adapters_training.records import Frame, Task, read_shard, shards, teaches, write_shard
from adapters_training.settings import Command
from adapters_training.sources import USER, LeftOut
from adapters_training.sources.conversations import ConversationFile, json_line
from adapters_training.sources.lerobot import LeRobotData, is_lerobot
from adapters_training.sources.mixture import report_left_out
from speculation.language.grammar import Grammars, grammar_for
from speculation.language.instructions import sentence_for
from speculation.language.prompts import Vocabulary, compose, parse_answer
from speculation.logits_processors import Context, LogitsProcessors
from speculation.progress import progress
from speculation.vlm.cache import KVCache
from speculation.vlm.folder import folder_fingerprint
from speculation.vlm.forward import Chunk, forward, prefill
from speculation.vlm.inputs import prepare
from speculation.vlm.load import load_vlm
from speculation.vlm.model import Vlm

CAPACITY = 512
MAX_TOKENS = 96
CONVERSATIONS, IMAGES = "conversations.jsonl", "images"


class AnswersConfig(ModelConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the command that lets a target answer."""

    model: Annotated[Path, Meta(description="target model folder")]
    data: Annotated[Path, Meta(description="folder of the 'data' command or of walks, or a file of conversations")]
    out: Annotated[Path, Meta(description="folder for the answers, or a .jsonl file for those to conversations")]
    frames: Annotated[int, Meta(ge=1, description="about how many frames, or how many conversations")] = 2000
    questions: Annotated[int, Meta(ge=1, description="per frame of the 'data' command")] = 4
    camera: Annotated[str, Meta(description="of walks: key of the camera, or its last part; none: the first")] = ""
    max_tokens: Annotated[int, Meta(ge=1, lt=CAPACITY, description="of an answer at most")] = MAX_TOKENS
    rows: Annotated[int, Meta(ge=1, description="answers decoded side by side")] = 32


def answer_all(
    vlm: Vlm, cache: KVCache, questions: Sequence[tuple[str, bytes]], limit: int, grammars: Grammars | None = None
) -> list[str]:
    """Return the greedy answers to (prompt, JPEG) questions, at most one a cache row, decoded side by side.

    An answer ends with an end token or after `limit` tokens; with `grammars` it is constrained, as robots ask for it.
    It gets the penalty that the model's checkpoint asks for. Raises ValueError for a prompt or frame that cannot be
    read, CacheFull where one does not fit a row.
    """
    roots, rules = dict[int, int](), dict[int, tuple[LogitsProcessors, Context]]()
    for row, (prompt, jpeg) in enumerate(questions):
        inputs = prepare(vlm, prompt, jpeg)
        roots[row] = prefill(vlm, cache, row, inputs)
        grammar = None if grammars is None else grammars.of(grammar_for(prompt), vlm.eos, vlm.thinking)
        processors = LogitsProcessors(vlm.penalty(inputs.ids), grammar)
        rules[row] = processors, processors.start((), limit)
    tokens: list[list[int]] = [[] for _ in questions]
    while roots:
        chunks = [Chunk(row, [root], cache.chain(row, 1)) for row, root in roots.items()]
        for chunk, logits in zip(chunks, forward(vlm, cache, chunks), strict=True):
            row = chunk.row
            processors, context = rules[row]
            token = int(np.argmax(processors.process(logits, [context])[0]))
            rules[row] = processors, processors.next(context, token)
            cache.keep(row, [cache.length[row]])
            tokens[row].append(token)
            roots[row] = token
            if token in vlm.eos or len(tokens[row]) == limit:
                del roots[row]
    return [vlm.read(row, constrained=grammars is not None) for row in tokens]


def ask(
    vlm: Vlm, cache: KVCache, frames: Sequence[Frame], questions: int, rng: random.Random, limit: int
) -> list[Frame]:
    """Return the frames with `questions` tasks each, answered; answers that name no action are left out."""
    asked: list[tuple[int, Task, str]] = []
    form = wording.form_of(vlm.folder)
    for index, frame in enumerate(frames):
        for task in choose([task for task in frame.tasks if wording.fits(task, form)], rng, questions):
            asked.append((index, task, wording.prompt(task, wording.random_order(rng), form)))
    tasks: list[list[Task]] = [[] for _ in frames]
    for at in range(0, len(asked), cache.rows):
        part = asked[at : at + cache.rows]
        words = answer_all(vlm, cache, [(prompt, frames[index].jpeg) for index, _, prompt in part], limit)
        for (index, task, prompt), text in zip(part, words, strict=True):
            if parse_answer(text).action is not None:
                tasks[index].append(msgspec.structs.replace(task, prompt=prompt, answer=text))
    return [msgspec.structs.replace(frame, tasks=tasks[i]) for i, frame in enumerate(frames) if tasks[i]]


def _compare_settings(config: AnswersConfig) -> None:
    """Keep beside the answers what they are of. Raises ValueError where those in --out are of something else.

    Answers beside which nothing is kept, as an older version left them, are gone on with.
    """
    out = config.out
    if out.suffix == ".jsonl":
        path, answered = out.with_suffix(".answers.json"), [out, out.with_suffix(".part")]
    else:
        path, answered = out / "answers.json", [*shards(out), out / CONVERSATIONS]
    here = {name: getattr(config, name) for name in ("dtype", "generation", "min_pixels", "max_pixels", "camera",
                                                     "questions", "max_tokens")}  # fmt: skip
    here |= {"model": folder_fingerprint(config.model, config.quantisation), "data": config.data.name}
    if not any(each.exists() for each in answered):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write_text(json.dumps(here, indent=1) + "\n", encoding="utf-8")
        return
    try:
        there = dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else here
    except (ValueError, TypeError):
        raise ValueError(f"{path} does not say what the answers are of: choose another --out") from None
    if changed := [name for name in here if there.get(name) != here[name]]:
        name = changed[0]
        raise ValueError(
            f"{out} holds answers of other settings ({name}: {there.get(name)} there, {here[name]} now): "
            "choose another --out, or delete it"
        )


def answer_conversations(vlm: Vlm, source: ConversationFile, config: AnswersConfig) -> None:
    """Write the target's own answers to the first records of `source`, as a file of conversations, JSON lines.

    A question that does not fit a row of the cache with its answer, and an empty answer, leave a blank line, which
    readers skip. A killed run goes on behind the last line that it wrote. Raises ValueError for a model that sees
    images.
    """
    if vlm.sees_images:
        raise ValueError(f"{vlm.folder} sees images; conversations without one are for a language model alone")
    part, rows, limit = config.out.with_suffix(".part"), config.rows, config.max_tokens
    done = len(whole_lines(part))
    cache, rng = KVCache(vlm, rows, CAPACITY), random.Random(0)
    count = min(config.frames, sum(source.blocks))
    with part.open("a", encoding="utf-8") as file, progress(total=count, initial=done, unit="answer") as bar:
        for first in range(done, count, rows):
            numbers = range(first, min(first + rows, count))
            texts = [
                next(turn.text for turn in source.sample(number, rng).turns if turn.role == USER) for number in numbers
            ]
            asked = [text for text in texts if len(vlm.processor.encode_text(text)) + limit < CAPACITY]
            answered = dict(zip(asked, answer_all(vlm, cache, [(text, b"") for text in asked], limit), strict=True))
            for text in texts:
                answer = answered.get(text, "").strip()
                file.write(json_line(text, answer) if answer else "\n")
            file.flush()
            bar.update(len(numbers))
    part.replace(config.out)


class _Question(NamedTuple):
    name: str
    prompt: str
    jpeg: bytes


def questions(
    data: LeRobotData, count: int, known: set[str], vocabulary: Vocabulary | None, problems: list[str]
) -> Iterator[_Question]:
    """Yield about `count` evenly spaced frames with what is asked about them, without those named in `known`."""
    stride = max(1, data.count // count)
    for item in data.shots():
        if isinstance(item, LeftOut):
            problems.append(item.reason)
        elif item.index % stride == 0 and (name := f"{IMAGES}/frame-{item.index:06d}.jpg") not in known:
            try:
                sentence = sentence_for(item.instruction, vocabulary)
                yield _Question(name, compose(sentence, guide=vocabulary is None), item.jpeg())
            except ValueError as error:
                problems.append(f"frame {item.index}: {error}")


def _pictures(path: Path) -> set[str]:
    """Return the pictures that a file has answers about."""
    return {json.loads(line)["image"] for line in whole_lines(path)}


def answer_walks(vlm: Vlm, data: LeRobotData, config: AnswersConfig) -> None:
    """Write the target's own answers about evenly spaced frames as conversations; each batch is on disk at once.

    Raises ValueError where no frame is answered with an action.
    """
    out, problems = config.out, list[str]()
    (out / IMAGES).mkdir(parents=True, exist_ok=True)
    path = out / CONVERSATIONS
    asked = questions(data, config.frames, _pictures(path), Vocabulary.load(vlm.folder), problems)
    cache, unread = KVCache(vlm, 1, 1), 0
    with progress(unit="frame", desc="answers") as bar, path.open("a", encoding="utf-8") as file:
        while batch := list(islice(asked, config.rows)):
            needed = max(len(prepare(vlm, each.prompt, each.jpeg).ids) for each in batch) + config.max_tokens
            if cache.capacity < needed:
                cache = KVCache(vlm, config.rows, needed)
            given = answer_all(vlm, cache, [(each.prompt, each.jpeg) for each in batch], config.max_tokens)
            unread += _write(out, file, batch, given)
            bar.update(len(batch))
    report_left_out(problems)
    count = len(_pictures(path))
    print(f"{path}: {count:,} answers; {unread:,} named no action, {len(problems):,} frames or files were left out")
    if not count:
        raise ValueError(f"no frame of {config.data} was answered with an action, so there is nothing to train on")


def _write(out: Path, file: TextIO, batch: list[_Question], answers: list[str]) -> int:
    """Write what names an action, the picture before the line that leads to it; return how many did not."""
    unread = 0
    for question, answer in zip(batch, answers, strict=True):
        if parse_answer(answer).action is None:
            unread += 1
            continue
        with replacing(out / question.name) as image:
            image.write_bytes(question.jpeg)
        file.write(json_line(question.prompt, answer.strip(), image=question.name))
    file.flush()
    return unread


def _run(config: AnswersConfig) -> int:
    """Answer frames, conversations or walks. Raises OSError, ModelFolderError or ValueError, in one sentence."""
    data, out = config.data, config.out
    if is_lerobot(data):
        walks = LeRobotData(data, config.camera)
        _compare_settings(config)
        answer_walks(load_vlm(config.model, resolved(config)), walks, config)
        return 0
    if data.suffix in (".json", ".jsonl"):
        if out.suffix != ".jsonl":
            raise ValueError(f"--out {out}: answers to conversations are one file; give a name that ends in .jsonl")
        _compare_settings(config)
        if not out.exists():
            vlm = load_vlm(config.model, resolved(config))
            source = ConversationFile(data, forbidden=tuple(vlm.tokenizer.get_added_vocab()))
            answer_conversations(vlm, source, config)
        return 0
    paths = shards(data)
    if not paths:
        raise FileNotFoundError(f"no training data in {data}: run 'python -m adapters_training data' first")
    _compare_settings(config)
    vlm = load_vlm(config.model, resolved(config))
    cache = KVCache(vlm, config.rows, CAPACITY)
    # every shard gives a few frames, so that they come from as many rooms as there are
    share = -(-config.frames // len(paths))
    for path in progress(paths, unit="shard", desc="answers"):
        if not (out / path.name).exists():
            rng = random.Random(path.name)
            frames = [frame for frame in read_shard(path) if teaches(frame)]
            chosen = rng.sample(frames, min(share, len(frames)))
            write_shard(out / path.name, ask(vlm, cache, chosen, config.questions, rng, config.max_tokens))
    return 0


COMMAND = Command(
    "answers", "let a target answer frames, conversations or walks, to learn from", __doc__, AnswersConfig, _run
)
