"""What coupled sampling costs in acceptance: a draft against its target, both drawing with the same noise.

Along the target's own sample, token by token, the target's distribution p and the draft's q stand after the same
prefix. There coupling accepts the draft's draw if it is the target's; rejection sampling, which must send
probabilities, accepts it with probability 1 - TV(p, q), the most that any method can; coupling with Gumbel noise
reaches at least (1 - TV) / (1 + TV) (Daliri, Musco, Suresh, arXiv 2408.07978).

Where the target has exits: how often each draws what the target draws, and how sure it was of that by the
reliability table, which was measured on greedy verdicts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from cloud_verifier.config import ServerConfig
from cloud_verifier.engine import VlmEngine, find_exits
from cloud_verifier.work import VerifyRow
from evaluation.experiment.command import add_save, settings_of, write_result
from evaluation.experiment.questions import add_questions, asked_as, questions
from evaluation.experiment.run import Question
from evaluation.setting import add_pair, machine
from evaluation.tables import table
from speculation.sampling import GREEDY, Distribution, Logits, Row, SamplingSettings, StepDraws, choose, question_key
from speculation.vlm.load import load_vlm
from speculation.vlm.session import VlmSession
from speculation.wire import ROOT

CAPACITY = 2048


@dataclass(frozen=True)
class Place:
    """One place of a sample: whether the two drew the same, and what p and q let expect.

    coupled: the probability that they do, over all noise. rejection: 1 - TV(p, q).
    """

    same: bool
    coupled: float
    rejection: float

    @property
    def bound(self) -> float:
        """What coupling reaches at least."""
        return self.rejection / (2.0 - self.rejection)


def coupled_agreement(p: Row, q: Row) -> float:
    """Return the probability that argmax(log p + g) = argmax(log q + g) over Gumbel noise g.

    It is the sum over tokens j of 1 / sum_i max(p_i / p_j, q_i / q_j) (arXiv 2408.07978); in the order of p_i / q_i the
    inner sums are a sum of q up to j and one of p from j on.
    """
    some = (p > 0.0) | (q > 0.0)
    p, q = p[some], q[some]
    order = np.argsort(np.divide(p, q, out=np.full(len(p), np.inf), where=q > 0.0))
    p, q = p[order], q[order]
    before = np.cumsum(q) - q
    from_here = np.cumsum(p[::-1])[::-1]
    both = (p > 0.0) & (q > 0.0)
    return float((1.0 / (from_here[both] / p[both] + before[both] / q[both])).sum())


def compare(p: Logits, q: Logits, settings: SamplingSettings, draws: StepDraws) -> Place:
    """Return what becomes of the draft's draw, with logits q, where the target's logits are p."""
    ours, theirs = Distribution.of(p, settings).row, Distribution.of(q, settings).row
    same = choose(p, settings, draws)[0] == choose(q, settings, draws)[0]
    return Place(same, coupled_agreement(ours, theirs), float(np.minimum(ours, theirs).sum()))


def follow(
    target: VlmSession, draft: VlmSession, question: Question, settings: SamplingSettings, key: int, limit: int
) -> list[Place]:
    """Return the places of the target's sample with `key`; the draft reads that sample along."""
    sample = list(target.sampled(question.prompt, question.jpeg, limit, settings, key))
    tokens = [token for token, _ in sample]
    draft.begin(question.prompt, question.jpeg)
    rows = [draft.root_logits(), *draft.extend(tokens[:-1], range(ROOT, len(tokens) - 2))]
    return [
        compare(logits, row, settings, StepDraws(key, position))
        for position, ((_, logits), row) in enumerate(zip(sample, rows, strict=True))
    ]


def hear(
    engine: VlmEngine, question: Question, settings: SamplingSettings, key: int, limit: int
) -> list[tuple[int, bool, float]]:
    """Return what exits say while the target draws alone: layer, whether it was right, calibrated confidence."""
    said: list[tuple[int, bool, float]] = []
    engine.prefill(0, engine.prepare(question.prompt, question.jpeg), (), limit)
    for position in range(limit):
        row = VerifyRow(0, (), (), True, settings, StepDraws(key, position))
        *early, last = engine.verify([row])
        token = last.verdicts[0].token
        found = [(output.layer, output.verdicts[0]) for output in early if output.verdicts]
        said += [(layer, verdict.token == token, verdict.confidence) for layer, verdict in found]
        if token in engine.model.eos:
            break
        engine.keep(0, (), token)
    return said


def exit_figures(said: Sequence[tuple[int, bool, float]]) -> dict[str, dict[str, float]]:
    """Return, for every exit layer, the share of verdicts that were right and the mean confidence."""
    layers = sorted({layer for layer, _, _ in said})
    return {
        str(layer): {
            "right": float(np.mean([right for each, right, _ in said if each == layer])),
            "confidence": float(np.mean([sure for each, _, sure in said if each == layer])),
        }
        for layer in layers
    }


