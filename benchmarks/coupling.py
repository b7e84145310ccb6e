"""What coupled sampling costs in acceptance: a draft against its target, both sampling with the same noise.

Along the target's own sample, token by token, the target's distribution p and the draft's q stand after the same
prefix. There coupling accepts the draft's token if it is the target's; rejection sampling, which must send
probabilities, accepts it with probability 1 - TV(p, q), the most that any method can; coupling with Gumbel noise
reaches at least (1 - TV) / (1 + TV) (Daliri, Musco, Suresh, arXiv 2408.07978).

Where the target has exits: how often each samples what the target samples, and how confident it was by the
reliability table, which was measured on greedy verdicts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from cloud_verifier import work
from cloud_verifier.config import ServerConfig
from cloud_verifier.engine import VlmEngine, find_exits
from speculation.progress import progress
from speculation.sampling import (
    GREEDY,
    Coupled,
    Distribution,
    Floats,
    Logits,
    SamplingScheme,
    StepDraws,
    choose,
    question_key,
)
from speculation.vlm.load import load_vlm
from speculation.vlm.session import VlmSession
from speculation.wire import ROOT
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.questions import asked_of
from vlm_nav_evaluation.experiment.run import Question
from vlm_nav_evaluation.figures import spread
from vlm_nav_evaluation.tables import Column, figures_table

CAPACITY = 2048
KINDS = {
    "coupled": "coupled, as sampled",
    "coupled_expected": "coupled, over all noise",
    "rejection": "rejection, 1 - TV",
    "bound": "bound, (1 - TV) / (1 + TV)",
}
COLUMNS = (
    Column("all tokens", "mean", ".3f"),
    *(Column(f"{name} frame", name, ".3f") for name in ("min", "median", "max")),
)
ExitVerdict = tuple[int, bool, float]
"""Layer, whether its token was the target's, calibrated confidence."""


def coupled_agreement(p: Floats, q: Floats) -> float:
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


def compare(p: Logits, q: Logits, settings: SamplingScheme, draws: StepDraws) -> dict[str, float]:
    """Return the acceptance, by `KINDS`, of the draft's token, with logits q, where the target's logits are p."""
    ours, theirs = Distribution.of(p, settings).row, Distribution.of(q, settings).row
    same = choose(p, settings, draws)[0] == choose(q, settings, draws)[0]
    overlap = float(np.minimum(ours, theirs).sum())
    expected = coupled_agreement(ours, theirs)
    return dict(zip(KINDS, (float(same), expected, overlap, overlap / (2.0 - overlap)), strict=True))


def follow(
    target: VlmSession, draft: VlmSession, question: Question, settings: SamplingScheme, key: int, limit: int
) -> list[dict[str, float]]:
    """Return the acceptance at every token of the target's sample with `key`; the draft is fed that sample."""
    sample = list(target.sampled(question.prompt, question.jpeg, limit, settings, key))
    tokens = [token for token, _ in sample]
    draft.begin(question.prompt, question.jpeg)
    rows = [draft.root_logits(), *draft.extend(tokens[:-1], range(ROOT, len(tokens) - 2))]
    return [
        compare(logits, row, settings, StepDraws(key, position))
        for position, ((_, logits), row) in enumerate(zip(sample, rows, strict=True))
    ]


def exit_verdicts(
    engine: VlmEngine, question: Question, settings: SamplingScheme, key: int, limit: int
) -> list[ExitVerdict]:
    """Return the verdicts of all exits while the target samples alone."""
    found: list[ExitVerdict] = []
    rates = engine.model.reliability
    work.prefill_at_once(engine, 0, engine.prepare(question.prompt, question.jpeg), (), limit)
    for position in range(limit):
        row = work.Row(0, sampling=settings, draws=StepDraws(key, position))
        *early, last = engine.verify([row])
        token = last.verdicts[0].token
        verdicts = [(output.layer, output.verdicts[0]) for output in early if output.verdicts]
        for layer, verdict in verdicts:
            sure = rates[layer].rate(verdict.confidence) if layer in rates else verdict.confidence
            found.append((layer, verdict.token == token, sure))
        if token in engine.model.eos:
            break
        engine.keep(0, (), token)
    return found


