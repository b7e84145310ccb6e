"""Held-out grounding: does the answer describe the image, and act as the oracle would?

example (about four answers a second):
  python -m adapters_training evaluate --model models/target --held-out out/held-out
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta
from tqdm import tqdm

from adapters_training import wording
from adapters_training.devices import ModelConfig, resolved
from adapters_training.records import Frame, Task, read_frames
from adapters_training.settings import Command
from speculation.language.grammar import CONSTRAINED, grammar_for
from speculation.language.prompts import ResponseOrder, parse_answer
from speculation.language.search_memory import SIDE_PHRASES
from speculation.progress import progress
from speculation.vlm.load import load_vlm
from speculation.vlm.model import Vlm
from speculation.vlm.session import VlmSession

MAX_TOKENS = 96
SIZES = (1, 40, 90, 300)
"""Groups of objects in view by their size: the least pixels of each, of a 224 x 224 frame."""


class Naming(str, Enum):
    """How an instruction names what is looked for."""

    OBJECT = "object"
    CLASS = "class"
    COLOUR = "colour"

    @classmethod
    def of(cls, task: Task) -> Naming:
        """Return what a task's instruction names: 'the red ball', 'a ball', 'something red'."""
        if wording.names_both(task):
            return cls.OBJECT
        return cls.COLOUR if task.query.startswith("find something ") else cls.CLASS


_PHRASES = {phrase: side for side, phrases in SIDE_PHRASES.items() for phrase in phrases}


@dataclass
class Score:
    """Counts over answers. `grounded` asks for everything at once: seen or not, the right object, the right side."""

    answers: int = 0
    parsed: int = 0
    presence: int = 0
    side: int = 0
    side_asked: int = 0
    grounded: int = 0
    kind: int = 0
    action: int = 0
    stop: list[int] = field(default_factory=lambda: [0, 0, 0])
    """True positives, answers that stop, answers that should stop."""
    by_size: dict[int, list[int]] = field(default_factory=lambda: {least: [0, 0] for least in SIZES})
    """Of what is in view, by least pixels: how often it is seen, and asked for. Uncounted pixels do not count."""
    claimed: list[int] = field(default_factory=lambda: [0, 0])
    """Of what is out of view and asked for by colour and class: how often it is seen all the same, and asked for."""

    def sight(self) -> dict[str, tuple[float, int]]:
        """Return how often what is asked for is seen, 0..1, and of how many questions: by pixels, and out of view."""
        names = [f"{a} to {b - 1} pixels" for a, b in pairwise(SIZES)] + [f"{SIZES[-1]} pixels or more"]
        counts = dict(zip(names, self.by_size.values(), strict=True)) | {"out of view": self.claimed}
        return {name: (seen / asked, asked) for name, (seen, asked) in counts.items() if asked}

    def rates(self) -> dict[str, float]:
        """Return the rates in 0..1 that the model card prints."""
        n = max(self.answers, 1)
        return {
            "answers": self.answers,
            "parsed": self.parsed / n,
            "presence": self.presence / n,
            "side": self.side / max(self.side_asked, 1),
            "grounded": self.grounded / n,
            "action kind": self.kind / n,
            "action exact": self.action / n,
            "stop precision": self.stop[0] / max(self.stop[1], 1),
            "stop recall": self.stop[0] / max(self.stop[2], 1),
        }


def claimed_side(text: str, target: str) -> str | None:
    """Return the side on which an answer sees `target`; None where it sees none."""
    first = text.split(".", 1)[0] if ".5" not in text.split(".")[0] else text
    sentence = first if target in first else text
    if any(form.format(target=target).rstrip(".") in sentence for form in wording.MISSING):
        return None
    if target not in sentence:
        return None
    found = [(sentence.find(phrase), side) for phrase, side in _PHRASES.items() if phrase in sentence]
    return min(found)[1] if found else ""


def judge(score: Score, task: Task, text: str) -> None:
    """Count one answer."""
    score.answers += 1
    parsed = parse_answer(text)
    side = claimed_side(parsed.reasoning, f"{task.colour} {task.object_class}")
    present = (side is not None) == (task.seen is not None)
    score.presence += present
    group = None
    if task.seen is not None and task.seen.pixels:
        group = score.by_size[max(least for least in SIZES if least <= task.seen.pixels)]
    elif task.seen is None and wording.names_both(task):
        group = score.claimed
    if group is not None:
        group[0] += side is not None
        group[1] += 1
    right_side = task.seen is None or side == task.seen.side
    if task.seen is not None:
        score.side_asked += 1
        score.side += right_side
    score.grounded += present and right_side
    score.stop[2] += task.action == "stop"
    if parsed.action is None:
        return
    score.parsed += 1
    named = parsed.action.text
    score.action += named == task.action
    score.kind += named.rpartition(" ")[0] == task.action.rpartition(" ")[0] if named != task.action else 1
    score.stop[1] += named == "stop"
    score.stop[0] += named == task.action == "stop"


