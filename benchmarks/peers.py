"""Peers in the same run: transformers' `generate`, assisted generation and prompt lookup beside this system, RTT 0.

One pair, the same frames, turns taken frame by frame, raw times of this machine from prompt and JPEG to the last token.
The peers run in this process; this system runs as it does on a robot, over real sockets to a verifier process.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
import transformers
from matplotlib.figure import Figure
from tqdm import tqdm

from benchmarks.exactness import LIMITS, Flip, first_flip
from benchmarks.generation import Answer, Assisted, Generate, check_alike
from edge_drafter import Mode
from edge_drafter.decoder import EdgeConfig, EdgeDecoder
from edge_drafter.reply import AnswerLate, VerifierLost
from evaluation.experiment.command import result_name, settings_of, write_result
from evaluation.experiment.questions import add_questions, check_prompts, in_words, text_flags, warmed_up
from evaluation.experiment.run import Question
from evaluation.figures import median_interval, spread
from evaluation.plots import COLOURS, WIDTH, add_outputs, keep, plain
from evaluation.setting import (
    CONNECT_LIMIT_S,
    SILENCE_S,
    add_drafting,
    add_pair,
    add_predictor,
    drafted_as,
    machine,
    verifier,
)
from evaluation.tables import table
from speculation.vlm.load import Vlm, load_vlm
from speculation.vlm.processing import IMAGE_PLACE
from speculation.vlm.session import VlmSession

STEPS, QUICK_STEPS = 60, 2
WARM_UP = 2
CAPACITY = 2048
LOOKUP_TOKENS = 10
"""Tokens that prompt lookup proposes at once: the default of transformers' own candidate generator."""

GREEDY = "generate"
ASSISTED, SIGHTED, FIXED = "assisted, as shipped", "assisted, with sight", "assisted, with sight, fixed gamma"
FIXED_WORDS = "assisted, fixed gamma"
LOOKUP, LOOKUP_WORDS = "prompt lookup", "prompt lookup, words alone"
ALONE = "own loop, target alone"
IMAGE_TOKENS = ("<|vision_start|>", "<|vision_end|>", IMAGE_PLACE)
OURS = (Mode.CLOUD.value, Mode.SD.value, Mode.FULL.value)
FORGETFUL = "full, earlier answers off"
"""No peer remembers what it said about the frames before; the last few answers propose tokens in `full`."""
PEER_COLOUR, ALONE_COLOUR = "#bab0ac", "#79706e"

Arm = Callable[[Question], Answer]


@dataclass(frozen=True)
class Run:
    """What was measured: the answers of every arm, how they leave the target's, and what was refused, in its words."""

    answers: Mapping[str, Sequence[Answer]]
    flips: Sequence[Flip]
    refused: Mapping[str, str]


class TargetAlone:
    """This project's own greedy loop over the target, in this process: what every other answer is compared with."""

    def __init__(self, target: Vlm, max_tokens: int) -> None:
        self._session = VlmSession(target, CAPACITY)
        self._max_tokens = max_tokens
        self.rows: list[np.ndarray] = []

    def __call__(self, question: Question) -> Answer:
        """Answer one question; `rows` then holds the logits that each token was taken from."""
        began = time.perf_counter()
        said = list(self._session.greedy(question.prompt, question.jpeg, self._max_tokens))
        seconds = time.perf_counter() - began
        self.rows = [logits for _, logits in said]
        return Answer(tuple(token for token, _ in said), seconds, len(said) + 1, len(said))


def over_sockets(edge: EdgeDecoder, mode: str) -> Arm:
    """Return the arm of this system in `mode`; the verifier's prefill counts as one forward of the target."""

    def ask(question: Question) -> Answer:
        began = time.perf_counter()
        result = edge.decode(question.prompt, question.jpeg, mode=mode)
        stats = result.stats
        return Answer(result.tokens, time.perf_counter() - began, stats.cloud_passes + 1, stats.rounds)

    return ask


