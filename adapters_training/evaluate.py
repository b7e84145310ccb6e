"""Held-out grounding: does the answer say what is in the picture, and act as the oracle would?"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from adapters_training import wording
from adapters_training.records import Frame, Task, read_frames
from speculation.prompts import parse_answer
from speculation.vlm.load import Vlm
from speculation.vlm.session import VlmSession

MAX_TOKENS = 96
_PHRASES = {phrase: side for side, phrases in wording.SIDES.items() for phrase in phrases}


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
    """True positives, said stop, should stop."""

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
    """Return the side on which an answer says it sees `target`; None where it says that it does not."""
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
    right_side = task.seen is None or side == task.seen.side
    if task.seen is not None:
        score.side_asked += 1
        score.side += right_side
    score.grounded += present and right_side
    score.stop[2] += task.action == "stop"
    if parsed.action is None:
        return
    score.parsed += 1
    said = parsed.action.text
    score.action += said == task.action
    score.kind += said.rpartition(" ")[0] == task.action.rpartition(" ")[0] if said != task.action else 1
    score.stop[1] += said == "stop"
    score.stop[0] += said == task.action == "stop"


def pick(frames: Sequence[Frame], count: int, seed: int = 0) -> list[tuple[Frame, Task]]:
    """Return `count` (frame, task) pairs, one per frame, about 30 % of them with the target out of view."""
    rng = random.Random(seed)
    chosen: list[tuple[Frame, Task]] = []
    for frame in rng.sample(list(frames), min(count, len(frames))):
        visible = [task for task in frame.tasks if task.seen is not None]
        hidden = [task for task in frame.tasks if task.seen is None]
        pool = visible if visible and (not hidden or rng.random() < 0.7) else hidden
        chosen.append((frame, rng.choice(pool)))
    return chosen


def evaluate(vlm: Vlm, folder: Path, count: int, seed: int = 0, show: int = 0) -> Score:
    """Generate answers for `count` held-out (frame, task) pairs and count what is right."""
    session = VlmSession(vlm, 512)
    rng = random.Random(seed)
    score = Score()
    for frame, task in tqdm(pick(list(read_frames(folder)), count, seed), desc="answers", mininterval=5.0):
        text = session.answer(wording.instruction(task, rng), frame.jpeg, MAX_TOKENS)
        judge(score, task, text)
        if show > 0:
            show -= 1
            truth = task.seen and f"{task.seen.side} {task.seen.distance:.1f} m"
            tqdm.write(f"{task.colour} {task.object_class} ({truth}; {task.action}): {text!r}")
    return score
