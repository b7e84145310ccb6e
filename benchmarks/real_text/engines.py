"""Draft engines on the same weights: llama.cpp on a GGUF file beside torch in bfloat16 and in float32, one thread.

    python -m benchmarks.real_text engines --out out/smollm2 --save     # behind its stages target and corpus

Each engine drafts for the target over real sockets, in mode `sd`, and chooses a token behind every token of those
answers. Then all of them compute, round by round and in an order that is shuffled, one token and a tree of five, so
that whatever else the machine does falls on all alike. What is timed is the robot's own classes.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from adapters_training.exit_choice.timing import WARM_UP, Clock, Timer
from edge_drafter import Mode
from edge_drafter.draft_models import draft_session, load_draft
from edge_drafter.protocols import DraftModel
from speculation.vlm.folder import gguf_files
from speculation.vlm.model import Vlm
from speculation.wire import ROOT
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.questions import warmed_up
from vlm_nav_evaluation.experiment.run import WARM_UP as FIRST_ANSWERS
from vlm_nav_evaluation.experiment.run import Arm, Question, Run
from vlm_nav_evaluation.experiment.sockets import edge_config, sockets
from vlm_nav_evaluation.figures import median_interval, spread
from vlm_nav_evaluation.options import add_save
from vlm_nav_evaluation.tables import MS, Column, figures_table

LLAMA_CPP, BFLOAT16, FLOAT32 = "llama.cpp", "torch bfloat16", "torch float32"
TREE = (ROOT, 0, 0, 1, 2)
"""The parents of five tokens: two branches of two behind a first one."""
TOKEN_BAR, TREE_BAR = 0.25, 5.0
"""What llama.cpp takes at most: a token in those of torch bfloat16, a tree of five in its own tokens."""
COLUMNS = (
    Column("a token, ms", "token_s", ".1f", MS),
    Column("a tree of five, ms", "tree_s", ".1f", MS),
    Column("tree / token (95 %)", "tree_in_tokens", ".2f"),
    Column("token / torch bfloat16's (95 %)", "token_in_bfloat16", ".3f"),
    Column("chooses the target's token", "agreement", ".1%"),
    Column("drafted tokens right", "acceptance", ".1%"),
    Column("tau", "tau"),
)


def engines(options: argparse.Namespace) -> list[Arm]:
    """Return every engine as an arm: the draft model and what it computes in."""
    models = {
        LLAMA_CPP: (options.draft_model, options.dtype),
        BFLOAT16: (options.target_model, "bfloat16"),
        FLOAT32: (options.target_model, "float32"),
    }
    return [Arm(name, Mode.SD.value, {"draft_model": model, "dtype": dtype}) for name, (model, dtype) in models.items()]


def agreement(draft: DraftModel, asked: Sequence[Question], answers: Sequence[Sequence[int]]) -> float:
    """Return how often the draft's first choice behind the tokens of an answer is the answer's next one."""
    right = 0
    for question, tokens in zip(asked, answers, strict=True):
        draft.begin(question.prompt, question.jpeg)
        rows = [draft.root_logits(), *draft.extend(tokens[:-1], range(ROOT, len(tokens) - 2))]
        right += sum(int(row.argmax()) == token for row, token in zip(rows, tokens, strict=True))
    return right / sum(map(len, answers))


def time_rounds(
    drafts: Mapping[str, DraftModel], prompt: str, vocabulary: int, timer: Timer, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Return, by draft, the seconds of one token and of a tree of five behind it, round by round.

    Every round goes on behind one more token.
    """
    dice = random.Random(0)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in drafts}
    for draft in drafts.values():
        draft.begin(prompt, b"")
    for _ in range(WARM_UP + rounds):
        # The token that is committed is none of the tree: what was fed would not be computed again.
        *tree, token = dice.sample(range(vocabulary), len(TREE) + 1)
        for name in dice.sample(list(drafts), len(drafts)):
            began = timer.now()
            drafts[name].root_logits()
            between = timer.now()
            drafts[name].extend(tree, TREE)
            ended = timer.now()
            found[name].append((between - began, ended - between))
            drafts[name].commit((), token)
    return {name: times[WARM_UP:] for name, times in found.items()}


def figures_of(times: Mapping[str, Sequence[tuple[float, float]]], run: Run) -> dict[str, dict[str, Any]]:
    """Return every engine's figures; ratios are taken round by round, (lower end, median, upper end)."""
    answered = run.figures()
    beside = [token for token, _ in times[BFLOAT16]]
    return {
        name: {
            "token_s": spread([token for token, _ in rounds]),
            "tree_s": spread([tree for _, tree in rounds]),
            "tree_in_tokens": median_interval([tree / token for token, tree in rounds]),
            "token_in_bfloat16": median_interval([one / other for (one, _), other in zip(rounds, beside, strict=True)]),
            **{figure: answered[name][figure] for figure in ("tau", "acceptance", "tokens")},
        }
        for name, rounds in times.items()
    }


def bar_lines(found: Mapping[str, Any]) -> str:
    """Return whether llama.cpp's figures are within the bars, in words."""
    bars = (
        ("a token, in those of torch bfloat16", found["token_in_bfloat16"][1], TOKEN_BAR),
        ("a tree of five, in its own tokens", found["tree_in_tokens"][1], TREE_BAR),
    )
    return "\n".join(
        f"{LLAMA_CPP}, {what}: {value:.3f}, {'met' if value <= bar else 'NOT met'} (at most {bar:g})"
        for what, value, bar in bars
    )


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command.experiment_line("benchmarks.real_text.engines", __doc__, 40, ("capacity",))
    line.set_defaults(frames="text")
    line.add_argument("--rounds", type=int, default=100, help="how often each engine is timed (default: 100)")
    add_save(line)
    return line


def run(options: argparse.Namespace) -> None:
    """Measure and report. Raises ValueError or RuntimeError, in one sentence, for what cannot be done."""
    if gguf_files(options.draft_model) is None:
        raise ValueError(
            f"--draft-model {options.draft_model} is no GGUF file; give the one that the target is made of"
        )
    arms = engines(options)
    warm_up, asked = warmed_up(options, options.steps, FIRST_ANSWERS)
    with sockets(options, [Mode.SD.value]) as edges:
        measured = edges.run(arms, asked, warm_up)
    configs = {arm.name: edge_config(options, **arm.changes) for arm in arms}
    loaded = {name: load_draft(config.draft_model, config.draft) for name, config in configs.items()}
    drafts = {name: draft_session(each, options.capacity) for name, each in loaded.items()}
    target = loaded[FLOAT32]
    assert isinstance(target, Vlm)
    timer = Timer(target)
    times = time_rounds(drafts, asked[0].prompt, target.vocabulary, timer, options.rounds)
    found = figures_of(times, measured)
    answers = [answer.tokens for answer in measured.answers[FLOAT32]]
    for name, draft in drafts.items():
        found[name]["agreement"] = agreement(draft, asked, answers)
    print(
        f"{command.described(options)}, sd with gamma 4, {sum(map(len, answers))} tokens of the target; "
        f"{measured.different} answers are not the same with every engine; {options.rounds} rounds, "
        f"{'processor time' if timer.clock is Clock.PROCESSOR else 'wall time'}"
    )
    print(figures_table("engine", found, COLUMNS))
    print(bar_lines(found[LLAMA_CPP]))
    bars = {"token_in_bfloat16": TOKEN_BAR, "tree_in_tokens": TREE_BAR}
    command.finish(options, "draft_engines", {"clock": timer.clock.value, "bars": bars, "figures": found}, measured)


main = partial(command.main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
