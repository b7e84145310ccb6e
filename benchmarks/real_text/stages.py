"""What is done, one stage after another: each makes one file or folder, and one that is there is not made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from adapters_training.__main__ import main as train
from benchmarks.real_text import corpus, packages
from benchmarks.real_text.setup import FULL, QUICK_STEPS, Setup, write_json
from benchmarks.real_text.speed import compare

EXIT_LAYERS = (1, 5, 9, 13, 17, 21, 25, 28)
"""Of 30 layers. An exit after every layer would take a training of hours, each with a head over 49,152 tokens."""
CONTEXT = 256
SPARE = 4
"""Prompts beyond those that are measured: they warm up."""


@dataclass(frozen=True)
class Stage:
    """One stage: what it makes, about how many minutes it takes, and how.

    `minutes` are of two cores and `FULL`, reckoned from the processor time of single steps on a busy machine.
    """

    name: str
    what: str
    minutes: float
    made: Callable[[Setup], Path]
    """The file that is there when the stage is done."""
    command: Callable[[Setup], list[str]] | None = None
    """Words of `python -m adapters_training` that do it."""
    run: Callable[[Setup], None] | None = None
    """What does it otherwise."""

    def do(self, setup: Setup) -> None:
        """Do it. Raises ValueError, in one sentence, where it cannot be done."""
        if self.command is not None:
            words = self.command(setup)
            if train(words):
                raise ValueError(f"stage {self.name} failed: python -m adapters_training {' '.join(words)}")
        if self.run is not None:
            self.run(setup)

    def shown(self, setup: Setup) -> str:
        """Return the command that does it by itself."""
        if self.command is not None and self.run is None:
            return f"python -m adapters_training {' '.join(self.command(setup))}"
        return f"python -m benchmarks.real_text {self.name} --out {setup.out}"


def _convert(setup: Setup) -> None:
    from benchmarks.real_text.model import convert

    convert(packages.weights(), setup.target)


def _corpus(setup: Setup) -> None:
    from transformers import AutoTokenizer

    from benchmarks.real_text.model import check_tokenizer

    talk = corpus.read_chitchat(packages.installed(packages.CHITCHAT))
    other = corpus.read_chatterbot(packages.installed(packages.CHATTERBOT))
    conversations = corpus.usable([*other, *talk])
    tokenizer = AutoTokenizer.from_pretrained(str(setup.target), local_files_only=True)
    checked = check_tokenizer(tokenizer, (text for each in conversations for text in each.turns))
    records = corpus.write(conversations, setup.corpus, FULL.prompts + SPARE)
    write_json(setup.corpus / "corpus.json", {"records": records, "tokenizer, decode(encode(text)) == text": checked})


def _speed(setup: Setup) -> None:
    write_json(setup.speed, compare(setup))


def _answers(setup: Setup, questions: str, out: Path, count: int) -> list[str]:
    return [
        "answers", "--model", str(setup.target), "--data", str(setup.corpus / questions), "--out", str(out),
        "--frames", str(count), "--rows", "32", "--max-tokens", str(setup.sizes.answer_tokens),
        "--threads", str(setup.threads),
    ]  # fmt: skip


def _training(setup: Setup, command: str, data: Path, held_out: Path, out: Path, *more: str) -> list[str]:
    return [
        command, "--target", str(setup.target), "--data", str(data), "--held-out", str(held_out), "--out", str(out),
        "--held-out-samples", str(setup.sizes.held_answers), "--context", str(CONTEXT),
        "--batch", "2" if setup.quick else "8", "--schedule", "cosine", "--warmup-steps", "20", "--device", "cpu",
        "--threads", str(setup.threads), *more,
    ]  # fmt: skip


def _length(setup: Setup, epochs: float, steps: int = 0) -> list[str]:
    if setup.quick:
        return ["--steps", str(QUICK_STEPS)]
    return ["--steps", str(steps)] if steps else ["--epochs", f"{epochs:g}"]


def _draft(setup: Setup) -> list[str]:
    length = _length(setup, setup.sizes.draft_epochs)
    return _training(
        setup, "text-draft", setup.answers, setup.held_answers, setup.draft, *length, "--learning-rate", "2e-3"
    )


def _exits(setup: Setup) -> list[str]:
    train_on, held_out = setup.corpus / corpus.TRAIN, setup.corpus / corpus.HELD_OUT
    return _training(
        setup, "exits", train_on, held_out, setup.exits, "--loss", "kl", "--learning-rate", "1e-3", "--rank", "64",
        "--layers", *map(str, EXIT_LAYERS), *_length(setup, 0.0, setup.sizes.exit_steps),
    )  # fmt: skip


def _fed_head(setup: Setup) -> list[str]:
    return _training(
        setup, "fed-head", setup.answers, setup.held_answers, setup.fed_head, "--learning-rate", "5e-4",
        *_length(setup, setup.sizes.fed_epochs),
    )  # fmt: skip


def _verdicts(setup: Setup) -> list[str]:
    return [
        "measure-exits", "--target", str(setup.target), "--draft", str(setup.draft), "--exits", str(setup.exits),
        "--held-out", str(setup.corpus / corpus.QUESTIONS_HELD_OUT), "--prompts", str(setup.sizes.verdicts),
        "--list-prompts", str(setup.sizes.listed), "--max-tokens", str(setup.sizes.max_tokens),
        "--threads", str(setup.threads),
        # A look has too few answers for a list that every exit has a verdict with.
        *(("--repeats", "2", "--coverage", "0") if setup.quick else ("--repeats", "20")),
    ]  # fmt: skip


STAGES: Sequence[Stage] = (
    Stage("target", "the package's GGUF weights as a model folder", 1, lambda setup: setup.target, run=_convert),
    Stage("corpus", "conversations, questions and prompts; every text through the tokenizer and back", 1,
          lambda setup: setup.corpus / "corpus.json", run=_corpus),
    Stage("answers", "the target answers questions, for drafts to learn from", 12, lambda setup: setup.answers,
          lambda setup: _answers(setup, corpus.QUESTIONS, setup.answers, setup.sizes.answers)),
    Stage("held-answers", "and others, to measure on", 1, lambda setup: setup.held_answers,
          lambda setup: _answers(setup, corpus.QUESTIONS_HELD_OUT, setup.held_answers, setup.sizes.held_answers)),
    Stage("draft", "a small draft, distilled", 9, lambda setup: setup.draft / "results.json", _draft),
    Stage("exits", "early exits, on real conversations", 11, lambda setup: setup.exits / "results.json", _exits),
    Stage("verdicts", "exits' verdicts on real drafts, their short list and cost", 7,
          lambda setup: setup.exits / "measured.json", _verdicts),
    Stage("fed-head", "a draft head that the target feeds", 11,
          lambda setup: setup.fed_head / "results.json", _fed_head),
    Stage("speed", "tokens a second beside transformers' generate and assisted generation", 70,
          lambda setup: setup.speed, run=_speed),
)  # fmt: skip
