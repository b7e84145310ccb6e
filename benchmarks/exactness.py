"""Are the modes' tokens the target's own? On held-out frames, through real sockets, against the target decoding alone.

In float64 they must be. In float32 a kernel rounds differently for one token and for five, so a near tie may flip: each
flip is shown with its margin, the target's logit for its own token less that for the mode's. Above 1e-4 it is a bug.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from edge_drafter import Mode
from edge_drafter.decoder import EdgeConfig, EdgeDecoder
from edge_drafter.reply import AnswerLate, VerifierLost
from evaluation.experiment.command import add_save, result_name, settings_of, write_result
from evaluation.experiment.questions import add_questions, asked_as, check_prompts, in_words, questions, text_flags
from evaluation.experiment.run import Question
from evaluation.setting import CONNECT_LIMIT_S, add_drafting, add_pair, draft_flags, drafted_as, machine, verifier
from speculation.vlm.load import load_vlm
from speculation.vlm.session import VlmSession

MODES = tuple(mode.value for mode in Mode if mode is not Mode.EDGE)
LIMITS = {"float64": 0.0, "float32": 1e-4}


@dataclass(frozen=True)
class Flip:
    """The first token of an answer that differs; `margin` in the target's own logits."""

    frame: int
    mode: str
    position: int
    margin: float


def first_flip(
    frame: int, mode: str, truth: Sequence[int], rows: Sequence[npt.NDArray[np.floating]], tokens: Sequence[int]
) -> Flip | None:
    """Return where `tokens` leave `truth`; None where they do not. A missing or added token has an infinite margin."""
    for position, (own, other) in enumerate(zip(truth, tokens, strict=False)):
        if own != other:
            return Flip(frame, mode, position, float(rows[position][own] - rows[position][other]))
    if len(truth) != len(tokens):
        return Flip(frame, mode, min(len(truth), len(tokens)), float("inf"))
    return None


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(prog="python -m benchmarks.exactness", description=(__doc__ or "").splitlines()[0])
    add_pair(line)
    line.add_argument("--steps", type=int, default=200, help="frames (default: 200)")
    add_drafting(line)
    add_questions(line, dtype="float64")
    add_save(line)
    return line


def compare(options: argparse.Namespace, asked: Sequence[Question]) -> tuple[int, list[Flip]]:
    """Return how many tokens the target alone said, and the flips of all modes."""
    session = VlmSession(load_vlm(options.target_model, dtype=options.dtype), 2048)
    check_prompts(session.vlm, asked, options.max_tokens)
    flips: list[Flip] = []
    count = 0
    flags = ["--dtype", options.dtype, *text_flags(in_words(options.frames)), *draft_flags(MODES, options.draft_model)]
    with verifier(options.target_model, *flags) as address:
        edge = EdgeDecoder(
            EdgeConfig(
                options.draft_model,
                address,
                gamma=options.gamma,
                drafting=options.drafting,
                max_tokens=options.max_tokens,
                dtype=options.dtype,
                text_only=in_words(options.frames),
                resume_s=CONNECT_LIMIT_S,
            )
        )
        try:
            for frame, question in enumerate(tqdm(asked, unit="frame", disable=None)):
                alone = list(session.greedy(question.prompt, question.jpeg, options.max_tokens))
                truth, rows = [token for token, _ in alone], [logits for _, logits in alone]
                count += len(truth)
                for mode in MODES:
                    tokens = edge.decode(question.prompt, question.jpeg, mode=mode).tokens
                    flip = first_flip(frame, mode, truth, rows, tokens)
                    if flip is not None:
                        flips.append(flip)
        finally:
            edge.close()
    return count, flips


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison. Returns the exit code: 0, 1 for a flip that is no near tie, 2 if it could not run."""
    options = parser().parse_args(arguments)
    try:
        if options.steps < 1:
            raise ValueError(f"--steps {options.steps}: give at least 1")
        count, flips = compare(options, questions(options.frames, options.steps, options.seed, *asked_as(options)))
    except (ValueError, RuntimeError, VerifierLost, AnswerLate) as error:
        print(f"exactness: {error}", file=sys.stderr)
        return 2
    limit = LIMITS.get(options.dtype)
    bugs = [flip for flip in flips if limit is not None and not flip.margin <= limit]
    print(
        f"{options.steps} frames ({options.frames}), {count} tokens of the target alone, {options.dtype}, "
        f"{drafted_as(options)}"
    )
    for mode in MODES:
        margins = sorted(flip.margin for flip in flips if flip.mode == mode)
        shown = f", margins {', '.join(f'{margin:.2g}' for margin in margins[:10])}" if margins else ""
        print(f"{mode:9s} identical on {options.steps - len(margins)} of {options.steps}{shown}")
    if limit is not None:
        print(f"flips above the limit of {limit:g} for {options.dtype}: {len(bugs)}")
    print(machine())
    if options.save:
        data = {
            "settings": settings_of(options, "save"),
            "machine": machine(),
            "tokens": count,
            "flips": [asdict(flip) for flip in flips],
        }
        write_result(f"{result_name('exactness', options.frames)}_{options.dtype}", data)
    return 1 if bugs else 0


if __name__ == "__main__":
    sys.exit(main())
