"""What a grammar over answers costs and saves: readable answers, tokens per verification, passes per token.

    python -m benchmarks.answers --steps 24 --save

The same frames are answered free, constrained, and constrained with the text that the grammar has settled drafted and
verified without a forward for it (`forced`, docs/decoding.md). Counts only: they do not depend on the machine's speed.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

from edge_drafter import DecodingStats, Mode
from speculation.grammar import CONSTRAINED, FREE
from speculation.prompts import parse_answer
from speculation.vlm.load import load_vlm
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.questions import asked_of
from vlm_nav_evaluation.experiment.run import Answer, Arm, Question
from vlm_nav_evaluation.experiment.sockets import sockets
from vlm_nav_evaluation.tables import Column, figures_table

MODES = [mode.value for mode in Mode if mode is not Mode.EDGE]
CHOSEN = (Mode.CLOUD.value, Mode.SD.value, Mode.FULL.value)
SETTLED_OFF = "constrained, forced off"
COLUMNS = (
    Column("readable", "readable", ".0%"),
    Column("as free", "as_free", ".0%"),
    Column("tokens/answer", "tokens", ".1f"),
    Column("tokens/verification", "tau"),
    Column("passes/token", "passes_per_token", ".3f"),
    Column("draft forwards/token", "forwards_per_token", ".3f"),
)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    return command.experiment_line(
        "benchmarks.answers", __doc__, 24, modes=MODES, chosen=CHOSEN, drafting=True, journal=False
    )


def run(options: argparse.Namespace) -> int:
    """Measure and print. Returns 1 where constrained answers differ between modes, or one is not readable."""
    asked = asked_of(options, options.steps)
    tokenizer = load_vlm(options.target_model, dtype=options.dtype).tokenizer
    figures: dict[str, dict[str, Any]] = {}
    answers: dict[str, list[Answer]] = {}
    wrong = 0
    for kinds, flags in (((FREE, CONSTRAINED), ()), ((SETTLED_OFF,), ("--forced-tokens", "0"))):
        arms: list[Arm[Question]] = [
            Arm(f"{mode}, {kind}", mode, changes(kind, options.drafting), exact=kind != FREE)
            for kind in kinds
            for mode in options.modes
        ]
        with sockets(options, options.modes, *flags) as edges:
            measured = edges.run(arms, asked)
        wrong += measured.different
        answers |= {name: list(each) for name, each in measured.answers.items()}
    for mode in options.modes:
        free = answers[f"{mode}, {FREE}"]
        pairs = zip(answers[f"{mode}, {CONSTRAINED}"], answers[f"{mode}, {SETTLED_OFF}"], strict=True)
        wrong += sum(one.tokens != other.tokens for one, other in pairs)
        for kind in (FREE, SETTLED_OFF, CONSTRAINED):
            found = answers[f"{mode}, {kind}"]
            texts = [tokenizer.decode(list(answer.tokens), skip_special_tokens=True) for answer in found]
            readable = [not parse_answer(text).problem for text in texts]
            wrong += kind != FREE and not all(readable)
            figures[f"{mode}, {kind}"] = {
                "readable": sum(readable) / len(readable),
                "as_free": sum(a.tokens == b.tokens for a, b in zip(found, free, strict=True)) / len(free),
                **counts([answer.stats for answer in found]),
            }
    print(f"{command.described(options)}\n\n{figures_table('mode, answers', figures, COLUMNS)}\n")
    print(f"constrained answers that differ between modes, or are not readable: {wrong}")
    command.finish(options, "answers", {"figures": figures})
    return 1 if wrong else 0


def changes(kind: str, drafting: str) -> dict[str, str]:
    """Return the edge's settings of one kind of answers."""
    if kind != SETTLED_OFF:
        return {"answers": kind}
    return {"answers": CONSTRAINED, "drafting": ",".join(filter(None, (drafting, "forced=off")))}


def counts(stats: list[DecodingStats]) -> dict[str, float]:
    """Return what was counted over all answers of an arm."""
    tokens, passes = sum(each.tokens for each in stats), sum(each.cloud_passes for each in stats)
    return {
        "tokens": tokens / len(stats),
        "tau": tokens / passes,
        "passes_per_token": passes / tokens,
        "forwards_per_token": sum(each.draft_forwards for each in stats) / tokens,
    }


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