def figures(frames: Sequence[Sequence[Place]]) -> dict[str, Any]:
    """Return the acceptance per token: over all tokens, and the least, median and largest mean of a frame."""
    kinds: dict[str, Callable[[Place], float]] = {
        "coupled": lambda place: float(place.same),
        "coupled_expected": lambda place: place.coupled,
        "rejection": lambda place: place.rejection,
        "bound": lambda place: place.bound,
    }
    found: dict[str, Any] = {"frames": len(frames), "tokens": sum(len(places) for places in frames)}
    for name, of in kinds.items():
        means = [float(np.mean([of(place) for place in places])) for places in frames]
        found[name] = {
            "mean": float(np.mean([of(place) for places in frames for place in places])),
            "min": min(means),
            "median": float(np.median(means)),
            "max": max(means),
        }
    return found


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(prog="python -m benchmarks.coupling", description=(__doc__ or "").splitlines()[0])
    add_pair(line)
    line.add_argument("--steps", type=int, default=40, help="frames (default: 40)")
    line.add_argument("--temperatures", default="0.7,1.0", help="temperatures, comma-separated (default: 0.7,1.0)")
    line.add_argument("--top-k", type=int, default=0, help="0: all tokens (default)")
    line.add_argument("--top-p", type=float, default=1.0, help="1: all tokens (default)")
    add_questions(line)
    add_save(line)
    return line


def settings_asked(options: argparse.Namespace) -> list[SamplingSettings]:
    """Return the sampling settings to compare. Raises ValueError, naming the option."""
    try:
        temperatures = [float(word) for word in options.temperatures.split(",")]
    except ValueError:
        raise ValueError(f"--temperatures {options.temperatures!r}: give numbers, e.g. 0.7,1.0") from None
    found = [SamplingSettings(temperature, options.top_k, options.top_p) for temperature in temperatures]
    if any(settings.greedy for settings in found):
        raise ValueError("--temperatures: 0 draws nothing; give 0.01 to 100")
    return found


def measure(options: argparse.Namespace, wanted: Sequence[SamplingSettings]) -> dict[str, Any]:
    """Return the figures of every setting, by its text: acceptance, and exits where the target has some."""
    draft = VlmSession(load_vlm(options.draft_model, dtype=options.dtype), CAPACITY)
    target = VlmSession(load_vlm(options.target_model, dtype=options.dtype), CAPACITY)
    if target.vlm.tokenizer_fingerprint != draft.vlm.tokenizer_fingerprint:
        raise ValueError(f"draft {draft.vlm.name} and target {target.vlm.name} do not share one tokenizer")
    asked = questions(options.frames, options.steps, options.seed, *asked_as(options))
    exits = find_exits(ServerConfig(options.target_model), target.vlm)
    engine = VlmEngine(target.vlm, 1, CAPACITY, exits)
    found: dict[str, list[list[Place]]] = {settings.text: [] for settings in wanted}
    said: dict[str, list[tuple[int, bool, float]]] = {settings.text: [] for settings in (GREEDY, *wanted)}
    for number, question in enumerate(tqdm(asked, unit="frame", disable=None)):
        key = question_key(options.seed, number)
        for settings in wanted:
            found[settings.text].append(follow(target, draft, question, settings, key, options.max_tokens))
        for settings in (GREEDY, *wanted) if exits is not None else ():
            said[settings.text] += hear(engine, question, settings, key, options.max_tokens)
    return {
        "acceptance": {text: figures(frames) for text, frames in found.items()},
        "exits": {text: exit_figures(verdicts) for text, verdicts in said.items() if verdicts},
    }


def text_of(found: dict[str, Any]) -> str:
    """Return a table with four rows for every setting."""
    names = {
        "coupled": "coupled, as drawn",
        "coupled_expected": "coupled, over all noise",
        "rejection": "rejection, 1 - TV",
        "bound": "bound, (1 - TV) / (1 + TV)",
    }
    rows = [
        (f"{text}: {name}", *(f"{entry[kind][part]:.3f}" for part in ("mean", "min", "median", "max")))
        for text, entry in found.items()
        for kind, name in names.items()
    ]
    return table(("acceptance per token", "all tokens", "min frame", "median frame", "max frame"), rows)


def exits_text(found: dict[str, Any]) -> str:
    """Return a table of the exits: right, and how sure, by layer."""
    layers = list(next(iter(found.values())))
    rows = [
        (text, *(f"{100 * entry[layer]['right']:.0f} ({100 * entry[layer]['confidence']:.0f})" for layer in layers))
        for text, entry in found.items()
    ]
    return table(("exits: right (said), %", *(f"layer {layer}" for layer in layers)), rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison. Returns the exit code: 0, or 2 if it could not run."""
    options = parser().parse_args(arguments)
    try:
        if options.steps < 1:
            raise ValueError(f"--steps {options.steps}: give at least 1")
        found = measure(options, settings_asked(options))
    except (ValueError, RuntimeError) as error:
        print(f"coupling: {error}", file=sys.stderr)
        return 2
    tokens = ", ".join(f"{entry['tokens']} at {text}" for text, entry in found["acceptance"].items())
    print(f"{options.steps} frames ({options.frames}), {options.dtype}, tokens of the target's own samples: {tokens}")
    print(text_of(found["acceptance"]))
    if found["exits"]:
        print(exits_text(found["exits"]))
    print(machine())
    if options.save:
        data = {"settings": settings_of(options, "save"), "machine": machine(), **found}
        write_result(f"coupling_{options.dtype}", data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
