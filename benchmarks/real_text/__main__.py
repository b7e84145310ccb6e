"""A published text pair end to end: SmolLM2-135M's weights, drafts, exits and a fed head made here, and their speed.

    python -m benchmarks.real_text all --out out/smollm2 --plan      # what would be done, and how long it takes
    python -m benchmarks.real_text all --out out/smollm2 --save      # two hours; the same command goes on

Weights and conversations come out of installed Python packages (docs/benchmarks.md has the command). Every stage
makes a file or folder; one that is there is not made again: delete it to make it anew.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from adapters_training.__main__ import main as train
from benchmarks import peers
from benchmarks.real_text import corpus, engines, packages
from vlm_nav_evaluation.experiment.command import command_line, main_of
from vlm_nav_evaluation.options import add_save
from vlm_nav_evaluation.results import write_json
from vlm_nav_evaluation.tables import table

ALL = "all"
EXIT_LAYERS = (1, 5, 9, 13, 17, 21, 25, 28)
"""The target has 30 layers; exits after all, each with a head over 49,152 tokens, would take hours to train."""
CONTEXT = 256
SPARE = 4
"""Prompts beyond those that are timed: they warm up."""


class Sizes(NamedTuple):
    """How much of everything is done."""

    prompts: int = 100
    """How many prompts are timed."""
    max_tokens: int = 32
    answers: int = 1200
    """Questions that the target answers, for drafts to learn from."""
    held_answers: int = 120
    answer_tokens: int = 80
    length: tuple[str, str] = ("--epochs", "1")
    """How long drafts are trained."""
    exit_steps: int = 60
    verdicts: int = 40
    """Prompts on which exits judge drafts."""
    listed: int = 60
    """Prompts whose answers make the exits' short list."""
    drafted: int = 40
    """Prompts for which the draft engines draft."""
    rounds: int = 100
    """Number of rounds in which the draft engines are timed."""


FULL = Sizes()
QUICK = Sizes(2, 8, 6, 3, 8, ("--steps", "2"), 2, 2, 2, 2, 2)


class Stage(NamedTuple):
    """One stage: what it makes, about how many minutes that takes on two cores, and how it is done."""

    name: str
    what: str
    minutes: float
    made: Path | None
    """The file or folder that is there when the stage is done; None where it is done every time."""
    words: Sequence[str] = ()
    """Words of `python -m adapters_training`."""
    run: Callable[[], object] | None = None
    """What does it otherwise."""
    in_all: bool = True
    """Whether it is one of `all`; otherwise it needs a package that those do not."""

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to do."""
        return self.made is not None and self.made.exists()

    def do(self) -> None:
        """Do it. Raises ValueError, in one sentence, where it cannot be done."""
        if self.run is not None:
            self.run()
        elif train(list(self.words)):
            raise ValueError(f"stage {self.name} failed: python -m adapters_training {' '.join(self.words)}")


def stages(out: Path, sizes: Sizes, threads: int, save: bool = False) -> list[Stage]:
    """Return what is done, one after another."""
    target, draft, exits, head, made = (out / name for name in ("target", "draft", "exits", "fed_head", "corpus"))
    answers, held = out / "answers.jsonl", out / "answers_held_out.jsonl"
    shared = ["--threads", str(threads)]

    def answer(questions: str, into: Path, count: int) -> list[str]:
        words = ["answers", "--model", target, "--data", made / questions, "--out", into, "--frames", count,
                 "--rows", "32", "--max-tokens", sizes.answer_tokens, *shared]  # fmt: skip
        return list(map(str, words))

    def training(command: str, data: Path, held_out: Path, into: Path, *more: str) -> list[str]:
        words = [command, "--target", target, "--data", data, "--held-out", held_out, "--out", into,
                 "--held-out-samples", sizes.held_answers, "--context", CONTEXT, "--batch", 8 if sizes == FULL else 2,
                 "--schedule", "cosine", "--warmup-steps", "20", "--device", "cpu", *shared, *more]  # fmt: skip
        return list(map(str, words))

    drafts = training("text-draft", answers, held, draft, *sizes.length, "--learning-rate", "2e-3")
    exit_words = training(
        "exits", made / corpus.TRAIN, made / corpus.HELD_OUT, exits, "--loss", "kl", "--learning-rate", "1e-3",
        "--rank", "64", "--layers", *map(str, EXIT_LAYERS), "--steps", str(sizes.exit_steps),
    )  # fmt: skip
    verdicts = ["measure-exits", "--target", target, "--draft", draft, "--exits", exits,
                "--held-out", made / corpus.QUESTIONS_HELD_OUT, "--prompts", sizes.verdicts,
                "--list-prompts", sizes.listed, "--max-tokens", sizes.max_tokens, *shared,
                # A look has too few answers for a list that every exit has a verdict with.
                *(("--repeats", "20") if sizes == FULL else ("--repeats", "2", "--coverage", "0"))]  # fmt: skip
    heads = training("fed-head", answers, held, head, "--learning-rate", "5e-4", *sizes.length)
    saved = ["--save"] if save else []
    speed = ["--target-model", target, "--draft-model", draft, "--exits", exits, "--fed-head", head,
             "--frames", f"text:{made / corpus.PROMPTS}", "--steps", sizes.prompts, "--max-tokens", sizes.max_tokens,
             "--journal", out / "journal", "--out", out, *saved]  # fmt: skip
    engine_words = ["--target-model", target, "--frames", f"text:{made / corpus.PROMPTS}", "--steps", sizes.drafted,
                    "--max-tokens", sizes.max_tokens, "--rounds", sizes.rounds, *saved]  # fmt: skip
    return [
        Stage("target", "the package's GGUF weights as a model folder", 1, target, run=partial(convert, target)),
        Stage("corpus", "conversations, questions and prompts; every text through the tokenizer and back", 1,
              made / "corpus.json", run=partial(make_corpus, target, made, sizes.prompts + SPARE)),
        Stage("answers", "the target answers questions, for drafts to learn from", 12, answers,
              answer(corpus.QUESTIONS, answers, sizes.answers)),
        Stage("held-answers", "and others, to measure on", 1, held,
              answer(corpus.QUESTIONS_HELD_OUT, held, sizes.held_answers)),
        Stage("draft", "a small draft, distilled", 9, draft / "results.json", drafts),
        Stage("exits", "early exits, on real conversations", 11, exits / "results.json", exit_words),
        Stage("verdicts", "exits' verdicts on real drafts, their short list and cost", 7, exits / "measured.json",
              list(map(str, verdicts))),
        Stage("fed-head", "a draft head that the target feeds", 11, head / "results.json", heads),
        Stage("speed", "tokens a second beside transformers' generate and assisted generation", 70,
              None, run=partial(compare, list(map(str, speed)))),
        Stage("engines", "llama.cpp and torch draft with the target's own weights; not one of `all`", 11,
              None, run=partial(compare_engines, list(map(str, engine_words))), in_all=False),
    ]  # fmt: skip


def convert(out: Path) -> None:
    """Make a model folder of the package of weights."""
    from benchmarks.real_text.model import convert_gguf

    convert_gguf(packages.weights(), out)


def make_corpus(target: Path, out: Path, prompts: int) -> None:
    """Write conversations, questions and prompts of the packages, each checked with the target's tokenizer."""
    from transformers import AutoTokenizer

    from benchmarks.real_text.model import check_tokenizer

    talk = corpus.read_chitchat(packages.installed(packages.CHITCHAT))
    other = corpus.read_chatterbot(packages.installed(packages.CHATTERBOT))
    conversations = corpus.usable([*other, *talk])
    tokenizer = AutoTokenizer.from_pretrained(str(target), local_files_only=True)
    checked = check_tokenizer(tokenizer, (text for each in conversations for text in each.turns))
    records = corpus.write(conversations, out, prompts)
    write_json(out / "corpus.json", {"records": records, "tokenizer, decode(encode(text)) == text": checked})