def exit_figures(verdicts: Sequence[ExitVerdict]) -> dict[str, dict[str, float]]:
    """Return, for every exit layer, the share of verdicts that were right and the mean confidence."""
    found = {}
    for layer in sorted({layer for layer, _, _ in verdicts}):
        right, confidence = np.mean([verdict[1:] for verdict in verdicts if verdict[0] == layer], axis=0)
        found[str(layer)] = {"right": float(right), "confidence": float(confidence)}
    return found


def figures(frames: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    """Return the acceptance per token: over all tokens, and the least, median and largest mean of a frame."""
    found: dict[str, Any] = {"frames": len(frames), "tokens": sum(map(len, frames))}
    for kind in KINDS:
        by_frame = [[token[kind] for token in tokens] for tokens in frames]
        mean = float(np.mean(np.concatenate(by_frame)))
        found[kind] = {"mean": mean, **spread([float(np.mean(own)) for own in by_frame])}
    return found


def settings_asked(options: argparse.Namespace) -> list[SamplingScheme]:
    """Return the sampling settings to compare. Raises ValueError, naming the option."""
    try:
        temperatures = [float(word) for word in options.temperatures.split(",")]
    except ValueError:
        raise ValueError(f"--temperatures {options.temperatures!r}: give numbers, e.g. 0.7,1.0") from None
    found = [Coupled.of(temperature=each, top_k=options.top_k, top_p=options.top_p) for each in temperatures]
    if any(settings.greedy for settings in found):
        raise ValueError("--temperatures: 0 draws nothing; give 0.01 to 100")
    return found


def measure(options: argparse.Namespace, wanted: Sequence[SamplingScheme]) -> dict[str, Any]:
    """Return the figures of every setting, by its text: acceptance, and exits where the target has some."""
    draft = VlmSession(load_vlm(options.draft_model, dtype=options.dtype), CAPACITY)
    target = VlmSession(load_vlm(options.target_model, dtype=options.dtype), CAPACITY)
    if target.vlm.tokenizer_fingerprint != draft.vlm.tokenizer_fingerprint:
        raise ValueError(f"draft {draft.vlm.name} and target {target.vlm.name} do not share one tokenizer")
    asked = asked_of(options, options.steps)
    exits = find_exits(ServerConfig.of(options.target_model), target.vlm)
    engine = VlmEngine(target.vlm, 1, CAPACITY, exits)
    accepted: dict[str, list[list[dict[str, float]]]] = {settings.text: [] for settings in wanted}
    verdicts: dict[str, list[ExitVerdict]] = {settings.text: [] for settings in (GREEDY, *wanted)}
    for number, question in enumerate(progress(asked, unit="frame")):
        key = question_key(options.seed, number)
        for settings in wanted:
            accepted[settings.text].append(follow(target, draft, question, settings, key, options.max_tokens))
        for settings in (GREEDY, *wanted) if exits is not None else ():
            verdicts[settings.text] += exit_verdicts(engine, question, settings, key, options.max_tokens)
    return {
        "acceptance": {text: figures(frames) for text, frames in accepted.items()},
        "exits": {text: exit_figures(each) for text, each in verdicts.items() if each},
    }


def exits_table(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Return a table of the exits: right, and how confident, by layer."""
    layers = list(next(iter(found.values())))
    rows = {
        text: {layer: f"{100 * each['right']:.0f} ({100 * each['confidence']:.0f})" for layer, each in entry.items()}
        for text, entry in found.items()
    }
    return figures_table("exits: right (confidence), %", rows, [Column(f"layer {layer}", layer) for layer in layers])


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command.experiment_line("benchmarks.coupling", __doc__, 40, journal=False)
    line.add_argument("--temperatures", default="0.7,1.0", help="temperatures, comma-separated (default: 0.7,1.0)")
    line.add_argument("--top-k", type=int, default=0, help="0: all tokens (default)")
    line.add_argument("--top-p", type=float, default=1.0, help="1: all tokens (default)")
    return line


def run(options: argparse.Namespace) -> None:
    """Run the comparison. Raises ValueError or RuntimeError, in one sentence, where it cannot."""
    found = measure(options, settings_asked(options))
    tokens = ", ".join(f"{entry['tokens']} at {text}" for text, entry in found["acceptance"].items())
    rows = {f"{text}: {KINDS[kind]}": entry[kind] for text, entry in found["acceptance"].items() for kind in KINDS}
    print(f"{command.described(options)}; tokens of the target's own samples: {tokens}")
    print(figures_table("acceptance per token", rows, COLUMNS))
    if found["exits"]:
        print(exits_table(found["exits"]))
    command.finish(options, "coupling", found)


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
