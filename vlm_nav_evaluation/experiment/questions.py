"""Questions of an experiment: held-out rooms of the simulator, noise, text prompts or images; and their options."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np

from edge_drafter.draft_models import LoadedDraft
from speculation.language.prompts import Blocked, NavigationAction, Past, Vocabulary, compose
from speculation.vlm.families import family_of
from speculation.vlm.folder import find_model, read_config
from speculation.vlm.inputs import as_sent, prepare
from speculation.vlm.model import Vlm
from speculation.wire import MAX_DRAFT_TOKENS, MAX_PROMPT_CHARS
from vlm_nav_evaluation.experiment.mmspec import MMSPEC, is_mmspec, load_questions
from vlm_nav_evaluation.experiment.prompts import SAMPLE, TEXT_FILE, in_words, load_prompts, pick
from vlm_nav_evaluation.experiment.run import Question
from vlm_nav_evaluation.options import add_edge_flags, add_prompt_options
from vlm_nav_evaluation.search_prompts import PLAIN, Asking, SearchPrompts
from vlm_nav_evaluation.verifier_process import TEXT_CAPACITY
from vlm_nav_simulation.camera import Image
from vlm_nav_simulation.dataset import encode_jpeg
from vlm_nav_simulation.episode import oracle_policy, run_episode
from vlm_nav_simulation.ground_truth import observe
from vlm_nav_simulation.scene import UNSEEN_SEED, Difficulty, Scene, make_scene
from vlm_nav_simulation.world import World

FRAMES_PER_ROOM = 10
FRAME_SOURCES = ("simulation", "random", "text")
FILE_SOURCES = (TEXT_FILE, MMSPEC)
"""What sources begin with whose rest is a path."""
KNOWN_SOURCES = f"{', '.join(FRAME_SOURCES)}, {' or '.join(f'{source}PATH' for source in FILE_SOURCES)}"


def questions(source: str, count: int, seed: int = 0, how: Asking = PLAIN) -> list[Question]:
    """Return `count` questions: held-out rooms of the simulator, noise that needs no simulator (tiny models), or text.

    In rooms they are what the oracle would have been asked on its way, with what it had done by then. `text` is the
    sample of our own, `text:PATH` a file that `load_prompts` reads, `mmspec:PATH` a folder that `load_questions` reads;
    `seed` selects among their prompts where there are more. Raises ValueError for another source.
    """
    if is_mmspec(source):
        return load_questions(Path(source.removeprefix(MMSPEC)), count, seed)
    if in_words(source):
        prompts = load_prompts(Path(source.removeprefix(TEXT_FILE)) if source.startswith(TEXT_FILE) else SAMPLE)
        return [Question(prompt, b"") for prompt in pick(prompts, count, seed)]
    if source == "random":
        return list(_noise(count, seed, how))
    if source == "simulation":
        return list(itertools.islice(_rooms(seed, how), count))
    raise ValueError(f"frames {source!r} are unknown; choose {KNOWN_SOURCES}")


def check_prompts(vlm: LoadedDraft, asked: Sequence[Question], max_tokens: int, capacity: int = TEXT_CAPACITY) -> None:
    """Raise ValueError as `check_question` for a text prompt; questions with a frame of our own are short."""
    for question in asked:
        if not question.jpeg:
            check_question(vlm, question, max_tokens, capacity)


def check_question(vlm: LoadedDraft, question: Question, max_tokens: int, capacity: int) -> None:
    """Raise ValueError for a question that `vlm` refuses, or that with answer and draft exceeds a session's cache."""
    prompt = question.prompt
    shown = f"sample {question.name}" if question.name else f"prompt {prompt[:47] + '...' if prompt[50:] else prompt!r}"
    if len(prompt) > MAX_PROMPT_CHARS:
        raise ValueError(f"{shown} has {len(prompt)} characters with the turns before, the limit is {MAX_PROMPT_CHARS}")
    try:
        # Of an engine's frames nobody knows the number of tokens before they are read.
        ids = prepare(vlm, prompt, as_sent(vlm, question.jpeg)).ids if isinstance(vlm, Vlm) else vlm.words(prompt)
    except ValueError as error:
        raise ValueError(f"{shown}: {error}") from None
    tokens = len(ids)
    if tokens + max_tokens + MAX_DRAFT_TOKENS > capacity:
        raise ValueError(
            f"{shown} has {tokens} tokens; with an answer of {max_tokens} and a draft it does not fit the {capacity} "
            "of a session; take it out of the file, ask for fewer tokens (--max-tokens) or give more room (--capacity)"
        )


