"""Every way to decode, timed on the same prompts in turns: transformers' own, and this system's over real sockets."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
import transformers

from benchmarks import peers
from benchmarks.real_text.setup import Setup
from edge_drafter import Mode
from vlm_nav_evaluation.experiment import command
from vlm_nav_evaluation.experiment.alone import TargetAlone, bugs
from vlm_nav_evaluation.experiment.questions import warmed_up
from vlm_nav_evaluation.experiment.run import WARM_UP, Arm, Question
from vlm_nav_evaluation.experiment.sockets import modes_as_arms, sockets
from vlm_nav_evaluation.results import provenance

DISTILLED, FED = "distilled draft", "fed head"
CLOUD, SD, FSD, FULL = (mode.value for mode in (Mode.CLOUD, Mode.SD, Mode.FSD, Mode.FULL))


def arms_of(setup: Setup, options: Any, target: Any, draft: Any, alone: TargetAlone) -> list[Arm[Question]]:
    """Return all that is compared; the distilled draft drafts where the fed head is not named."""
    sockets_arms = modes_as_arms((CLOUD, SD, FSD, FULL), rtt_s=0.0)
    sockets_arms.append(Arm(peers.FORGETFUL, FULL, {"rtt_s": 0.0, "drafting": "ngrams=off"}))
    sockets_arms.append(Arm(f"{SD}, {FED}", SD, {"rtt_s": 0.0, "fed_head": str(setup.fed_head.resolve())}))
    return [
        *peers.peers_of(target, draft, options.max_tokens, options.gamma),
        alone.arm(peers.ALONE),
        *sockets_arms,
    ]


def compare(setup: Setup) -> dict[str, Any]:
    """Return the figures of every arm on the prompts, and what they were measured with and on.

    Answers are kept in a journal, so that a killed comparison goes on. Raises ValueError where an answer of this system
    is not the target's, and as the models and prompts of another comparison do. Fewer prompts are the first of all; a
    longer comparison goes on with their answers.
    """
    options = peers.parser().parse_args([
        "--target-model", str(setup.target.resolve()), "--draft-model", str(setup.draft.resolve()),
        "--frames", f"text:{setup.prompts}", "--steps", str(setup.sizes.prompts),
        "--max-tokens", str(setup.sizes.max_tokens), "--journal", str(setup.out / "journal"),
    ])  # fmt: skip
    target, draft = peers.load_pair(options)
    warm_up, asked = warmed_up(options, options.steps, WARM_UP)
    asked = asked[: setup.timed or None]
    alone = TargetAlone(target, options.max_tokens)
    flags = ("--exits", str(setup.exits.resolve()), "--fed-head", str(setup.fed_head.resolve()))
    with sockets(options, (), "--max-sessions", str(peers.SESSIONS), *flags, vlm=draft) as edges:
        arms = arms_of(setup, options, target, draft, alone)
        measured = edges.run(arms, asked, warm_up, command.journal_of(options))
    flips = alone.flips(measured, asked, peers.ALONE)
    wrong = bugs(flips, options.dtype, [arm.name for arm in arms if arm.decode is None])
    if wrong:
        raise ValueError(
            f"{wrong[0].mode} leaves the target's answer to prompt {wrong[0].frame}, by {wrong[0].margin:.2g}"
        )
    return {
        **provenance(options),
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
        "prompts": len(asked),
        "max_tokens": options.max_tokens,
        "gamma": options.gamma,
        "dtype": options.dtype,
        "figures": peers.figures_of(measured, flips),
        "flips": [asdict(flip) for flip in flips],
        "refused": dict(measured.refused),
    }