def peers_of(target: Vlm, draft: Vlm, max_tokens: int, gamma: int | str) -> dict[str, Arm]:
    """Return transformers' arms; what is there for images' sake alone is left out of a pair of language models.

    Prompt lookup may propose the image's placeholders, which transformers then takes for a second image and refuses;
    with `suppress_tokens` they are barred, as its own option, and no answer has them anyway.
    """
    # As many tokens a round as ours, always all of them: what the dynamic end of drafts, its default, costs or brings.
    fixed = {
        "num_assistant_tokens": gamma if isinstance(gamma, int) else 4,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    arms: dict[str, Arm] = {
        GREEDY: Generate(target, max_tokens),
        LOOKUP: Generate(target, max_tokens, prompt_lookup_num_tokens=LOOKUP_TOKENS),
        ASSISTED: Assisted(target, draft, max_tokens, sight=False),
    }
    if target.sees_images:
        barred = target.tokenizer.convert_tokens_to_ids(list(IMAGE_TOKENS))
        arms[LOOKUP_WORDS] = Generate(
            target, max_tokens, prompt_lookup_num_tokens=LOOKUP_TOKENS, suppress_tokens=barred
        )
        arms[SIGHTED] = Assisted(target, draft, max_tokens, sight=True)
    arms[FIXED if target.sees_images else FIXED_WORDS] = Assisted(target, draft, max_tokens, sight=True, **fixed)
    return arms


def measure(
    peers: Mapping[str, Arm],
    alone: TargetAlone,
    ours: Mapping[str, Arm],
    asked: Sequence[Question],
    warm_up: Sequence[Question] = (),
) -> Run:
    """Let all arms answer every question, in rotating order, after those of `warm_up`, which are not kept.

    A peer that refuses a question with ValueError is left out, with its words.
    """
    arms: dict[str, Arm] = {**peers, ALONE: alone, **ours}
    names = list(arms)
    answers: dict[str, list[Answer]] = {name: [] for name in names}
    flips: list[Flip] = []
    refused: dict[str, str] = {}

    def ask(name: str, question: Question) -> None:
        try:
            answers[name].append(arms[name](question))
        except ValueError as error:
            if name not in peers:
                raise
            refused[name] = " ".join(str(error).split())

    for name, question in product(names, warm_up):
        ask(name, question)
    for said in answers.values():
        said.clear()
    for index, question in enumerate(tqdm(asked, unit="frame", disable=None)):
        turn = index % len(names)
        present = [name for name in [*names[turn:], *names[:turn]] if name not in refused]
        for name in present:
            ask(name, question)
        truth = answers[ALONE][-1].tokens
        for name in present:
            flip = first_flip(index, name, truth, alone.rows, answers[name][-1].tokens) if name not in refused else None
            flips += [flip] if flip is not None else []
    kept = {name: said for name, said in answers.items() if name not in refused}
    return Run(kept, [flip for flip in flips if flip.mode in kept], refused)


def figures_of(run: Run) -> dict[str, dict[str, Any]]:
    """Return the figures of every arm: rates are totals over totals, ratios are `generate`'s time over the arm's."""
    figures: dict[str, dict[str, Any]] = {}
    base = [answer.seconds for answer in run.answers.get(GREEDY, ())]
    for name, answers in run.answers.items():
        seconds = [answer.seconds for answer in answers]
        tokens = sum(len(answer.tokens) for answer in answers)
        margins = [flip.margin for flip in run.flips if flip.mode == name]
        figures[name] = {
            "total_s": spread(seconds),
            "tokens": tokens,
            "tokens_per_s": tokens / sum(seconds),
            "tau": tokens / sum(answer.rounds for answer in answers),
            "forwards_per_token": sum(answer.forwards for answer in answers) / tokens,
            "ratio_low_median_high": (
                median_interval([a / b for a, b in zip(base, seconds, strict=True)]) if base else None
            ),
            "frames_other_than_target": len(margins),
            "largest_margin": max(margins, default=None),
        }
    return figures


def report(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table, a row an arm."""
    header = ("arm", "min ms", "median ms", "max ms", "tokens/s", "tau", "forwards/token", "faster (95 %)", "other")
    rows = []
    for name, entry in figures.items():
        ratio = entry["ratio_low_median_high"]
        rows.append(
            (
                name,
                *(f"{1e3 * entry['total_s'][each]:.0f}" for each in ("min", "median", "max")),
                f"{entry['tokens_per_s']:.0f}",
                f"{entry['tau']:.2f}",
                f"{entry['forwards_per_token']:.2f}",
                "-" if ratio is None else f"{ratio[1]:.2f}x ({ratio[0]:.2f}-{ratio[2]:.2f})",
                str(entry["frames_other_than_target"]),
            )
        )
    return table(header, rows)


def draw(figures: Mapping[str, Mapping[str, Any]], title: str) -> Figure:
    """Return one bar an arm: the median step, a whisker from the fastest to the slowest, the ratio to `generate`."""
    names = list(figures)
    spreads = [{key: 1e3 * value for key, value in figures[name]["total_s"].items()} for name in names]
    medians = np.array([each["median"] for each in spreads])
    ends = np.array([[each["median"] - each["min"], each["max"] - each["median"]] for each in spreads]).T
    own = {**COLOURS, ALONE: ALONE_COLOUR, FORGETFUL: COLOURS[Mode.FULL.value]}
    colours = [own.get(name, PEER_COLOUR) for name in names]
    figure = Figure(figsize=(WIDTH, 1.5 + 0.42 * len(names)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh(range(len(names)), medians, 0.66, color=colours, xerr=ends, ecolor="#333333", capsize=2)
    for row, name in enumerate(names):
        entry = figures[name]
        ratio = entry["ratio_low_median_high"]
        told = f"{medians[row]:.0f} ms" + (f", {ratio[1]:.2f}x" if ratio is not None and name != GREEDY else "")
        axes.text(1.01, row, told, va="center", fontsize=10, transform=axes.get_yaxis_transform())
    axes.set_yticks(range(len(names)), [_label(name) for name in names])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    plain(axes, "x")
    axes.set_xlabel("ms per step: median, whiskers to the fastest and the slowest (1.5x: faster than generate)")
    axes.set_title(title, fontsize=11)
    return figure


def _label(name: str) -> str:
    ours = name in (ALONE, FORGETFUL, *OURS)
    return f"this project: {'target alone' if name == ALONE else name}" if ours else f"transformers: {name}"


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=(__doc__ or "").splitlines()[0])
    add_pair(line)
    line.add_argument("--steps", type=int, help=f"frames, each answered by every arm, after {WARM_UP} more "
                      f"that warm up (default: {STEPS})")  # fmt: skip
    line.add_argument("--threads", type=int, default=1, help="CPU threads of each model's process (default: 1)")
    add_drafting(line)
    add_predictor(line)
    add_questions(line)
    add_outputs(line)
    return line


@contextmanager
def system(options: argparse.Namespace, draft: Vlm) -> Iterator[dict[str, Arm]]:
    """Yield the arms of this system, against a verifier process of its own. Raises as `EdgeDecoder.decode`."""
    text_only = in_words(options.frames)
    flags = ["--dtype", options.dtype, "--threads", str(options.threads), *text_flags(text_only)]
    with verifier(options.target_model, *flags) as address:
        config = EdgeConfig(
            options.draft_model, address, gamma=options.gamma, drafting=options.drafting, threads=options.threads,
            max_tokens=options.max_tokens, dtype=options.dtype, text_only=text_only, predictor=options.predictor,
            silence_s=SILENCE_S, resume_s=CONNECT_LIMIT_S, rtt_s=0.0,
        )  # fmt: skip
        forgets = replace(config, drafting=",".join(filter(None, (options.drafting, "ngrams=off"))))
        edges = [EdgeDecoder(each, vlm=draft) for each in (config, forgets)]
        try:
            yield {
                **{mode: over_sockets(edges[0], mode) for mode in OURS},
                FORGETFUL: over_sockets(edges[1], Mode.FULL.value),
            }
        finally:
            for edge in edges:
                edge.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison. Returns 0, 1 where an answer of ours is not the target's, 2 after one sentence on stderr."""
    options = parser().parse_args(arguments)
    options.steps = options.steps if options.steps is not None else QUICK_STEPS if options.quick else STEPS
    try:
        if options.steps < 1 or options.threads < 1:
            raise ValueError(f"--steps {options.steps}, --threads {options.threads}: give at least 1")
        quiet()
        target, draft = (
            load_vlm(folder, dtype=options.dtype, threads=options.threads)
            for folder in (options.target_model, options.draft_model)
        )
        warm_up, asked = warmed_up(options, options.steps, WARM_UP)
        check_prompts(target, [*warm_up, *asked], options.max_tokens)
        check_alike(target, draft, asked[0])
        with system(options, draft) as ours:
            peers = peers_of(target, draft, options.max_tokens, options.gamma)
            run = measure(peers, TargetAlone(target, options.max_tokens), ours, asked, warm_up)
    except (ValueError, RuntimeError, VerifierLost, AnswerLate) as error:
        print(f"peers: {error}", file=sys.stderr)
        return 2
    figures = figures_of(run)
    tell(options, run, figures)
    finish(options, run, figures)
    limit = LIMITS.get(options.dtype)
    wrong = [
        flip for flip in run.flips if limit is not None and flip.mode in (FORGETFUL, *OURS) and not flip.margin <= limit
    ]
    return 1 if wrong else 0


def quiet() -> None:
    """Keep transformers' hints, one a step, and its progress bars out of the table."""
    logs: Any = transformers.logging
    logs.set_verbosity_error()
    logs.disable_progress_bar()


def tell(options: argparse.Namespace, run: Run, figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the table with all that it was measured under."""
    print(
        f"{options.steps} frames ({options.frames}), {options.dtype}, transformers {transformers.__version__}, "
        f"{drafted_as(options)}; nothing declared, nothing waited for, round trip 0 on loopback"
    )
    print(
        f"{torch.get_num_threads()} thread(s) in each process: the peers are one process, cloud, sd and full are two "
        "(edge and verifier), which may work at the same time"
    )
    print(report(figures))
    print(f"other: frames whose tokens are not those of '{ALONE}', in {options.dtype}; faster: than '{GREEDY}'")
    for flip in run.flips:
        print(f"{flip.mode}: frame {flip.frame} leaves at token {flip.position}, margin {flip.margin:.2g}")
    for name, why in run.refused.items():
        print(f"{name}: left out, transformers fails: {why}")
    print(machine())


def finish(options: argparse.Namespace, run: Run, figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw, and write the figures and how long every step took where asked."""
    name = result_name("peers", options.frames)
    keep(draw(figures, f"A step at round trip 0, {options.steps} frames, raw times of this machine"), name, options)
    if options.save:
        data = {
            "settings": settings_of(options, "save", "out"),
            "machine": machine(),
            "transformers": transformers.__version__,
            "figures": figures,
            "flips": [asdict(flip) for flip in run.flips],
            "refused": dict(run.refused),
            "step_s": {arm: [round(each.seconds, 4) for each in answers] for arm, answers in run.answers.items()},
        }
        write_result(f"{name}_{options.dtype}", data)


if __name__ == "__main__":
    sys.exit(main())