def read_source(text: str) -> str:
    """Return a source of questions; an argparse type."""
    if text in FRAME_SOURCES or (text.startswith(FILE_SOURCES) and text not in FILE_SOURCES):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is unknown; choose {KNOWN_SOURCES}")


def add_questions(line: argparse.ArgumentParser, dtype: str = "float32") -> None:
    """Register the questions and how they are computed: --frames, --seed, prompt options, --max-tokens, --dtype."""
    shown = (f"{', '.join(FRAME_SOURCES)} (prompts of our own, for a pair of language models), {TEXT_FILE}PATH of a "
             f"file in the form of GSM8K, HumanEval, MT-Bench or Spec-Bench, or {MMSPEC}PATH of a folder in MMSpec's "
             "form (default: %(default)s)")  # fmt: skip
    line.add_argument("--frames", default="simulation", type=read_source, metavar="SOURCE", help=shown)
    line.add_argument("--seed", type=int, default=0, help="which held-out rooms, and of random draws (default: 0)")
    add_prompt_options(line)
    add_edge_flags(line, "max_tokens", "dtype", dtype=dtype)


def asked_of(options: argparse.Namespace, count: int) -> list[Question]:
    """Return `count` questions as a command's options name them. Raises ValueError as `questions` and `asked_as`."""
    return questions(options.frames, count, options.seed, asked_as(options))


def warmed_up(options: argparse.Namespace, steps: int, warm_up: int) -> tuple[list[Question], list[Question]]:
    """Return questions for the warm-up, and `steps` others to measure.

    A mode that remembers earlier answers must not have answered what is measured. In the simulation the former are
    about another room; where they are of a folder in MMSpec's form it is noise, so that all samples can be measured.
    """
    how = asked_as(options)
    if is_mmspec(options.frames):
        return questions("random", warm_up, options.seed, how), asked_of(options, steps)
    if not in_words(options.frames):
        before = questions(options.frames, warm_up, options.seed + 1, how)
        return before, questions(options.frames, steps, options.seed, how)
    every = questions(options.frames, steps + warm_up, options.seed, how)
    return every[steps:], every[:steps]


def asked_as(options: argparse.Namespace) -> Asking:
    """Return how a command's options ask their target.

    Raises ValueError for frames with a language model alone, or text with a target that sees images.
    """
    target, source = options.target_model, options.frames
    folder = find_model(target)
    if (folder / "config.json").is_file():  # where there is none, loading it raises the error
        sees = family_of(read_config(folder)["model_type"]).sees_images
        if sees and in_words(source):
            raise ValueError(
                f"--frames {source} asks in words, and target {target} sees images; give a pair of language models "
                "alone with --target-model and --draft-model"
            )
        if not sees and not in_words(source):
            raise ValueError(f"target {target} is a language model alone; ask it with --frames text or text:PATH")
    return Asking.of(options, Vocabulary.load(folder))


def _noise(count: int, seed: int, how: Asking) -> Iterator[Question]:
    dice = np.random.default_rng([seed, 1])
    for _ in range(count):
        _, data = cv2.imencode(".jpg", dice.integers(0, 256, (224, 224, 3), dtype=np.uint8))
        yield Question(compose("find the silver bottle", (), how.order, how.guide), bytes(data))


def _rooms(seed: int, how: Asking) -> Iterator[Question]:
    for room in itertools.count(UNSEEN_SEED + 1000 * seed):
        scene = make_scene(room, Difficulty.MIDDLE)
        yield from _walk(scene, SearchPrompts(scene.target, how))


def _walk(scene: Scene, prompts: SearchPrompts) -> list[Question]:
    decide, asked, done = oracle_policy(scene), list[Question](), list[Past]()

    def look(image: Image, world: World) -> NavigationAction | None:
        if done and world.blocked and isinstance(done[-1], NavigationAction):
            done[-1] = Blocked(done[-1])
        asked.append(Question(prompts.ask(world.pose, done), encode_jpeg(image)))
        prompts.see(observe(world)[scene.target_index])
        action = decide(image, world)
        if action is not None:
            done.append(action)
        return action

    run_episode(scene, look, FRAMES_PER_ROOM)
    return asked