def compare(words: Sequence[str]) -> None:
    """Time every way to decode on the prompts; what its journal has is not timed again.

    Raises ValueError where an answer of ours is not the target's.
    """
    if peers.main(words):
        raise ValueError(f"stage speed failed: python -m benchmarks.peers {' '.join(words)}")


def compare_engines(words: Sequence[str]) -> None:
    """Measure the draft engines on the weights of the package. Raises ValueError where one cannot draft."""
    words = [*words, "--draft-model", str(packages.weights())]
    if engines.main(words):
        raise ValueError(f"stage engines failed: python -m benchmarks.real_text.engines {' '.join(words)}")


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command_line("benchmarks.real_text", __doc__)
    names = [stage.name for stage in stages(Path(), FULL, 1)]
    line.add_argument("stage", choices=[ALL, *names], help="all of them but engines, or one")
    line.add_argument("--out", type=Path, default=Path("out/smollm2"), help="everything (default: %(default)s)")
    line.add_argument("--plan", action="store_true", help="print the stages and their minutes; do nothing")
    cores = len(os.sched_getaffinity(0))
    line.add_argument("--threads", type=int, default=cores, help="of trainings and measurements (default: all cores)")
    either = line.add_mutually_exclusive_group()
    shown = "every stage tiny, in the folder `quick` of --out, a few minutes: does it work here?"
    either.add_argument("--quick", action="store_true", help=shown)
    add_save(either)
    return line


def run(options: argparse.Namespace) -> None:
    """Do what is missing. Raises ValueError for what cannot be done."""
    if options.threads < 1:
        raise ValueError(f"--threads {options.threads}: give at least 1")
    out = (options.out / "quick" if options.quick else options.out).resolve()
    every = stages(out, QUICK if options.quick else FULL, options.threads, options.save)
    chosen = [each for each in every if options.stage == each.name or (options.stage == ALL and each.in_all)]
    if options.plan:
        rows = [(each.name, "done" if each.is_done else f"{each.minutes:g}", each.what) for each in chosen]
        # The last column is text, which `table` would align on the right.
        widest = max(len(what) for *_, what in rows)
        print(table(("stage", "minutes", "what"), [(name, left, what.ljust(widest)) for name, left, what in rows]))
        return
    for number, stage in enumerate(chosen, start=1):
        if stage.is_done:
            print(f"[{number}/{len(chosen)}] {stage.name}: {stage.made} is there", flush=True)
            continue
        print(f"[{number}/{len(chosen)}] {stage.name}: {stage.what}", flush=True)
        began = time.monotonic()
        stage.do()
        print(f"{stage.name}: {time.monotonic() - began:.0f} s", flush=True)


main = partial(main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