def pick(frames: Sequence[Frame], count: int, form: int = 2, asked: Naming | None = None) -> list[tuple[Frame, Task]]:
    """Return up to `count` (frame, task) pairs, one per frame, about 30 % of them with the target out of view.

    Only what a model of this prompt form can be asked, and with `asked` instructions of this kind alone.
    """
    rng = random.Random(0)
    fitting = [
        [task for task in frame.tasks if wording.fits(task, form) and asked in (None, Naming.of(task))]
        for frame in frames
    ]
    able = [pair for pair in zip(frames, fitting, strict=True) if pair[1]]
    return [(frame, wording.choose_one(tasks, rng)) for frame, tasks in rng.sample(able, min(count, len(able)))]


def evaluate(
    vlm: Vlm,
    folder: Path,
    count: int,
    show: int = 0,
    order: ResponseOrder = ResponseOrder.REASON_FIRST,
    constrained: bool = False,
    asked: Naming | None = None,
) -> Score:
    """Generate answers for `count` held-out (frame, task) pairs and count what is right; `asked` as in `pick`.

    `constrained`: under the grammar of an answer, as robots ask. Raises ValueError where no frame has such a question.
    """
    session = VlmSession(vlm, 512)
    grammars = vlm.grammars() if constrained else None
    form, score = wording.form_of(vlm.folder), Score()
    questions = pick(list(read_frames(folder)), count, form, asked)
    if not questions:
        kind = f" of the kind {asked.value!r}" if asked is not None else ""
        raise ValueError(
            f"--held-out {folder} holds no questions{kind} for this model; make some with 'data --held-out'"
        )
    for frame, task in progress(questions, desc="answers", mininterval=5.0):
        prompt = wording.prompt(task, order, form)
        grammar = grammars.of(grammar_for(prompt), vlm.eos, vlm.thinking) if grammars is not None else None
        text = session.answer(prompt, frame.jpeg, MAX_TOKENS, grammar)
        judge(score, task, text)
        if show > 0:
            show -= 1
            truth = task.seen and f"{task.seen.side} {task.seen.distance:.1f} m"
            tqdm.write(f"{task.colour} {task.object_class} ({truth}; {task.action}): {text!r}")
    return score


class EvaluateConfig(ModelConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the command that asks a model about held-out frames."""

    model: Annotated[Path, Meta(description="model folder")]
    held_out: Annotated[Path, Meta(description="frames of 'data --held-out'")]
    count: Annotated[int, Meta(ge=1, description="frames asked about")] = 300
    order: Annotated[ResponseOrder, Meta(description=f"one of {', '.join(each.value for each in ResponseOrder)}")] = (
        ResponseOrder.REASON_FIRST
    )
    answers: Annotated[
        Literal["free", "constrained"], Meta(description="constrained: under the grammar of an answer, as on the robot")
    ] = "free"
    asked: Annotated[
        Naming | None,
        Meta(description=f"questions that name this alone, of {', '.join(each.value for each in Naming)}; none: all"),
    ] = None
    show: Annotated[int, Meta(ge=0, description="print this many answers beside the truth")] = 0
    json: Annotated[Path | None, Meta(description="also write the rates, and sight by size, to this file")] = None


def _run(config: EvaluateConfig) -> int:
    """Print the rates of one model. Raises ValueError or FileNotFoundError for folders of no use."""
    score = evaluate(
        load_vlm(config.model, resolved(config)), config.held_out, config.count, show=config.show, order=config.order,
        constrained=config.answers == CONSTRAINED, asked=config.asked,
    )  # fmt: skip
    rates = score.rates()
    for name, rate in rates.items():
        print(f"{name:16s} {rate:.3f}" if isinstance(rate, float) else f"{name:16s} {rate}")
    print("answers that see what is asked for, by what the frame shows of it:")
    for name, (rate, count) in score.sight().items():
        print(f"{name:20s} {rate:.3f} of {count}")
    if config.json:
        config.json.write_text(json.dumps(rates | {"sight": score.sight()}, indent=1) + "\n", encoding="utf-8")
    return 0


COMMAND = Command("evaluate", "grounding and action agreement on held-out frames", __doc__, EvaluateConfig, _run)
